"""Object store: the only door to boto3, and a local folder with the same semantics."""

import fcntl
import hashlib
import os
import shutil
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.exceptions import BotoCoreError, ClientError
from typing_extensions import override

from components.contracts.artifact import write_atomically
from components.contracts.errors import BadDataError, PerennialError

_PART_BYTES = 16 * 1024 * 1024
# 64 MiB in memory at most; a part that fails is sent again, without the others.
_PARTS = TransferConfig(
    multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=4
)
_UPLOADING = ".uploading"
_MISSING_CODES = ("404", "NoSuchKey")
_CONFLICT_CODES = ("PreconditionFailed", "ConditionalRequestConflict")


@dataclass(frozen=True)
class StoredObject:
    """One listed object."""

    key: str
    size_bytes: int


class ConflictError(Exception):
    """A conditional write lost: the object is no longer what the writer had read."""


class ObjectStore(ABC):
    """Objects under one root; keys are relative, `/`-separated.

    Objects with a part of their key starting with a dot are never listed: they are being written.
    """

    uri: str

    @abstractmethod
    def list(self, prefix: str = "") -> list[StoredObject]:
        """The objects whose key starts with a prefix, sorted by key; empty when there is none.

        Raises:
            PerennialError: the store cannot be listed.
        """

    @abstractmethod
    def read(self, key: str) -> bytes | None:
        """The content, or None when there is no such object."""

    @abstractmethod
    def write(self, key: str, content: bytes) -> None:
        """Write an object; readers see the old or the new content, never a part."""

    @abstractmethod
    def replace(self, key: str, content: bytes, *, previous: bytes | None) -> None:
        """Write only if the content is still `previous` (None: only if there is no object).

        Raises:
            ConflictError: somebody else wrote in between.
        """

    @abstractmethod
    def delete(self, key: str) -> None:
        """Delete an object; no error when it is not there."""

    @abstractmethod
    def fetch(self, key: str, cache: Path) -> Path:
        """A local file with the object's content, downloaded into `cache` where necessary.

        Raises:
            PerennialError: there is no such object.
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
        """Forget uploads under a prefix that never ended, and say how many.

        For the one writer of the prefix: an upload that is under way is forgotten with them.
        """


class LocalObjectStore(ObjectStore):
    """A folder as an object store."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.uri = str(root)

    @override
    def list(self, prefix: str = "") -> list[StoredObject]:
        try:
            found = [
                StoredObject(path.relative_to(self.root).as_posix(), path.stat().st_size)
                for path in self._files()
            ]
        except PermissionError as error:
            raise PerennialError(
                f"cannot read the folder {self.root}",
                evidence=str(error),
                action="give the user that runs the step read access to it and all below it",
            ) from error
        matching = (item for item in found if item.key.startswith(prefix))
        return sorted(matching, key=lambda item: item.key)

    @override
    def read(self, key: str) -> bytes | None:
        try:
            return (self.root / key).read_bytes()
        except FileNotFoundError:
            return None

    @override
    def write(self, key: str, content: bytes) -> None:
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
            raise _missing(f"{self.uri}/{key}")
        return path

    @override
    def upload(self, key: str, file: Path) -> None:
        target = self.root / key
        target.parent.mkdir(parents=True, exist_ok=True)
        partial = target.with_name(f".{target.name}{_UPLOADING}")
        with self._locked(key):
            shutil.copyfile(file, partial)
            partial.replace(target)

    @override
    def download(self, key: str, file: Path) -> None:
        shutil.copyfile(self.fetch(key, file.parent), file)

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

    def _files(self) -> Iterator[Path]:
        def stop(error: OSError) -> None:
            # A folder removed while it is walked is gone, as it would be from a listing in S3.
            if not isinstance(error, FileNotFoundError):
                raise error

        if not self.root.is_dir():
            return
        for folder, below, names in os.walk(self.root, onerror=stop):
            below[:] = [name for name in below if not name.startswith(".")]
            paths = (Path(folder, name) for name in names if not name.startswith("."))
            yield from (path for path in paths if path.is_file())

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        lock = self.root / ".locks" / hashlib.sha256(key.encode()).hexdigest()
        lock.parent.mkdir(parents=True, exist_ok=True)
        with lock.open("w") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield


