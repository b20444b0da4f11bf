"""Explanation: the origin of a model version, as text, as JSON and as a page."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeAlias

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.contracts.lineage import Lineage
from perennial.contracts.section import flattened
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, describe_parts
from perennial.contracts.version_decisions import REPLACED_TAG
from perennial.registry_commands.catalogue import VersionRecord, name_version, plain
from perennial.registry_commands.comparison import LACKING, in_words
from perennial.registry_commands.listing import (
    decision_lines,
    decision_records,
    shown_comparison,
    shown_interval,
)
from perennial.reports.page import Page
from perennial.reports.text import counted

Values: TypeAlias = Sequence[tuple[str, str]]


def explanation_parts(version_record: VersionRecord) -> dict[str, Values]:
    """Return heading → named values, in the order in which people ask.

    Raises:
        PerennialError: it has no lineage: it was not registered by this code.
    """
    if version_record.lineage is None:
        raise PerennialError(
            f"{version_record.title} has no lineage that can be read",
            evidence=f"looked in {version_record.version.source}",
            action="it was registered by other means, or by another version of Perennial",
        )
    return {
        "Why it is here": [("decided", line) for line in decision_lines(version_record.version)],
        "Verdict of the gate": list(_verdict(version_record)),
        "Trigger": _trigger(version_record.lineage),
        "Code": list(_code(version_record.lineage, version_record.diff)),
        "Data": list(_data(version_record.lineage, version_record.snapshot)),
        "Training": list(_training(version_record.lineage, version_record.challenger)),
        "Sanity checks": _skeleton(version_record.skeleton),
        "Packages": list(version_record.lineage.packages.items()),
    }


def explanation_lines(version_record: VersionRecord) -> Iterator[str]:
    """Yield the explanation for a terminal."""
    yield version_record.title
    for heading, values in explanation_parts(version_record).items():
        yield from ("", heading)
        width = max((len(name) for name, _ in values), default=0)
        for name, value in values:
            yield f"  {name:<{width}}  {value}"


def write_explanation(version_record: VersionRecord, target: Path) -> None:
    """Write the explanation as one self-contained page, with contract and uncommitted changes."""
    parts, verdict = explanation_parts(version_record), version_record.verdict
    summary = verdict.summary if verdict else decision_lines(version_record.version)[0]
    page = Page(version_record.title, outcome="neutral", summary=summary)
    for heading, values in parts.items():
        page.heading(heading)
        page.table(("what", "recorded value"), values, caption=heading, is_named=False)
    if version_record.contract is not None:
        options = flattened(version_record.contract)
        text = "\n".join(f"{name} = {in_words(value)}" for name, value in sorted(options.items()))
        page.details("Contract", text)
    if version_record.diff:
        page.details("Uncommitted changes", version_record.diff.decode(errors="replace"))
    page.write(target)


def explanation_record(version_record: VersionRecord) -> JsonValue:
    """Return everything recorded about a version; null for what it lacks."""
    return {
        **name_version(version_record.version, version_record.aliases),
        "decisions": decision_records(version_record.version),
        "lineage": plain(version_record.lineage),
        "verdict": plain(version_record.verdict),
        "challenger": plain(version_record.challenger),
        "snapshot": plain(version_record.snapshot),
        "skeleton": plain(version_record.skeleton),
        "contract": version_record.contract,
        "uncommitted_diff": version_record.diff.decode(errors="replace"),
    }


def _verdict(version_record: VersionRecord) -> Iterator[tuple[str, str]]:
    verdict = version_record.verdict
    if verdict is None:
        yield "verdict", LACKING
        return
    yield "verdict", verdict.summary
    yield "compared with", _version_or(verdict.champion_version, "no champion: it was the first")
    # A later comparison, or a person, may have promoted it: the version's files stay as registered.
    replaced = version_record.version.tags.get(REPLACED_TAG)
    if replaced is not None and replaced != verdict.champion_version:
        champion = _version_or(replaced, "no champion")
        yield "note", f"it was promoted in place of {champion}, with which this does not compare it"
    yield (
        "measured on",
        f"{counted(verdict.test_rows, 'test row')}, {counted(verdict.test_blocks, 'block')}",
    )
    for comparison in verdict.comparisons:
        yield "metric", shown_comparison(comparison, verdict.champion_version)
    for reason in verdict.reasons:
        yield "held" if reason.held else "not held", f"{reason.condition}: {reason.detail}"
    for one in verdict.slices:
        word = "regressed" if one.regressed else "not worse"
        yield "slice", f"{one.title}: {shown_interval(one.improvement)}, {word}"
    for note in verdict.notes:
        yield "note", note


def _trigger(lineage: Lineage) -> list[tuple[str, str]]:
    found = flattened(lineage.trigger)
    known = [name for name in ("trigger", "summary", "reasons") if name in found]
    names = dict.fromkeys((*known, *found))
    return [(name, in_words(found[name])) for name in names] or [("trigger", LACKING)]


def _code(lineage: Lineage, diff: bytes) -> Iterator[tuple[str, str]]:
    yield "commit", lineage.commit or LACKING
    if lineage.diff_digest:
        lines = counted(len(diff.splitlines()), "line")
        yield "uncommitted", f"{lines} of patch, SHA-256 {lineage.diff_digest}"
    else:
        dirty = lineage.commit.endswith("-dirty")
        yield "uncommitted", LACKING if dirty or not lineage.commit else "nothing"
    yield "code digest", lineage.code_digest
    yield "image digest", lineage.image_digest or "none: not in a container, or not recorded"
    yield "Python", lineage.python or LACKING
    yield "platform", lineage.platform or LACKING
    yield "contract digest", lineage.contract_digest


def _data(lineage: Lineage, snapshot: Snapshot | None) -> Iterator[tuple[str, str]]:
    yield "snapshot digest", lineage.snapshot_digest
    if snapshot is None:
        yield "snapshot", LACKING
        return
    yield "source", snapshot.data.uri
    yield "files", f"{len(snapshot.files):,}"
    yield "rows", ", ".join(f"{n:,} {split.value}" for split, n in snapshot.split_rows.items())
    if snapshot.time_min and snapshot.time_max:
        yield "period", f"{snapshot.time_min:%Y-%m-%d} to {snapshot.time_max:%Y-%m-%d}"


def _training(lineage: Lineage, challenger: Challenger | None) -> Iterator[tuple[str, str]]:
    yield "seed", str(lineage.seed)
    yield "initial weights", lineage.initial.describe() if lineage.initial else "random"
    if lineage.adapter:
        yield "adapter", lineage.adapter.describe()
    for teacher in lineage.teachers:
        yield "teacher", teacher.describe()
    for member in lineage.members:
        yield "ensemble with", member.describe()
    yield "trained by", describe_parts(lineage.parts) or LACKING
    yield "pipeline run", lineage.run_id
    yield "MLflow run", lineage.tracking_run_id or LACKING
    yield "parent champion", _version_or(lineage.parent_version, "none: it was the first")
    if challenger is None:
        yield "checkpoint", LACKING
        return
    yield "task", challenger.task
    for name, value in challenger.own_options.items():
        yield f"option {name}", in_words(value)
    yield "checkpoint", challenger.reason
    for finding in challenger.diagnosis:
        yield "curves", finding
    yield "weights", f"SHA-256 {challenger.weights_sha256}"


def _skeleton(report: SkeletonReport | None) -> list[tuple[str, str]]:
    if report is None:
        return [("checks", LACKING)]
    outcomes = [result.shown_outcome for result in report.results]
    counted = ", ".join(f"{outcomes.count(one)} {one}" for one in dict.fromkeys(outcomes))
    waivers = [
        (f"waived: {result.check}", f"{result.waived} (it {result.outcome}: {result.measured})")
        for result in report.results
        if result.waived
    ]
    changed = [
        (f"severity: {result.check}", f"{result.severity}, by the contract")
        for result in report.results
        if result.severity
    ]
    return [("checks", counted or "none"), *(waivers or [("waivers", "none")]), *changed]


def _version_or(version: str, otherwise: str) -> str:
    return f"version {version}" if version else otherwise
