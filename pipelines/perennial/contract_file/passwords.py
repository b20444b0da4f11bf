"""Passwords: found in values that everybody sees, such as an address in a contract."""

import re
from urllib.parse import parse_qs, urlsplit

SECRET_NAMES = re.compile(
    r"PASSW|PASS(PHRASE)?$|PWD$|SECRET|TOKEN|CREDENTIAL|PRIVATE|_KEY(_ID)?$|CONNECTION_STRING"
    r"|SIGNATURE$|^SIG$",
    re.I,
)


def holds_password(text: str) -> bool:
    """Whether it is an address with a password, before its host or among its parameters.

    Of an address in S3, the user is an access key.
    """
    try:
        parts = urlsplit(text)
    except ValueError:  # brackets that hold no IPv6 address
        return "://" in text and "@" in text
    is_key = parts.scheme == "s3" and bool(parts.username)
    named = any(SECRET_NAMES.search(name) for name in parse_qs(parts.query))
    return bool(parts.password) or is_key or named
