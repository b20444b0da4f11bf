"""Store of a study: records are written once, claims belong to one worker at a time."""

import pytest

from made_up_studies import RATE, made_up_plan, made_up_trial
from perennial.clients.object_store import open_store
from perennial.contracts.errors import PerennialError
from perennial.studies import store as module
from perennial.studies.store import StudyStore


@pytest.fixture(params=["folder", "s3"])
def place(request, tmp_path):
    """Return the address of an object store."""
    if request.param == "folder":
        return str(tmp_path)
    return f"{request.getfixturevalue('bucket')}/{tmp_path.name.lower()}"


@pytest.fixture
def workers(place):
    plan = made_up_plan()
    return [StudyStore(open_store(place), plan, owner) for owner in ("one", "two")]


@pytest.fixture
def clock(monkeypatch):
    """The seconds that the workers' clock shows, for tests to set."""
    shown = [0.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: shown[0])
    return shown


def test_a_trial_is_claimed_by_one_worker(workers):
    one, two = workers
    assert one.claim(3)
    assert not two.claim(3)
    assert not one.claim(3)
    one.release(3)
    assert two.claim(3)


def test_a_record_is_written_once(workers):
    one, two = workers
    first, second = (made_up_trial(one.plan, 3, {RATE: 0.1}, value) for value in (0.1, 0.2))
    assert one.claim(3)
    assert one.finish(first) == first
    assert two.finish(second) == first
    assert two.trial(3) == first
    assert not two.claim(3)
    assert [trial.number for trial in two.trials(range(9))] == [3]


def test_a_claim_that_is_renewed_is_kept_and_a_stale_one_taken_over(workers, clock):
    one, two = workers
    assert one.claim(3)
    assert not two.claim(3)
    clock[0] = 59.0
    one.renew()
    for clock[0] in (61.0, 120.0):
        assert not two.claim(3)
    clock[0] = 122.0
    assert two.claim(3)
    one.renew()  # it lost it, and does not take it back
    one.release(3)
    assert not one.claim(3)


def test_a_release_leaves_the_claim_of_a_worker_that_takes_over_meanwhile(
    workers, clock, monkeypatch
):
    one, two = workers
    assert one.claim(3)
    assert not two.claim(3)
    clock[0] = 61.0  # stale, as after a machine slept
    delete, taken = one._store.delete, []

    def take_over_then_delete(key):
        taken.append(two.claim(3))
        delete(key)

    monkeypatch.setattr(one._store, "delete", take_over_then_delete)
    one.release(3)
    assert taken == [False]
    assert two.claim(3)


def test_the_next_attempt_of_a_worker_takes_its_claims_over(workers, place):
    assert workers[0].claim(3)
    again = StudyStore(open_store(place), workers[0].plan, "one")
    assert again.claim(3)


def test_a_stage_is_cut_short_once(workers):
    one, two = workers
    assert one.end_of("explore") is None
    assert (one.cut("explore", 7), two.cut("explore", 9)) == (7, 7)
    assert two.end_of("explore") == 7


def test_a_damaged_record_is_named(workers, place):
    one, _ = workers
    open_store(place).write(f"{one.plan.prefix}/trials/0003.json", b"{")
    with pytest.raises(PerennialError, match=r"0003.json cannot be read") as caught:
        one.trial(3)
    assert "delete it" in caught.value.action
