from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from perennial.clients.object_store import MAX_ATTEMPTS, LocalObjectStore
from perennial.contracts.block import BlockFile
from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import DataFile
from perennial.contracts.triggers import TriggersSection
from perennial.decide_retraining.policy import decide
from perennial.decide_retraining.state import decide_and_record
from perennial.registry.trigger_state import KEPT_RETRAININGS, TriggerState, record_judged
from perennial.snapshot_data.manifest import store_snapshot

KEY = "triggers/demo/state.json"


@pytest.fixture
def store(tmp_path):
    return LocalObjectStore(tmp_path)


@pytest.fixture
def run(store, snapshot, report):
    def decide_in(run_id, seen=None, rows=10_000, settings=None, store=store, *, snapshot=snapshot):
        now = datetime.now(UTC)
        made, _ = decide_and_record(
            store,
            "demo",
            run_id,
            (current := snapshot.model_copy(update={"rows": rows})),
            lambda state: decide(
                current,
                seen or report(drifted=True),
                state,
                settings or TriggersSection(),
                now=now,
            ),
            now=now,
        )
        return made

    return decide_in


def test_only_a_retraining_is_recorded(store, run, report, snapshot):
    assert not run("a", report()).retrain
    assert store.read(KEY) is None
    assert run("b").retrain
    (recorded,) = TriggerState.from_json(store.read(KEY)).retrainings
    assert (recorded.run_id, recorded.snapshot_digest) == ("b", snapshot.digest())


def test_a_time_in_the_future_is_recorded_as_the_present(store, run, snapshot):
    wrong = snapshot.model_copy(update={"time_max": datetime(2286, 11, 20)})
    assert run("a", snapshot=wrong).retrain
    (recorded,) = TriggerState.from_json(store.read(KEY)).retrainings
    assert abs(recorded.data_time.replace(tzinfo=UTC) - datetime.now(UTC)) < timedelta(minutes=5)


def test_a_run_that_is_started_again_decides_as_before(store, run):
    first = run("a")
    recorded = store.read(KEY)
    assert run("a") == first
    assert store.read(KEY) == recorded
    assert not run("b").retrain


def test_outside_a_pipeline_nothing_is_adopted(run):
    assert run("unknown").retrain
    assert not run("unknown").retrain


def test_a_training_that_somebody_else_started_counts_for_the_next_decision(
    store, run, report, snapshot
):
    """Its challenger lost: the same snapshot is not trained on again, and the age is true."""
    now, old = datetime.now(UTC), snapshot.model_copy(update={"rows": 9_000})
    record_judged(store, "demo", "by-hand", old, now)
    recorded = store.read(KEY)
    record_judged(store, "demo", "by-hand", old, now)  # a retry
    assert store.read(KEY) == recorded
    same = run("a", rows=9_000)
    assert not same.retrain
    assert "already trained on by run by-hand" in same.summary
    settings = TriggersSection(new_rows=5_000, max_age_days=30)
    later = run("b", report(new_rows=5_000, new_days=60.0), settings=settings)
    assert "1,000 new rows since the last training" in later.summary
    assert "the last training is 0.0 days old" in later.summary
    assert "cooldown" in run("c").summary


def partition(name, rows):
    return DataFile(uri=f"d/{name}.parquet", size_bytes=1, sha256=name, rows=rows)


@pytest.mark.parametrize("decided", [True, False])
def test_rows_are_new_although_old_partitions_were_deleted(store, run, report, snapshot, decided):
    trained = snapshot.model_copy(
        update={"files": (partition("a", 9_000), partition("b", 1_000)), "rows": 10_000}
    )
    store_snapshot(trained, store)
    if decided:
        assert run("a", snapshot=trained).retrain
    else:
        record_judged(store, "demo", "a", trained, datetime.now(UTC))
    settings = TriggersSection(new_rows=800, cooldown_days=0)
    seen = report(new_rows=5_000)
    for new, found in ((799, "none"), (800, "new_data")):
        current = trained.model_copy(update={"files": (trained.files[1], partition("c", new))})
        made = run("b", seen, 1_000 + new, settings, snapshot=current)
        assert made.trigger == found
        assert f"{new} new rows since the last training" in made.summary
    assert "last_trained" not in store.read(KEY).decode()


