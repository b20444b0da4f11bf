"""Monitoring record: the result of a model's last monitoring, stored in the object store."""

from datetime import datetime

from perennial.clients.object_store import ObjectStore, StoredRecord
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.section import Section
from perennial.contracts.snapshot import Snapshot


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


def summarize_monitoring(
    run_id: str,
    at: datetime,
    snapshot: Snapshot,
    drift: DriftReport,
    decision: RetrainingDecision,
) -> MonitoringRecord:
    """Return the record of one monitoring."""
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
    """Store a record as `monitoring/<model>/look.json`, unless a later one exists.

    Raises:
        PerennialError: the stored record is damaged, or other writers keep conflicting.
    """

    def newest(last: MonitoringRecord | None) -> tuple[MonitoringRecord, None]:
        return (look if last is None or last.at < look.at else last), None

    _record(store, model).update(newest)


def load_monitoring_record(store: ObjectStore, model: str) -> MonitoringRecord | None:
    """Load the record of the last monitoring; None before the first.

    Raises:
        PerennialError: the stored record is damaged.
    """
    return _record(store, model).read()


def _record(store: ObjectStore, model: str) -> StoredRecord[MonitoringRecord]:
    return StoredRecord(
        store, f"monitoring/{model}/look.json", MonitoringRecord,
        f"the monitoring record of {model}",
        "delete it; the next monitoring writes a new one",
    )  # fmt: skip
