"""TOML text and documents: where an option is, how to change it, what a bad line may mean."""

import json
import math
import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import JsonValue

Location = tuple[str | int, ...]
LONGEST_LINE = 500  # that is worth guessing at
HEADER = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
KEY_PART = re.compile(r"""\s*(?:"[^"]*"|'[^']*'|[^.]+)""")  # a dot inside quotes is a letter


def where_in(path: Path, text: str, location: Sequence[str | int]) -> str:
    """Return `contract.toml:12 [section] key`, with the line on which the option stands."""
    parts = [str(part) for part in location]
    line, is_in_table = _line_of(text, parts)
    place = f"{path.name}{f':{line}' if line else ''}"
    if not is_in_table:
        return f"{place} {'.'.join(parts)}"
    key = ".".join(parts[1:])
    return f"{place} [{parts[0] if parts else ''}]{f' {key}' if key else ''}"


def _line_of(text: str, parts: Sequence[str]) -> tuple[int | None, bool]:
    """Return the line of an option, else of the nearest table's header, and whether in a table."""
    header: Location = ()
    nearest, depth = None, 0
    for number, line in enumerate(text.splitlines(), 1):
        if headers := find_headers(line):
            header = headers[0]
            if header == tuple(parts[: len(header)]) and len(header) > depth:
                nearest, depth = number, len(header)
        elif header == tuple(parts[: len(header)]) and depth <= len(header) < len(parts):
            key = re.escape(parts[len(header)])
            if re.match(rf"\s*[\"']?{key}[\"']?\s*[=.]", line):
                return number, bool(header) or len(parts) > 1
    return nearest, True


def find_headers(text: str) -> list[Location]:
    """Return the headers of tables in a file, as their parts."""
    found = (HEADER.match(line) for line in text.splitlines())
    return [
        tuple(part.strip(" \"'") for part in KEY_PART.findall(each[1]))
        for each in found
        if each and "=" not in each.string.partition("]")[0]
    ]


def header_of(headers: Sequence[Location], path: Location) -> Location:
    """Return the innermost table with a header of its own that a path lies in."""
    own = [each for each in headers if len(each) < len(path) and path[: len(each)] == each]
    return max(own, key=len, default=path[:1] if len(path) > 1 else ())


def value_at(document: object, path: Sequence[str | int]) -> Any:  # noqa: ANN401
    """Return what a document has at a place; None where it has nothing."""
    for part in path:
        if isinstance(document, dict):
            document = document.get(part)
        elif isinstance(document, list) and isinstance(part, int) and part < len(document):
            document = document[part]
        else:
            return None
    return document


def with_value(
    document: Mapping[str, Any], path: Sequence[str | int], value: JsonValue
) -> dict[str, Any] | None:
    """Return a document in which an option has another value; None if there is no such place."""
    changed: Any = deepcopy(document)
    table = changed
    for part in path[:-1]:
        if not isinstance(table, dict):
            return None
        table = table.setdefault(part, {})
    if not isinstance(table, dict):
        return None
    table[path[-1]] = value
    return dict(changed)


def without_value(document: Mapping[str, Any], path: Sequence[str | int]) -> dict[str, Any]:
    """Return a document without an option."""
    changed = {**deepcopy(document)}
    table = value_at(changed, path[:-1])
    if isinstance(table, dict):
        table.pop(path[-1], None)
    return changed


def fix_line(text: str, number: int) -> tuple[int, str]:
    """Return a line's number and the text with which a file can be read beyond it; 0 if none."""
    lines = text.splitlines()
    # What is not closed is reported at the line after it.
    for index in (number - 1, number - 2):
        if not 0 <= index < len(lines) or len(lines[index]) > LONGEST_LINE:
            continue
        # Right is what the parser comes past: what follows may have mistakes of its own.
        for candidate in _readable_like(lines[index]):
            changed = "\n".join([*lines[:index], candidate, *lines[index + 1 :]])
            if _first_error(changed) > max(number, index + 1):
                return index + 1, candidate.strip()
    return 0, ""


def _first_error(text: str) -> float:
    """Return the line of the first error; infinity for a text without one."""
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        found = re.search(r"at line (\d+)", str(error))
        return int(found[1]) if found else len(text.splitlines())
    except (ValueError, RecursionError):
        return 0
    return math.inf


def _readable_like(line: str) -> Iterator[str]:
    """Yield what a line that is not TOML may mean."""
    key, sign, value = (part.strip() for part in line.partition("="))
    if not sign:
        key, sign, value = (part.strip() for part in line.partition(":"))
    value = value.rstrip(";,") if not value.startswith(("[", "{")) else value
    # Quotes of a word processor, or of other languages.
    straight = re.sub("[“”„]", '"', value)
    values = [value, straight, value.replace("'", '"')]
    # A comment of JavaScript or C; a comparison in the place of the assignment.
    values += [value.partition("//")[0].strip(), value.lstrip("= ")]
    # Python's True, and numbers as Python and people write them: .5, 5. and 1,000.
    values += [value.lower()] if value.lower() in ("true", "false") else []
    values += [f"0{value}"] if value.startswith(".") else []
    values += [f"{value}0"] if value.endswith(".") else []
    values += [value.replace(",", "")] if re.fullmatch(r"\d{1,3}(,\d{3})+", value) else []
    # A decimal comma, and a list without brackets.
    values += [value.replace(",", ".")] if re.fullmatch(r"-?\d+,\d+", value) else []
    values += [f"[{value}]"] if "," in value and re.fullmatch(r"[-\d., ]+", value) else []
    table = re.sub(r"[\"']?([\w-]+)[\"']?\s*:", r"\1 =", value)  # of JSON, Python or YAML
    # Words without quotes in such a table; then whatever was not closed.
    values += [table, re.sub(r"= *([A-Za-z_][\w.-]*)(?=\s*[,}])", r'= "\1"', table)]
    values += [f"{value}{end}" for end in ('"', "'", "]", '"]', "}")]
    bare = value.strip("\"'“”[](){}")
    values += [json.dumps(bare)] if bare and "=" not in bare else []
    if value.lower() in ("none", "null", "nil"):
        yield f"# {key} is not set"
    if sign and key and value:
        yield from (f"{key.strip(chr(34))} = {each}" for each in values if each)
        yield f'"{key}" = {value}'
    stripped = line.strip()
    if stripped.startswith("["):
        yield f"[{stripped.strip('[] ')}]"
    elif not value:
        yield f"[{stripped.strip('[]: ')}]"
