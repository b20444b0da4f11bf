"""The step `evaluate_model`: score challenger and champion on the test rows and decide."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.gate import Verdict
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger
from perennial.gate.config import JudgementConfig
from perennial.gate.judgement import judge_challenger, scalars_of
from perennial.registry.trigger_state import record_judged
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
    section, environment = JudgementConfig.from_json(contract), Environment.read()
    decided = judge_challenger(
        section,
        Path(snapshot),
        Path(challenger),
        Path(skeleton),
        page=Path(report),
        environment=environment,
    )
    if not Challenger.read(Path(challenger)).turned_off:  # a model for debugging is no training
        store, taken = open_store(environment.store_uri), Snapshot.read(Path(snapshot))
        record_judged(store, section.model.name, environment.run_id, taken, datetime.now(UTC))
    hand_on(Path(verdict), decided, Path(skeleton), Path(snapshot))
    return StepResult(
        parameters={"promote": decided.promote},
        metrics=scalars_of(decided),
        summary=decided.summary,
    )


class ClassificationView(Protocol):
    """Kubeflow's artifact with a confusion matrix and a ROC curve."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None:
        """Rows are the true classes."""

    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None:
        """Points of the curve."""


def show_classes(verdict: str, view: ClassificationView) -> None:
    """Show the challenger's classes on the test rows, where the task has classes."""
    found = Verdict.read(Path(verdict)).classification
    if found is None:
        return
    view.log_confusion_matrix(
        [str(name) for name in found.classes], [list(row) for row in found.counts]
    )
    if found.roc:
        columns: Sequence[Sequence[float]] = list(zip(*found.roc, strict=True))
        false, true, thresholds = (list(column) for column in columns)
        view.log_roc_curve(false, true, thresholds)
