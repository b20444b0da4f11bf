"""TOML files as sections: every mistake found, with file, line, value, expectation and remedy.

Files are read with limits, and values that nothing later could carry are refused.
"""

import json
import re
import tomllib
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date, time
from itertools import chain, islice
from math import isfinite
from pathlib import Path

from pydantic import BaseModel, JsonValue, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from perennial.contract_file.likely_values import sections_in
from perennial.contract_file.passwords import holds_password
from perennial.contract_file.remedies import REMOVE, Draft, field_at, find_remedy, place_of
from perennial.contract_file.toml_text import Location, fix_line, value_at, where_in
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import REMOVED_OPTIONS, Section

SHOWN = 20  # mistakes listed at once; a generated file may have thousands
MAX_BYTES = 1 << 20  # of the longest real contract, 273 kB, nearly four times
MAX_DEPTH = 32  # KFP, MLflow and pydantic each recurse; the deepest option of ours lies at 5
MAX_INTEGER = 2**63 - 1  # TOML 1.0 promises 64 bits, and JSON's readers no more
# Tab and line ends are text; other control characters break paths, logs and pods' arguments.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
NEW_LINE, INDENTED = "\n", "\n            "

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
            lines.append(f"  write:    {self.write.replace(NEW_LINE, INDENTED)}")
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
        raise ContractError(path, [_no_toml(path, text, kind, str(error))]) from error
    # Before validation, which would repeat such a value in full in its message.
    faults = _find_unusable(document)
    if what != "profile":  # whose options say by which secret to name it
        faults = chain(faults, _find_passwords(document))
    unusable = [
        Problem(where_in(path, text, location), found, expected, "")
        for location, found, expected in islice(faults, SHOWN)
    ]
    if unusable:
        raise ContractError(path, unusable)
    dates = [
        Problem(
            where_in(path, text, place),
            str(found),
            "no date",
            f'{place[-1]} = "{found}"  # if a text is meant',
        )
        for place, found in _walk(document)
        if isinstance(found, date | time) and not _takes_anything(kind, place)
    ]
    if dates:
        raise ContractError(path, dates)
    try:
        return kind.model_validate_json(json.dumps(document, default=str)), text
    except ValidationError as error:
        draft = Draft(kind, document, text, path.resolve().parent)
        details = error.errors()[:SHOWN]
        problems = [_problem(path, draft, detail) for detail in details]
        # One line may cure several: an option that is missing, and its value under another name.
        unknown = {
            problem.write: problem
            for problem, detail in zip(problems[::-1], details[::-1], strict=True)
            if detail["type"] == "extra_forbidden" and not problem.write.startswith(REMOVE)
        }
        kept = [each for each in problems if unknown.get(each.write, each) is each]
        raise ContractError(path, kept) from error


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


def _find_passwords(document: object) -> Iterator[tuple[Location, str, str]]:
    """Yield addresses with a password, which reports, MLflow and the snapshot would show."""
    for location, value in _walk(document):
        if isinstance(value, str) and holds_password(value):
            yield (
                location,
                "",  # the message must not show it either
                "an address without user, password, key or signature; credentials come from the "
                "environment on this machine, and from the profile's Secrets on a cluster",
            )


def _takes_anything(kind: type[Section], location: Sequence[str | int]) -> bool:
    """Whether a location lies in a table whose values are the user's own, such as task options."""
    fields = [field_at(kind, location[:depth]) for depth in range(1, len(location))]
    return any(field is not None and field.annotation == dict[str, JsonValue] for field in fields)


def _no_toml(path: Path, text: str, kind: type[Section], message: str) -> Problem:
    """Return the problem of the line that cannot be read, with its text."""
    match = re.search(r"at line (\d+)", message)
    lines = text.splitlines()
    number = int(match.group(1)) if match else len(lines)
    fixed, line = fix_line(text, number)
    number = fixed or number
    if "=" in line:  # the line of a section's name stands for whatever the section lacks
        changed = "\n".join([*lines[: number - 1], line, *lines[number:]])
        line = _value_remedy(path, changed, kind, number) or line
    remedy = line or 'each [section] once, then key = value; texts in "quotes", lists in [brackets]'
    if "overwrite" in message or "declare" in message or "redefine" in message:
        remedy = f"{REMOVE}: it stands in the file already"
    line = lines[number - 1].strip() if 0 < number <= len(lines) else ""
    return Problem(
        f"{path.name}:{number}: {_shortened(line)}", "", f"valid TOML: {message}", remedy
    )


def _value_remedy(path: Path, text: str, kind: type[Section], number: int) -> str:
    """Return what to write in a line that can be read but whose value is a mistake; else empty."""
    try:
        document = tomllib.loads(text)
        kind.model_validate_json(json.dumps(document, default=str))
    except ValidationError as error:
        draft = Draft(kind, document, text, path.resolve().parent)
        for detail in error.errors():
            place = where_in(path, text, place_of(document, detail))
            if place.startswith(f"{path.name}:{number} "):
                return find_remedy(draft, detail)
    except ValueError:  # another line cannot be read
        pass
    return ""


def _problem(path: Path, draft: Draft, detail: ErrorDetails) -> Problem:
    location = place_of(draft.document, detail)
    where = where_in(path, draft.text, location)
    value = value_at(draft.document, location)
    remedy = find_remedy(draft, detail)
    kind = detail["type"]
    if kind == "extra_forbidden" and location[-1] in REMOVED_OPTIONS:
        held = json.dumps(REMOVED_OPTIONS[str(location[-1])])
        return Problem(where, "", f"no such option: it was removed, {held} holds always", REMOVE)
    found = "" if kind in ("missing", "value_error") else json.dumps(value, default=str)
    if kind == "extra_forbidden":
        found = "" if isinstance(value, dict) else found
        expected = _known_names(draft.kind, location[:-1], is_short=bool(remedy))
    else:
        field = field_at(draft.kind, location)
        expected = _expected(detail, field if not remedy or kind == "missing" else None)
    return Problem(where, _shortened(found), expected, remedy)


def _expected(detail: ErrorDetails, field: FieldInfo | None) -> str:
    """Return what would be right in the place of a wrong or missing value."""
    purpose = first_sentence(field.description) if field else ""
    match detail["type"]:
        case "missing":
            return f"a value; it is required. {purpose}".strip()
        case "value_error":
            return str(detail["msg"]).removeprefix("Value error, ")
        case "union_tag_invalid" | "union_tag_not_found":
            tags = detail.get("ctx", {}).get("expected_tags", "")
            return f"a table of one of the kinds {tags}. {purpose}"
        case "literal_error":
            purpose = ""
    message = str(detail["msg"])
    expected = message.replace("Input should be", "").strip() or message
    return ". ".join(filter(None, (expected, purpose)))


def _known_names(kind: type[Section], location: Location, *, is_short: bool) -> str:
    """Return the options of a section, or where to read them if the right one is known."""
    section: type[BaseModel] | None = kind
    if location:
        field = field_at(kind, location)
        section = next(iter(sections_in(field.annotation)), None) if field is not None else None
    known = list(section.model_fields) if section is not None else []
    if is_short and location and kind.__name__ == "Contract":
        path = ".".join(map(str, location))
        return f"an option of [{path}]: `perennial options {path}` explains them"
    return f"one of: {', '.join(known)}" if known else "no such option"


def _shortened(text: str) -> str:
    return text if len(text) <= 200 else f"{text[:200]}… ({len(text):,} characters)"


def first_sentence(text: str | None) -> str:
    """Return the first sentence of a documentation."""
    return re.split(r"(?<=[.;:])\s", " ".join((text or "").split()))[0].rstrip(";:")
