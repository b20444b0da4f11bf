"""Caches of the store are deleted when no training has used them for long, and not before."""

from datetime import UTC, date, datetime, timedelta

import pytest

from perennial.clients.object_store import LocalObjectStore
from perennial.contracts.errors import PerennialError
from perennial.engine.data import stored_caches
from perennial.engine.data.stored_caches import KEPT_DAYS, USES, CacheUses, record_use

TODAY = date(2026, 11, 2)


@pytest.fixture(autouse=True)
def one_day(monkeypatch):
    """Midnight may pass while the tests run."""

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(TODAY.year, TODAY.month, TODAY.day, tzinfo=UTC)

    monkeypatch.setattr(stored_caches, "datetime", Clock)


@pytest.fixture
def store(tmp_path):
    store = LocalObjectStore(tmp_path / "store")
    for key in ("encoded/old/a", "encoded/old/b", "encoded/older/a", "encoded/new/a", "fitted/old"):
        store.write(key, b"content")
    days = {"encoded/old/": KEPT_DAYS + 1, "encoded/new/": KEPT_DAYS, "fitted/old": 99}
    used = {prefix: TODAY - timedelta(days=days) for prefix, days in days.items()}
    store.write(USES, CacheUses(last_used=used).to_json().encode())
    return store


def keys(store):
    return {each.key for each in store.list()} - {USES}


def last_used(store):
    return CacheUses.from_json(store.read(USES)).last_used


def test_what_no_training_used_for_long_is_deleted(store):
    record_use(store, ["encoded/mine/"])
    assert keys(store) == {"encoded/older/a", "encoded/new/a"}, "one without a record is kept"
    assert set(last_used(store)) == {"encoded/new/", "encoded/mine/"}


def test_a_use_keeps_what_would_have_expired(store):
    record_use(store, ["encoded/old/", "fitted/old"])
    assert keys(store) >= {"encoded/old/a", "encoded/old/b", "fitted/old"}
    assert last_used(store)["encoded/old/"] == TODAY


def test_what_is_used_while_it_is_deleted_stays_recorded(store, monkeypatch):
    """Its objects are made again, and must not be forgotten."""
    delete = store.delete

    def used_meanwhile(key):
        record_use(LocalObjectStore(store.root), ["encoded/old/"])
        delete(key)

    monkeypatch.setattr(store, "delete", used_meanwhile)
    record_use(store, ["encoded/mine/"])
    assert last_used(store)["encoded/old/"] == TODAY


@pytest.mark.parametrize("is_damaged", [True, False])
def test_a_training_goes_on_where_nothing_can_be_deleted(store, monkeypatch, caplog, is_damaged):
    def refuse(key):
        raise PerennialError("access denied")

    monkeypatch.setattr(store, "delete", refuse)
    if is_damaged:
        store.write(USES, b"{")
    record_use(store, ["encoded/mine/"])
    assert "were not deleted" in caplog.text
    assert len(keys(store)) == 5
