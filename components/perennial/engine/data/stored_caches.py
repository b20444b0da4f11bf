"""Stored caches: what trainings keep in the store to save work, deleted when it is no longer used.

A record names the prefix of each cache with the day of its last use. Whoever uses one deletes those
that expired: this needs neither a job of its own nor a listing of the whole store.
"""

import logging
from collections.abc import Collection
from datetime import UTC, date, datetime, timedelta

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.errors import OutageError, PerennialError
from perennial.contracts.section import Section

KEPT_DAYS = 30
"""Days after its last use that a cache is kept: more than most schedules are apart. What is deleted
too early is made again."""
USES = "encoded/uses.json"
logger = logging.getLogger(__name__)


class CacheUses(Section):
    """When trainings last used what they keep in the store."""

    last_used: dict[str, date]
    """Prefix of the objects → day."""


def record_use(store: ObjectStore, prefixes: Collection[str]) -> None:
    """Record that a training uses the objects below these prefixes, and delete expired ones.

    A training that reads an object while it is deleted encodes its rows itself.
    """
    uses = StoredRecord(
        store, USES, CacheUses, "the record of stored caches", "delete it: it is made again"
    )
    today = datetime.now(UTC).date()

    def use(before: CacheUses | None) -> tuple[CacheUses, dict[str, date]]:
        known = _last_used(before) | dict.fromkeys(prefixes, today)
        limit = today - timedelta(days=KEPT_DAYS)
        return CacheUses(last_used=known), {each: day for each, day in known.items() if day < limit}

    def forget(before: CacheUses | None) -> tuple[CacheUses, None]:
        known = _last_used(before)
        # One that was used meanwhile stays.
        kept = {each: day for each, day in known.items() if expired.get(each) != day}
        return CacheUses(last_used=kept), None

    try:
        expired = uses.update(use)
        for prefix in expired:
            for each in store.list(prefix):
                store.delete(each.key)
        if expired:
            logger.info("deleted %d caches unused for %d days", len(expired), KEPT_DAYS)
            # Only now: after a crash before this line, the next training deletes what is left.
            uses.update(forget)
    except OutageError:
        raise
    except PerennialError as error:  # no reason to stop a training
        logger.warning("expired caches in %s were not deleted: %s", store.uri, error)


def _last_used(uses: CacheUses | None) -> dict[str, date]:
    return {} if uses is None else uses.last_used
