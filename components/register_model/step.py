"""The step `register_model`: puts the challenger on record and makes it champion."""

from pathlib import Path
from tempfile import TemporaryDirectory

from components.clients.environment import Environment
from components.clients.model_registry import ModelVersion, open_registry
from components.clients.steps import StepResult, pipeline_step
from components.clients.tracking import open_tracking
from components.contracts.errors import PerennialError
from components.contracts.gate import Registration, Verdict
from components.contracts.skeleton import SkeletonReport
from components.contracts.snapshot import Snapshot
from components.contracts.training import Challenger, TrainingResult
from components.contracts.validation import ValidationReport
from components.register_model.config import RegisterModelConfig
from components.register_model.model_card import CardContent
from components.register_model.package import (
    candidate_of,
    trace_lineage,
    uncommitted,
    write_package,
)
from components.register_model.promotion import promote
from components.register_model.report import write_report


@pipeline_step("register_model", outputs=("registration", "report", "metrics"))
def register_model_step(
    *,
    config: str,
    contract: str,
    trigger: str,
    snapshot: str,
    validation: str,
    training: str,
    challenger: str,
    skeleton: str,
    verdict: str,
    registration: str,
    report: str,
    metrics: str,
) -> StepResult:
    """Package, upload, register and promote; a retry continues where the last attempt stopped."""
    section = RegisterModelConfig.from_json(config)
    decided = Verdict.read(Path(verdict))
    if not decided.promote:
        raise PerennialError(
            "the gate rejected this challenger",
            evidence=decided.summary,
            action="register only what evaluate_model promotes",
        )
    environment = Environment.read()
    tracking = open_tracking(environment, section.model.name)
    data = Snapshot.read(Path(snapshot))
    content = CardContent(
        name=section.model.name,
        description=section.registry.description,
        snapshot=data,
        validation=ValidationReport.read(Path(validation)),
        skeleton=SkeletonReport.read(Path(skeleton)),
        training=TrainingResult.read(Path(training)),
        challenger=Challenger.read(Path(challenger)),
        verdict=decided,
        lineage=trace_lineage(
            environment,
            contract=contract,
            trigger=trigger,
            snapshot_digest=data.digest(),
            tracking_run_id=tracking.run_id,
            parent_version=decided.champion_version,
        ),
    )
    with TemporaryDirectory() as scratch:
        package = Path(scratch) / "package"
        write_package(
            package, Path(challenger), content, contract=contract, diff=uncommitted(environment)
        )
        candidate = candidate_of(package, content, section.registry.tags)
        version = promote(candidate, tracking, open_registry(environment))
    tracking.set_tags({"perennial.version": version.version})
    tracking.finish()
    return _result(version, content, Path(registration), Path(report))


def _result(
    version: ModelVersion, content: CardContent, registration: Path, report: Path
) -> StepResult:
    registered = Registration(
        name=version.name,
        version=version.version,
        aliases=("champion", "challenger"),
        weights_sha256=content.challenger.weights_sha256,
        tracking_run_id=version.run_id,
        replaced_version=content.verdict.champion_version,
    )
    registered.write(registration)
    write_report(report, registered, content)
    summary = f"{version.name} version {version.version} is champion"
    return StepResult(metrics={"version": float(version.version)}, summary=summary)
