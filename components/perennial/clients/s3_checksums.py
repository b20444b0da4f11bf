"""S3 checksums: whether a content matches the checksum or ETag of its object."""

import hashlib
import re
import threading
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from io import BufferedReader, BytesIO
from pathlib import Path
from types import MappingProxyType
from typing import Any

_CHUNK_BYTES = 1024 * 1024


def agrees(
    content: BytesIO | BufferedReader,
    answer: Mapping[str, Any],
    *,
    part_bytes: Callable[[], int] | None = None,
    known: Mapping[str, bytes] = MappingProxyType({}),
) -> bool | None:
    """Whether a content has the checksum or the ETag of its object; None where neither decides.

    `part_bytes` gives the size of the parts that the object was uploaded in; 0 if unknown. `known`
    are digests of the content that need not be made again.
    """
    sums = {"ChecksumSHA256": "sha256", "ChecksumSHA1": "sha1"}
    for name, algorithm in sums.items():
        if _is_of_whole(answer, name):
            digest = known.get(algorithm) or hashlib.file_digest(content, algorithm).digest()
            return str(answer[name]) == b64encode(digest).decode()
    if _is_of_whole(answer, "ChecksumCRC32"):
        expected = str(answer["ChecksumCRC32"])
        return expected == b64encode(_crc32(content).to_bytes(4, "big")).decode()
    tag = _md5_tag(answer)
    if tag is None:
        return None
    if tag[2] is None:
        return (known.get("md5") or hashlib.file_digest(content, _md5).digest()).hex() == tag[1]
    size = part_bytes() if part_bytes else 0
    if size <= 0:
        return None
    parts = _md5()
    while part := content.read(size):
        parts.update(hashlib.md5(part, usedforsecurity=False).digest())
    # Uploads whose parts differ in size have another sum: agreement proves, difference does not.
    return True if parts.hexdigest() == tag[1] else None


class ArrivingDigests:
    """Digests of a file whose parts arrive in any order, each read once, from the page cache.

    SHA-256, and MD5 where the answer's ETag is one.
    """

    def __init__(self, file: Path, answer: Mapping[str, Any]) -> None:
        self._file, self._size, self._at = file, answer["ContentLength"], 0
        self._digests = {"sha256": hashlib.sha256()}
        tag = _md5_tag(answer)
        if tag and tag[2] is None:
            self._digests["md5"] = _md5()
        self._arrived: dict[int, int] = {}
        self._lock = threading.Lock()

    def add(self, start: int, stop: int) -> None:
        """Take a part of the file that has arrived."""
        # Before the lock: the thread that holds it then goes on with this part.
        self._arrived[start] = stop
        # Without a buffer, which would hold the next part as it was before it arrived.
        with self._lock, self._file.open("rb", buffering=0) as stream:
            while self._at in self._arrived:
                stop = self._arrived.pop(self._at)
                stream.seek(self._at)
                while self._at < stop:
                    chunk = stream.read(min(_CHUNK_BYTES, stop - self._at))
                    assert chunk, "the file was cut off"
                    for digest in self._digests.values():
                        digest.update(chunk)
                    self._at += len(chunk)

    def finish(self) -> dict[str, bytes]:
        """Return algorithm → digest of the whole file."""
        assert self._at == self._size, "a part is missing"
        return {name: digest.digest() for name, digest in self._digests.items()}


def _md5_tag(answer: Mapping[str, Any]) -> "re.Match[str] | None":
    """Return an ETag that is an MD5 sum, of the content or of its parts' sums (with `-COUNT`)."""
    # Under KMS and customers' keys an ETag is a number like any other.
    is_kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    if is_kms or answer.get("SSECustomerAlgorithm"):
        return None
    return re.fullmatch(r'"?([0-9a-f]{32})(-\d+)?"?', str(answer.get("ETag", "")).lower())


def _is_of_whole(answer: Mapping[str, Any], name: str) -> bool:
    """Whether a checksum is there and of the whole content, not of its parts' checksums."""
    value, kind = str(answer.get(name, "")), answer.get("ChecksumType")
    is_in_parts = "-" in value or (kind is None and "-" in str(answer.get("ETag", "")))
    return bool(value) and not is_in_parts and kind != "COMPOSITE"


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)


def _crc32(content: BytesIO | BufferedReader) -> int:
    value = 0
    while chunk := content.read(_CHUNK_BYTES):
        value = zlib.crc32(chunk, value)
    return value
