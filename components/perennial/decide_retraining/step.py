"""The step `decide_retraining`: decide from the drift report and the trigger state."""

from datetime import UTC, datetime
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on, write_atomically
from perennial.contracts.environment import Environment
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import MonitoringConfig
from perennial.decide_retraining.policy import decide
from perennial.decide_retraining.report import write_report
from perennial.decide_retraining.state import (
    MonitoringRecord,
    decide_and_record,
    save_monitoring_record,
)
from perennial.registry.champion_records import refuse_recorded_champion
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.steps.parameters import encode_parameter


@pipeline_step(
    "decide_retraining",
    reads=MonitoringConfig,
    outputs=("decision", "report", "trigger"),
)
def decide_retraining_step(
    *,
    contract: str,
    snapshot: str,
    drift: str,
    decision: str,
    report: str,
    trigger: str,
) -> StepResult:
    """Decide, record a retraining before anybody starts it, and report the reason."""
    settings = MonitoringConfig.from_json(contract)
    current = Snapshot.read(Path(snapshot))
    drift_report = DriftReport.read(Path(drift))
    environment = Environment.read()
    store, now = open_store(environment.store_uri), datetime.now(UTC)
    # MLflow named no champion: then no promotion may be on record either.
    if not drift_report.champion_version:
        refuse_recorded_champion(store, settings.model.name)
    decided, state = decide_and_record(
        store,
        settings.model.name,
        environment.run_id,
        current,
        lambda state: decide(current, drift_report, state, settings.triggers, now=now),
        now=now,
        runs=environment.run_folder.parent if environment.run_folder else None,
    )
    monitored = MonitoringRecord(
        at=now,
        run_id=environment.run_id,
        champion_version=drift_report.champion_version,
        data_time=current.time_max,
        windows=len(drift_report.windows),
        drifted=drift_report.drifted,
        decayed=drift_report.decayed,
        largest_z_score=max((window.max_z_score for window in drift_report.windows), default=0.0),
        retrain=decided.retrain,
        trigger=decided.trigger,
    )
    save_monitoring_record(store, settings.model.name, monitored)
    hand_on(Path(decision), decided, Path(drift), Path(snapshot))
    write_atomically(Path(trigger), trigger_evidence(decided).encode())
    write_report(
        Path(report),
        decided,
        snapshot=current,
        drift=drift_report,
        state=state,
        triggers=settings.triggers,
        now=now,
    )
    return StepResult(
        parameters={"retrain": decided.retrain},
        metrics={"retrain": float(decided.retrain)},
        summary=decided.summary,
    )


def trigger_evidence(decided: RetrainingDecision) -> str:
    """Return the training's `trigger` parameter, which is stored with the model version."""
    return encode_parameter(
        canonical_json(decided.model_dump(mode="json", exclude={"schema_version", "retrain"}))
    )
