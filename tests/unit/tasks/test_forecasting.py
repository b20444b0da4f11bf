"""Forecasts of several steps: losses are means over the steps, each step starts and answers by itself."""

import json

import numpy as np
import polars as pl
import pytest
import torch

from own_tasks import forecasts
from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.contracts.initial_model import FormerTask
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.initial_weights import load_initial_weights
from perennial.engine.serving.pyfunc import predict_rows
from perennial.engine.task import check_options, inputs_of
from perennial.tasks.forecasting import TabularForecast
from perennial.tasks.tabular import TabularClassification, TabularRegression
from stored_weights import store_weights

ROWS = forecasts(300).drop("row")
LATER = np.stack(ROWS["next"].to_list())
LAST = np.stack(ROWS["history"].to_list())[:, -1:]


def made(rows=ROWS, **options):
    features = {name: str(dtype) for name, dtype in rows.schema.items() if name != "next"}
    columns = TaskColumns(label="next", features=features)
    return TabularForecast(check_options(TabularForecast, options), columns)


def fitted(rows=ROWS, **options):
    task = made(rows, **options)
    task.fit(rows.lazy())
    return task


def score_of(task, output, batch):
    """The statistics of an output, and the weights of the rows."""
    return task.statistic(output, batch).numpy(), np.ones(len(output))


def started(task):
    """The scores of a model whose inputs do not matter yet."""
    model = task.build_model()
    torch.nn.init.zeros_(model.output.weight)
    return score_batch(task, model, task.encode(ROWS))


@pytest.mark.parametrize("dtype", [pl.List(pl.Float64), pl.Array(pl.Float64, 4)])
def test_each_step_starts_at_its_own_mean(dtype):
    rows = ROWS.with_columns(pl.col("next").cast(dtype))
    task = fitted(rows)
    model, batch = task.build_model(), task.encode(rows)
    torch.nn.init.zeros_(model.output.weight)
    assert batch["label"].shape == (300, 4)
    predictions = predict_rows(task, model, rows.drop("next"))
    assert np.allclose(predictions, np.broadcast_to(LATER.mean(axis=0), (300, 4)), atol=1e-3)
    assert list(task.prediction_names) == ["next_1", "next_2", "next_3", "next_4"]
    scored = score_batch(task, model, batch)
    assert scored.mean_loss() == pytest.approx(task.expected_initial_loss(), rel=1e-4)
    expected = np.square((LATER - LATER.mean(axis=0)) / LATER.std()).mean(axis=1)
    assert np.allclose(scored.losses, expected, atol=1e-4)


STARTS = {
    "squared": ({}, lambda left: left.mean(axis=0)),
    "absolute": ({"loss": "absolute"}, lambda left: np.median(left, axis=0)),
    "huber": ({"loss": "huber", "delta": 0.5}, lambda left: np.median(left, axis=0)),
    "quantile": ({"loss": "quantile", "quantile": 0.8}, lambda left: np.quantile(left, 0.8, 0)),
}


@pytest.mark.parametrize(("options", "start"), STARTS.values(), ids=STARTS)
def test_a_relative_forecast_starts_as_the_naive_one_at_each_step(options, start):
    scored = started(task := fitted(relative_to="history", **options))
    predictions = LAST + start(LATER - LAST)
    error = predictions - LATER
    assert np.allclose(scored.predictions[:, 1], np.square(error).mean(axis=1), rtol=1e-4)
    assert scored.mean_loss() == pytest.approx(task.expected_initial_loss(), rel=1e-3)
    metrics = scored.metrics(task)
    assert metrics["forecast_rmse"] == pytest.approx(np.sqrt(np.square(error).mean()), rel=1e-4)
    assert metrics["forecast_mae"] == pytest.approx(np.abs(error).mean(), rel=1e-4)
    if "quantile" in options:
        pinball = np.maximum(-0.8 * error, 0.2 * error).mean()
        assert metrics["forecast_pinball"] == pytest.approx(pinball, rel=1e-4)


