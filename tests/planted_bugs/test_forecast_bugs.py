"""Bugs of forecasts of several steps, each caught by the check that is meant for it; honest ones pass."""

import numpy as np
import polars as pl
import pytest
import torch

from perennial.check_skeleton.checks.data.encoding.label_steps import describe_moved_steps
from perennial.tasks.forecasting import TabularForecast
from workshop import results_of


class Reversed(TabularForecast):
    """The label's last step first."""

    def _encode_label(self, labels):
        return super()._encode_label(labels)[:, ::-1].copy()


class OneStepLate(TabularForecast):
    """Each step is encoded as the one after it, the last twice."""

    def _encode_label(self, labels):
        values = super()._encode_label(labels)
        return np.concatenate([values[:, 1:], values[:, -1:]], axis=1)


class ServedReversed(TabularForecast):
    """The model learns the right order and answers the other one."""

    def predict(self, output):
        return super().predict(output).flip(1)


@pytest.mark.parametrize(("bug", "named"), [(Reversed, "number 4"), (OneStepLate, "number 2")])
def test_steps_in_another_order_are_caught(workshop, bug, named):
    result = results_of(workshop.subject(bug, "forecasts"), "labels")["labels"]
    assert (result.outcome, named in result.measured) == ("failed", True), result
    assert "shifted by one" in result.hint


def test_answers_in_another_order_than_labels_are_caught(workshop):
    result = results_of(workshop.subject(ServedReversed, "forecasts"), "metric_direction")
    assert result["metric_direction"].outcome == "failed", result


def test_a_label_that_begins_inside_the_window_is_caught(workshop):
    subject = workshop.subject(TabularForecast, "forecasts", overlap=1)
    result = results_of(subject, "telling_columns")["telling_columns"]
    assert (result.outcome, "one step too late" in result.hint) == ("failed", True), result


@pytest.mark.parametrize(
    "options", [{}, {"loss": "quantile", "quantile": 0.7}], ids=["squared", "quantile"]
)
def test_honest_forecasts_pass_every_check(workshop, options):
    results = results_of(workshop.subject(TabularForecast, "forecasts", options=options))
    failed = {name: each.measured for name, each in results.items() if each.outcome == "failed"}
    assert not failed
    assert results["labels"].outcome == "passed"


NUMBERS = np.random.default_rng(2).normal(size=(64, 3))
RAW = pl.Series(NUMBERS.tolist())
HONEST = {
    "as they are": NUMBERS,
    "on a logarithm, and turned round": -np.log(NUMBERS + 9),
    "as changes from step to step": np.diff(NUMBERS, axis=1, prepend=0.0).cumsum(axis=1),
    "as differences": np.diff(NUMBERS, axis=1, append=0.0),
    "rounded": NUMBERS.round(1),
}


@pytest.mark.parametrize("codes", HONEST.values(), ids=HONEST)
def test_numbers_that_keep_their_place_are_no_finding(codes):
    assert describe_moved_steps(RAW, torch.from_numpy(codes)) == ""


def test_equal_steps_and_constant_ones_have_no_order():
    twice = np.column_stack([NUMBERS[:, 0], NUMBERS[:, 0], np.ones(64)])
    raw = pl.Series(twice.tolist(), dtype=pl.Array(pl.Float64, 3))
    assert describe_moved_steps(raw, torch.from_numpy(twice)) == ""
    found = describe_moved_steps(RAW, torch.from_numpy(NUMBERS[:, [1, 0, 2]]))
    assert found.startswith("2 of 3 numbers of the label are encoded at another place: at place 1")
