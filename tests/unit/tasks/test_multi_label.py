"""Rows with any number of labels: read from text, learned one by one, served as probabilities."""

import math
from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from sklearn.metrics import f1_score

from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.contracts.data import DataSection, SplitSection, TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.serving.pyfunc import predict_rows, prediction_names
from perennial.engine.serving.servable import input_columns
from perennial.engine.task import LABEL
from perennial.snapshot_data.manifest import take_snapshot
from perennial.tasks.multi_label import TabularMultiLabel
from skeleton_tables import SETTINGS, TRAINING, table

ROWS = pl.DataFrame(
    {"x": [1.0, 2.0, 3.0, 4.0], "label": ["red, round", "", "round", "red,round,red"]}
)


def fitted(rows=ROWS, **options):
    columns = TaskColumns(label="label", features={"x": "Float64"})
    task = TabularMultiLabel(TabularMultiLabel.Options(**options), columns)
    task.fit(rows.lazy())
    return task


def tagged(rows: int = 3000) -> pl.DataFrame:
    """A table whose numbers and groups decide three tags, with honest noise."""
    frame = table("regression", rows=rows)
    noise = np.random.default_rng(1).logistic(size=(rows, 3))
    x0, x2, group = frame["x0"].to_numpy(), (frame["x2"].to_numpy() - 2) / 100, frame["group"]
    is_third = (group == "g2").to_numpy()
    scores = np.stack([2 * x0, 2 * x2 - 1, 3 * is_third - 1], axis=1) + 0.5 * noise
    names = np.array(["bright", "large", "odd"])
    return frame.with_columns(label=pl.Series([",".join(names[row > 0]) for row in scores]))


def test_labels_are_read_from_text_and_start_at_their_shares():
    task = fitted()
    assert task.encode(ROWS)[LABEL].tolist() == [[1, 1], [0, 0], [0, 1], [1, 1]]
    assert task.fitted.classes == ("red", "round")
    assert task.fitted.class_shares == (0.5, 0.75)
    model = task.build_model()
    torch.nn.init.zeros_(model.output.weight)
    scored = score_batch(task, model, task.encode(ROWS))
    assert scored.mean_loss() == pytest.approx(task.expected_initial_loss())
    theory = (math.log(2) + 0.75 * math.log(4 / 3) + 0.25 * math.log(4)) / 2
    assert task.expected_initial_loss() == pytest.approx(theory)
    assert task.describe(task.encode(ROWS), 0)["label"] == "red, round"


def test_metrics_are_those_of_the_rows():
    task, random = fitted(), torch.Generator().manual_seed(2)
    batch = {LABEL: torch.randint(0, 2, (50, 2), generator=random).float()}
    output = torch.randn(50, 2, generator=random)
    statistics = task.statistic(output, batch).numpy()
    found = task.score(statistics, np.ones(50))
    assert found["micro_f1"] == pytest.approx(f1_score(batch[LABEL], output > 0, average="micro"))
    assert found["exact_match"] == ((output > 0) == (batch[LABEL] > 0)).all(1).double().mean()
    assert found["mean_loss"] == pytest.approx(float(task.losses(output, batch).mean()))


def test_a_served_model_answers_probabilities_and_needs_no_label():
    task = fitted()
    assert input_columns(task) == ["x"]
    served = predict_rows(task, task.build_model(), ROWS.drop("label"))
    assert served.shape == (4, 2)
    assert 0 < served.min() < served.max() < 1
    assert prediction_names(task, 2) == ["probability_red", "probability_round"]


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        (ROWS.with_columns(label=pl.lit("")), "has 0 labels to learn"),
        (ROWS.with_columns(label=pl.col("x")), "is Float64, not text"),
    ],
)
def test_a_column_without_labels_is_refused(rows, problem):
    with pytest.raises(BadDataError, match=problem):
        fitted(rows)


def test_a_label_that_the_training_split_lacks_is_refused():
    with pytest.raises(BadDataError, match="values that the training split did not have"):
        fitted().encode(ROWS.with_columns(label=pl.lit("blue")))


class Shuffled(TabularMultiLabel):
    """labels are shifted by one row"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].roll(1, 0)} if LABEL in batch else batch


class Exclusive(TabularMultiLabel):
    """labels are learned by a softmax, as if a row had one of them"""

    def losses(self, output, batch):
        return torch.nn.functional.cross_entropy(output, batch[LABEL], reduction="none")


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tagged")
    tagged().write_parquet(folder / "rows.parquet")
    data = DataSection(uri=str(folder), label="label", ids=("row",), text=("label",))
    return Dataset(take_snapshot(data, SplitSection()))


def examined(task_type, dataset, *only):
    make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
    subject = Subject.prepare(make, dataset, SETTINGS, TrainingSection(seed=1, **TRAINING))
    return {result.check: result for result in run_checks(subject, only)}


def test_the_task_passes_every_check(dataset):
    doubted = {
        check: (result.measured, result.hint)
        for check, result in examined(TabularMultiLabel, dataset).items()
        if result.outcome in ("failed", "warned")
    }
    assert not doubted


@pytest.mark.parametrize(
    ("task_type", "check"), [(Shuffled, "encoding"), (Exclusive, "initial_loss")]
)
def test_planted_bugs_are_found(task_type, check, dataset):
    assert examined(task_type, dataset, check)[check].outcome == "failed"
