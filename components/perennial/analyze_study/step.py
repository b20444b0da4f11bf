"""The step `analyze_study`: analyse the trials, judge the finalists, propose the next study."""

from pathlib import Path

from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.studies.conclusion import conclude_study
from perennial.studies.records import StudyPlan


@pipeline_step("analyze_study", outputs=("judgement", "report", "metrics"))
def analyze_study_step(*, study: str, judgement: str, report: str, metrics: str) -> StepResult:
    """Reach the study's verdict from its records alone."""
    plan = StudyPlan.read(Path(study))
    found = conclude_study(plan, Path(study), Environment.read(), Path(report))
    hand_on(
        Path(judgement), found.judgement, more={"result": found.findings.model_dump(mode="json")}
    )
    return StepResult(
        parameters={"adopt": found.judgement.decision == "adopt"},
        metrics=found.scalars,
        summary=f"{found.judgement.decision}: {found.judgement.summary}",
    )
