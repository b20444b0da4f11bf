"""Lists everything below a folder: links are followed, and what cannot be read is named."""

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

EntryKind = Literal[
    "file", "broken link", "special file", "unreadable", "empty folder", "link to a parent folder"
]


@dataclass(frozen=True)
class TreeEntry:
    """One entry below a root.

    Attributes:
        key: Path relative to the root, `/`-separated.
        kind: What it is; folders are entered, and stand here only where nothing is found in them.
        size_bytes: Of a file.
        identity: Equal for two names of one file, such as a file and a link to it; None if unknown.
        detail: A link's target or the system's message.
    """

    key: str
    kind: EntryKind = "file"
    size_bytes: int = 0
    identity: tuple[int, int] | None = None
    detail: str = ""


def walk_tree(root: Path) -> Iterator[TreeEntry]:
    """Every entry below a folder, hidden ones included; a link to a parent folder is not entered.

    An entry that disappears meanwhile is left out; nothing else is.
    """
    pending: list[tuple[str, frozenset[tuple[int, int]]]] = [("", frozenset())]
    while pending:
        key, parents = pending.pop()
        try:
            info = (root / key).stat()
            with os.scandir(root / key) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield TreeEntry(key, "unreadable", detail=str(error))
            continue
        if not entries and key:
            yield TreeEntry(key, "empty folder")
        inside = parents | {(info.st_dev, info.st_ino)}
        for entry in entries:
            below = f"{key}/{entry.name}" if key else entry.name
            described = _describe(entry, below, inside)
            if described == "folder":
                pending.append((below, inside))
            elif isinstance(described, TreeEntry):
                yield described


def _describe(
    entry: "os.DirEntry[str]", key: str, parents: frozenset[tuple[int, int]]
) -> TreeEntry | Literal["folder"] | None:
    """The entry; None if it disappeared since its folder was read."""
    target = _target(entry) if entry.is_symlink() else ""
    try:
        info = entry.stat()
    except OSError as error:
        if target:
            return TreeEntry(key, "broken link", detail=target)
        is_gone = isinstance(error, FileNotFoundError)
        return None if is_gone else TreeEntry(key, "unreadable", detail=str(error))
    identity = (info.st_dev, info.st_ino)
    if stat.S_ISREG(info.st_mode):
        return TreeEntry(key, "file", info.st_size, identity)
    if not stat.S_ISDIR(info.st_mode):
        return TreeEntry(key, "special file", detail=stat.filemode(info.st_mode))
    is_loop = identity in parents
    return TreeEntry(key, "link to a parent folder", detail=target) if is_loop else "folder"


def _target(entry: "os.DirEntry[str]") -> str:
    try:
        return str(Path(entry.path).readlink())
    except OSError as error:
        return str(error)
