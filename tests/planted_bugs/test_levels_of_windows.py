"""Forecasts about the level of their window, of which the label carries the level as a last number."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Columns, Module, dataset_of
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

PAST, AHEAD, ROWS = 12, 3, 900


def windows():
    series = 20 + np.cumsum(np.random.default_rng(3).normal(size=ROWS + PAST + AHEAD))
    starts = range(ROWS)
    return pl.DataFrame(
        {
            "row": starts,
            "past": [series[start : start + PAST].tolist() for start in starts],
            "label": [series[start + PAST : start + PAST + AHEAD].tolist() for start in starts],
        }
    )


class AboutTheLevel(Columns):
    """Numbers above the window's mean, which the label carries for the metric."""

    kind = "statistic"
    metrics = directions_of("mae")

    def fit(self, train):
        self.fitted = {"mean": [0.0] * PAST}

    def levels(self, past, rows):
        return past.mean(axis=1, keepdims=True)

    def encode(self, rows):
        past = np.array(rows["past"].to_list())
        level = self.levels(past, rows)
        batch = {"x": torch.tensor(past - level, dtype=torch.float32)}
        if "label" in rows.columns:
            label = np.hstack([np.array(rows["label"].to_list()) - level, level])
            batch[LABEL] = torch.tensor(label, dtype=torch.float32)
        return batch

    def build_model(self):
        return Module(self.network(AHEAD))

    def losses(self, output, batch):
        return (output - batch[LABEL][:, :AHEAD]).square().mean(dim=1)

    def statistic(self, output, batch):
        return (output - batch[LABEL][:, :AHEAD]).abs().mean(dim=1)

    def score(self, statistics, weights):
        return {"mae": float(np.average(statistics, weights=weights))}


class OfTheWholeWindow(AboutTheLevel):
    """the level is that of past and future, where the future is known"""

    def levels(self, past, rows):
        parts = [past]
        if "label" in rows.columns:
            parts.append(np.array(rows["label"].to_list()))
        return np.hstack(parts).mean(axis=1, keepdims=True)


class OfLogarithms(AboutTheLevel):
    """Logarithms are learned, numbers are measured."""

    def losses(self, output, batch):
        wanted = (30 + batch[LABEL][:, :AHEAD]).log() - 3
        return (output - wanted).square().mean(dim=1)

    def answer(self, output):
        return (output + 3).exp() - 30

    def statistic(self, output, batch):
        return (self.answer(output) - batch[LABEL][:, :AHEAD]).abs().mean(dim=1)


class NotTurnedBack(OfLogarithms):
    """the answer stays a logarithm"""

    def answer(self, output):
        return output


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(OfLogarithms, "passed"), (NotTurnedBack, "failed")]
)
def test_errors_that_remain_without_loss_fail(task_type, outcome, tmp_path):
    """Though what is served has not the label's numbers either: it is about the level."""
    result = results_of(prepared(task_type, dataset_of(windows(), tmp_path)), "metric_direction")
    assert result["metric_direction"].outcome == outcome, result
    if outcome == "failed":
        assert "for outputs that leave no loss" in result["metric_direction"].measured


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(AboutTheLevel, "passed"), (OfTheWholeWindow, "failed")]
)
def test_a_level_that_knows_the_future_fails(task_type, outcome, tmp_path):
    """No step of the output stands before the first label that differs: it is no decoder."""
    result = results_of(prepared(task_type, dataset_of(windows(), tmp_path)), "serving_inputs")
    assert result["serving_inputs"].outcome == outcome, result
    if outcome == "failed":
        assert (
            "inputs change if only the features are given: x" in result["serving_inputs"].measured
        )
