"""The step `analyze_study`: analyse the trials, judge the finalists, propose the next study."""

from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.section import Section
from perennial.gate.config import GateSection
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.studies.conclusion import conclude_study
from perennial.studies.records import StudyPlan


class AnalyzeStudyConfig(Section):
    """Configuration of the step."""

    gate: GateSection = GateSection()
    """How few test rows decide nothing, and the number of bootstrap draws."""


@pipeline_step(
    "analyze_study", reads=AnalyzeStudyConfig, outputs=("judgement", "report", "metrics")
)
def analyze_study_step(
    *, contract: str, study: str, judgement: str, report: str, metrics: str
) -> StepResult:
    """Reach the study's verdict from its records alone."""
    plan, gate = StudyPlan.read(Path(study)), AnalyzeStudyConfig.from_json(contract).gate
    store = open_store(Environment.read().store_uri)
    found = conclude_study(plan, gate, Path(study), store, Path(report))
    hand_on(
        Path(judgement), found.judgement, more={"result": found.findings.model_dump(mode="json")}
    )
    return StepResult(
        parameters={"adopt": found.judgement.decision == "adopt"},
        metrics=found.scalars,
        summary=f"{found.judgement.decision}: {found.judgement.summary}",
    )
