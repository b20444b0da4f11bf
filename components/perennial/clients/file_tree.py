"""File tree: everything below a folder, links followed, unreadable entries included."""

import os
import stat
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import heappop, heappush
from pathlib import Path
from typing import Literal, NamedTuple

EntryKind = Literal[
    "file", "broken link", "special file", "unreadable", "empty folder", "repeated folder"
]

# Two writes within one tick of a file system's clock look the same: 2 s on FAT, 1 s on old NFS,
# 4 ms on ext4. Git distrusts such entries of its index for the same reason.
SETTLED_NS = 2_000_000_000


@dataclass(frozen=True)
class TreeEntry:
    """One entry below a root.

    Attributes:
        key: Path relative to the root, `/`-separated.
        kind: What it is; folders are entered, and stand here only where nothing is found in them.
        size_bytes: Of a file.
        version: Of a file or an object; other content has another one. Empty if the store has none.
        identity: Equal for two names of one file, such as a file and a link to it; None if unknown.
        is_link: Whether a link leads there, itself or above.
        detail: A link's target, a repeated folder's first key or the system's message.
    """

    key: str
    kind: EntryKind = "file"
    size_bytes: int = 0
    version: str = ""
    identity: tuple[int, int] | None = None
    is_link: bool = False
    detail: str = ""


def is_hidden(name: str) -> bool:
    """Whether readers of datasets pass over a file or a folder because of its name.

    A partition column may start with an underscore: `_year=2024` holds data.
    """
    if name in (".", ".."):
        return False
    return name.startswith(".") or (name.startswith("_") and "=" not in name)


def walk_tree(
    root: Path, is_sought: Callable[[str], bool] = lambda _key: True
) -> Iterator[TreeEntry]:
    """Yield every entry below a folder, hidden ones included; no folder is entered twice.

    A key that is not sought is left out, and a folder with all that is below it.

    What a link or a second mount leads to is named where it stands itself if it is below the root
    and not hidden. An entry that disappears meanwhile is left out; nothing else is.
    """
    pending: list[_Folder] = [_Folder(False, False, "")]
    entered: dict[tuple[int, int], str] = {}
    while pending:
        folder = heappop(pending)
        key = folder.key
        try:
            # Device and inode are the same for a folder, links to it and a second mount of it.
            info = (root / key).stat()
            first = entered.setdefault((info.st_dev, info.st_ino), key)
            if first != key:
                yield TreeEntry(key, "repeated folder", is_link=folder.is_link, detail=first or ".")
                continue
            with os.scandir(root / key) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except FileNotFoundError:
            continue
        except OSError as error:
            yield TreeEntry(key, "unreadable", detail=str(error))
            continue
        if not entries and key:
            yield TreeEntry(key, "empty folder")
        for entry in entries:
            below = f"{key}/{entry.name}" if key else entry.name
            if not is_sought(below):
                continue
            described = _describe(entry, below, is_link=folder.is_link or entry.is_symlink())
            if isinstance(described, TreeEntry):
                yield described
            elif described:
                heappush(pending, _Folder(folder.is_hidden or is_hidden(entry.name), *described))


class _Folder(NamedTuple):
    """A folder to enter; the smallest is next, so that what is hidden or linked comes last."""

    is_hidden: bool
    is_link: bool
    key: str


def _describe(
    entry: "os.DirEntry[str]", key: str, *, is_link: bool
) -> TreeEntry | tuple[bool, str] | None:
    """Return the entry; of a folder, whether a link leads there; None if it has disappeared."""
    target = _target(entry) if entry.is_symlink() else ""
    try:
        info = entry.stat()
    except OSError as error:
        if target:
            return TreeEntry(key, "broken link", detail=target)
        is_gone = isinstance(error, FileNotFoundError)
        return None if is_gone else TreeEntry(key, "unreadable", detail=str(error))
    if stat.S_ISDIR(info.st_mode):
        return is_link, key
    if not stat.S_ISREG(info.st_mode):
        return TreeEntry(key, "special file", detail=stat.filemode(info.st_mode))
    identity = (info.st_dev, info.st_ino)
    return TreeEntry(key, "file", info.st_size, file_version(info), identity, is_link)


def file_version(info: os.stat_result) -> str:
    """Return what changes with every write to a file: `ctime` cannot be set back.

    The device is left out: a network volume has another number wherever it is mounted.
    """
    return f"{info.st_ino}:{info.st_mtime_ns}:{info.st_ctime_ns}"


def is_settled(version: str) -> bool:
    """Whether a file was last written so long ago that another write must change its version."""
    _, *moments = version.split(":")
    return time.time_ns() - max(map(int, moments)) > SETTLED_NS


def _target(entry: "os.DirEntry[str]") -> str:
    try:
        return str(Path(entry.path).readlink())
    except OSError as error:
        return str(error)
