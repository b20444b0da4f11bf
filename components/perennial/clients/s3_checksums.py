"""S3 checksums: whether a content matches the checksum or ETag of its object."""

import hashlib
import re
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from io import BufferedReader, BytesIO
from typing import Any

_CHUNK_BYTES = 1024 * 1024


def agrees(
    content: BytesIO | BufferedReader,
    answer: Mapping[str, Any],
    *,
    part_bytes: Callable[[], int] | None = None,
) -> bool | None:
    """Whether a content has the checksum or the ETag of its object; None where neither decides.

    `part_bytes` gives the size of the parts that the object was uploaded in; 0 if unknown.
    """
    sums = {"ChecksumSHA256": "sha256", "ChecksumSHA1": "sha1"}
    for name, algorithm in sums.items():
        if _is_of_whole(answer, name):
            digest = hashlib.file_digest(content, algorithm).digest()
            return str(answer[name]) == b64encode(digest).decode()
    if _is_of_whole(answer, "ChecksumCRC32"):
        expected = str(answer["ChecksumCRC32"])
        return expected == b64encode(_crc32(content).to_bytes(4, "big")).decode()
    # Under KMS and customers' keys an ETag is a number like any other.
    is_kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    is_md5 = not is_kms and not answer.get("SSECustomerAlgorithm")
    tag = re.fullmatch(r'"?([0-9a-f]{32})(-\d+)?"?', str(answer.get("ETag", "")).lower())
    if tag is None or not is_md5:
        return None
    if tag[2] is None:
        return hashlib.file_digest(content, _md5).hexdigest() == tag[1]
    size = part_bytes() if part_bytes else 0
    if size <= 0:
        return None
    parts = _md5()
    while part := content.read(size):
        parts.update(hashlib.md5(part, usedforsecurity=False).digest())
    # Uploads whose parts differ in size have another sum: agreement proves, difference does not.
    return True if parts.hexdigest() == tag[1] else None


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
