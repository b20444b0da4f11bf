"""Text of a TOML file, read with limits, and values in it that nothing later could carry."""

import re
import tomllib
from collections.abc import Iterator
from datetime import date, datetime, time
from math import isfinite
from pathlib import Path
from typing import Any

from perennial.contracts.errors import PerennialError

MAX_BYTES = 1 << 20  # of the longest real contract, 273 kB, nearly four times
MAX_DEPTH = 32  # KFP, MLflow and pydantic each recurse; the deepest option of ours lies at 5
MAX_INTEGER = 2**63 - 1  # TOML 1.0 promises 64 bits, and JSON's readers no more
# Tab and line ends are text; other control characters break paths, logs and pods' arguments.
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")

Location = tuple[str | int, ...]


def read_text(path: Path, what: str) -> str:
    """Read a TOML file's text; a byte order mark of UTF-8 is dropped.

    Args:
        path: The file.
        what: What people call such a file.

    Raises:
        PerennialError: it cannot be read, is not a regular file, too long, or not UTF-8.
    """
    try:
        is_file = path.is_file()
        if is_file or not path.exists():  # what does not exist raises the system's own words
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


def parse(text: str) -> dict[str, Any]:
    """Parse TOML.

    Raises:
        ValueError: it is not TOML, or holds what Python's reader refuses; the message names the
            line where it is known.
    """
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


def find_unusable(document: object) -> Iterator[tuple[Location, str, str]]:
    """Values that JSON, KFP or the operating system cannot carry: location, value, what is wrong.

    Infinities and NaN, integers beyond 64 bits, control characters, nesting without end.
    """
    waiting: list[tuple[Location, object]] = [((), document)]
    while waiting:
        location, value = waiting.pop()
        if len(location) > MAX_DEPTH:
            yield location[:4], "", f"at most {MAX_DEPTH} levels of tables and lists"
        elif isinstance(value, dict):
            for key in value:
                if CONTROL.search(key):
                    yield (*location, repr(key)), "", "a name without control characters"
            waiting += reversed([((*location, key), item) for key, item in value.items()])
        elif isinstance(value, list):
            waiting += reversed([((*location, index), item) for index, item in enumerate(value)])
        elif isinstance(value, float) and not isfinite(value):
            yield location, str(value), "a finite number"
        elif isinstance(value, int) and not -MAX_INTEGER - 1 <= value <= MAX_INTEGER:
            found = f"an integer of {value.bit_length():,} bits"
            yield location, found, "an integer of at most 64 bits"
        elif isinstance(value, str) and CONTROL.search(value):
            yield location, repr(value[:200]), "a text without control characters"


def find_dates(document: object, location: Location = ()) -> Iterator[tuple[Location, str]]:
    """Dates and times, which JSON cannot carry: location, value."""
    pairs = enumerate(document) if isinstance(document, list) else ()
    for key, item in document.items() if isinstance(document, dict) else pairs:
        if isinstance(item, date | time | datetime):
            yield (*location, key), str(item)
        else:
            yield from find_dates(item, (*location, key))
