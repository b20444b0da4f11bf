"""The step `evaluate_model`: score challenger and champion on the test rows and decide."""

from pathlib import Path

from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.gate.config import JudgementConfig
from perennial.gate.judgement import judge_challenger, scalars_of
from perennial.steps.decorator import StepResult, pipeline_step


@pipeline_step("evaluate_model", reads=JudgementConfig, outputs=("verdict", "report", "metrics"))
def evaluate_model_step(
    *,
    contract: str,
    snapshot: str,
    challenger: str,
    skeleton: str,
    verdict: str,
    report: str,
    metrics: str,
) -> StepResult:
    """Compare the challenger with the champion on rows that neither was trained on."""
    decided = judge_challenger(
        JudgementConfig.from_json(contract),
        Path(snapshot),
        Path(challenger),
        Path(skeleton),
        page=Path(report),
        environment=Environment.read(),
    )
    hand_on(Path(verdict), decided, Path(skeleton), Path(snapshot))
    return StepResult(
        parameters={"promote": decided.promote},
        metrics=scalars_of(decided),
        summary=decided.summary,
    )
