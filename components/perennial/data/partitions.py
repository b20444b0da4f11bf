"""Partitions: the dataset's files below `data.uri`, and the reason why others are ignored.

This is the one rule, for every store and for everything that reads or counts partitions.
"""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

from perennial.clients.file_tree import TreeEntry, is_hidden
from perennial.clients.object_store import ObjectStore, StoredObject
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot

logger = logging.getLogger(__name__)
PARTITION_SUFFIXES = (".parquet", ".parq", ".pq")
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4", ".zip", ".7z", ".br", ".sz")
_SET_ASIDE = (
    *(".tmp", ".temp", ".part", ".partial", ".inprogress", ".uploading", ".writing"),
    *(".crdownload", ".filepart", ".swp", "~", ".bak", ".old", ".orig", ".lock"),
)
_CHECKSUMS = (".crc", ".md5", ".sha1", ".sha256", ".sha512")
# What is left out without harm, unless its name is that of a partition.
_HARMLESS = {"empty folder": "an empty folder", "special file": "neither a file nor a folder"}
_UNREADABLE = {
    "broken link": "is a link to {!r}, which cannot be followed",
    "unreadable": "cannot be read: {}",
    "empty folder": "is an empty folder",
    "special file": "is neither a file nor a folder ({})",
}
_MAGIC = (b"PAR1", b"PARE")
_NAMED = 3
# Other files are opened to see whether they are Parquet; each costs a request on a remote store.
_MAX_OPENED = 200


@dataclass(frozen=True)
class Listing:
    """Files below `data.uri`.

    Attributes:
        ignored: Reason → keys that do not count as partitions.
    """

    uri: str
    partitions: tuple[StoredObject, ...]
    ignored: Mapping[str, Sequence[str]]

    @property
    def num_ignored(self) -> int:
        """Number of entries that are not part of the dataset."""
        return sum(len(keys) for keys in self.ignored.values())

    def ignored_lines(self) -> list[str]:
        """One line for each reason, with samples."""
        return [
            f"{len(keys):,} ignored: {reason} ({samples(keys)})"
            for reason, keys in sorted(self.ignored.items())
        ]


def find_partitions(store: ObjectStore) -> Listing:
    """List the dataset's Parquet files, and everything else with the reason why it is ignored.

    A partition is a file whose name ends in `.parquet`, `.parq` or `.pq` in any case. Like other
    readers, this ignores files and folders whose name starts with `.` or `_`, unless it names a
    partition column such as `_year=2024`.

    Raises:
        BadDataError: something that may be a partition cannot be read as one.
    """
    partitions, ignored, problems = [], dict[str, list[str]](), list[str]()
    entries = store.list_everything()
    keys = {entry.key for entry in entries}
    for entry in entries:
        reason = _reason_to_ignore(entry)
        problem = None if reason else _problem(entry, keys)
        if problem:
            problems.append(problem)
        elif reason or not _is_partition_name(entry.key):
            ignored.setdefault(reason or _kind_of_other(entry.key), []).append(entry.key)
        else:
            partitions.append(entry)
    problems += _repeated_files(partitions)
    repeated = _linked_twice(partitions)
    if repeated:
        ignored["a link to a file that is listed already"] = [each.key for each in repeated]
        partitions = [each for each in partitions if each not in repeated]
    if problems:
        shown = "; ".join(problems[:_NAMED]) + ("; …" if len(problems) > _NAMED else "")
        raise BadDataError(
            f"{len(problems)} {'entry' if len(problems) == 1 else 'entries'} below data.uri "
            f"{store.uri} cannot be read as partitions",
            evidence=shown,
            action="restore or remove each of them; what is not data may stay under a name that "
            "starts with _",
        )
    found = sorted(
        (StoredObject(each.key, each.size_bytes, each.version) for each in partitions),
        key=attrgetter("key"),
    )
    return Listing(store.uri, tuple(found), ignored)


def find_key_problem(key: str) -> str | None:
    """Return why a Parquet file under a key would not be read; None if it would."""
    return _reason_to_ignore(TreeEntry(key)) or _bad_key(key)


def refuse_hidden_parquet(store: ObjectStore, listing: Listing) -> None:
    """Look for Parquet files under names that do not tell so, such as Hive's `000000_0`."""
    others = [key for key in listing.ignored.get(_OTHER, ()) if not key.endswith("/")]
    if len(others) > _MAX_OPENED:
        logger.warning(
            "dataset=%s opened %d of %d files whose names do not tell what they are",
            *(store.uri, _MAX_OPENED, len(others)),
        )
    hidden = [key for key in others[:_MAX_OPENED] if store.first_bytes(key, 4) in _MAGIC]
    if hidden:
        raise BadDataError(
            f"{len(hidden)} files below data.uri {store.uri} are Parquet under another name",
            evidence=f"these begin as Parquet files do: {samples(hidden)}",
            action=f"let their names end in {PARTITION_SUFFIXES[0]}, or start with _ if they are "
            "not data",
        )


