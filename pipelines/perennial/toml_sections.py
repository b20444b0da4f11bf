"""TOML files as sections: every mistake found, with file, line, value, expectation and remedy."""

import difflib
import json
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticUndefined

from perennial.contracts.errors import PerennialError
from perennial.contracts.section import REMOVED_OPTIONS, Section
from perennial.toml_text import find_dates, find_unusable, parse, read_text

SHOWN = 20  # mistakes listed at once; a generated file may have thousands

Document = typing.TypeVar("Document", bound=Section)


@dataclass(frozen=True)
class Problem:
    """One mistake in a contract.

    Attributes:
        where: File, line and key.
        found: The offending value; empty when something is missing.
        expected: What would be accepted.
        write: What to write instead.
    """

    where: str
    found: str
    expected: str
    write: str

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
    """Read a TOML file as sections, with its text for further messages.

    Args:
        path: The file.
        kind: The section that the whole file is.
        what: What people call such a file.

    Raises:
        ContractError: every mistake found, up to twenty.
        PerennialError: there is no such file, or it is not text of a sensible length.
    """
    text = read_text(path, what)
    try:
        document = parse(text)
    except ValueError as error:
        raise ContractError(path, [_no_toml(path, text, str(error))]) from error
    unusable = [
        Problem(where_in(path, text, location), found, expected, "")
        for location, found, expected in islice(find_unusable(document), SHOWN)
    ]
    if unusable:
        raise ContractError(path, unusable)
    dates = [
        Problem(where_in(path, text, location), found, "no date", f'"{found}", if a text is meant')
        for location, found in find_dates(document)
        if not _takes_anything(kind, location)
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
            known = _known_keys(kind, location[:-1])
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
        return f"{toml_line(str(location[-1]), _plain(field.default))}  (the default)"
    return ""


def _plain(value: object) -> JsonValue:
    if isinstance(value, BaseModel):
        return typing.cast("JsonValue", value.model_dump(mode="json"))
    return typing.cast("JsonValue", list(value) if isinstance(value, tuple) else value)


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a documentation."""
    return re.split(r"(?<=[.;:])\s", " ".join((text or "").split()))[0].rstrip(";:")


def _known_keys(kind: type[Section], location: Sequence[str | int]) -> list[str]:
    section = _section(kind, location)
    return list(section.model_fields) if section else []


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
