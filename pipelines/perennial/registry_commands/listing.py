"""Listing: registered models and versions, as text and as JSON, and why each was promoted."""

from collections.abc import Iterator

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Comparison, Interval, Verdict
from perennial.contracts.version_decisions import VersionDecision
from perennial.registry.version_files import ModelVersion
from perennial.registry_commands.catalogue import Catalogue, name_version, plain
from perennial.reports.text import counted
from perennial.reports.verdict_card import find_results
from perennial.runs import Home, RunRecord, step_records

UNREADABLE = "no verdict is recorded that this code can read"
EVENTS = {"promoted": "promoted", "rolled_back": "rolled back", "restored": "restored"}


def model_lines(catalogue: Catalogue) -> Iterator[str]:
    """Yield one line for each registered model."""
    names = catalogue.names()
    if not names:
        yield f"no model is registered in {catalogue.home.shown_tracking_uri}"
    for name in names:
        versions = catalogue.versions(name)
        records = catalogue.registry.champion_records(name)
        champion = f"unclear: {records.problem()}" if records.problem() else records.alias
        count = counted(len(versions), "version")
        yield f"{name:<24} {count:<13} champion: {champion or 'none yet'}"


def version_lines(catalogue: Catalogue, name: str, version: str = "") -> Iterator[str]:
    """Yield the versions of a model, oldest first, then the rejected challengers; or one version.

    Raises:
        PerennialError: the model or version is unknown.
    """
    versions = _chosen(catalogue, name, version)
    aliases = catalogue.registry.aliases(name)
    yield f"{name} in {catalogue.home.shown_tracking_uri}"
    yield from (f"  {line}" for line in champion_warnings(catalogue, name))
    for each in versions:
        own = sorted(alias for alias, at in aliases.items() if at == each.version)
        registered = f"registered {each.created_at:%Y-%m-%d %H:%M} UTC"
        yield f"  version {each.version:<5} {registered}  {' '.join(own)}".rstrip()
        for line in (*_quality(catalogue, each), *decision_lines(each)):
            yield f"    {line}"
    if version:
        return
    for run, verdict in find_rejected_runs(catalogue.home, name):
        yield f"  not registered  run {run.run_id}"
        why = f"rejected by the gate: {verdict.summary}" if verdict else UNREADABLE
        yield f"    {why}"


def models_record(catalogue: Catalogue) -> JsonValue:
    """Return every model with the numbers of its versions; `champion` is null before the first one.

    It is null, too, where the records of it contradict each other; `problem` describes how.
    """
    return [
        {
            "model": name,
            "versions": [version.version for version in catalogue.versions(name)],
            "champion": None if records.problem() else records.alias or None,
            **({"problem": records.problem()} if records.problem() else {}),
        }
        for name in catalogue.names()
        for records in [catalogue.registry.champion_records(name)]
    ]


def versions_record(catalogue: Catalogue, name: str, version: str = "") -> JsonValue:
    """Return the versions of a model, oldest first, and rejected challengers; or one version.

    Raises:
        PerennialError: the model or version is unknown.
    """
    return {
        "model": name,
        "warnings": [*champion_warnings(catalogue, name)],
        "versions": [
            _version_record(catalogue, each) for each in _chosen(catalogue, name, version)
        ],
        "turned_down": []
        if version
        else [
            {"run_id": run.run_id, "verdict": plain(verdict)}
            for run, verdict in find_rejected_runs(catalogue.home, name)
        ],
    }


def _chosen(catalogue: Catalogue, name: str, version: str) -> list[ModelVersion]:
    return [catalogue.find(f"{name}@{version}")] if version else catalogue.versions(name)


def champion_warnings(catalogue: Catalogue, name: str) -> list[str]:
    """Yield warnings about the champion's records: contradictions, or a move by hand."""
    records = catalogue.registry.champion_records(name)
    if records.problem():
        repair = f"`perennial models {name} --repair` proposes a repair"
        return [f"champion unclear: {records.problem()}", *records.lines(), repair]
    return [line for line in (records.moved_by_hand(), records.pending()) if line]


def find_decisions(version: ModelVersion) -> list[tuple[str, VersionDecision]]:
    """Return the decisions about a version with their events, in order of time."""
    found = [(event, VersionDecision.of(version.tags, event)) for event in EVENTS]
    return sorted(
        ((event, one) for event, one in found if one), key=lambda each: (each[1].at, each[0])
    )


def decision_lines(version: ModelVersion) -> list[str]:
    """Return the decisions about a version for people."""
    found = find_decisions(version)
    lines = [f"{EVENTS[event]} {one.at} UTC by {one.by}: {one.reason}" for event, one in found]
    if any(event == "promoted" for event, _ in found):
        return lines
    return [f"no recorded promotion: {version.description or 'why is not recorded'}", *lines]


def decision_records(version: ModelVersion) -> list[JsonValue]:
    """Return the decisions about a version as JSON values."""
    return [
        {"event": event, "at": one.at, "by": one.by, "reason": one.reason}
        for event, one in find_decisions(version)
    ]


def shown_comparison(comparison: Comparison, against: str) -> str:
    """Return one metric, with the improvement and its interval where there was a champion."""
    line = f"{comparison.metric} {comparison.challenger:.5g}"
    if comparison.improvement is None:
        return line
    return f"{line}  improvement on version {against}: {shown_interval(comparison.improvement)}"


def shown_interval(interval: Interval) -> str:
    """Return an estimate and its bounds."""
    return f"{interval.estimate:+.4g} [{interval.low:+.4g}, {interval.high:+.4g}]"


def _version_record(catalogue: Catalogue, version: ModelVersion) -> JsonValue:
    verdict, problem = _read_verdict(catalogue, version)
    return {
        **name_version(version, catalogue.aliases_of(version)),
        "decisions": decision_records(version),
        "verdict": plain(verdict),
        "problem": problem or None,
    }


def _read_verdict(catalogue: Catalogue, version: ModelVersion) -> tuple[Verdict | None, str]:
    """Return a version's verdict, and why it cannot be read, which must not hide the others."""
    try:
        return catalogue.version_record(version).verdict, ""
    except PerennialError as error:
        return None, error.problem


def _quality(catalogue: Catalogue, version: ModelVersion) -> list[str]:
    verdict, problem = _read_verdict(catalogue, version)
    if verdict is None:
        return [problem or UNREADABLE]
    return [shown_comparison(one, verdict.champion_version) for one in verdict.comparisons]


def find_rejected_runs(home: Home, name: str) -> Iterator[tuple[RunRecord, Verdict | None]]:
    """Runs on this machine whose challenger was not promoted; None for what cannot be read."""
    for run, verdict in find_judged_runs(home, name):
        if verdict is None or not verdict.promote:
            yield run, verdict


def find_judged_runs(home: Home, name: str) -> Iterator[tuple[RunRecord, Verdict | None]]:
    """Yield the runs of a model with their last verdict; None where it cannot be read."""
    for run in home.runs():
        records = step_records(home.folder(run.run_id)) if run.model == name else []
        if any(Verdict.document_name() in record.results for record in records):
            yield run, find_results(records, name, "succeeded").verdict
