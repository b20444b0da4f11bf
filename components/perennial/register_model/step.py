"""The step `register_model`: register the challenger and make it champion."""

from functools import partial
from pathlib import Path

from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.section import cut_sections
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, TrainingResult
from perennial.contracts.validation import ValidationReport
from perennial.gate.config import JudgementConfig
from perennial.gate.judgement import judge_challenger
from perennial.register_model.config import RegisterModelConfig
from perennial.register_model.report import write_rejection, write_report
from perennial.registry.model_card import CardContent
from perennial.registry.model_registry import open_registry
from perennial.registry.promotion import (
    nothing_registered,
    open_run,
    register_or_keep,
    trace_lineage,
    uncommitted,
    write_package,
)
from perennial.steps.decorator import StepResult, pipeline_step


# Without `reads`: the package contains the contract as a whole.
@pipeline_step("register_model", outputs=("registration", "report"))
def register_model_step(
    *,
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
) -> StepResult:
    """Package, upload, register and promote what the gate did not reject; retries continue."""
    section = RegisterModelConfig.from_json(cut_sections(contract, RegisterModelConfig))
    environment, decided = Environment.read(), Verdict.read(Path(verdict))
    chosen, registry = Challenger.read(Path(challenger)), open_registry(environment)
    tracking = open_run(environment, section.model.name, trigger)
    if not decided.promote and registry.has_champion(section.model.name, decided.champion_version):
        tracking.finish()
        left = nothing_registered(section.model.name, chosen.weights_sha256, tracking.run_id)
        hand_on(Path(registration), left, Path(verdict))
        return write_rejection(Path(report), decided)
    data, trained = Snapshot.read(Path(snapshot)), TrainingResult.read(Path(training))
    lineage = trace_lineage(
        environment,
        contract=contract,
        trigger=trigger,
        snapshot_digest=data.digest(),
        tracking_run_id=tracking.run_id,
        parent_version=decided.champion_version,
        trained=trained,
        members=chosen.members,
    )
    content = CardContent(
        name=section.model.name,
        description=section.registry.description,
        snapshot=data,
        validation=ValidationReport.read(Path(validation)),
        skeleton=SkeletonReport.read(Path(skeleton)),
        training=trained,
        challenger=chosen,
        verdict=decided,
        lineage=lineage,
    )
    pack = partial(
        write_package,
        challenger=Path(challenger),
        contract=contract,
        diff=uncommitted(environment),
        tags=section.registry.tags,
    )
    gate = JudgementConfig.from_json(cut_sections(contract, JudgementConfig))
    folders = (Path(each) for each in (snapshot, challenger, skeleton))
    judge = partial(judge_challenger, gate, *folders, page=Path(report), environment=environment)
    made, content = register_or_keep(content, pack, judge, tracking, registry)
    hand_on(Path(registration), made, Path(verdict))
    if made.is_champion:  # else the page stays that of the last verdict, which `judge` wrote
        write_report(Path(report), made, content)
    return _result(made, content.verdict)


def _result(made: Registration, verdict: Verdict) -> StepResult:
    if not made.is_champion:
        moved = f"the champion changed to version {verdict.champion_version} meanwhile"
        return StepResult(parameters={"champion": False}, summary=f"{moved}: {verdict.summary}")
    summary, version = f"{made.name} version {made.version} is champion", float(made.version)
    return StepResult(parameters={"champion": True}, metrics={"version": version}, summary=summary)
