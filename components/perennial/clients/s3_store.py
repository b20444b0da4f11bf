"""S3 store: a bucket behind the S3 protocol.

What comes back is verified: a proxy may answer with a page of HTML, a listing may
end early, a body may be short or damaged.
"""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import boto3
from boto3.exceptions import Boto3Error
from boto3.s3.transfer import TransferConfig
from botocore.awsrequest import AWSResponse
from botocore.client import BaseClient
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.model import OperationModel
from typing_extensions import override

from perennial.clients.file_tree import TreeEntry
from perennial.clients.object_store import (
    ConflictError,
    ObjectStore,
    StoredObject,
    changed_object,
    complete_file,
    copy_of,
    missing_object,
)
from perennial.clients.outages import each_outlasting, is_outage, outlast_once
from perennial.clients.s3_checksums import ArrivingDigests, agrees
from perennial.clients.s3_listing import list_objects, unlike_s3
from perennial.contracts.errors import BadDataError, PerennialError

T = TypeVar("T")
Answer = Mapping[str, Any]
logger = logging.getLogger(__name__)
_PART_BYTES = 16 * 1024 * 1024
# 64 MiB in memory at most; a part that fails is sent again, without the others.
_PARTS = TransferConfig(
    multipart_threshold=_PART_BYTES, multipart_chunksize=_PART_BYTES, max_concurrency=4
)
_CONNECTIONS = 4
_POOLED_CONNECTIONS = 32  # of all stores and threads together
# boto3's default session, which makes the clients, is not for several threads at once; a client is.
_OPENING = threading.Lock()
_CHUNK_BYTES = 256 * 1024
_ATTEMPTS = 3
_CONNECTION_ACTION = "check the bucket's name, AWS_ENDPOINT_URL_S3 and the credentials"
_DISK_ACTION = "check that the local disk has space and may be written to"
_MISSING_CODES = ("404", "NoSuchKey")
_CONFLICT_CODES = ("PreconditionFailed", "ConditionalRequestConflict")


class _ChangedError(Exception):
    """An object is not the version that was asked for."""


class _DamagedError(Exception):
    """A download differs from the stored object; another attempt may help."""


@dataclass(frozen=True)
class Patience:
    """Time limits for a store. boto3 itself retries within these limits."""

    connect_s: float = 15.0
    silence_s: float = 60.0
    """Between two bytes of an answer."""
    call_s: float = 600.0
    """Limit for a whole call with all its retries, such as a listing with all its pages."""
    bytes_per_s: float = 256 * 1024
    """A transfer may take longer by its size at this rate."""
    log_every_s: float = 15.0

    def transfer_s(self, size_bytes: int) -> float:
        """Return the time limit for moving so many bytes."""
        return self.call_s + size_bytes / self.bytes_per_s


