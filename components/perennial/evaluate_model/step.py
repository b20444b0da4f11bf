"""The step `evaluate_model`: scores challenger and champion on the test rows and decides."""

from pathlib import Path

from perennial.clients.steps import StepResult, pipeline_step
from perennial.evaluate_model.config import EvaluateModelConfig
from perennial.evaluate_model.judgement import judge_challenger
from perennial.evaluate_model.verdict import scalars_of


@pipeline_step("evaluate_model", outputs=("verdict", "report", "metrics"))
def evaluate_model_step(
    *,
    config: str,
    snapshot: str,
    challenger: str,
    skeleton: str,
    verdict: str,
    report: str,
    metrics: str,
) -> StepResult:
    """Compare the challenger with the champion on rows that neither was trained on."""
    decided = judge_challenger(
        EvaluateModelConfig.from_json(config),
        Path(snapshot),
        Path(challenger),
        Path(skeleton),
        page=Path(report),
    )
    decided.write(Path(verdict))
    return StepResult(
        parameters={"promote": decided.promote},
        metrics=scalars_of(decided),
        summary=decided.summary,
    )
