"""Verified files: records which content a file had when it was hashed, so that it is hashed once.

A record holds inode, size, mtime and ctime, of which the last changes with every write and cannot
be set back. It counts only in a folder that nobody but this user can write to.
"""

import hashlib
import os
import stat
import threading
from contextlib import suppress
from pathlib import Path

from perennial.clients.file_tree import file_version, is_settled

_RECORDS = "verified"


def is_verified(path: Path, sha256: str, cache: Path) -> bool:
    """Whether the file is unchanged since it was found to have this SHA-256."""
    folder = _private_folder(cache)
    try:
        return folder is not None and _record(folder, path).read_text() == _line(path, sha256)
    except OSError:
        return False


def record_verified(path: Path, sha256: str, cache: Path) -> None:
    """Record the SHA-256 that a file was just found to have."""
    folder = _private_folder(cache)
    is_own = path.is_relative_to(cache)  # nobody else writes there
    if folder is not None and (is_own or is_settled(file_version(path.stat()))):
        record = _record(folder, path)
        partial = record.with_suffix(f".{os.getpid()}.{threading.get_ident()}")
        with suppress(OSError):  # a full disk costs no more than another hashing
            partial.write_text(_line(path, sha256))
            partial.replace(record)


def _private_folder(cache: Path) -> Path | None:
    """Return the folder of the records; None if another user could have written there."""
    folder = cache / _RECORDS
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not `stat`, which would follow a link that another user put there.
    found = folder.lstat()
    is_private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
    return folder if stat.S_ISDIR(found.st_mode) and is_private else None


def _record(folder: Path, path: Path) -> Path:
    return folder / hashlib.sha256(os.fsencode(path.absolute())).hexdigest()


def _line(path: Path, sha256: str) -> str:
    info = path.stat()
    return f"{sha256} {info.st_size} {file_version(info)}"
