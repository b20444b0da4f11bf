"""Builders of what the decision rests on: a drift report, past retrainings, a snapshot."""

from datetime import datetime, timedelta

import pytest

from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.monitoring import (
    ColumnDrift,
    DriftReport,
    RetrainingDecision,
    WindowDrift,
)
from perennial.contracts.snapshot import Snapshot
from perennial.registry.trigger_state import Retraining

NOW = datetime(2024, 6, 6)
WEEK = timedelta(days=7)


def drift_report(*, champion="3", drifted=False, decayed=False, new_rows=0, new_days=0.0):
    columns = (
        ColumnDrift(
            column="dest", statistic="total_variation", effect=0.2, z_score=8.0, alarmed=True
        ),
    )
    windows = tuple(
        WindowDrift(
            start=NOW - age * WEEK, end=NOW - (age - 1) * WEEK, rows=900, max_z_score=8.0,
            threshold=3.5, columns=columns if drifted else (), alarmed=drifted, loss=0.61,
            loss_z_score=4.2, decayed=decayed,
        )
        for age in (2, 1)
    )  # fmt: skip
    return DriftReport(
        champion_version=champion, calibration="blocks", windows=windows, drifted=drifted,
        decayed=decayed, new_rows=new_rows, new_days=new_days,
    )  # fmt: skip


def past_retraining(days_ago, *, run_id="earlier", digest="old", rows=0):
    return Retraining(
        run_id=run_id,
        snapshot_digest=digest,
        data_time=None if days_ago is None else NOW - timedelta(days=days_ago),
        rows=rows,
        decision=RetrainingDecision(
            retrain=True, trigger="drift", summary="Retrain: drift.", reasons=(), evidence={}
        ),
    )


@pytest.fixture(scope="session")
def report():
    return drift_report


@pytest.fixture(scope="session")
def past():
    return past_retraining


@pytest.fixture(scope="session")
def snapshot():
    """A snapshot of 10,000 rows up to now."""
    return Snapshot(
        data=DataSection(uri="d", label="y", time="t"), split=SplitSection(), files=(),
        columns={}, rows=10_000, split_rows={}, time_max=NOW,
    )  # fmt: skip
