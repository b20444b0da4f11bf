"""First and last elements of lists, judged as columns: a history may be read too late."""

from collections.abc import Iterable
from dataclasses import dataclass

import polars as pl

from perennial.check_skeleton.checks.data.signals import is_input_changed, is_plain, spread_rows
from perennial.check_skeleton.subject import Subject

PLACES = 0, -2, -1


@dataclass(frozen=True)
class ListEnd:
    """One place of the lists in a column, counted from the end where it is negative."""

    column: str
    place: int

    def __str__(self) -> str:
        return f"{self.column}[{self.place}]"

    def is_read(self, subject: Subject) -> bool:
        """Whether the inputs of some rows change if the elements there are those of other rows."""
        rows = spread_rows(subject.train_rows)
        lists = [each for each in rows[self.column].to_list() if self._is_in(each)]
        others = iter(lists[len(lists) // 2 :] + lists[: len(lists) // 2])
        changed = [
            self._replaced(each, next(others)) if self._is_in(each) else each
            for each in rows[self.column].to_list()
        ]
        series = pl.Series(self.column, changed, rows.schema[self.column])
        return is_input_changed(subject, rows, rows.with_columns(series))

    def _is_in(self, values: list[object] | None) -> bool:
        return values is not None and -len(values) <= self.place < len(values)

    def _replaced(self, values: list[object], other: list[object]) -> list[object]:
        found = list(values)
        found[self.place] = other[self.place]
        return found


def take_list_ends(frame: pl.DataFrame, names: Iterable[str]) -> dict[ListEnd, pl.Series]:
    """Return the elements at the ends of columns that hold lists of single values."""
    found = {}
    for name in names:
        inner = getattr(frame.schema[name], "inner", None)
        if inner is not None:
            lists = frame[name].cast(pl.List(inner)).list
            for place in PLACES:
                found[ListEnd(name, place)] = lists.get(place, null_on_oob=True)
    return {end: values for end, values in found.items() if is_plain(values)}
