"""TOML files as sections: every mistake found, with file, line, value, expectation and remedy.

Files are read with limits, and values that nothing later could carry are refused.
"""

import difflib
import json
import re
import tomllib
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time
from itertools import islice
from math import isfinite
from pathlib import Path

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined, to_jsonable_python

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import REMOVED_OPTIONS, Section

SHOWN = 20  # mistakes listed at once; a generated file may have thousands
MAX_BYTES = 1 << 20  # of the longest real contract, 273 kB, nearly four times
MAX_DEPTH = 32  # KFP, MLflow and pydantic each recurse; the deepest option of ours lies at 5
MAX_INTEGER = 2**63 - 1  # TOML 1.0 promises 64 bits, and JSON's readers no more
# Tab and line ends are text; other control characters break paths, logs and pods' arguments.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

Location = tuple[str | int, ...]
Document = typing.TypeVar("Document", bound=Section)


@dataclass(frozen=True)
class Problem:
    """One mistake in a contract."""

    where: str
    """File, line and key."""
    found: str
    """The offending value; empty when something is missing."""
    expected: str
    write: str
    """What to write instead."""

    def __str__(self) -> str:
        lines = [f"{self.where}{f' = {self.found}' if self.found else ''}"]
        lines.append(f"  expected: {self.expected}")
        if self.write:
            lines.append(f"  write:    {self.write}")
        return "\n".join(lines)


class ContractError(PerennialError):
    """A contract, or another file of sections, has mistakes; all of them are listed."""

    def __init__(self, path: Path, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} mistake{'s' if len(problems) > 1 else ''}"
        if len(problems) >= SHOWN:
            count = f"{SHOWN} mistakes or more; the first"
        listed = "\n\n".join(map(str, problems[:SHOWN]))
        super().__init__(f"{path} has {count}:\n\n{listed}")


def read_document(path: Path, kind: type[Document], what: str) -> tuple[Document, str]:
    """Read a TOML file as a section, with its text for further messages, which call it `what`.

    Raises:
        ContractError: every mistake found, up to twenty.
        PerennialError: there is no such file, or it is not text of a sensible length.
    """
    text = _read_text(path, what)
    try:
        document = _parse(text)
    except ValueError as error:
        raise ContractError(path, [_no_toml(path, text, str(error))]) from error
    unusable = [
        Problem(where_in(path, text, location), found, expected, "")
        for location, found, expected in islice(_find_unusable(document), SHOWN)
    ]
    if unusable:
        raise ContractError(path, unusable)
    dates = [
        Problem(
            where_in(path, text, place), str(found), "no date", f'"{found}", if a text is meant'
        )
        for place, found in _walk(document)
        if isinstance(found, date | time) and not _takes_anything(kind, place)
    ]
    if dates:
        raise ContractError(path, dates)
    try:
        return kind.model_validate_json(json.dumps(document, default=str)), text
    except ValidationError as error:
        found = error.errors()[:SHOWN]
        raise ContractError(
            path, [_problem(kind, path, text, document, detail) for detail in found]
        ) from error


