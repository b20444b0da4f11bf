"""The tabular tasks on tables as they come: missing values, odd labels, unseen categories."""

import json
from datetime import date

import numpy as np
import polars as pl
import pytest
import torch
from pydantic import ValidationError
from sklearn.metrics import roc_auc_score

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.contracts.section import canonical_json
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.metrics.metric import UndefinedMetricError
from perennial.engine.task import LABEL
from perennial.tasks.tabular import (
    RegressionOptions,
    TabularClassification,
    TabularRegression,
)


def make(task_type, frame: pl.DataFrame, **options):
    features = {n: str(d) for n, d in frame.schema.items() if n != "label"}
    columns = TaskColumns(label="label", features=features)
    task = task_type(task_type.Options(**{"min_category_rows": 2} | options), columns)
    task.fit(frame.lazy())
    return task


def frame(**columns) -> pl.DataFrame:
    rows = len(next(iter(columns.values())))
    return pl.DataFrame({**columns, "label": columns.get("label", [i % 2 for i in range(rows)])})


@pytest.mark.parametrize(
    ("labels", "classes"),
    [
        ([0, 1, 1, 0], ("0", "1")),
        ([True, False, True, False], ("false", "true")),
        ([0.0, 1.0, 1.0, 0.0], ("0.0", "1.0")),
        (["b", "a", "b", "a"], ("a", "b")),
        ([10, 9, 10, 9], ("9", "10")),
    ],
)
def test_labels_of_any_type_become_codes_in_their_own_order(labels, classes):
    rows = frame(x=[1.0, 2.0, 3.0, 4.0], label=labels)
    task = make(TabularClassification, rows)
    assert task.fitted.classes == classes
    codes = task.encode(rows)[LABEL].tolist()
    assert codes == [sorted(set(labels)).index(label) for label in labels]
    assert task.kind == "binary"


def test_numbers_are_standardised_and_missing_ones_marked():
    rows = frame(x=[1.0, 3.0, None, float("nan")], y=[5, 5, 5, 5])
    numbers = make(TabularClassification, rows).encode(rows)["numbers"]
    # x, y, then the indicator of x: a mean stands in for what is missing, constants become 0.
    assert numbers.tolist() == [[-1, 0, 0], [1, 0, 0], [0, 0, 1], [0, 0, 1]]


@pytest.mark.parametrize(
    ("of_each", "known"),
    [([12] * 50, 50), ([400, 200, 2], 2), ([3000, 1400, 21, 19], 3), ([1999, 10, 9], 2)],
    ids=["a dozen of each state", "of few rows at least 3", "of many 20", "one in 200"],
)
def test_a_category_needs_fewer_rows_in_a_small_table(of_each, known):
    places = [f"p{number}" for number, rows in enumerate(of_each) for _ in range(rows)]
    task = make(TabularClassification, frame(place=places), min_category_rows=None)
    assert len(task.fitted.categories["place"]) == known


def test_unseen_rare_and_missing_categories_share_one_code():
    rows = frame(c=["a", "a", "b", None], x=[1.0, 2.0, 3.0, 4.0])
    task = make(TabularClassification, rows)
    served = frame(c=["a", "b", "new", None], x=[1.0] * 4).drop("label")
    assert task.encode(served)["categories"].flatten().tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    "columns",
    [
        {"c": ["u", "v", "w", "x"]},
        {"x": [1.0, 2.0, 3.0, 4.0]},
        {"c": ["a", "a", "b", "b"]},
    ],
    ids=["only rare categories", "only numbers", "only categories"],
)
def test_model_takes_tables_of_one_kind_of_column(columns):
    rows = frame(**columns)
    task = make(TabularClassification, rows)
    scored = score_batch(task, task.build_model(), task.encode(rows))
    assert scored.losses.shape == scored.predictions.shape == scored.labels.shape == (4,)
    assert np.isfinite(scored.losses).all()


