"""Block: the part of a stream that monitoring compares as one."""

import re
from datetime import datetime

from perennial.contracts.section import Section

_NUMBER = re.compile(r"(\d+)")


def by_name(path: str) -> list[tuple[int, str]]:
    """Return a key that sorts paths by name, numbers in them by value: part-10 follows part-9."""
    parts = _NUMBER.split(path)
    return [(int(part) if part.isdecimal() else -1, part) for part in parts]


class BlockFile(Section):
    """A partition, by its name and by its content."""

    path: str
    """Below `data.uri`."""
    sha256: str


class Block(Section):
    """A span of time or, for data without a time column, one or more partition files."""

    start: datetime | None = None
    """None for files."""
    files: tuple[BlockFile, ...] = ()
    """In order of arrival; empty for a span of time."""

    @property
    def title(self) -> str:
        """Name for people: the first day, or the names of the files."""
        if self.start is not None:
            return f"{self.start:%Y-%m-%d}"
        names = [file.path for file in (self.files[0], self.files[-1])]
        return f"files {names[0]} to {names[1]}" if len(self.files) > 1 else f"file {names[0]}"
