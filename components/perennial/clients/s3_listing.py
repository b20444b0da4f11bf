"""S3 listing: every object under a prefix, page by page, several ranges of keys at once."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import chain, pairwise
from typing import Any

from perennial.clients.object_store import StoredObject
from perennial.contracts.errors import PerennialError

Page = Mapping[str, Any]
Objects = dict[str, StoredObject]
RunAll = Callable[[Sequence[Callable[[], Objects]]], Sequence[Objects]]
# boto3 pools ten connections by default.
_RANGES = 8
_FOLDER_LEVELS = 4


class _UnorderedError(Exception):
    """The store does not list keys in order, or ignores where a range begins."""


def list_objects(
    fetch_page: Callable[..., Page], prefix: str, seconds: float, run_all: RunAll
) -> Objects:
    """List every object under a prefix: key → object.

    A store gives 1,000 keys a page, and each page names where the next begins. Where there is more
    than one, the keys are cut at folders into ranges, which are listed at once.

    Args:
        fetch_page: `list_objects_v2` of the bucket.
        prefix: Beginning of the keys.
        seconds: Time after which no further page is asked for.
        run_all: Runs calls at once.

    Raises:
        TimeoutError: the time was up before the last page.
        PerennialError: the answer is not a listing, or an incomplete one.
    """
    ends = time.monotonic() + seconds
    fetch = partial(fetch_page, Prefix=prefix)
    pages = _pages(fetch, ends, {})
    first = next(pages)
    if first["IsTruncated"]:
        cuts = _folders(fetch_page, prefix)
        step = -(-len(cuts) // _RANGES)
        # The outer ranges are open: keys may lie before the first folder and behind the last one.
        bounds = [None, *cuts[step::step], None] if len(cuts) > 1 else []
        try:
            found: Objects = {}
            for part in run_all(
                [partial(_range, fetch, prefix, ends, *each) for each in pairwise(bounds)]
            ):
                found |= part
            if bounds:
                return found
        except _UnorderedError:
            pass  # such as directory buckets of S3 Express: one page after the other
    return _collect(prefix, chain([first], pages))


def _folders(fetch_page: Callable[..., Page], prefix: str) -> Sequence[str]:
    """Return the first folders below the prefix, on the highest level that has more than one."""
    # A folder with one folder in it divides nothing: look one level deeper.
    for _ in range(_FOLDER_LEVELS):
        page = fetch_page(Prefix=prefix, Delimiter="/")
        found = sorted(each["Prefix"] for each in page.get("CommonPrefixes", []))
        if len(found) != 1:
            return found
        (prefix,) = found
    return ()


def _pages(fetch: Callable[..., Page], ends: float, more: Mapping[str, str]) -> Iterator[Page]:
    tokens = set[str]()
    while True:
        # This thread outlives a caller that timed out. It must not end as if all were listed: in a
        # process that was paused meanwhile, it may wake before its caller.
        if time.monotonic() >= ends:
            raise TimeoutError(f"timed out before page {len(tokens) + 1} of the listing")
        page = fetch(**more)
        if "IsTruncated" not in page:
            raise unlike_s3("the listing's answer is not one of S3: it lacks IsTruncated")
        yield page
        if not page["IsTruncated"]:
            return
        token = page.get("NextContinuationToken", "")
        if not token or token in tokens:
            raise unlike_s3(
                f"page {len(tokens) + 1} of the listing leads "
                + ("back to an earlier one" if token else "nowhere, but is not the last")
            )
        tokens.add(token)
        more = {"ContinuationToken": token}


def _range(
    fetch: Callable[..., Page], prefix: str, ends: float, after: str | None, last: str | None
) -> Objects:
    """List the keys behind `after`, up to and with `last`."""
    pages = _pages(fetch, ends, {"StartAfter": after} if after else {})
    return _collect(prefix, _within(pages, after or "", last))


def _within(pages: Iterator[Page], after: str, last: str | None) -> Iterator[Page]:
    for page in pages:
        keys = [item["Key"] for item in page.get("Contents", [])]
        # Python compares code points, which is the order of the UTF-8 bytes that S3 sorts by.
        if any(later <= earlier for earlier, later in pairwise([after, *keys])):
            raise _UnorderedError
        after = keys[-1] if keys else after
        if last is None or after <= last:
            yield page
            continue
        yield {"Contents": [each for each in page["Contents"] if each["Key"] <= last]}
        return


def _collect(prefix: str, pages: Iterator[Page]) -> Objects:
    found: Objects = {}
    for page in pages:
        items, known = page.get("Contents", []), len(found)
        for item in items:
            key = item["Key"]
            if not key.startswith(prefix):
                raise unlike_s3(f"{key!r} is listed under the prefix {prefix!r}")
            each = StoredObject(key, item["Size"], item.get("ETag", ""))
            if found.setdefault(key, each) != each:
                raise unlike_s3(f"{key!r} is listed with two sizes")
        if len(found) < known + len(items):
            raise unlike_s3(f"a page of the listing repeats keys, such as {key!r}")
    return found


def unlike_s3(evidence: str) -> PerennialError:
    """Return the error for an answer that breaks the protocol."""
    return PerennialError(
        "the object store does not answer as S3 does",
        evidence=evidence,
        action="check AWS_ENDPOINT_URL_S3, and whether a proxy or a login page stands in between",
    )
