"""The step `decide_retraining`: decide from the drift report and the trigger state."""

from datetime import UTC, datetime
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import Environment
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.triggers import MonitoringConfig
from perennial.decide_retraining.policy import SnapshotInfo, decide
from perennial.decide_retraining.report import write_report
from perennial.decide_retraining.state import (
    Retraining,
    TriggerState,
    decide_and_record,
    save_monitoring_record,
    summarize_monitoring,
)
from perennial.registry.champion_records import refuse_recorded_champion
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.steps.parameters import encode_parameter


@pipeline_step(
    "decide_retraining",
    reads=MonitoringConfig,
    outputs=("decision", "report", "metrics", "trigger"),
)
def decide_retraining_step(
    *,
    contract: str,
    snapshot: str,
    drift: str,
    decision: str,
    report: str,
    metrics: str,
    trigger: str,
) -> StepResult:
    """Decide, record a retraining before anybody starts it, and report the reason."""
    settings = MonitoringConfig.from_json(contract)
    current = Snapshot.read(Path(snapshot))
    seen = DriftReport.read(Path(drift))
    environment = Environment.read()
    occasion = SnapshotInfo(current.digest(), current.time_max, current.rows)

    def decide_on(state: TriggerState) -> RetrainingDecision:
        return decide(occasion, seen, state, settings.triggers)

    def record(made: RetrainingDecision) -> Retraining:
        return Retraining(
            run_id=environment.run_id,
            snapshot_digest=occasion.snapshot_digest,
            data_time=occasion.data_time,
            rows=occasion.rows,
            decision=made,
        )

    store = open_store(environment.store_uri)
    if not seen.champion_version:
        refuse_recorded_champion(store, settings.model.name)
    claim = (environment.run_id, occasion.snapshot_digest)
    made, state = decide_and_record(store, settings.model.name, claim, decide_on, record)
    look = summarize_monitoring(environment.run_id, datetime.now(UTC), current, seen, made)
    save_monitoring_record(store, settings.model.name, look)
    made.write(Path(decision))
    write_atomically(Path(trigger), trigger_evidence(made).encode())
    write_report(
        Path(report), made, occasion=occasion, drift=seen, state=state, triggers=settings.triggers
    )
    return StepResult(
        parameters={"retrain": made.retrain},
        metrics={"retrain": float(made.retrain)},
        summary=made.summary,
    )


def trigger_evidence(made: RetrainingDecision) -> str:
    """Return the training's `trigger` parameter, which is stored with the model version."""
    return encode_parameter(
        canonical_json(made.model_dump(mode="json", exclude={"schema_version", "retrain"}))
    )
