"""Comparison of two model versions, as text and as JSON: quality, data, options, origin."""

import re
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TypeAlias

from pydantic import JsonValue

from perennial.contracts.gate import Verdict
from perennial.contracts.section import canonical_json, flattened
from perennial.registry_commands.catalogue import VersionRecord, name_version, plain
from perennial.registry_commands.listing import shown_interval
from perennial.reports.text import number, shortened
from perennial.reports.text import shown as shown_value

LACKING = "not recorded"
SHOWN_ENTRIES, SHOWN_CHARACTERS = 6, 240
"""Of a list, and of a value: --json prints all."""
DIGEST = re.compile(r"\b([0-9a-f]{12})[0-9a-f]{52}\b")
WORDS = {"split_rows": "rows by split", "weights_sha256": "weights"}
"""Fields whose name alone is no word."""
Table: TypeAlias = Mapping[str, JsonValue]


def comparison_lines(first: VersionRecord, second: VersionRecord) -> Iterator[str]:
    """Yield all differences of two versions, for people."""
    yield f"A  {first.title}"
    yield f"B  {second.title}"
    yield from ("", "quality")
    yield from (f"  {line}" for line in _quality(first, second))
    for heading, part in PARTS.items():
        yield from ("", heading)
        a, b = part(first), part(second)
        if heading != "contract":  # whose options keep their names
            a, b = _with_words(a), _with_words(b)
        yield from (f"  {line}" for line in differences(a, b))


def comparison_record(first: VersionRecord, second: VersionRecord) -> JsonValue:
    """Return the differences between A and B: by part, each value's path with both values, as text.

    A part is null when one of the two does not have it.
    """
    changes = {name: _changed(part(first), part(second)) for name, part in PARTS.items()}

    def text(value: JsonValue) -> JsonValue:
        return value if value is None or isinstance(value, str) else canonical_json(value)

    return {
        "a": _side(first),
        "b": _side(second),
        "differences": {
            part: None
            if changed is None
            else {name: {"a": text(a), "b": text(b)} for name, (a, b) in changed.items()}
            for part, changed in changes.items()
        },
    }


def differences(before: Table | None, after: Table | None) -> list[str]:
    """Return the differences of two nested tables, one line per value, or that there are none."""
    changed = _changed(before, after)
    if changed is None:
        absent = [name for name, one in (("A", before), ("B", after)) if one is None]
        return [f"{' and '.join(absent)}: {LACKING}"]
    return [f"{name}: {_change(a, b)}" for name, (a, b) in changed.items()] or ["the same"]


def _change(before: JsonValue, after: JsonValue) -> str:
    """Return a change in words: of lists what came and went, else both values."""
    if isinstance(before, list) and isinstance(after, list):
        gone = [each for each in before if each not in after]
        new = [each for each in after if each not in before]
        parts = [
            f"{word} {in_words(part)}" for word, part in (("added", new), ("removed", gone)) if part
        ]
        return "; ".join(parts) or f"in another order: {in_words(after)}"
    old, new_value = (
        "not set" if each is None else DIGEST.sub(r"\1", in_words(each)) for each in (before, after)
    )
    if old == new_value:
        return f"differs in a part that is not shown ({old}); --json prints both"
    return f"{old} → {new_value}"


def in_words(value: JsonValue) -> str:
    """Return a value as people write it, the first entries of long ones."""
    if isinstance(value, dict):
        text = ", ".join(
            f"{name.replace('_', ' ')} {in_words(each)}" for name, each in value.items()
        )
    elif isinstance(value, list):
        shown = [in_words(each) for each in value[:SHOWN_ENTRIES]]
        left = len(value) - len(shown)
        text = ("; " if any(isinstance(each, dict) for each in value) else ", ").join(shown)
        text += f" and {left:,} more" if left else ""
    elif isinstance(value, float):
        text = number(value)
    else:
        text = value if isinstance(value, str) else shown_value(value)
    return shortened(text, SHOWN_CHARACTERS) or "none"


def _with_words(table: Table | None) -> Table | None:
    """Return a table with words for the names of its fields."""
    if table is None:
        return None
    return {WORDS.get(name, name.replace("_", " ")): value for name, value in table.items()}


