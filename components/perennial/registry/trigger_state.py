"""Trigger state: the trainings of a model that count for the next decision on a retraining.

It is `triggers/<model>/state.json` in the object store. `decide_retraining` records a retraining
before it starts; the gate records every other training that it judged, whoever started it.
"""

import logging
from datetime import datetime
from pathlib import Path
from typing import Annotated

from pydantic import Field

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.monitoring import RetrainingDecision
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot
from perennial.steps.journal import Journal
from perennial.steps.stored_steps import StoredRun

logger = logging.getLogger(__name__)

KEPT_RETRAININGS = 200
"""Number of newest retrainings kept; far more than any budget counts."""


class Retraining(Section):
    """A training that counts: a retraining that was started, or one that the gate judged."""

    run_id: str
    """The pipeline run."""
    snapshot_digest: str
    data_time: datetime | None
    """Time of the snapshot's newest row, or the present if that lies in the future; None for data
    without a time column."""
    rows: int
    """Rows of the snapshot."""
    decision: RetrainingDecision | None = None
    """What started it; None if it was started by hand, a schedule of trainings or an event."""
    failed: bool = False
    """Whether its run ended before the gate judged it: it trained nothing, but counts as spent.
    Not stored, but read from the run, which a retry may still bring to its end."""

    @classmethod
    def of(
        cls,
        run_id: str,
        snapshot: Snapshot,
        now: datetime,
        decision: RetrainingDecision | None = None,
    ) -> "Retraining":
        """Return the record of a training on a snapshot."""
        return cls(
            run_id=run_id,
            snapshot_digest=snapshot.digest(),
            data_time=snapshot.data_time(now),
            rows=snapshot.rows,
            decision=decision,
        )


class TriggerState(Section):
    """The trainings of one model, in the order in which they were recorded."""

    schema_version: int = 1
    """Incremented when a field changes its meaning."""
    retrainings: tuple[Retraining, ...] = ()
    last_trained: Annotated[Snapshot | None, Field(exclude=True)] = None
    """Snapshot of the newest training that has not failed; None if there is none or it cannot be
    read. Not stored."""

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
        # Those before the newest retraining that has not failed decide nothing any more.
        for number in reversed(range(len(marked))):
            if marked[number].decision is not None and not marked[number].failed:
                if not _has_failed(store_uri, runs, marked[number].run_id):
                    break
                marked[number] = marked[number].model_copy(update={"failed": True})
        return self.model_copy(update={"retrainings": tuple(marked)})

    def with_last_trained(self, store: ObjectStore) -> "TriggerState":
        """Return a copy with the snapshot of the newest training that has not failed."""
        if not self.judged:
            return self
        key = f"snapshots/{self.judged[-1].snapshot_digest}/{Snapshot.file_name}"
        try:
            found = Snapshot.from_json(store.read(key) or b"")
        except ValueError as error:
            logger.warning("%s/%s, new rows are counted by totals: %s", store.uri, key, error)
            return self
        return self.model_copy(update={"last_trained": found})

    def with_retraining(self, retraining: Retraining) -> "TriggerState":
        """Return a copy with one more retraining."""
        kept = (*self.retrainings, retraining)[-KEPT_RETRAININGS:]
        return self.model_copy(update={"retrainings": kept})

    def without(self, retraining: Retraining) -> "TriggerState":
        """Return a copy as it was before a retraining was recorded."""
        before = self.retrainings[: self.retrainings.index(retraining)]
        return self.model_copy(update={"retrainings": before})

    def of_run(self, run_id: str, snapshot_digest: str) -> Retraining | None:
        """Return the training that a run recorded earlier on this snapshot."""
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


def trigger_state(store: ObjectStore, model: str) -> StoredRecord[TriggerState]:
    """Return the record of a model's trainings."""
    return StoredRecord(
        store,
        f"triggers/{model}/state.json",
        TriggerState,
        f"the trigger state of {model}",
        "restore it, or delete it to forget past retrainings (resets cooldown and budget)",
    )


def record_judged(
    store: ObjectStore, model: str, run_id: str, snapshot: Snapshot, now: datetime
) -> None:
    """Record a training that the gate judged, unless its run is recorded; idempotent.

    Raises:
        PerennialError: the state is damaged, or other writers keep conflicting.
    """
    judged = Retraining.of(run_id, snapshot, now)

    def recorded(stored: TriggerState | None) -> tuple[TriggerState | None, None]:
        state = stored or TriggerState()
        if state.of_run(run_id, judged.snapshot_digest) is not None:
            return stored, None
        return state.with_retraining(judged), None

    trigger_state(store, model).update(recorded)
