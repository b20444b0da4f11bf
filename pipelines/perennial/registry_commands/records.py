"""Records: output of the verbs about registered models, as JSON."""

import json
from collections.abc import Mapping

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.contracts.version_decisions import VersionDecision
from perennial.registry.version_files import ModelVersion
from perennial.registry_commands.catalogue import Catalogue, VersionRecord
from perennial.registry_commands.comparison import PARTS, flattened
from perennial.registry_commands.listing import EVENTS, champion_warnings, turned_down


def as_json(record: JsonValue) -> str:
    """A record as people pipe it on: indented, every character readable."""
    return json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)


def models_record(catalogue: Catalogue) -> JsonValue:
    """Every model with the numbers of its versions; `champion` is null before the first one.

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


def versions_record(catalogue: Catalogue, name: str) -> JsonValue:
    """The versions of a model, oldest first, and challengers that the gate rejected here.

    Raises:
        PerennialError: there is no such model.
    """
    return {
        "model": name,
        "warnings": [*champion_warnings(catalogue, name)],
        "versions": [_version(catalogue, version) for version in catalogue.versions(name)],
        "turned_down": [
            {"run_id": run.run_id, "verdict": _plain(verdict)}
            for run, verdict in turned_down(catalogue.home, name)
        ],
    }


def explanation_record(version_record: VersionRecord) -> JsonValue:
    """Return everything recorded about a version; null for what it lacks."""
    return {
        **_named(version_record.version, version_record.aliases),
        "decisions": _decisions(version_record.version),
        "lineage": _plain(version_record.lineage),
        "verdict": _plain(version_record.verdict),
        "challenger": _plain(version_record.challenger),
        "snapshot": _plain(version_record.snapshot),
        "skeleton": _plain(version_record.skeleton),
        "contract": version_record.contract,
        "uncommitted_diff": version_record.diff.decode(errors="replace"),
    }


def comparison_record(first: VersionRecord, second: VersionRecord) -> JsonValue:
    """Return the differences between A and B: by part, each value's path with both values, as text.

    A part is null when one of the two does not have it.
    """
    return {
        "a": _sided(first),
        "b": _sided(second),
        "differences": {
            name: _differences(part(first), part(second)) for name, part in PARTS.items()
        },
    }


def _sided(version_record: VersionRecord) -> dict[str, JsonValue]:
    return {
        **_named(version_record.version, version_record.aliases),
        "snapshot": version_record.snapshot.digest() if version_record.snapshot else None,
        "verdict": _plain(version_record.verdict),
    }


def _differences(
    before: Mapping[str, JsonValue] | None, after: Mapping[str, JsonValue] | None
) -> JsonValue:
    if before is None or after is None:
        return None
    left, right = flattened(before), flattened(after)
    return {
        name: {"a": left.get(name), "b": right.get(name)}
        for name in sorted({*left, *right})
        if left.get(name) != right.get(name)
    }


def _version(catalogue: Catalogue, version: ModelVersion) -> JsonValue:
    record: dict[str, JsonValue] = _named(version, catalogue.aliases_of(version))
    record["decisions"] = _decisions(version)
    try:
        return {
            **record,
            "verdict": _plain(catalogue.version_record(version).verdict),
            "problem": None,
        }
    except PerennialError as error:
        # One damaged version must not hide the others.
        return {**record, "verdict": None, "problem": error.problem}


def _named(version: ModelVersion, aliases: tuple[str, ...]) -> dict[str, JsonValue]:
    return {
        "model": version.name,
        "version": version.version,
        "aliases": [*aliases],
        "registered_at": version.created_at.isoformat(),
        "source": version.source,
    }


def _decisions(version: ModelVersion) -> list[JsonValue]:
    decisions = [(event, VersionDecision.of(version.tags, event)) for event in EVENTS]
    ordered = sorted(
        ((one.at, event, one) for event, one in decisions if one), key=lambda each: each[:2]
    )
    return [
        {"event": event, "at": at, "by": one.by, "reason": one.reason} for at, event, one in ordered
    ]


def _plain(section: Section | None) -> JsonValue:
    # A figure that is not a number becomes null: JSON has none.
    return None if section is None else json.loads(section.model_dump_json())