@pytest.mark.parametrize(
    ("options", "first"),
    [
        ({}, "forecast_rmse"),
        ({"loss": "huber"}, "forecast_mae"),
        ({"loss": "quantile", "quantile": 0.5}, "forecast_pinball"),
        ({"metrics": ["mean_loss"]}, "forecast_rmse"),
    ],
)
def test_the_loss_decides_on_the_first_metric(options, first):
    task = made(**options)
    assert next(iter(task.metrics)) == first
    assert set(options.get("metrics", ())) <= set(task.metrics)


def test_a_short_training_beats_the_start_at_every_step():
    torch.manual_seed(0)
    task = fitted(hidden=[32])
    model, batch = task.build_model(), task.encode(ROWS)
    later = torch.from_numpy(LATER)
    before = (task.predict(model(**inputs_of(batch))) - later).square().mean(dim=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        optimizer.zero_grad()
        task.losses(model(**inputs_of(batch)), batch).mean().backward()
        optimizer.step()
    after = (task.predict(model(**inputs_of(batch))) - later).square().mean(dim=0)
    assert (after < before).all()


@pytest.mark.parametrize("unit", [1e-25, 1.0, 1e20])
def test_errors_are_in_the_labels_unit_whatever_that_is(unit):
    rows = ROWS.with_columns(next=pl.col("next").list.eval(pl.element() * unit))
    task = fitted(rows)
    batch = task.encode(rows)
    scored = task.score(*score_of(task, torch.zeros(len(LATER), LATER.shape[1]), batch))
    error = LATER - LATER.mean()
    assert scored["forecast_rmse"] == pytest.approx(
        unit * np.sqrt((error**2).mean()), rel=1e-4, abs=0.0
    )
    assert scored["forecast_mae"] == pytest.approx(unit * np.abs(error).mean(), rel=1e-4, abs=0.0)


def test_the_state_travels_as_json():
    task = fitted()
    restored = made()
    restored.load_state(json.loads(json.dumps(task.state())))
    assert torch.equal(restored.encode(ROWS)["label"], task.encode(ROWS)["label"])
    assert restored.describe(task.encode(ROWS), 0)["next"].endswith(", 4 values")


def test_a_longer_horizon_keeps_what_the_shorter_one_knew_of_each_step(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "cache"))
    before, after = fitted(ROWS.with_columns(pl.col("next").list.head(2))), fitted()
    former = FormerTask(
        task="perennial.tasks.forecasting:TabularForecast", options={}, columns=before.columns,
        state=before.state(),
    )  # fmt: skip
    old, new = before.build_model(), after.build_model()
    stored = store_weights(tmp_path, old.state_dict(), "champion", former=former)
    notes = load_initial_weights(new, after, stored)
    assert torch.equal(new.output.weight[:2], old.output.weight)
    assert "outputs: new 3, 4" in notes


@pytest.mark.parametrize(
    ("label", "message"),
    [
        (pl.Series("next", [1.0, 2.0] * 150), "not a list of numbers"),
        (pl.Series("next", [["a"], ["b"]] * 150), "not a list of numbers"),
        (pl.Series("next", [[1.0, 2.0], [3.0]] * 150), "differ in length"),
        (pl.Series("next", [[1.0, None], [3.0, 4.0]] * 150), "150 of 300 rows"),
        (pl.Series("next", [[1.0, 1.0]] * 300), "constant or missing"),
        (pl.Series("next", [[1.7e9, 1.7e9 + 60.0]] * 300), "rounded to multiples of 128"),
    ],
)
def test_labels_that_are_no_forecasts_are_refused(label, message):
    with pytest.raises(BadDataError, match=message):
        fitted(ROWS.with_columns(label))


def test_another_horizon_than_in_training_is_refused():
    with pytest.raises(BadDataError, match="differ in length"):
        fitted().encode(ROWS.with_columns(pl.col("next").list.head(3)))


@pytest.mark.parametrize("task_type", [TabularRegression, TabularClassification])
def test_tasks_of_one_value_name_the_one_of_several(task_type):
    columns = TaskColumns(label="next", features={"history": "List(Float64)"})
    with pytest.raises(BadDataError, match="per row") as refused:
        task_type(task_type.Options(), columns).fit(ROWS.lazy())
    assert "TabularForecast" in refused.value.action