def _changed(
    before: Table | None, after: Table | None
) -> dict[str, tuple[JsonValue, JsonValue]] | None:
    """Return the values that differ, by their paths; None if one of the tables is missing."""
    if before is None or after is None:
        return None
    left, right = flattened(before), flattened(after)
    both = {name: (left.get(name), right.get(name)) for name in sorted({*left, *right})}
    return {name: (a, b) for name, (a, b) in both.items() if a != b}


def _side(version_record: VersionRecord) -> dict[str, JsonValue]:
    return {
        **name_version(version_record.version, version_record.aliases),
        "snapshot": version_record.snapshot.digest() if version_record.snapshot else None,
        "verdict": plain(version_record.verdict),
    }


def _quality(first: VersionRecord, second: VersionRecord) -> Iterator[str]:
    if first.verdict is None or second.verdict is None:
        absent = [name for name, one in (("A", first), ("B", second)) if one.verdict is None]
        yield f"{' and '.join(absent)}: no verdict is recorded that this code can read"
        return
    left, right = _metrics(first.verdict), _metrics(second.verdict)
    for name in dict.fromkeys((*left, *right)):
        values = [f"{side[name]:.5g}" if name in side else LACKING for side in (left, right)]
        yield f"{name:<16} A {values[0]:<12} B {values[1]}"
    yield from _measured_together(first, second)
    if first.snapshot is None or second.snapshot is None:
        yield "whether both were measured on the same test rows is not recorded"
    elif first.snapshot.digest() != second.snapshot.digest():
        yield (
            "each was measured on the test rows of its own snapshot, and these differ: only the "
            "intervals, where there are any, compare the two on the same rows"
        )


def _measured_together(first: VersionRecord, second: VersionRecord) -> Iterator[str]:
    """Yield intervals where one of the two was the champion that the other was judged against."""
    for name, new, old, beaten in (("B", second, first, "A"), ("A", first, second, "B")):
        verdict = new.verdict
        if (
            verdict is None
            or new.version.name != old.version.name
            or verdict.champion_version != old.version.version
        ):
            continue
        for one in verdict.comparisons:
            if one.improvement is not None and one.champion is not None:
                yield (
                    f"{one.metric}: {name} is better than {beaten} by "
                    f"{shown_interval(one.improvement)} on {verdict.test_rows:,} common test rows"
                )
        return
    yield "the two were never measured on the same rows: there is no interval of the difference"


def _metrics(verdict: Verdict) -> dict[str, float]:
    return {one.metric: one.challenger for one in verdict.comparisons}


def _data(version_record: VersionRecord) -> Table | None:
    snapshot = version_record.snapshot
    if snapshot is None:
        return None
    return {
        "snapshot": snapshot.digest(),
        "files": len(snapshot.files),
        "rows": snapshot.rows,
        "split_rows": {split.value: rows for split, rows in snapshot.split_rows.items()},
        "columns": {**snapshot.columns},
        "features": ", ".join(snapshot.task_columns.features),
        "from": f"{snapshot.time_min}",
        "to": f"{snapshot.time_max}",
    }


def _task(version_record: VersionRecord) -> Table | None:
    found = version_record.challenger
    if found is None:
        return None
    return {
        "task": found.task,
        "options": found.options,
        "checkpoint": found.chosen_step,
        "checkpoint_is_averaged": found.chosen_averaged,
        "chosen_because": found.reason,
        "weights_sha256": found.weights_sha256,
    }


def _origin(version_record: VersionRecord) -> Table | None:
    found = version_record.lineage
    if found is None:
        return None
    # `explain` shows the evidence of a trigger: of two triggers, it has nothing in common.
    trigger = {name: value for name, value in found.trigger.items() if name != "evidence"}
    return found.model_dump(mode="json") | {"trigger": trigger}


PARTS: Mapping[str, Callable[[VersionRecord], Table | None]] = MappingProxyType(
    {"data": _data, "task": _task, "contract": lambda found: found.contract, "origin": _origin}
)
"""Parts in which two versions can differ besides quality; None for one that a version lacks."""