def test_columns_keep_their_place_when_the_state_comes_back_sorted():
    rows = frame(z=[1.0, 2.0, 3.0, 4.0], a=[9.0, 7.0, 8.0, 9.0], c=["u", "u", "v", "v"])
    task = make(TabularClassification, rows)
    restored = TabularClassification(task.options, task.columns)
    restored.load_state(json.loads(canonical_json(task.state())))
    assert torch.equal(restored.encode(rows)["numbers"], task.encode(rows)["numbers"])
    assert restored.kind == task.kind


def test_first_loss_is_what_theory_predicts():
    generator = np.random.default_rng(0)
    x = generator.normal(size=2000)
    for task_type, labels in (
        (TabularClassification, (generator.random(2000) < 0.1).astype(int)),
        (TabularClassification, generator.integers(0, 7, 2000)),
        (TabularRegression, 300 + 40 * generator.normal(size=2000)),
    ):
        rows = pl.DataFrame({"x": x, "label": labels})
        task = make(task_type, rows)
        losses = score_batch(task, task.build_model(), task.encode(rows)).losses
        assert losses.mean() == pytest.approx(task.expected_initial_loss(), rel=0.05)


def test_several_classes_are_scored_one_against_the_rest_over_those_present():
    generator = np.random.default_rng(0)
    rows = pl.DataFrame({"x": generator.normal(size=300), "label": np.arange(300) % 3})
    task = make(TabularClassification, rows)
    labels = (np.arange(300) % 3).astype(float)
    predictions = generator.dirichlet([1, 1, 1], 300)
    whole = task.score(predictions, labels)["roc_auc"]
    assert whole == pytest.approx(roc_auc_score(labels, predictions, multi_class="ovr"))
    two = labels < 2
    areas = [roc_auc_score(labels[two] == c, predictions[two, c]) for c in (0, 1)]
    assert task.score(predictions[two], labels[two])["roc_auc"] == pytest.approx(np.mean(areas))
    one = labels == 0
    assert set(task.score(predictions[one], labels[one])) == {"log_loss"}
    with pytest.raises(UndefinedMetricError, match="roc_auc is undefined on these 100 rows"):
        task.measure("roc_auc", predictions[one], labels[one])


def test_regression_predicts_and_describes_in_the_label_s_unit():
    rows = pl.DataFrame({"x": [1.0, 2.0, 3.0], "label": [10.0, 20.0, 30.0]})
    task = make(TabularRegression, rows)
    assert task.predict(torch.zeros(2, 1)).tolist() == [20.0, 20.0]
    assert task.describe(task.encode(rows), 2) == {"x": "3", "label": "30"}
    scores = task.score(np.array([10.0, 20.0, 33.0]), np.array([10.0, 20.0, 30.0]))
    assert scores == pytest.approx({"rmse": 3**0.5, "mae": 1.0, "r2": 1 - 3 / (200 / 3)})


def test_examples_are_described_as_they_were_written():
    rows = frame(c=["a", "a", "b", None], x=[0.0, 1e-4, None, 3.0], y=[1e9, 2e9, 0.0, 4e9])
    task = make(TabularClassification, rows)
    batch = task.encode(rows)
    assert [task.describe(batch, index) for index in range(4)] == [
        {"x": "0", "y": "1e+09", "c": "a", "label": "0"},
        {"x": "0.0001", "y": "2e+09", "c": "a", "label": "1"},
        {"x": "(missing)", "y": "0", "c": "(unknown)", "label": "0"},
        {"x": "3", "y": "4e+09", "c": "(unknown)", "label": "1"},
    ]


@pytest.mark.parametrize(
    ("columns", "options", "message"),
    [
        ({"x": [1.0, 2.0], "label": [1, 1]}, {}, "has 1 classes"),
        ({"day": [date(2025, 1, 1)] * 2}, {}, r"cannot use the columns \['day'\]"),
        ({"x": [1, 2]}, {"categorical": ("y",)}, r"names \['y'\]"),
    ],
)
def test_unusable_tables_are_refused_by_name(columns, options, message):
    with pytest.raises(BadDataError, match=message):
        make(TabularClassification, frame(**columns), **options)