def _read_text(path: Path, what: str) -> str:
    """Read a TOML file's text; a byte order mark of UTF-8 is dropped.

    Raises:
        PerennialError: it cannot be read, is not a regular file, too long, or not UTF-8.
    """
    try:
        is_file = path.is_file()
        if is_file or not path.exists():  # what does not exist raises the system's own error
            with path.open("rb") as file:
                content = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:  # ValueError: a path with a NUL character
        raise PerennialError(
            f"the {what} {path} cannot be read", evidence=str(error), action="check the path"
        ) from error
    if not is_file:
        raise PerennialError(
            f"the {what} {path} is not a regular file", action="give the path of a TOML file"
        )
    if len(content) > MAX_BYTES:
        raise PerennialError(
            f"the {what} {path} is longer than {MAX_BYTES >> 20} MiB",
            evidence=f"it has {path.stat().st_size:,} bytes",
            action="keep tables and texts of that length in files that the task reads",
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        found = f"line {line} has the byte 0x{content[error.start]:02x}"
        if content.startswith((b"\xff\xfe", b"\xfe\xff")):
            found = "it begins with the byte order mark of UTF-16"
        raise PerennialError(
            f"the {what} {path} is not UTF-8 text", evidence=found, action="save it as UTF-8"
        ) from error


def _parse(text: str) -> dict[str, typing.Any]:
    """Parse TOML; the ValueError of what Python's reader refuses names the line if it is known."""
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        raise
    except RecursionError as error:
        raise ValueError(
            f"tables and lists are nested more than {MAX_DEPTH} levels deep"
        ) from error
    except ValueError as error:  # integers of more than 4,300 digits
        number = max(re.findall(r"[\d_]+", text), key=len)
        line = text[: text.index(number)].count("\n") + 1
        message = f"an integer of {len(number):,} digits (at line {line})"
        raise ValueError(message) from error


def _walk(document: object) -> Iterator[tuple[Location, object]]:
    """Yield every value with its location, in order; stops below the greatest depth."""
    waiting: list[tuple[Location, object]] = [((), document)]
    while waiting:
        location, value = waiting.pop()
        yield location, value
        if len(location) > MAX_DEPTH:
            continue
        if isinstance(value, dict):
            waiting += reversed([((*location, key), item) for key, item in value.items()])
        elif isinstance(value, list):
            waiting += reversed([((*location, index), item) for index, item in enumerate(value)])


def _find_unusable(document: object) -> Iterator[tuple[Location, str, str]]:
    """Yield values that JSON, KFP or the operating system cannot carry: location, value, what fits.

    Infinities and NaN, integers beyond 64 bits, control characters, nesting without end.
    """
    for location, value in _walk(document):
        if len(location) > MAX_DEPTH:
            yield location[:4], "", f"at most {MAX_DEPTH} levels of tables and lists"
        elif isinstance(value, dict):
            for key in value:
                if CONTROL.search(key):
                    yield (*location, repr(key)), "", "a name without control characters"
        elif isinstance(value, float) and not isfinite(value):
            yield location, str(value), "a finite number"
        elif isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
            found = f"an integer of {value.bit_length():,} bits"
            yield location, found, "an integer of at most 64 bits"
        elif isinstance(value, str) and CONTROL.search(value):
            yield location, repr(value[:200]), "a text without control characters"


def _takes_anything(kind: type[Section], location: Sequence[str | int]) -> bool:
    """Whether a location lies in a table whose values are the user's own, such as task options."""
    fields = [_field(kind, location[:depth]) for depth in range(1, len(location))]
    return any(field is not None and field.annotation == dict[str, JsonValue] for field in fields)


def _no_toml(path: Path, text: str, message: str) -> Problem:
    """Return the problem of the line that cannot be read, with its text."""
    match = re.search(r"at line (\d+)", message)
    lines = text.splitlines()
    number = int(match.group(1)) if match else len(lines)
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    remedy = 'each [section] once, then key = value; texts in "quotes", lists in [brackets]'
    return Problem(
        f"{path.name}:{number}: {_shortened(line)}", "", f"valid TOML: {message}", remedy
    )


def _problem(
    kind: type[Section], path: Path, text: str, document: dict[str, object], detail: ErrorDetails
) -> Problem:
    location = tuple(part for part in detail["loc"] if isinstance(part, (str, int)))
    where = where_in(path, text, location)
    field = _field(kind, location)
    match detail["type"]:
        case "extra_forbidden" if location[-1] in REMOVED_OPTIONS:
            value = json.dumps(REMOVED_OPTIONS[str(location[-1])])
            return Problem(where, "", f"no such option: it was removed, {value} holds always", "")
        case "extra_forbidden":
            section = _section(kind, location[:-1])
            known = list(section.model_fields) if section else []
            near = difflib.get_close_matches(str(location[-1]), known, n=1)
            expected = f"one of: {', '.join(known)}"
            return Problem(where, "", expected, f"{near[0]} (did you mean this?)" if near else "")
        case "missing":
            purpose = first_sentence(field.description) if field else ""
            example = "[…]" if len(location) == 1 else "…"
            shown = f"[{location[0]}]" if len(location) == 1 else f"{location[-1]} = {example}"
            return Problem(where, "", f"a value; it is required. {purpose}".strip(), shown)
        case "value_error":
            return Problem(where, "", str(detail["msg"]).removeprefix("Value error, "), "")
        case _:
            found = _shortened(json.dumps(_value(document, location), default=str))
            expected = str(detail["msg"]).replace("Input should be", "").strip() or detail["msg"]
            remedy = _remedy(field, location, detail)
            purpose = first_sentence(field.description) if field and not remedy else ""
            return Problem(where, found, ". ".join(filter(None, (expected, purpose))), remedy)


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text):,} characters)"


