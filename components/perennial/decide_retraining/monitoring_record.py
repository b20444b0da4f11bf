"""The newest look at a model's data: what monitoring saw last, kept in the object store."""

from datetime import datetime

from perennial.clients.object_store import ObjectStore
from perennial.clients.stored_record import StoredRecord
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot


class MonitoringRecord(Section):
    """One monitoring of a model: whether drift, decay, and what followed."""

    schema_version: int = 1
    """Raised when a field changes its meaning."""
    at: datetime
    """When it was decided, UTC."""
    run_id: str
    """The pipeline run that looked."""
    champion_version: str
    """Empty when there was none."""
    data_time: datetime | None
    """Time of the snapshot's newest row; None for data without a time column."""
    windows: int
    """Of new data; without any there was nothing to compare."""
    drifted: bool
    decayed: bool
    largest_z_score: float
    """Over the windows, in standard deviations (see `ColumnDrift`); 0 without windows."""
    retrain: bool
    trigger: str


def summarize_monitoring(
    run_id: str,
    at: datetime,
    snapshot: Snapshot,
    drift: DriftReport,
    decision: RetrainingDecision,
) -> MonitoringRecord:
    """What is kept of one monitoring."""
    return MonitoringRecord(
        at=at,
        run_id=run_id,
        champion_version=drift.champion_version,
        data_time=snapshot.time_max,
        windows=len(drift.windows),
        drifted=drift.drifted,
        decayed=drift.decayed,
        largest_z_score=max((window.max_z_score for window in drift.windows), default=0.0),
        retrain=decision.retrain,
        trigger=decision.trigger,
    )


def save_monitoring_record(store: ObjectStore, model: str, look: MonitoringRecord) -> None:
    """Keep a look as `monitoring/<model>/look.json`, unless a later one is there already.

    Raises:
        PerennialError: what is stored is damaged, or others never stop writing.
    """

    def newest(last: MonitoringRecord | None) -> tuple[MonitoringRecord, None]:
        return (look if last is None or last.at < look.at else last), None

    _record(store, model).update(newest)


def load_monitoring_record(store: ObjectStore, model: str) -> MonitoringRecord | None:
    """What monitoring saw last; None before the first time.

    Raises:
        PerennialError: what is stored is damaged.
    """
    return _record(store, model).read()


def _record(store: ObjectStore, model: str) -> StoredRecord[MonitoringRecord]:
    return StoredRecord(
        store, f"monitoring/{model}/look.json", MonitoringRecord, f"the newest look at {model}",
        "delete it; the next monitoring writes a new one",
    )  # fmt: skip