@each_outlasting
class S3ObjectStore(ObjectStore):
    """A bucket, or a prefix in one, behind the S3 protocol.

    Credentials and endpoint are found by boto3: environment, profile or service account.
    """

    def __init__(self, bucket: str, prefix: str = "", patience: Patience | None = None) -> None:
        self.bucket = bucket
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self.uri = f"s3://{bucket}/{self.prefix}".rstrip("/")
        self._patience = patience or Patience()
        with _explained("open", self.uri), _OPENING:
            self._client = _shared_client(
                self._patience, frozenset(os.environ.items()), process=os.getpid()
            )

    @override
    def list(self, prefix: str = "") -> list[StoredObject]:
        return [item for item in self._listed(prefix) if not _is_hidden(item.key)]

    @override
    def list_everything(self) -> Sequence[TreeEntry]:
        return [
            TreeEntry(item.key, size_bytes=item.size_bytes, version=item.version)
            for item in self._listed("")
        ]

    @override
    def first_bytes(self, key: str, count: int) -> bytes:
        def read() -> bytes:
            try:
                answer = self._client.get_object(**self._at(key), Range=f"bytes=0-{count - 1}")
            except ClientError as error:
                if error.response["Error"]["Code"] == "InvalidRange":  # nothing in it
                    return b""
                raise
            with closing(answer["Body"]) as body:
                return bytes(body.read(count))

        return self._call("read from", read, key=key)

    @override
    def read(self, key: str) -> bytes | None:
        content, _ = self._read_tagged(key)
        return content

    @override
    def write(self, key: str, content: bytes) -> None:
        self._call("write to", lambda: self._client.put_object(**self._at(key), Body=content))

    @override
    def replace(self, key: str, content: bytes, *, previous: bytes | None) -> None:
        write = partial(self._replace, key, content, previous)
        outlast_once(write, lambda: self.read(key) == content)

    def _replace(self, key: str, content: bytes, previous: bytes | None) -> None:
        current, tag = self._read_tagged(key)
        if current != previous:
            raise ConflictError(key)
        if current is not None and not tag:
            raise PerennialError(
                f"cannot write to {self.uri} safely",
                evidence=f"the store gives no ETag for {key}, so that two writers at once would "
                "not be noticed",
                action="use a store that gives ETags and supports conditional writes",
            )
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}

        def write() -> None:
            try:
                self._client.put_object(**self._at(key), Body=content, **condition)
            except ClientError as error:
                if error.response["Error"]["Code"] in _CONFLICT_CODES:
                    raise ConflictError(key) from error
                raise

        try:
            self._call("write to", write)
        except ConflictError as error:
            # boto3 sends a request again whose answer was lost: the first one may have written.
            if not (_was_repeated(error.__cause__) and self.read(key) == content):
                raise

    @override
    def delete(self, key: str) -> None:
        self._call("delete from", lambda: self._client.delete_object(**self._at(key)))

    @override
    def fetch(self, key: str, cache: Path) -> Path:
        head = self._head(key)
        # The tag names the content, so that what is there need not be downloaded again.
        tag = f"{head.get('ETag', '')}\0{head['ContentLength']}\0{head.get('VersionId', '')}"
        target = copy_of(f"{self.uri}/{key}", tag, cache)
        if target.exists():
            if head.get("ETag") and self._verdict(key, target, head, {}) is not False:
                return target
            logger.warning("downloading %s again: the copy %s is damaged", key, target)
        self._download(key, target, head)
        return target

    @override
    def find(self, key: str) -> StoredObject:
        return _found(key, self._head(key))

    @override
    def keeps_version(self, item: StoredObject) -> bool:
        return bool(item.version)

    @override
    def fetch_pinned(
        self, item: StoredObject, cache: Path, sha256: str | None = None
    ) -> tuple[Path, str]:
        head: Answer = {"ContentLength": item.size_bytes, "ETag": item.version}
        # A large object's checksums and parts are worth a request.
        if item.size_bytes > _PART_BYTES or not (item.version or sha256):
            head = self._head(item.key)
            now = _found(item.key, head)
            if now != item or _plain(item.version or now.version) != _plain(now.version):
                raise changed_object(f"{self.uri}/{item.key}", item, now)
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".", dir=cache) as folder:
            content = Path(folder) / "content"
            found = self._fill_file(item.key, content, head, sha256)
            target = copy_of(f"{self.uri}/{item.key}", found, cache)
            content.replace(target)
        return target, found

    @override
    def read_range(self, item: StoredObject, start: int, stop: int) -> bytes:
        options = {"Range": f"bytes={start}-{stop - 1}"}
        options |= {"IfMatch": item.version} if item.version else {}

        def read() -> bytes:
            buffer = BytesIO()
            self._copy(item.key, buffer, stop - start, options)
            return buffer.getvalue()

        limit = self._patience.transfer_s(stop - start)
        try:
            with self._named(item):
                return self._call("read from", read, limit=limit, key=item.key)
        except _DamagedError as error:
            raise self._arrives_damaged(item.key, str(error)) from error

    @contextmanager
    def _named(self, item: StoredObject) -> Iterator[None]:
        """State what an object that changed meanwhile is now."""
        try:
            yield
        except _ChangedError as error:
            self.check_version(item)
            raise changed_object(f"{self.uri}/{item.key}", item, item) from error

    @override
    def upload(self, key: str, file: Path) -> None:
        self._call(
            "write to",
            lambda: self._client.upload_file(
                str(file), self.bucket, self.prefix + key, Config=_PARTS
            ),
            limit=self._patience.transfer_s(file.stat().st_size),
        )

    @override
    def download(self, key: str, file: Path) -> None:
        self._download(key, file, self._head(key))

    @override
    def discard_uploads(self, prefix: str) -> int:
        def discard() -> int:
            pages = self._client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.bucket, Prefix=self.prefix + prefix
            )
            found = [upload for page in pages for upload in page.get("Uploads", [])]
            for upload in found:
                self._client.abort_multipart_upload(
                    Bucket=self.bucket, Key=upload["Key"], UploadId=upload["UploadId"]
                )
            return len(found)

        return self._call("write to", discard)

    def _at(self, key: str) -> dict[str, str]:
        return {"Bucket": self.bucket, "Key": self.prefix + key}

    def _listed(self, prefix: str) -> Sequence[StoredObject]:
        """Return every object under a prefix, in order of the keys.

        Raises:
            PerennialError: the answer is not a listing, or an incomplete one.
        """
        seconds, begins = self._patience.call_s, self.prefix + prefix
        page = partial(self._client.list_objects_v2, Bucket=self.bucket)
        found = self._call(
            "list", lambda: list_objects(page, begins, seconds, partial(self._run_all, "list"))
        )
        start = len(self.prefix)
        return [replace(each, key=key[start:]) for key, each in sorted(found.items())]

    def _head(self, key: str) -> Answer:
        def head() -> Answer:
            answer = self._client.head_object(**self._at(key), ChecksumMode="ENABLED")
            if "ContentLength" not in answer:
                raise unlike_s3(f"the answer about {key!r} lacks its length")
            return dict(answer)

        return self._call("read from", head, key=key)

    def _download(self, key: str, target: Path, head: Answer) -> None:
        """Download an object to a file that appears complete and verified, or not at all."""
        with complete_file(target) as partial:
            self._fill_file(key, partial, head)

    def _fill_file(self, key: str, file: Path, head: Answer, expected: str | None = None) -> str:
        """Write an object to a file, verified, and return its SHA-256, made while it arrived."""
        size, seen, problem = head["ContentLength"], set[str](), ""
        limit = self._patience.transfer_s(size)
        for _ in range(_ATTEMPTS):
            if problem:
                logger.warning("downloading %s/%s again: %s", self.uri, key, problem)
            with file.open("wb") as stream:
                # At its full length: each connection writes its parts at their places.
                stream.truncate(size)
            digests = ArrivingDigests(file, head)
            try:
                with self._named(_found(key, head)):
                    parts = self._parts(key, file, head, digests)
                    self._call("read from", *parts, limit=limit, key=key)
                found = digests.finish()
            except _DamagedError as error:
                problem = str(error)
                continue
            sha256 = found["sha256"].hex()
            if sha256 == expected:
                return sha256
            problem = self._damage(key, file, head, found, seen)
            if not problem:
                return sha256
        raise self._arrives_damaged(key, f"{problem}, in each of {_ATTEMPTS} downloads")

    def _arrives_damaged(self, key: str, evidence: str) -> BadDataError:
        return BadDataError(
            f"{self.uri}/{key} arrives damaged",
            evidence=evidence,
            action="upload it again, with a checksum (`aws s3 cp --checksum-algorithm SHA256`) "
            "if this store's ETags are not MD5 sums; look for a proxy on the way",
        )

    def _parts(
        self, key: str, file: Path, head: Answer, digests: ArrivingDigests
    ) -> "Sequence[Callable[[], None]]":
        """Return the work of several connections, which fill a file part by part."""
        size = head["ContentLength"]
        starts = iter(range(0, max(size, 1), _PART_BYTES))
        taking = threading.Lock()
        is_whole = size <= _PART_BYTES

        def fill() -> None:
            while True:
                with taking:
                    start = next(starts, None)
                if start is None:
                    return
                stop = min(start + _PART_BYTES, size)
                options = {} if is_whole else {"Range": f"bytes={start}-{stop - 1}"}
                if head.get("ETag"):
                    options["IfMatch"] = head["ETag"]
                with file.open("r+b") as out:
                    out.seek(start)
                    self._copy(key, out, stop - start, options)
                digests.add(start, stop)

        return [fill] * min(_CONNECTIONS, max(-(-size // _PART_BYTES), 1))

    def _copy(self, key: str, out: BinaryIO, expected: int, options: dict[str, str]) -> None:
        """Write (a part of) an object to where a file stands; a broken connection is retried."""
        begin = out.tell()
        for attempt in range(_ATTEMPTS):
            try:
                out.seek(begin)
                answer = self._client.get_object(**self._at(key), **options)
                tag = options.get("IfMatch", "")
                if tag and _plain(answer.get("ETag", tag)) != _plain(tag):
                    raise _ChangedError(key)  # the store ignores conditions
                arrived = 0
                with closing(answer["Body"]) as body:
                    # Up to a byte too many: a store that ignores ranges sends the whole object.
                    while arrived <= expected and (
                        chunk := body.read(min(_CHUNK_BYTES, expected + 1 - arrived))
                    ):
                        out.write(chunk[: expected - arrived])
                        arrived += len(chunk)
                if arrived != expected:
                    more = "more than " if arrived > expected else f"{arrived:,} of "
                    raise _DamagedError(f"{more}{expected:,} bytes arrived")
                return
            except (BotoCoreError, _DamagedError) as error:
                if attempt + 1 == _ATTEMPTS:
                    raise error if is_outage(error) else _DamagedError(str(error)) from error
                logger.warning("reading %s/%s again: %s", self.uri, key, error)

    def _damage(
        self, key: str, file: Path, head: Answer, digests: Mapping[str, bytes], seen: set[str]
    ) -> str:
        """Return why a download is rejected; `seen` are the digests of earlier ones."""
        verdict = self._verdict(key, file, head, digests)
        if verdict is False:
            return (
                f"{head['ContentLength']:,} bytes arrived, which its checksum or ETag contradicts"
            )
        # TLS has checksums of its own. Elsewhere, where the store gives none that can be used,
        # the evidence is that two downloads are equal.
        if verdict or self._client.meta.endpoint_url.startswith("https:"):
            return ""
        digest = digests["sha256"].hex()
        if digest in seen:
            return ""
        seen.add(digest)
        return "the store gives no checksum, and no two downloads were equal"

    def _verdict(
        self, key: str, file: Path, head: Answer, digests: Mapping[str, bytes]
    ) -> bool | None:
        """Whether a file is the object; None where nothing tells."""

        def part_bytes() -> int:
            try:
                return int(self._client.head_object(**self._at(key), PartNumber=1)["ContentLength"])
            except (BotoCoreError, ClientError, KeyError):  # not every store tells
                return 0

        if file.stat().st_size != head["ContentLength"]:
            return False
        with file.open("rb") as stream:
            return agrees(
                stream,
                head,
                part_bytes=lambda: self._call("read from", part_bytes, key=key),
                known=digests,
            )

    def _read_tagged(self, key: str) -> tuple[bytes | None, str | None]:
        def read() -> tuple[bytes | None, str | None]:
            try:
                answer = self._client.get_object(**self._at(key))
            except ClientError as error:
                if _is_missing(error):
                    return None, None
                raise
            with closing(answer["Body"]) as body:
                content = bytes(body.read())
            size = answer.get("ContentLength", len(content))
            if len(content) != size or agrees(BytesIO(content), answer) is False:
                raise _DamagedError(f"{key}: {len(content):,} of {size:,} bytes arrived, damaged")
            return content, answer.get("ETag", "")

        for attempt in range(_ATTEMPTS):
            try:
                return self._call("read from", read)
            except _DamagedError as error:
                if attempt + 1 == _ATTEMPTS:
                    raise PerennialError(
                        f"cannot read from {self.uri}",
                        evidence=str(error),
                        action=_CONNECTION_ACTION,
                    ) from error
        raise AssertionError("the loop returns or raises")

    def _call(
        self, doing: str, *works: Callable[[], T], limit: float | None = None, key: str = ""
    ) -> T:
        """Return the first result of calls that run at once, in the time that they may take."""
        with _explained(doing, self.uri, key):
            return self._run_all(doing, works, limit)[0]

    def _run_all(
        self, doing: str, works: Sequence[Callable[[], T]], limit: float | None = None
    ) -> Sequence[T]:
        """Return the results of calls, each in a thread; the first error ends the wait.

        Libraries limit the time between two bytes; a peer that sends one byte a second keeps to
        that limit permanently. A call that is late is abandoned: its thread ends with the process.

        Raises:
            TimeoutError: the calls did not end in time.
        """
        seconds, log_every_s = limit or self._patience.call_s, self._patience.log_every_s
        what = f"waiting to {doing} {self.uri}"
        started = time.monotonic()
        results: dict[int, T] = {}
        errors: list[BaseException] = []
        changed = threading.Condition()

        def run(index: int) -> None:
            try:
                result = works[index]()
            except BaseException as error:
                with changed:
                    errors.append(error)
                    changed.notify()
            else:
                with changed:
                    results[index] = result
                    changed.notify()

        for index in range(len(works)):
            threading.Thread(target=run, args=(index,), name="within-deadline", daemon=True).start()
        with changed:
            next_line = log_every_s
            while not errors and len(results) < len(works):
                passed = time.monotonic() - started
                if passed >= seconds:
                    raise TimeoutError(f"timed out after {passed:.0f} s {what}")
                if passed >= next_line:
                    logger.warning("still %s after %.0f s of at most %.0f s", what, passed, seconds)
                    next_line += log_every_s
                changed.wait(min(next_line, seconds) - passed)
            if errors:
                raise errors[0]
        return [results[index] for index in range(len(works))]


# Few: a process that changes its variables has no use for the clients of before.
@lru_cache(maxsize=4)
def _shared_client(
    patience: Patience,
    environment: frozenset[tuple[str, str]],  # boto3 reads it
    *,
    process: int,  # a fork must not use the connections of its parent
) -> BaseClient:
    """Return the client of all stores of this process: a new one costs 30 ms and connections."""
    config = Config(
        connect_timeout=patience.connect_s,
        read_timeout=patience.silence_s,
        max_pool_connections=_POOLED_CONNECTIONS,
    )
    client = boto3.client("s3", config=config)
    client.meta.events.register("after-call.s3", _refuse_html)
    return client


def _is_hidden(key: str) -> bool:
    return key.endswith("/") or any(part.startswith(".") for part in key.split("/"))


@contextmanager
def _explained(doing: str, uri: str, key: str = "") -> Iterator[None]:
    """Turn what boto3 raises into our own errors."""
    try:
        yield
    except (PerennialError, ConflictError, _ChangedError, _DamagedError):
        raise
    except Exception as error:
        # Servers that break the protocol raise anything in boto3: KeyError, ValueError, ...
        if key and _is_missing(error):
            raise missing_object(f"{uri}/{key}") from error
        if key and _error_code(error) in ("PreconditionFailed", "412"):
            raise _ChangedError(key) from error
        is_known = isinstance(error, BotoCoreError | ClientError | Boto3Error | TimeoutError)
        is_local = isinstance(error, OSError) and bool(error.filename)
        raise PerennialError(
            f"cannot {doing} {uri}/{key}" if key else f"cannot {doing} {uri}",
            evidence=str(error) if is_known else f"{type(error).__name__}: {error}",
            action=_DISK_ACTION if is_local else _CONNECTION_ACTION,
        ) from error


def _error_code(error: Exception) -> str:
    return str(error.response["Error"]["Code"]) if isinstance(error, ClientError) else ""


def _was_repeated(error: BaseException | None) -> bool:
    """Whether boto3 itself had sent the request before."""
    answer = error.response if isinstance(error, ClientError) else {}
    return bool(answer.get("ResponseMetadata", {}).get("RetryAttempts"))


def _is_missing(error: Exception) -> bool:
    """Whether the store knows no such object; a page of HTML is not the store's answer."""
    if not isinstance(error, ClientError) or _error_code(error) not in _MISSING_CODES:
        return False
    headers = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {})
    return not _is_foreign_page(headers)


def _is_foreign_page(headers: Mapping[str, str]) -> bool:
    names = [name.lower() for name in headers]
    kind = next((value for name, value in headers.items() if name.lower() == "content-type"), "")
    return kind.startswith("text/html") and not any(name.startswith("x-amz") for name in names)


def _refuse_html(http_response: AWSResponse, model: OperationModel, **_: object) -> None:
    """Stop where a proxy, a login page or a captive portal answers in the store's place."""
    if http_response.status_code < 300 and _is_foreign_page(http_response.headers):
        http_response.raw.close()
        raise unlike_s3(f"{model.name} was answered with a page of HTML, without headers of S3")


def _found(key: str, head: Answer) -> StoredObject:
    return StoredObject(key, head["ContentLength"], head.get("ETag", ""))


def _plain(tag: str) -> str:
    """Return an ETag as it can be compared: stores quote and capitalise it as they like."""
    return tag.removeprefix("W/").strip('"').lower()
