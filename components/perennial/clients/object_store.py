"""Object store: one interface, and a local folder behind it; `s3_store` is the other one."""

import fcntl
import hashlib
import shutil
import stat
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from typing_extensions import override

from perennial.clients.file_tree import TreeEntry, file_version, is_settled, walk_tree
from perennial.contracts.artifact import flush_path, write_atomically
from perennial.contracts.errors import BadDataError, PerennialError
from perennial.contracts.section import Section

Content = TypeVar("Content", bound=Section)
Result = TypeVar("Result")
MAX_ATTEMPTS = 20
"""Lost conditional writes before an error; each means that another writer was first."""
_LOCKS = ".locks"
_UPLOADING = ".uploading"
_NAME_BYTES = 100


@dataclass(frozen=True)
class StoredObject:
    """One listed object.

    Attributes:
        version: ETag, or what a file system has in its place; other content has another one.
            Empty where the store gives none.
    """

    key: str
    size_bytes: int
    # Not compared: the listing of a folder has none.
    version: str = field(default="", compare=False)


class ConflictError(Exception):
    """A conditional write lost: the object has changed since the writer read it."""


class ObjectStore(ABC):
    """Objects under one root; keys are relative, `/`-separated.

    Objects with a part of their key starting with a dot are never listed: they are being written.
    """

    uri: str

    @abstractmethod
    def list(self, prefix: str = "") -> list[StoredObject]:
        """Return the objects whose key starts with a prefix, sorted by key.

        Raises:
            PerennialError: the store cannot be listed.
        """

    @abstractmethod
    def list_everything(self) -> Sequence[TreeEntry]:
        """Return every entry below the root, hidden or not, readable or not, but no lock.

        Raises:
            PerennialError: the store cannot be listed.
        """

    @abstractmethod
    def first_bytes(self, key: str, count: int) -> bytes:
        """Return the beginning of an object's content; less where the object is shorter."""

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """Return the content; None without such an object."""

    @abstractmethod
    def write(self, key: str, content: bytes) -> None:
        """Write an object; readers see the old or the new content, never a part."""

    @abstractmethod
    def replace(self, key: str, content: bytes, *, previous: bytes | None) -> None:
        """Write only if the content is still `previous` (None: only if there is no object).

        Raises:
            ConflictError: somebody else wrote in between.
        """

    def update(
        self, key: str, change: Callable[[bytes | None], tuple[bytes | None, Result]]
    ) -> Result:
        """Change an object by compare and set; change it again where another writer was first.

        `change` is called in each attempt with the content (None: there is no object) and returns
        the new content (None: write nothing) and the result.

        Raises:
            PerennialError: other writers never stop.
        """
        for _ in range(MAX_ATTEMPTS):
            previous = self.read(key)
            content, result = change(previous)
            if content is None:
                return result
            try:
                self.replace(key, content, previous=previous)
            except ConflictError:
                continue
            return result
        raise PerennialError(
            f"{self.uri}/{key} could not be written",
            evidence=f"another run wrote first in each of {MAX_ATTEMPTS} attempts",
            action="look for runs that are started in a loop, then run this one again",
        )

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; no error when it is not there."""

    @abstractmethod
    def fetch(self, key: str, cache: Path) -> Path:
        """Return a local file with the object's content, downloaded into `cache` where necessary.

        Raises:
            PerennialError: there is no such object.
        """

    @abstractmethod
    def find(self, key: str) -> StoredObject:
        """Return the object as it is now.

        Raises:
            BadDataError: there is no such object.
        """

    @abstractmethod
    def keeps_version(self, item: StoredObject) -> bool:
        """Whether any later write must give the object another version."""

    def check_version(self, item: StoredObject) -> None:
        """Check that the object still is what was listed.

        Raises:
            BadDataError: it is gone or has changed.
        """
        now = self.find(item.key)
        if now != item or (item.version and now.version != item.version):
            raise changed_object(f"{self.uri}/{item.key}", item, now)

    @abstractmethod
    def fetch_pinned(
        self, item: StoredObject, cache: Path, sha256: str | None = None
    ) -> tuple[Path, str]:
        """Return a local file with the content of one version of an object, and its SHA-256.

        The content is hashed once, while it arrives. `sha256` is what is expected: a content that
        has it needs no other proof that it arrived undamaged.

        Raises:
            BadDataError: the object is gone, has changed or arrives damaged.
        """

    @abstractmethod
    def read_range(self, item: StoredObject, start: int, stop: int) -> bytes:
        """Return the bytes from `start` to `stop` of one version of an object.

        Raises:
            BadDataError: the object is gone or has changed, or the bytes arrive incomplete.
        """

    @abstractmethod
    def upload(self, key: str, file: Path) -> None:
        """Write an object from a file, part by part, so that a large one needs little memory.

        Readers see the old or the new content, never a part.
        """

    @abstractmethod
    def download(self, key: str, file: Path) -> None:
        """Copy an object's content to a file, part by part.

        Raises:
            BadDataError: there is no such object.
        """

    @abstractmethod
    def discard_uploads(self, prefix: str) -> int:
        """Delete unfinished uploads under a prefix; return how many.

        For the one writer of the prefix: an upload that is under way is forgotten with them.
        """


@dataclass(frozen=True)
class StoredRecord(Generic[Content]):
    """A section under one key, which several runs read and change."""

    store: ObjectStore
    key: str
    kind: type[Content]
    title: str
    """What messages call it, with its article."""
    if_damaged: str
    """What to do about one that cannot be read."""

    def read(self) -> Content | None:
        """Return the stored value; None before the first write.

        Raises:
            PerennialError: it is damaged, or of another version.
        """
        return self._parsed(self.store.read(self.key))

    def update(self, change: Callable[[Content | None], tuple[Content | None, Result]]) -> Result:
        """Change what is stored, as `ObjectStore.update`; an equal value writes nothing.

        Raises:
            PerennialError: what is stored is damaged, or other writers never stop.
        """

        def change_content(previous: bytes | None) -> tuple[bytes | None, Result]:
            changed, result = change(self._parsed(previous))
            content = None if changed is None else changed.to_json().encode()
            return None if content == previous else content, result

        return self.store.update(self.key, change_content)

    def _parsed(self, content: bytes | None) -> Content | None:
        if content is None:
            return None
        try:
            return self.kind.from_json(content)
        except ValueError as error:
            raise PerennialError(
                f"{self.title} cannot be read: it is damaged or of another version",
                evidence=f"{self.store.uri}/{self.key}: {error}",
                action=self.if_damaged,
            ) from error


class LocalObjectStore(ObjectStore):
    """A folder as an object store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)

    @override
    def list(self, prefix: str = "") -> list[StoredObject]:
        def is_sought(key: str) -> bool:
            is_hidden = key.rpartition("/")[2].startswith(".")
            return not is_hidden and (f"{key}/".startswith(prefix) or prefix.startswith(f"{key}/"))

        found = []
        # Links are followed, as they are by reads: people move a large folder to another disk.
        for entry in walk_tree(self.root, is_sought):
            if entry.kind == "unreadable":
                raise _unreadable_folder(self.root / entry.key, entry.detail)
            if entry.kind == "file" and entry.key.startswith(prefix):
                found.append(StoredObject(entry.key, entry.size_bytes))
        return sorted(found, key=lambda item: item.key)

    @override
    def list_everything(self) -> Sequence[TreeEntry]:
        try:
            is_folder = stat.S_ISDIR(self.root.stat().st_mode)
        except FileNotFoundError:
            if not self.root.is_symlink():
                return []
            is_folder = False
        except OSError as error:
            raise _unreadable_folder(self.root, str(error)) from error
        if not is_folder:
            raise PerennialError(
                f"{self.root} is not a folder",
                evidence="it is a dangling link" if self.root.is_symlink() else "it is a file",
                action="name the folder that holds the files",
            )
        return list(walk_tree(self.root, lambda key: key != _LOCKS))

    @override
    def first_bytes(self, key: str, count: int) -> bytes:
        path = self.root / key
        refuse_special_file(path)
        with path.open("rb") as stream:
            return stream.read(count)

    @override
    def read(self, key: str) -> bytes | None:
        path = self.root / key
        try:
            refuse_special_file(path)
            return path.read_bytes()
        except FileNotFoundError:
            return None

    @override
    def write(self, key: str, content: bytes) -> None:
        # Locked: a plain write must not fall between the comparison and the rename of `replace`.
        with self._locked(key):
            write_atomically(self.root / key, content)

    @override
    def replace(self, key: str, content: bytes, *, previous: bytes | None) -> None:
        with self._locked(key):
            if self.read(key) != previous:
                raise ConflictError(key)
            write_atomically(self.root / key, content)

    @override
    def delete(self, key: str) -> None:
        with self._locked(key):
            (self.root / key).unlink(missing_ok=True)

    @override
    def fetch(self, key: str, cache: Path) -> Path:
        path = self.root / key
        if not path.is_file():
            raise missing_object(f"{self.uri}/{key}")
        return path

    @override
    def find(self, key: str) -> StoredObject:
        try:
            info = (self.root / key).stat()
        except FileNotFoundError as error:
            raise missing_object(f"{self.uri}/{key}") from error
        return StoredObject(key, info.st_size, file_version(info))

    @override
    def keeps_version(self, item: StoredObject) -> bool:
        return is_settled(item.version)

    @override
    def fetch_pinned(
        self, item: StoredObject, cache: Path, sha256: str | None = None
    ) -> tuple[Path, str]:
        path = self.fetch(item.key, cache)
        found = sha256_of_file(path)
        # After the read: a file that changed meanwhile is refused.
        self.check_version(item)
        return path, found

    @override
    def read_range(self, item: StoredObject, start: int, stop: int) -> bytes:
        path = self.fetch(item.key, self.root)
        with path.open("rb") as stream:
            stream.seek(start)
            content = stream.read(stop - start)
        self.check_version(item)
        return content

    @override
    def upload(self, key: str, file: Path) -> None:
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}{_UPLOADING}")
        with self._locked(key):
            shutil.copyfile(file, partial)
            # Callers write a marker next, which must not outlive what it stands for.
            flush_path(partial)
            partial.replace(target)
        flush_path(target.parent)

    @override
    def download(self, key: str, file: Path) -> None:
        source = self.fetch(key, file.parent)
        with complete_file(file) as partial:
            shutil.copyfile(source, partial)

    @override
    def discard_uploads(self, prefix: str) -> int:
        partials = [
            path
            for path in self.root.rglob(f".*{_UPLOADING}")
            if path.with_name(path.name[1:]).relative_to(self.root).as_posix().startswith(prefix)
        ]
        for path in partials:
            path.unlink(missing_ok=True)
        return len(partials)

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        lock = self.root / _LOCKS / hashlib.sha256(key.encode()).hexdigest()
        lock.parent.mkdir(parents=True, exist_ok=True)
        # Never deleted: two processes could then hold locks on two files of this name.
        with lock.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


