"""Edits of a TOML file that keep its comments and order, each checked by reading the result."""

import json
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from pydantic import JsonValue

from perennial.contract_file.toml_text import (
    find_headers,
    header_of,
    with_value,
    without_value,
)
from perennial.contracts.errors import PerennialError
from perennial.contracts.toml import BARE_KEY, toml_value

Keys = tuple[str, ...]
ASSIGNMENT = re.compile(
    r"""(\s*)((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*="""
)
KEY = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def change_options(text: str, values: Mapping[str, JsonValue]) -> str:
    """Return a file with other values of some options, by their dotted names; None removes one.

    Raises:
        PerennialError: the file's form is none that can be changed in place.
    """
    for option, value in values.items():
        text = _change(text, tuple(option.split(".")), value)
    return text


def _change(text: str, keys: Keys, value: JsonValue) -> str:
    wanted = _edited(tomllib.loads(text), keys, value)
    # None: the file has another value where a table is expected. A candidate counts only if it
    # reads as the wanted document: a line alone does not show whether it lies in a longer text.
    for changed in _candidates(text, keys, value) if wanted is not None else ():
        with suppress(tomllib.TOMLDecodeError):
            if _written(tomllib.loads(changed)) == _written(wanted):
                return changed
    line = f"{keys[-1]} = {toml_value(value)}"
    raise PerennialError(
        f"{'.'.join(keys)} cannot be changed in place",
        evidence="the file writes it in an unusual form",
        action=f"write by hand, in [{'.'.join(keys[:-1])}]: {line}",
    )


def _candidates(text: str, keys: Keys, value: JsonValue) -> Iterator[str]:
    """Yield the file with the value where it stands, in an inline table, or as a new line."""
    lines = text.splitlines(keepends=True)
    header: Keys = ()
    for number, line in enumerate(lines):
        if found := find_headers(line):
            header = tuple(str(part) for part in found[0])
            continue
        match = ASSIGNMENT.match(line)
        if match is None:
            continue
        here = (*header, *(part.strip("\"'") for part in KEY.findall(match[2])))
        if here != keys[: len(here)]:
            continue
        ended = _end_of_value(lines, number, match.end())
        if ended is None:
            continue
        stop, rest, old = ended
        if here != keys and not isinstance(old, dict):
            continue  # where a table is expected, there is another value
        if value is None and here == keys:
            yield "".join([*lines[:number], *lines[stop + 1 :]])
            return
        new = value if here == keys else _edited(old, keys[len(here) :], value)
        written = f"{line[: match.end()]} {toml_value(new)}{rest}"
        yield "".join([*lines[:number], written, *lines[stop + 1 :]])
    yield from _insertions(lines, keys, value)


def _end_of_value(lines: Sequence[str], first: int, start: int) -> tuple[int, str, Any] | None:
    """Return the last line of a value, what follows it there, and the value."""
    for last in range(first, len(lines)):
        before = "".join([lines[first][start:], *lines[first + 1 : last]]) if last > first else ""
        line = lines[last] if last > first else lines[first][start:]
        # A `#` may begin a comment or lie in a text: the value ends where what is before it parses.
        ends = [*(found.start() for found in re.finditer(r"\s*#", line)), len(line.rstrip())]
        for end in ends:
            try:
                old = tomllib.loads(f"value = {before}{line[:end].strip()}\n")["value"]
            except tomllib.TOMLDecodeError:
                continue
            return last, line[end:], old
    return None


def _insertions(lines: Sequence[str], keys: Keys, value: JsonValue) -> Iterator[str]:
    """Yield the file with a new line at the end of the innermost table, or with a new table."""
    header = tuple(map(str, header_of(find_headers("".join(lines)), keys)))
    rest = ".".join(_key(part) for part in keys[len(header) :])
    new = f"{rest} = {toml_value(value)}\n"
    place: Keys = ()
    last = 0 if not header else None
    for number, line in enumerate(lines):
        if found := find_headers(line):
            place = tuple(str(part) for part in found[0])
        # Behind the last option: a comment at the table's end may belong to the next table.
        if place == header and line.strip() and (found or not line.lstrip().startswith("#")):
            last = number + 1
    if last is not None:
        ended = "" if last == 0 or lines[last - 1].endswith("\n") else "\n"
        yield "".join([*lines[:last], ended, new, *lines[last:]])
    table = ".".join(_key(part) for part in keys[:-1])
    ended = "" if not lines or lines[-1].endswith("\n") else "\n"
    yield "".join([*lines, ended, f"\n[{table}]\n{_key(keys[-1])} = {toml_value(value)}\n"])
    yield "".join(
        [
            *lines,
            ended,
            f"\n[{_key(keys[0])}]\n{'.'.join(map(_key, keys[1:]))} = {toml_value(value)}\n",
        ]
    )


def _key(part: str) -> str:
    return part if BARE_KEY.fullmatch(part) else json.dumps(part)


def _edited(document: Mapping[str, Any], keys: Keys, value: JsonValue) -> dict[str, Any] | None:
    return without_value(document, keys) if value is None else with_value(document, keys, value)


def _written(document: object) -> str:
    """Return a document as text, which is equal for equal types only: 1, 1.0 and true differ."""
    return json.dumps(document, sort_keys=True, default=str)