def test_label_unknown_to_training_is_refused():
    task = make(TabularClassification, frame(x=[1.0, 2.0]))
    with pytest.raises(BadDataError, match="did not have"):
        task.encode(frame(x=[1.0], label=[7]))


def test_constant_target_is_refused():
    with pytest.raises(BadDataError, match="constant or missing"):
        make(TabularRegression, frame(x=[1.0, 2.0], label=[5.0, 5.0]))


def test_a_label_that_32_bits_would_round_is_refused():
    seconds = 300.0 * np.random.default_rng(0).normal(size=200)
    with pytest.raises(BadDataError, match="rounded to multiples of 128"):
        make(TabularRegression, frame(x=seconds, label=1.7e9 + seconds))
    # The offset of a stock index, and that of the same times as minutes of a year.
    for label in (4e4 + seconds, 5e5 + seconds / 60):
        task = make(TabularRegression, frame(x=seconds, label=label))
        kept = task.encode(frame(x=seconds, label=label))["label"].double().numpy()
        assert np.abs(kept - label).max() < 0.01 * label.std()


@pytest.mark.parametrize(
    ("options", "constant", "metric"),
    [
        ({"loss": "squared"}, np.mean, "rmse"),
        ({"loss": "absolute"}, np.median, "mae"),
        ({"loss": "quantile", "quantile": 0.9}, lambda y: np.quantile(y, 0.9), "pinball_90"),
        ({"loss": "huber", "delta": 0.5}, np.median, "mae"),
    ],
)
def test_a_robust_loss_starts_near_its_best_constant_and_is_scored_by_its_metric(
    options, constant, metric
):
    labels = np.random.default_rng(0).lognormal(size=2000)
    rows = pl.DataFrame({"x": np.arange(2000.0), "label": labels})
    task = make(TabularRegression, rows, hidden=(), **options)
    model, batch = task.build_model(), task.encode(rows)
    torch.nn.init.zeros_(model.output.weight)
    scored = score_batch(task, model, batch)
    assert scored.predictions == pytest.approx(constant(labels), rel=1e-4)
    assert scored.mean_loss() == pytest.approx(task.expected_initial_loss(), rel=1e-4)
    assert next(iter(task.metrics)) == metric
    around = torch.linspace(-2, 2, 401)[:, None] + task.fitted.target_start
    means = [float(task.losses(value.expand(2000, 1), batch).mean()) for value in around]
    assert min(means) >= (0.99 if options["loss"] != "huber" else 0.9) * scored.mean_loss()


@pytest.mark.parametrize(
    "options", [{"loss": "quantile"}, {"quantile": 0.5}, {"loss": "absolute", "delta": 1.0}]
)
def test_an_option_of_another_loss_is_refused(options):
    with pytest.raises(ValidationError, match=r"quantile|delta"):
        RegressionOptions(**options)


@pytest.mark.parametrize("classes", [2, 3])
def test_labels_of_a_table_are_smoothed_in_training_alone(classes):
    rows = frame(x=np.arange(60.0), label=[row % classes for row in range(60)])
    task = make(TabularClassification, rows, label_smoothing=0.2)
    batch, output = task.encode(rows), torch.randn(60, 1 if classes == 2 else classes)
    both = torch.cat([torch.zeros_like(output), output], dim=1) if classes == 2 else output
    expected = 0.8 * task.losses(output, batch) - 0.2 * both.log_softmax(1).mean(1)
    torch.testing.assert_close(task.training_losses(output, batch), expected)
    plain = make(TabularClassification, rows)
    assert torch.equal(plain.training_losses(output, batch), task.losses(output, batch))
