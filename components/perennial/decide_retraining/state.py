"""State across runs, in the object store: started retrainings, and the last monitoring."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.environment import NO_RUN
from perennial.contracts.monitoring import RetrainingDecision
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.steps.journal import Journal
from perennial.steps.stored_steps import StoredRun

KEPT_RETRAININGS = 200
"""Number of newest retrainings kept; far more than any budget counts."""


class Retraining(Section):
    """A retraining that was started, with the decision that started it."""

    run_id: str
    """The pipeline run that decided."""
    snapshot_digest: str
    data_time: datetime | None
    """Time of the snapshot's newest row, or the present if that lies in the future; None for data
    without a time column."""
    rows: int
    """Rows of the snapshot."""
    decision: RetrainingDecision
    failed: bool = False
    """Whether its run ended before the gate judged it: it trained nothing, but counts as spent.
    Not stored, but read from the run, which a retry may still bring to its end."""


class TriggerState(Section):
    """Every retraining of one model that `decide_retraining` started, the oldest first."""

    schema_version: int = 1
    """Incremented when a field changes its meaning."""
    retrainings: tuple[Retraining, ...] = ()

    @property
    def judged(self) -> tuple[Retraining, ...]:
        """The retrainings without those that failed."""
        return tuple(each for each in self.retrainings if not each.failed)

    def with_failures(self, store_uri: str, runs: Path | None = None) -> "TriggerState":
        """Return a copy in which the newest retrainings are marked if their runs failed.

        `runs` has the folders of the runs on this machine; None on a cluster.

        Raises:
            PerennialError: the records of a run cannot be read.
        """
        marked = list(self.retrainings)
        # Those before the newest that has not failed decide nothing any more.
        for number in reversed(range(len(marked))):
            if not marked[number].failed:
                if not _has_failed(store_uri, runs, marked[number].run_id):
                    break
                marked[number] = marked[number].model_copy(update={"failed": True})
        return self.model_copy(update={"retrainings": tuple(marked)})

    def with_retraining(self, retraining: Retraining) -> "TriggerState":
        """Return a copy with one more retraining."""
        kept = (*self.retrainings, retraining)[-KEPT_RETRAININGS:]
        return self.model_copy(update={"retrainings": kept})

    def without(self, retraining: Retraining) -> "TriggerState":
        """Return a copy as it was before a retraining was recorded."""
        before = self.retrainings[: self.retrainings.index(retraining)]
        return self.model_copy(update={"retrainings": before})

    def of_run(self, run_id: str, snapshot_digest: str) -> Retraining | None:
        """Return the retraining that a restarted run recorded earlier on this snapshot."""
        if run_id == NO_RUN:  # not part of a run, so no record belongs to it
            return None
        for known in self.retrainings:
            if (known.run_id, known.snapshot_digest) == (run_id, snapshot_digest):
                return known
        return None


def _has_failed(store_uri: str, runs: Path | None, run_id: str) -> bool:
    """Whether a run failed before the gate judged its challenger.

    A run that was cancelled was stopped by a person, and is not repeated.
    """
    ends = Journal(runs / run_id).step_ends() if runs else {}
    if not ends:  # it ran on a cluster
        ends = {step.step: step.status for step in StoredRun(store_uri, run_id).steps()}
    return "failed" in ends.values() and ends.get("evaluate_model") not in ("finished", "reused")


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

    The state is `triggers/<model>/state.json`; `decide` must be pure, as it may be called again.
    `runs` has the folders of the runs on this machine; None on a cluster.

    Returns:
        The decision, and the state that it was made on, in which failed retrainings are marked.

    Raises:
        PerennialError: the state or a run's records are damaged, or other writers keep conflicting.
    """
    digest = snapshot.digest()

    def claimed(
        stored: TriggerState | None,
    ) -> tuple[TriggerState | None, tuple[RetrainingDecision, TriggerState]]:
        state = stored or TriggerState()
        known = state.of_run(run_id, digest)
        if known is not None:  # this run was restarted: nothing is counted twice
            return stored, (known.decision, state.without(known).with_failures(store.uri, runs))
        marked = state.with_failures(store.uri, runs)
        decision = decide(marked)
        if not decision.retrain:
            return stored, (decision, marked)
        retraining = Retraining(
            run_id=run_id,
            snapshot_digest=digest,
            data_time=snapshot.data_time(now),
            rows=snapshot.rows,
            decision=decision,
        )
        return state.with_retraining(retraining), (decision, marked)

    return StoredRecord(
        store,
        f"triggers/{model}/state.json",
        TriggerState,
        f"the trigger state of {model}",
        "restore it, or delete it to forget past retrainings (resets cooldown and budget)",
    ).update(claimed)


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