_OTHER = "the name does not end in " + ", ".join(PARTITION_SUFFIXES)


def _is_partition_name(key: str) -> bool:
    return key.lower().endswith(PARTITION_SUFFIXES)


def _reason_to_ignore(entry: TreeEntry) -> str | None:
    """Return why an entry is not data; None if it must be examined."""
    *folders, name = parts = entry.key.rstrip("/").split("/")
    if "_delta_log" in parts:
        return "log of a Delta table; files that it marks as removed are read all the same"
    if any(is_hidden(folder) for folder in folders):
        return "in a folder whose name starts with . or _"
    if is_hidden(name):
        return "the name starts with . or _"
    if entry.kind == "repeated folder":
        return "a link to a folder that is listed already"
    if entry.key.endswith("/") and not entry.size_bytes:
        return "a folder's marker"
    return None if _is_partition_name(entry.key) else _HARMLESS.get(entry.kind)


def _kind_of_other(key: str) -> str:
    lower = key.lower()
    if lower.endswith(_SET_ASIDE):
        return "a temporary file or a copy that was set aside"
    if lower.endswith(_CHECKSUMS):
        return "a checksum"
    return _OTHER


def _problem(entry: TreeEntry, keys: Iterable[str]) -> str | None:
    """Return what is wrong with an entry that may be data."""
    key, lower = entry.key, entry.key.lower()
    if entry.kind != "file":
        return f"{key!r} {_UNREADABLE[entry.kind].format(entry.detail)}"
    for suffix in _COMPRESSED:
        if lower.endswith(suffix) and _is_partition_name(key[: -len(suffix)]):
            return f"{key!r} is compressed as a whole; Parquet compresses its own pages"
    fetched = key[: -len(".dvc")]
    if lower.endswith(".dvc") and not any(f"{each}/".startswith(f"{fetched}/") for each in keys):
        return f"{key!r} is a placeholder for data that was not fetched (`dvc pull`)"
    return _bad_key(key) if _is_partition_name(key.rstrip("/")) else None


def _bad_key(key: str) -> str | None:
    if any(part in ("", ".", "..") for part in key.split("/")):
        return f"{key!r} is not a path: a part of it is empty, . or .."
    try:
        key.encode()
    except UnicodeEncodeError:
        return f"{os.fsencode(key)!r} is not valid UTF-8"
    return None if "\0" not in key else f"{key!r} holds a zero byte"


def _repeated_files(partitions: Sequence[TreeEntry]) -> Iterator[str]:
    """Files with two names of which none is the link, so that their rows would count twice."""
    for entries in _by_identity(partitions):
        names = [entry.key for entry in entries if not entry.is_link]
        if len(names) != 1 and len(entries) > 1:
            first, second = sorted(names or [entry.key for entry in entries])[:2]
            yield f"{first!r} and {second!r} are links to one file, whose rows would count twice"


def _linked_twice(partitions: Sequence[TreeEntry]) -> Sequence[TreeEntry]:
    """Links to files that are listed under their own names as well."""
    return [
        entry
        for entries in _by_identity(partitions)
        for entry in entries
        if entry.is_link and not all(each.is_link for each in entries)
    ]


def _by_identity(partitions: Sequence[TreeEntry]) -> Iterable[Sequence[TreeEntry]]:
    files: dict[tuple[int, int], list[TreeEntry]] = {}
    for entry in partitions:
        if entry.identity is not None:
            files.setdefault(entry.identity, []).append(entry)
    return files.values()


def samples(keys: Sequence[str], count: int = _NAMED) -> str:
    """Some of the keys, readable whatever they hold."""
    shown = ", ".join(repr(key) for key in sorted(keys)[:count])
    return shown + (", …" if len(keys) > count else "")


def lost_line(now: Snapshot, then: Snapshot) -> str:
    """Say which partitions of an earlier snapshot are gone or were rewritten; empty for none.

    Contents count, so a partition that was only moved or renamed is not lost.
    """
    contents, paths = {file.sha256 for file in now.files}, {*now.paths}
    files = zip(then.paths, then.files, strict=True)
    lost = {path: file.rows for path, file in files if file.sha256 not in contents}
    rewritten = [path for path in lost if path in paths]
    gone = [path for path in lost if path not in paths]
    parts = []
    if gone:
        rows = sum(lost[path] for path in gone)
        are = "is" if len(gone) == 1 else "are"
        parts.append(f"{len(gone):,} {are} gone ({rows:,} rows: {samples(gone)})")
    if rewritten:
        were = "was" if len(rewritten) == 1 else "were"
        parts.append(f"{len(rewritten):,} {were} rewritten ({samples(rewritten)})")
    return f"of {len(then.files):,} partitions {' and '.join(parts)}" if parts else ""
