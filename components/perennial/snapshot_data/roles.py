"""Roles: checks that the contract's columns exist in the dataset with usable types."""

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.errors import BadDataError, join_names
from perennial.contracts.snapshot import Snapshot

_TIME_TYPES = ("Datetime", "Date")
# Keys are hashed as texts, which these have none of.
_LISTS = ("List", "Array")
_NO_KEYS = (*_LISTS, "Map", "Binary", "Duration", "Object")
_SHOWN_COLUMNS, _SHOWN_NAME = 50, 60
_PANDAS_INDEX = re.compile(r"__index_level_\d+__")


def check_roles(data: DataSection, split: SplitSection, columns: Mapping[str, str]) -> None:
    """Check that the contract's columns exist with a usable type."""
    problems = [*_missing_columns(data, columns)] or [*_type_problems(data, split, columns)]
    if problems:
        raise BadDataError(
            "the contract's [data] and [split] do not fit the dataset's columns",
            evidence="; ".join(problems),
            action=_correct_columns(data, columns),
        )


def _correct_columns(data: DataSection, columns: Mapping[str, str]) -> str:
    """Return the lines of [data] with the nearest columns, and the columns that there are."""
    lines = []
    for role, names in _named_columns(data):
        if role == "available_at" or all(name in columns for name in names):
            continue
        near = [([name] if name in columns else nearest(name, columns)) for name in names]
        if not all(near):
            continue
        written = [each[0] for each in near]
        value = written[0] if role in ("label", "time", "group") else written
        lines.append(f"{role} = {json.dumps(value, ensure_ascii=False)}  # in [data]")
    known = f"the dataset has {_shown(columns)}"
    return f"write {' and '.join(lines)}; {known}" if lines else f"correct the contract; {known}"


def _shown(columns: Mapping[str, str]) -> str:
    return join_names((name[:_SHOWN_NAME] for name in columns), _SHOWN_COLUMNS)


def role_of(snapshot: Snapshot, column: str) -> str:
    """Return the role of a column, as shown to people."""
    data = snapshot.data
    if column in snapshot.task_columns.features:
        known_at = data.available_at.get(column)
        roles = ["feature", *(["free text"] if column in data.text else [])]
        roles += ["group"] if column == data.group else []
        return ", ".join([*roles, *([f"known at {known_at}"] if known_at else [])])
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


def _missing_columns(data: DataSection, columns: Mapping[str, str]) -> Iterator[str]:
    for role, names in _named_columns(data):
        for name in names:
            if name not in columns:
                yield f"data.{role} names {name!r}{suggestion(name, columns, 'did you mean')}"


def _type_problems(
    data: DataSection, split: SplitSection, columns: Mapping[str, str]
) -> Iterator[str]:
    if data.time and not columns[data.time].startswith(_TIME_TYPES):
        yield f"data.time {data.time!r} is {columns[data.time]}, expected Datetime or Date"
    for column in data.text:
        if columns[column] != "String":
            yield f"data.text {column!r} is {columns[column]}, expected String"
    is_sequence = data.label in data.text or columns[data.label].startswith(_LISTS)
    if data.label in data.features and not is_sequence:
        yield (
            f"data.label {data.label!r} is among data.features, where the model would read its "
            "answer: remove it there; only lists, and texts that data.text names, may be both"
        )
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
    role = "ids" if method == "hash" else method
    names = dict(_named_columns(data))[role]
    for key in names if method != "time" else ():
        if columns[key].startswith(_NO_KEYS):
            yield f"split.method {method!r} cannot use {key!r}, which is {columns[key]}"
    if not names:
        yield f"split.method is {method!r} but data.{role} is not set"
    for window in ("train_days", "test_days"):
        if getattr(split, window) is not None and data.time is None:
            yield f"split.{window} is set but data.time is not"


def _index_problems(data: DataSection, columns: Mapping[str, str]) -> Iterator[str]:
    """Yield indices that pandas wrote: the order of the rows, which must not be learned from."""
    named = {name for _, names in _named_columns(data) for name in names}
    for name in columns:
        if _PANDAS_INDEX.fullmatch(name) and name not in named and not data.features:
            yield (
                f"{name!r} is an index that pandas wrote and would be a feature: write the data "
                "with index=False, or name it under data.meta"
            )


def suggestion(name: str, candidates: Iterable[str], words: str) -> str:
    """Return the nearest name behind some words; empty if none is near."""
    return "".join(f", {words} {match!r}" for match in nearest(name, candidates))


def nearest(name: str, candidates: Iterable[str]) -> list[str]:
    """Return the one name that is likely meant, or none."""
    return difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
