"""The step: outputs on success and on failure, and the message that a person reads."""

import pytest
from sklearn.metrics import roc_auc_score
from torch.nn.functional import cross_entropy

from perennial.check_skeleton.config import CheckSkeletonConfig, SkeletonSection
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.registry import check_names
from perennial.check_skeleton.step import check_skeleton_step
from perennial.contracts.data import ModelSection
from perennial.contracts.errors import BadTaskError
from perennial.contracts.skeleton import SkeletonReport
from perennial.engine.config.training import TrainingSection
from perennial.engine.evaluation.baseline_rows import BaselineRows
from perennial.engine.task import LABEL
from perennial.tasks.tabular import TabularClassification
from skeleton_tables import SETTINGS, TRAINING, prepared

BROKEN = """
from perennial.tasks.tabular import TabularClassification

class Broken(TabularClassification):
    def predict(self, output):
        return output.squeeze(-1) * 50
"""


@pytest.fixture
def run(datasets, tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    (tmp_path / "broken_task.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(tmp_path)
    datasets("binary").snapshot.write(tmp_path / "snapshot")

    def run(task: str, **settings):
        config = CheckSkeletonConfig(
            model=ModelSection(name="model", task=task),
            skeleton=SkeletonSection(sample_rows=1024, batch_rows=64, **settings),
            training=TrainingSection.model_validate(TRAINING),
        )
        outputs = {name: str(tmp_path / name) for name in ("skeleton", "report")}
        return check_skeleton_step(
            contract=config.to_json(), snapshot=str(tmp_path / "snapshot"), **outputs
        )

    return run


def test_healthy_task_gets_a_report_with_baselines(run, tmp_path):
    result = run("perennial.tasks.tabular:TabularClassification")
    report = SkeletonReport.read(tmp_path / "skeleton")
    assert (result.metrics["failed"], result.metrics["warned"]) == (0.0, 0.0)
    assert sum(result.metrics.values()) == len(check_names())
    counts = {name: f"{count:.0f}" for name, count in result.metrics.items()}
    assert result.summary == f"{counts['passed']} passed, {counts['skipped']} not applicable"
    assert set(report.baselines) == {"constant", "linear"}
    rows = BaselineRows.read(tmp_path / "skeleton")
    for name, predicted in rows.predictions.items():
        area = roc_auc_score(rows.labels, predicted)
        assert area == pytest.approx(report.baselines[name]["roc_auc"])
    assert set(rows.predictions) == set(report.baselines)
    page = (tmp_path / "report").read_text()
    order = [page.index(part) for part in ("Examples decoded", "overfit_one_batch", "Baselines")]
    assert order == sorted(order)
    # The first loss, who sees whom, first steps and their predictions, overfitting, the baseline.
    assert page.count("<figure>") == 6


def test_failure_stops_the_run_after_everything_is_written(run, tmp_path):
    with pytest.raises(BadTaskError) as raised:
        run("broken_task:Broken")
    text = str(raised.value)
    assert "predictions: probabilities lie in [" in text
    assert "skeleton.waivers" in text
    report = SkeletonReport.read(tmp_path / "skeleton")
    assert "predictions" in {result.check for result in report.failures}
    assert report.baselines == {}
    page = (tmp_path / "report").read_text()
    assert "Failed" in page
    # Worst first: the failure stands above every check that passed.
    assert page.index("probabilities lie in") < page.index("encoded the same together")


def test_waived_failure_does_not_stop_the_run_and_is_reported(run, tmp_path):
    reason = "scores are calibrated downstream"
    failing = ("predictions", "metric_direction", "state_round_trip")
    result = run("broken_task:Broken", waivers=dict.fromkeys(failing, reason))
    assert "waived: predictions" in result.summary
    assert result.metrics["failed"] >= 1
    assert reason in (tmp_path / "report").read_text()


class Smoothed(TabularClassification):
    def losses(self, output, batch):
        labels = batch[LABEL]
        return cross_entropy(output, labels, reduction="none", label_smoothing=0.1)


class Averaged(TabularClassification):
    def losses(self, output, batch):
        return super().losses(output, batch).mean()


def examined(dataset, task_type, names, **settings):
    subject = prepared(task_type, dataset, settings=SETTINGS.model_copy(update=settings))
    return run_checks(subject, names)


def test_a_warning_that_the_contract_takes_seriously_blocks(datasets):
    table = datasets("multiclass")
    (usual,) = examined(table, Smoothed, ["loss_floor"])
    (strict,) = examined(table, Smoothed, ["loss_floor"], severities={"loss_floor": "fail"})
    assert (usual.outcome, usual.severity, usual.blocks) == ("warned", "", False)
    assert (strict.outcome, strict.severity, strict.blocks) == ("failed", "fail", True)
    assert strict.measured == usual.measured


def test_dependent_checks_are_skipped_whatever_the_severity_of_their_foundation(datasets):
    names = ["per_example_losses", "predictions"]
    first, second = examined(
        datasets("binary"), Averaged, names, severities={"per_example_losses": "warn"}
    )
    assert (first.outcome, first.severity) == ("warned", "warn")
    assert (second.outcome, second.hint) == ("skipped", "needs per_example_losses to pass first")


def test_a_waiver_is_idle_once_its_check_passes(datasets):
    (result,) = examined(
        datasets("binary"), TabularClassification, ["labels"], waivers={"labels": "noisy"}
    )
    assert (result.outcome, result.is_idly_waived, result.blocks) == ("passed", True, False)
