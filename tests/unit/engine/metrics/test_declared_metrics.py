"""What a task may be measured by is settled before anything runs, and what rows lack is reported."""

import numpy as np
import pytest

from declaring_tasks import Catalogued, WithOwn
from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.engine.metrics.catalogue import find_metric
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.task import check_metrics, check_options, load_task, load_task_type
from perennial.tasks.image_classification import ImageClassification
from perennial.tasks.language_modeling import CausalLanguageModel
from perennial.tasks.tabular import TabularClassification, TabularRegression
from tiny_training import finished, run_ranks, tiny_job

COLUMNS = TaskColumns(label="y", features={"x": "Float64"})
Y = np.array([1.0, 2.0, 4.0])


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("Unknown", "has no 'rsme'(.|\n)*write 'rmse'"),
        ("OfAnotherKind", "cannot be measured by 'roc_auc'(.|\n)*its kind is regression"),
        ("WrongWayRound", "declares the direction 'maximize' for 'rmse'"),
        ("WithoutStatistics", "needs the statistics loss; the task names none"),
    ],
)
def test_a_metric_that_cannot_be_measured_is_refused_when_the_task_is_loaded(task, message):
    with pytest.raises(BadTaskError, match=message):
        load_task_type(f"declaring_tasks:{task}")


@pytest.mark.parametrize("task_type", [Catalogued, WithOwn])
def test_metrics_of_the_catalogue_and_own_ones_are_equal_in_rank(task_type):
    task = load_task(f"declaring_tasks:{task_type.__name__}", {}, COLUMNS)
    found = task.score(Y + 1, Y)
    assert found.keys() == task.metrics.keys()
    assert [task.measure(name, Y + 1, Y) for name in found] == list(found.values())
    left = task.score(Y[:1], Y[:1])
    assert task.metrics.keys() - left.keys() == {"r2"}
    with pytest.raises(UndefinedMetricError, match="labels that differ"):
        task.measure("r2", Y[:1], Y[:1])


def test_the_contract_adds_metrics_to_a_reference_task():
    path = "perennial.tasks.tabular:TabularRegression"
    task = load_task(path, {"metrics": ["pinball_90", "wape"]}, COLUMNS)
    assert list(task.metrics) == ["rmse", "mae", "r2", "pinball_90", "wape"]
    assert task.score(Y + 1, Y)["wape"] == pytest.approx(3 / 7)
    assert list(TabularRegression.metrics) == ["rmse", "mae", "r2"]


@pytest.mark.parametrize(
    ("task_type", "name", "message"),
    [
        (TabularRegression, "roc_auc", "its kind is regression"),
        (TabularClassification, "roc_acu", "write 'roc_auc'"),
        (ImageClassification, "ndcg_at_5", "choose one of: accuracy"),
        (CausalLanguageModel, "recall_at_1", "needs the statistics ahead, tied"),
    ],
)
def test_added_metrics_must_exist_and_fit(task_type, name, message):
    with pytest.raises(BadTaskError, match=message):
        check_options(task_type, {"metrics": [name]})


def test_what_a_contract_names_must_be_measured():
    named = {"gate.metric": "brier"}
    options = check_options(TabularClassification, {"metrics": ["f1"]})
    with pytest.raises(
        BadTaskError, match=r'write metrics = \["f1", "brier"\]  # in \[model.options\]'
    ):
        check_metrics(TabularClassification, options, named)
    options = check_options(TabularClassification, {"metrics": ["brier"]})
    check_metrics(TabularClassification, options, named)
    with pytest.raises(BadTaskError, match=r"write log_loss = …  # in \[selection.limits\]"):
        check_metrics(TabularClassification, options, {"selection.limits.logloss": "logloss"})


def test_a_metric_of_two_classes_is_refused_for_more():
    task = load_task("perennial.tasks.tabular:TabularClassification", {"metrics": ["f1"]}, COLUMNS)
    task.kind = "multiclass"
    with pytest.raises(BadTaskError, match="its kind is multiclass; the metric is for binary"):
        task.score(np.eye(3), np.arange(3.0))


def catalogued_job(root, **training):
    job = tiny_job(root, processes=2, evaluation_rows=1, **training)
    model = job.model.model_copy(update={"task": "declaring_tasks:Catalogued"})
    return job.model_copy(update={"model": model})


def test_what_the_evaluation_sample_does_not_define_is_left_out_and_said(root):
    job = catalogued_job(root)
    assert all(point.metrics.keys() == {"rmse", "loss"} for point in finished(job).evaluations)
    log = (job.logs / "rank-0.log").read_text()
    assert "metric=r2 left out: r2 is undefined on these 1 rows: it needs labels that differ" in log


def test_checkpoints_cannot_be_kept_by_an_undefined_metric(root):
    job = catalogued_job(root, metric="r2")
    assert run_ranks(job) == [1, 1]
    errors = "".join(file.read_text() for file in job.errors.iterdir())
    assert "selected by r2, which is undefined on the evaluation sample" in errors


@pytest.mark.parametrize("counts", [[-1.0, 1.0], [0.0, 0.0]])
def test_candidates_that_cannot_be_are_a_mistake_of_the_task(counts):
    metric = find_metric("recall_at_1").reading(("ahead", "tied"))
    with pytest.raises(BadTaskError, match="recall_at_1 received impossible candidate counts"):
        metric.measure(np.array([counts, [0.0, 1.0]]), np.ones(2))
