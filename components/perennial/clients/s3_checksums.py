"""S3 checksums: whether a content matches the checksum or ETag of its object."""

import hashlib
import zlib
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO

_CHUNK_BYTES = 1024 * 1024
_MD5_HEX = 32


def agrees(
    content: BinaryIO, answer: Mapping[str, Any], *, part_bytes: Callable[[], int] | None = None
) -> bool | None:
    """Whether a content has the checksum or the ETag of its object; None where neither decides.

    `part_bytes` gives the size of the parts that the object was uploaded in; 0 if unknown.
    """
    sums = {"ChecksumSHA256": hashlib.sha256, "ChecksumSHA1": hashlib.sha1}
    for name, algorithm in sums.items():
        if _is_of_whole(answer, name):
            return str(answer[name]) == b64encode(_digest(content, algorithm())).decode()
    if _is_of_whole(answer, "ChecksumCRC32"):
        expected = str(answer["ChecksumCRC32"])
        return expected == b64encode(_crc32(content).to_bytes(4, "big")).decode()
    tag = str(answer.get("ETag", "")).strip('"').lower()
    if not _is_md5_based(answer):
        return None
    if _is_hex(tag):
        return _digest(content, _md5()).hex() == tag
    whole, _, num_parts = tag.partition("-")
    is_in_parts = _is_hex(whole) and num_parts.isdigit()
    size = part_bytes() if part_bytes and is_in_parts else 0
    if size <= 0:
        return None
    parts = _md5()
    while part := content.read(size):
        parts.update(hashlib.md5(part, usedforsecurity=False).digest())
    # Uploads whose parts differ in size have another sum: agreement proves, difference does not.
    return True if parts.hexdigest() == whole else None


def _is_of_whole(answer: Mapping[str, Any], name: str) -> bool:
    """Whether a checksum is there and of the whole content, not of its parts' checksums."""
    value, kind = str(answer.get(name, "")), answer.get("ChecksumType")
    is_in_parts = "-" in value or (kind is None and "-" in str(answer.get("ETag", "")))
    return bool(value) and not is_in_parts and kind != "COMPOSITE"


def _is_md5_based(answer: Mapping[str, Any]) -> bool:
    """Under KMS and customers' keys an ETag is a number like any other."""
    is_kms = str(answer.get("ServerSideEncryption", "")).startswith("aws:kms")
    return not is_kms and not answer.get("SSECustomerAlgorithm")


def _is_hex(tag: str) -> bool:
    return len(tag) == _MD5_HEX and all(letter in "0123456789abcdef" for letter in tag)


def _md5() -> "hashlib._Hash":
    return hashlib.md5(usedforsecurity=False)


def _digest(content: BinaryIO, algorithm: "hashlib._Hash") -> bytes:
    while chunk := content.read(_CHUNK_BYTES):
        algorithm.update(chunk)
    return algorithm.digest()


def _crc32(content: BinaryIO) -> int:
    value = 0
    while chunk := content.read(_CHUNK_BYTES):
        value = zlib.crc32(chunk, value)
    return value