class S3ObjectStore(ObjectStore):
    """A bucket, or a prefix in one, behind the S3 protocol.

    Credentials and endpoint are found by boto3: environment, profile or service account.
    """

    def __init__(self, bucket: str, prefix: str = "") -> None:
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.uri = f"s3://{bucket}/{self.prefix}".rstrip("/")
        self._client = boto3.client("s3")

    @override
    def list(self, prefix: str = "") -> list[StoredObject]:
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=self.prefix + prefix
        )
        with self._explained("list"):
            found = [
                StoredObject(item["Key"].removeprefix(self.prefix), item["Size"])
                for page in pages
                for item in page.get("Contents", [])
            ]
        shown = [item for item in found if not item.key.endswith("/") and not _is_hidden(item.key)]
        return sorted(shown, key=lambda item: item.key)

    @override
    def read(self, key: str) -> bytes | None:
        content, _ = self._read_tagged(key)
        return content

    @override
    def write(self, key: str, content: bytes) -> None:
        with self._explained("write to"):
            self._client.put_object(Bucket=self.bucket, Key=self.prefix + key, Body=content)

    @override
    def replace(self, key: str, content: bytes, *, previous: bytes | None) -> None:
        current, tag = self._read_tagged(key)
        if current != previous:
            raise ConflictError(key)
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        with self._explained("write to"):
            try:
                self._client.put_object(
                    Bucket=self.bucket, Key=self.prefix + key, Body=content, **condition
                )
            except ClientError as error:
                if error.response["Error"]["Code"] in _CONFLICT_CODES:
                    raise ConflictError(key) from error
                raise

    @override
    def delete(self, key: str) -> None:
        with self._explained("delete from"):
            self._client.delete_object(Bucket=self.bucket, Key=self.prefix + key)

    @override
    def fetch(self, key: str, cache: Path) -> Path:
        with self._explained("read from"):
            try:
                answer = self._client.head_object(Bucket=self.bucket, Key=self.prefix + key)
                # The tag names the content, so that what is there need not be downloaded again.
                name = hashlib.sha256(f"{self.uri}/{key}\0{answer['ETag']}".encode()).hexdigest()
                target = cache / f"{name}-{Path(key).name}"
                if not target.exists():
                    self._download(key, target)
            except ClientError as error:
                if error.response["Error"]["Code"] in _MISSING_CODES:
                    raise _missing(f"{self.uri}/{key}") from error
                raise
        return target

    @override
    def upload(self, key: str, file: Path) -> None:
        with self._explained("write to"):
            self._client.upload_file(str(file), self.bucket, self.prefix + key, Config=_PARTS)

    @override
    def download(self, key: str, file: Path) -> None:
        with self._explained("read from"):
            try:
                self._client.download_file(self.bucket, self.prefix + key, str(file), Config=_PARTS)
            except ClientError as error:
                if error.response["Error"]["Code"] in _MISSING_CODES:
                    raise _missing(f"{self.uri}/{key}") from error
                raise

    @override
    def discard_uploads(self, prefix: str) -> int:
        with self._explained("write to"):
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self.prefix + prefix
            )
            found = [upload for page in pages for upload in page.get("Uploads", [])]
            for upload in found:
                self._client.abort_multipart_upload(
                    Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
        return len(found)

    def _download(self, key: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Each process writes a file of its own: the workers of one machine fetch at once.
        with tempfile.TemporaryDirectory(prefix=".", dir=target.parent) as folder:
            partial = Path(folder) / target.name
            self._client.download_file(self.bucket, self.prefix + key, str(partial))
            partial.replace(target)

    def _read_tagged(self, key: str) -> tuple[bytes | None, str | None]:
        with self._explained("read from"):
            try:
                answer = self._client.get_object(Bucket=self.bucket, Key=self.prefix + key)
                return answer["Body"].read(), answer["ETag"]
            except ClientError as error:
                if error.response["Error"]["Code"] in _MISSING_CODES:
                    return None, None
                raise

    @contextmanager
    def _explained(self, doing: str) -> Iterator[None]:
        try:
            yield
        except (BotoCoreError, ClientError, Boto3Error) as error:
            raise PerennialError(
                f"cannot {doing} {self.uri}",
                evidence=str(error),
                action="check the bucket's name, AWS_ENDPOINT_URL_S3 and the credentials",
            ) from error


def open_store(uri: str) -> ObjectStore:
    """The store at `s3://bucket/prefix`, `file:///folder` or a plain folder.

    Raises:
        PerennialError: the scheme is not supported.
    """
    parts = urlparse(uri)
    if parts.scheme == "s3":
        return S3ObjectStore(parts.netloc, parts.path)
    if parts.scheme == "file":
        return LocalObjectStore(Path(parts.path))
    if parts.scheme == "":
        return LocalObjectStore(Path(uri))
    raise PerennialError(
        f"object store {uri!r} has the unsupported scheme {parts.scheme!r}",
        action="use s3://bucket/prefix, file:///folder or a plain folder",
    )


def sha256_of_file(path: Path) -> str:
    """SHA-256 of a file's bytes, in hexadecimal, read in chunks."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def copy_tree(source: Path, target: Path) -> None:
    """Copy a file or a folder so that `target` appears whole; replaces what was there."""
    temporary = target.with_name(f".{target.name}.copying")
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


def _is_hidden(key: str) -> bool:
    return any(part.startswith(".") for part in key.split("/"))


def _missing(uri: str) -> BadDataError:
    return BadDataError(
        f"{uri} does not exist any more",
        evidence="the object was listed in a snapshot but is gone from the store",
        action="restore it: snapshots pin objects, and the dataset must be append-only",
    )