@pytest.mark.parametrize(("newer", "retrains"), [(1, False), (2, True)])
def test_windows_of_files_count_from_a_training_that_somebody_else_started(
    store, run, report, snapshot, *, newer, retrains
):
    files = tuple(partition(name, 10) for name in "abc")
    current = snapshot.model_copy(update={"time_max": None, "files": files})
    trained = current.model_copy(update={"files": files[: len(files) - newer]})
    store_snapshot(trained, store)
    record_judged(store, "demo", "by-hand", trained, datetime.now(UTC))
    seen = report(drifted=True)
    windows = tuple(
        seen.windows[0].model_copy(
            update={"start": None, "files": (BlockFile(path=each.sha256, sha256=each.sha256),)}
        )
        for each in files
    )
    made = run("a", seen.model_copy(update={"windows": windows}), snapshot=current)
    assert made.retrain is retrains
    assert ("the last retraining included file b" in made.summary) is not retrains


def test_a_retraining_is_recorded_once_when_the_gate_has_judged_it(store, run, snapshot):
    first = run("a")
    recorded = store.read(KEY)
    record_judged(store, "demo", "a", snapshot, datetime.now(UTC))
    assert store.read(KEY) == recorded
    assert run("a") == first


def test_the_budget_counts_only_what_monitoring_started(store, run, snapshot):
    free = TriggersSection(cooldown_days=0, max_retrainings=1)
    record_judged(
        store, "demo", "by-hand", snapshot.model_copy(update={"rows": 1}), datetime.now(UTC)
    )
    assert run("a", settings=free).retrain
    assert "budget" in run("b", rows=10_001, settings=free).summary


def test_of_many_runs_at_once_one_retrains(run):
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda i: run(f"run-{i}"), range(16)))
    assert sum(decision.retrain for decision in made) == 1


def test_concurrent_writers_lose_no_entry(store, run):
    free = TriggersSection(cooldown_days=0, max_retrainings=99)
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda i: run(f"run-{i}", rows=i, settings=free), range(12)))
    assert all(decision.retrain for decision in made)
    state = TriggerState.from_json(store.read(KEY))
    assert {past.run_id for past in state.retrainings} == {f"run-{i}" for i in range(12)}


class BusyStore(LocalObjectStore):
    """Somebody else always writes between our read and our write."""

    def __init__(self, root, past, others):
        super().__init__(root)
        self._past = past
        self._others = others

    def replace(self, key, content, *, previous):
        if self._others:
            other = self._others.pop()
            state = TriggerState.from_json(previous) if previous else TriggerState()
            entry = self._past(400, run_id=f"other-{other}")
            self.write(key, state.with_retraining(entry).to_json().encode())
        super().replace(key, content, previous=previous)


def test_a_lost_write_is_decided_again(tmp_path, run, past):
    busy = BusyStore(tmp_path, past, [0, 1, 2])
    assert run("a", store=busy).retrain
    runs = [entry.run_id for entry in TriggerState.from_json(busy.read(KEY)).retrainings]
    assert runs == ["other-2", "other-1", "other-0", "a"]


def test_a_store_that_never_rests_is_an_error(tmp_path, run, past):
    with pytest.raises(PerennialError, match="could not be written"):
        run("a", store=BusyStore(tmp_path, past, list(range(2 * MAX_ATTEMPTS))))


@pytest.mark.parametrize("content", [b"", b"{", b'{"schema_version": 1, "surprise": 2}'])
def test_a_damaged_state_is_an_error_not_a_fresh_start(store, run, content):
    store.write(KEY, content)
    with pytest.raises(PerennialError, match="cannot be read"):
        run("a")


def test_only_the_newest_retrainings_are_kept(past):
    state = TriggerState()
    for index in range(KEPT_RETRAININGS + 5):
        state = state.with_retraining(past(1, run_id=f"run-{index}"))
    assert len(state.retrainings) == KEPT_RETRAININGS
    assert state.retrainings[-1].run_id == f"run-{KEPT_RETRAININGS + 4}"
