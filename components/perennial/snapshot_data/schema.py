"""Schema: whether partitions are one table with the columns that the contract names."""

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import DataFile, Snapshot

_TIME_TYPES = ("Datetime", "Date")
# Keys are hashed as texts, which these have none of.
_NO_KEYS = ("Map", "List", "Array", "Binary", "Duration", "Object")
_SHOWN_COLUMNS, _SHOWN_NAME = 50, 60
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


@dataclass(frozen=True)
class Partition:
    """One pinned file and its columns' types."""

    file: DataFile
    columns: Mapping[str, str]


def common_columns(partitions: Sequence[Partition]) -> dict[str, str]:
    """The columns that every partition has, in the order of the first; their order may differ.

    Raises:
        BadDataError: a partition differs from most; each difference is listed.
    """
    # Judged against the majority: a bad first partition must not blame all the others.
    counts = Counter(frozenset(partition.columns.items()) for partition in partitions)
    usual = counts.most_common(1)[0][0]
    expected = next(dict(part.columns) for part in partitions if set(part.columns.items()) == usual)
    problems = [text for partition in partitions for text in _differences(expected, partition)]
    if problems:
        raise BadDataError(
            f"{len(partitions) - counts[usual]} of {len(partitions)} partitions do not have the "
            "columns of the others",
            evidence="; ".join(problems[:10]) + ("; …" if len(problems) > 10 else ""),
            action="write these partitions again with the usual columns; to change the columns "
            "permanently, write the whole dataset under a new data.uri",
        )
    return expected


def check_roles(data: DataSection, split: SplitSection, columns: Mapping[str, str]) -> None:
    """Check that the contract's columns exist with a usable type.

    Raises:
        BadDataError: they do not; each problem is listed with the nearest name.
    """
    problems = [*_missing_columns(data, columns)] or [*_type_problems(data, split, columns)]
    if problems:
        raise BadDataError(
            "the contract's [data] and [split] do not fit the dataset's columns",
            evidence="; ".join(problems),
            action=f"correct the contract; the dataset has {_shown(columns)}",
        )


def _shown(columns: Mapping[str, str]) -> str:
    names = [name[:_SHOWN_NAME] for name in columns]
    more = f" and {len(names) - _SHOWN_COLUMNS} more" if len(names) > _SHOWN_COLUMNS else ""
    return ", ".join(names[:_SHOWN_COLUMNS]) + more


def role_of(snapshot: Snapshot, column: str) -> str:
    """Return the role of a column, as shown to people."""
    data = snapshot.data
    if column in snapshot.task_columns.features:
        known_at = data.available_at.get(column)
        role = "feature, free text" if column in data.text else "feature"
        return f"{role}, known at {known_at}" if known_at else role
    roles = [role for role, names in _named_columns(data) if column in names]
    return ", ".join(roles) or "unused"


def _named_columns(data: DataSection) -> Iterator[tuple[str, Sequence[str]]]:
    yield "label", (data.label,)
    yield "time", (data.time,) if data.time else ()
    yield "group", (data.group,) if data.group else ()
    yield "ids", data.ids
    yield "meta", data.meta
    yield "features", data.features
    yield "text", data.text
    yield "available_at", (*data.available_at, *data.available_at.values())


def _differences(expected: Mapping[str, str], partition: Partition) -> Iterator[str]:
    found = partition.columns
    extra = [name for name in found if name not in expected]
    for name, dtype in expected.items():
        if name not in found:
            yield (
                f"{partition.file.uri} lacks column {name!r} ({dtype})"
                f"{_suggestion(name, extra, 'it has')}"
            )
        elif found[name] != dtype:
            yield f"{partition.file.uri} has {name!r} as {found[name]}, expected {dtype}"
    renamed = {match for name in set(expected) - set(found) for match in _nearest(name, extra)}
    for name in extra:
        if name not in renamed:
            yield f"{partition.file.uri} has the unexpected column {name!r} ({found[name]})"


def _missing_columns(data: DataSection, columns: Mapping[str, str]) -> Iterator[str]:
    for role, names in _named_columns(data):
        for name in names:
            if name not in columns:
                yield f"data.{role} names {name!r}{_suggestion(name, columns, 'did you mean')}"


def _type_problems(
    data: DataSection, split: SplitSection, columns: Mapping[str, str]
) -> Iterator[str]:
    if data.time and not columns[data.time].startswith(_TIME_TYPES):
        yield f"data.time {data.time!r} is {columns[data.time]}, expected Datetime or Date"
    for column in data.text:
        if columns[column] != "String":
            yield f"data.text {column!r} is {columns[column]}, expected String"
    for feature, column in data.available_at.items():
        if data.time and columns[column] != columns[data.time]:
            yield (
                f"data.available_at.{feature} {column!r} is {columns[column]} but data.time is "
                f"{columns[data.time]}: they cannot be compared"
            )
    if not Snapshot(
        data=data, split=split, files=(), columns=dict(columns), rows=0, split_rows={}
    ).task_columns.features:
        yield "no column is left as a feature"
    yield from _index_problems(data, columns)
    method = split.resolved_method(data)
    keys = {"time": (), "group": (data.group,), "hash": data.ids}[method]
    for key in keys:
        if key and columns[key].startswith(_NO_KEYS):
            yield f"split.method {method!r} cannot use {key!r}, which is {columns[key]}"
    needed = {"time": data.time, "group": data.group, "hash": data.ids}[method]
    if not needed:
        role = "ids" if method == "hash" else method
        yield f"split.method is {method!r} but data.{role} is not set"
    for window in ("train_days", "test_days"):
        if getattr(split, window) is not None and data.time is None:
            yield f"split.{window} is set but data.time is not"


def _index_problems(data: DataSection, columns: Mapping[str, str]) -> Iterator[str]:
    """An index that pandas wrote is the order of the rows, which must not be learned from."""
    named = {name for _, names in _named_columns(data) for name in names}
    for name in columns:
        if _PANDAS_INDEX.fullmatch(name) and name not in named and not data.features:
            yield (
                f"{name!r} is an index that pandas wrote and would be a feature: write the data "
                "with index=False, or name it under data.meta"
            )


def _suggestion(name: str, candidates: Iterable[str], words: str) -> str:
    return "".join(f", {words} {match!r}" for match in _nearest(name, candidates))


def _nearest(name: str, candidates: Iterable[str]) -> list[str]:
    return difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