def _remedy(field: FieldInfo | None, location: tuple[str | int, ...], detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if "write" in context:
        return str(context["write"])
    allowed = re.findall(r"'([^']+)'", str(context.get("expected", "")))
    near = difflib.get_close_matches(str(detail["input"]), allowed, n=1, cutoff=0.3)
    if near:
        return f'{location[-1]} = "{near[0]}"'
    if field is not None and field.default is not PydanticUndefined and field.default is not None:
        default = to_jsonable_python(field.default)
        return f"{toml_line(str(location[-1]), default)}  (the default)"
    return ""


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a documentation."""
    return re.split(r"(?<=[.;:])\s", " ".join((text or "").split()))[0].rstrip(";:")


def _field(model: type[BaseModel], location: Sequence[str | int]) -> FieldInfo | None:
    parent = _section(model, location[:-1])
    return parent.model_fields.get(str(location[-1])) if parent and location else None


def _section(model: type[BaseModel], location: Sequence[str | int]) -> type[BaseModel] | None:
    """The pydantic model that a location inside a document lies in."""
    current: type[BaseModel] | None = model
    for part in location:
        if current is None or str(part) not in current.model_fields:
            # Keys of dictionaries are the user's own; their values may be sections again.
            continue
        current = next(iter(sections_in(current.model_fields[str(part)].annotation)), None)
    return current


def sections_in(annotation: object) -> Iterator[type[BaseModel]]:
    """The sections that a field of this type may hold, in the order of its declaration."""
    if isinstance(annotation, type) and not typing.get_args(annotation):
        yield from [annotation] if issubclass(annotation, BaseModel) else []
    for argument in typing.get_args(annotation):
        yield from sections_in(argument)


def _value(document: object, location: Sequence[str | int]) -> object:
    for part in location:
        if isinstance(document, dict):
            document = document.get(part, document)
        elif isinstance(document, list) and isinstance(part, int):
            document = document[part]
    return document


def where_in(path: Path, text: str, location: Sequence[str | int]) -> str:
    """`contract.toml:12 [section] key`, the line found by reading the text."""
    parts = [str(part) for part in location]
    section = parts[0] if parts else ""
    key = ".".join(parts[1:])
    line = _line_of(text, section, parts[1] if len(parts) > 1 else "")
    return f"{path.name}{f':{line}' if line else ''} [{section}]{f' {key}' if key else ''}"


def _line_of(text: str, section: str, key: str) -> int | None:
    inside, header_line = False, None
    for number, line in enumerate(text.splitlines(), 1):
        header = re.match(r"\s*\[+\s*([\w.\"-]+)", line)
        if header:
            names = header.group(1).split(".")
            inside = names[0] == section
            if inside and (header_line is None or key in names[1:]):
                header_line = number
        elif inside and key and re.match(rf"\s*\"?{re.escape(key)}\"?\s*[=.]", line):
            return number
    return header_line


def toml_line(key: str, value: JsonValue) -> str:
    """An option as it is written in a file; one that is not set is a comment."""
    if value is None:
        return f"# {key} is not set"
    return f"{key} = {toml_value(value)}"


def toml_value(value: JsonValue) -> str:
    """A value as it is written in a file."""
    if isinstance(value, dict):
        pairs = (
            f"{json.dumps(key)} = {toml_value(item)}"
            for key, item in value.items()
            if item is not None
        )
        return "{ " + ", ".join(pairs) + " }" if value else "{}"
    if isinstance(value, list):
        return "[" + ", ".join(toml_value(item) for item in value) + "]"
    return json.dumps(value, ensure_ascii=False)