def open_store(uri: str) -> ObjectStore:
    """Return the store at `s3://bucket/prefix`, `file:///folder` or a plain folder.

    Raises:
        PerennialError: the scheme is not supported.
    """
    scheme, separator, rest = uri.partition("://")
    if not separator:
        return LocalObjectStore(Path(uri))
    if scheme == "s3":
        # Here, because `s3_store` needs this module, and folders do not need boto3 (1.6 s).
        from perennial.clients.s3_store import S3ObjectStore  # noqa: PLC0415

        # By hand: in a key, # and ? are letters like any other.
        bucket, _, prefix = rest.partition("/")
        return S3ObjectStore(bucket, prefix)
    if scheme == "file":
        return LocalObjectStore(Path("/" + rest.partition("/")[2]))
    raise PerennialError(
        f"object store {uri!r} has the unsupported scheme {scheme!r}",
        action="use s3://bucket/prefix, file:///folder or a plain folder",
    )


@contextmanager
def complete_file(target: Path) -> Iterator[Path]:
    """A file to write that takes its name, in one step, only when the block ends well.

    Each writer gets one of its own: the processes of one machine may fetch at once.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:
        partial = Path(folder) / "content"
        yield partial
        partial.replace(target)


def refuse_special_file(path: Path) -> None:
    """Refuse a pipe, a socket or a device, of which a read may never end.

    Raises:
        PerennialError: it is one.
        OSError: there is nothing at the path.
    """
    mode = path.stat().st_mode
    if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):  # a folder's own error is clear
        raise PerennialError(
            f"{path} is not a regular file",
            evidence=f"its mode is {stat.filemode(mode)}",
            action="replace it by the file that should be there",
        )


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal, read in chunks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def file_digests(place: Path) -> dict[str, str]:
    """Return path below a folder → SHA-256 of each file; of a file, its own with an empty path."""
    if place.is_file():
        return {"": sha256_of_file(place)}
    files = (path for path in sorted(place.rglob("*")) if path.is_file())
    return {path.relative_to(place).as_posix(): sha256_of_file(path) for path in files}


def copy_tree(source: Path, target: Path) -> None:
    """Copy a file or a folder to `target`, which is never incomplete; replaces what was there."""
    temporary = target.with_name(f".{target.name}.copying")
    # Deleted first: a rename does not replace a folder that has content. After a crash in between
    # the target is missing, and never incomplete.
    for stale in (temporary, target):
        if stale.is_dir():
            shutil.rmtree(stale)
        else:
            stale.unlink(missing_ok=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, temporary)
    else:
        shutil.copyfile(source, temporary)
    temporary.replace(target)


def _unreadable_folder(folder: Path, evidence: str) -> PerennialError:
    return PerennialError(
        f"cannot read the folder {folder}",
        evidence=evidence,
        action="give the user that runs the step read access to it and all below it, and check "
        "that its disk is mounted",
    )


def copy_of(uri: str, sha256: str, cache: Path) -> Path:
    """Return the place of a downloaded object's copy, which is named by place and content."""
    name = hashlib.sha256(f"{uri}\0{sha256}".encode()).hexdigest()
    # The end of the key shows people what it is; all of it may be too long for a file's name.
    end = uri.rpartition("/")[2].replace("\0", "").encode("utf-8", "replace")
    return cache / f"{name}-{end[-_NAME_BYTES:].decode('utf-8', 'ignore')}"


def changed_object(uri: str, before: StoredObject, now: StoredObject) -> BadDataError:
    """Return the error for an object that was replaced between listing and reading."""
    return BadDataError(
        f"{uri} changed while it was read",
        evidence=f"{before.size_bytes:,} bytes, version {before.version or 'unknown'} when listed; "
        f"{now.size_bytes:,} bytes, version {now.version or 'unknown'} now",
        action="write partitions under a temporary name and rename them when complete; corrections "
        "go into a new partition",
    )


def missing_object(uri: str) -> BadDataError:
    """Return the error for an object that a snapshot or a manifest names and the store lacks."""
    return BadDataError(
        f"{uri} does not exist any more",
        evidence="the object was listed in a snapshot but is gone from the store",
        action="restore it: snapshots pin objects, and the dataset must be append-only",
    )
