"""Windows of a series are inputs of the tabular tasks, and a forecast may be relative to the last value."""

import numpy as np
import polars as pl
import pytest
import torch

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.engine.evaluation.scoring import score_batch
from perennial.tasks.columns.tabular_numbers import read_windows
from perennial.tasks.tabular import TabularRegression

RANDOM = np.random.default_rng(3)
WALKS = 100 + RANDOM.normal(size=(200, 9)).cumsum(axis=1)
ROWS = pl.DataFrame(
    {"history": WALKS[:, :8].tolist(), "x": RANDOM.normal(size=200), "label": WALKS[:, 8]}
)


def fitted(rows=ROWS, **options):
    features = {name: str(dtype) for name, dtype in rows.schema.items() if name != "label"}
    columns = TaskColumns(label="label", features=features)
    task = TabularRegression(TabularRegression.Options(**options), columns)
    task.fit(rows.lazy())
    return task


def test_a_window_is_standardised_as_one_and_follows_the_numbers():
    task = fitted()
    numbers = task.encode(ROWS)["numbers"]
    assert numbers.shape == (200, 1 + 8)
    expected = (WALKS[:, :8] - WALKS[:, :8].mean()) / WALKS[:, :8].std()
    assert np.allclose(numbers[:, 1:], expected, atol=1e-4)
    shown = task.describe(task.encode(ROWS), 5)["history"]
    assert shown == f"{WALKS[5, 0]:.4g} … {WALKS[5, 7]:.4g}, 8 values"


def test_missing_lists_and_numbers_become_the_mean():
    rows = pl.DataFrame({"history": [[1.0, None], None, [3.0, 5.0]]})
    assert np.array_equal(
        read_windows(rows["history"]), [[1, np.nan], [np.nan] * 2, [3, 5]], equal_nan=True
    )
    holes = pl.Series("history", [None, *ROWS["history"].to_list()[1:]])
    task = fitted(ROWS.with_columns(holes))
    assert not task.encode(ROWS.with_columns(holes))["numbers"][0, 1:].any()


@pytest.mark.parametrize("where", ["train", "serving"])
def test_windows_of_other_lengths_are_refused(where):
    ragged = ROWS.with_columns(pl.Series("history", [[1.0, 2.0], *ROWS["history"].to_list()[1:]]))
    with pytest.raises(BadDataError, match="'history' differ in length"):
        fitted(ragged) if where == "train" else fitted().encode(ragged)


@pytest.mark.parametrize("loss", [{}, {"loss": "quantile", "quantile": 0.8}])
def test_a_relative_forecast_starts_as_the_naive_one(loss):
    task = fitted(relative_to="history", hidden=(), **loss)
    model, batch = task.build_model(), task.encode(ROWS)
    torch.nn.init.zeros_(model.output.weight)
    scored = score_batch(task, model, batch)
    change = WALKS[:, 8] - WALKS[:, 7]
    expected = WALKS[:, 7] + (np.quantile(change, 0.8) if loss else change.mean())
    assert np.allclose(scored.predictions, expected, atol=1e-3)
    assert scored.mean_loss() == pytest.approx(task.expected_initial_loss(), rel=1e-3)
    assert task.encode(ROWS.drop("label"))["last"].shape == (200, 1)


def test_a_forecast_is_relative_to_a_feature_alone():
    with pytest.raises(BadDataError, match="relative_to names 'label'"):
        fitted(relative_to="label")
