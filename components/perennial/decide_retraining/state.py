"""State across runs, in the object store: started retrainings, and the last monitoring."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.environment import NO_RUN
from perennial.contracts.monitoring import RetrainingDecision
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.registry.trigger_state import Retraining, TriggerState, trigger_state


def decide_and_record(
    store: ObjectStore,
    model: str,
    run_id: str,
    snapshot: Snapshot,
    decide: Callable[[TriggerState], RetrainingDecision],
    *,
    now: datetime,
    runs: Path | None = None,
) -> tuple[RetrainingDecision, TriggerState]:
    """Decide on the newest state; record a retraining before anybody acts on it.

    Of two concurrent runs, one writes first; the other reads and decides again, so that no
    cooldown, budget or duplicate is missed. A run that recorded a retraining and is restarted,
    after a crash or by hand, gets the same decision.

    `decide` must be pure, as it may be called again.
    `runs` has the folders of the runs on this machine; None on a cluster.

    Returns:
        The decision, and the state that it was made on, in which failed retrainings are marked.

    Raises:
        PerennialError: the state or a run's records are damaged, or other writers keep conflicting.
    """
    digest = snapshot.digest()

    def completed(state: TriggerState) -> TriggerState:
        return state.with_failures(store.uri, runs).with_last_trained(store)

    def claimed(
        stored: TriggerState | None,
    ) -> tuple[TriggerState | None, tuple[RetrainingDecision, TriggerState]]:
        state = stored or TriggerState()
        # Outside of a run, no record belongs to the decision.
        known = state.of_run(run_id, digest) if run_id != NO_RUN else None
        if known is not None and known.decision is not None:
            # This run was restarted: nothing is counted twice.
            return stored, (known.decision, completed(state.without(known)))
        marked = completed(state)
        decision = decide(marked)
        if not decision.retrain:
            return stored, (decision, marked)
        retraining = Retraining.of(run_id, snapshot, now, decision)
        return state.with_retraining(retraining), (decision, marked)

    return trigger_state(store, model).update(claimed)


class MonitoringRecord(Section):
    """The result of one monitoring of a model: drift, decay and the decision."""

    schema_version: int = 1
    """Incremented when a field changes its meaning."""
    at: datetime
    """When it was decided, UTC."""
    run_id: str
    """The pipeline run that monitored."""
    champion_version: str
    """Empty without a champion."""
    data_time: datetime | None
    """Time of the snapshot's newest row; None for data without a time column."""
    windows: int
    """Number of windows of new data; 0 if there was nothing to compare."""
    drifted: bool
    decayed: bool
    largest_z_score: float
    """Over the windows, in standard deviations (see `ColumnDrift`); 0 without windows."""
    retrain: bool
    trigger: str


def monitoring_record(store: ObjectStore, model: str) -> StoredRecord[MonitoringRecord]:
    """Return the record of a model's last monitoring, `monitoring/<model>/look.json`."""
    return StoredRecord(
        store,
        f"monitoring/{model}/look.json",
        MonitoringRecord,
        f"the monitoring record of {model}",
        "delete it; the next monitoring writes a new one",
    )


def save_monitoring_record(store: ObjectStore, model: str, record: MonitoringRecord) -> None:
    """Store a record, unless a later one exists."""

    def newest(last: MonitoringRecord | None) -> tuple[MonitoringRecord, None]:
        return (record if last is None or last.at < record.at else last), None

    monitoring_record(store, model).update(newest)
