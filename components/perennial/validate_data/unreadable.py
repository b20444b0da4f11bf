"""Examples of values that cannot be read: the first row that has one, and the reason."""

from collections.abc import Iterable

import polars as pl

from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import Expectation
from perennial.data.dataset import Dataset
from perennial.data.opaque_columns import derive, is_unreadable, opaque_columns
from perennial.data.pictures import decode_picture

FACT = "unreadable_share"
_BATCH_ROWS = 1024
_ROW = "__row"


def add_examples(
    expectations: Iterable[Expectation], snapshot: Snapshot
) -> tuple[Expectation, ...]:
    """Add an example to what was observed, where unreadable values failed an expectation."""
    return tuple(
        each.model_copy(update={"observed": f"{each.observed}{_example(each.subject, snapshot)}"})
        if each.outcome == "failed" and each.expected.startswith(FACT.replace("_", " "))
        else each
        for each in expectations
    )


def _example(column: str, snapshot: Snapshot) -> str:
    """Return the first row whose value cannot be read, and why."""
    dataset, ids = Dataset(snapshot), list(snapshot.data.ids)
    opaque = opaque_columns(snapshot.data, dataset.schema(), [column])
    start = 0
    for rows in dataset.column_batches([*ids, column], _BATCH_ROWS):
        table = pl.concat([rows, derive(rows, opaque)], how="horizontal")
        found = table.with_row_index(_ROW, start).filter(is_unreadable(column, opaque[column]))
        if found.height:
            row = found.row(0, named=True)
            named = "".join(f", {name} = {row[name]}" for name in ids)
            return f", as in row {row[_ROW]}{named}: {_reason(row[column])}"
        start += rows.height
    return ""


def _reason(value: object) -> str:
    if isinstance(value, bytes):
        try:
            decode_picture(value)
        except BadDataError as error:
            return error.evidence
    return "it is empty, or has a number that is not finite"
