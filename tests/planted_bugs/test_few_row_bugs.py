"""Bugs that one, two or three rows show: each must be caught by `few_rows`."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional

from perennial.check_skeleton.verdict import format_verdict
from perennial.contracts.skeleton import SkeletonReport
from perennial.engine.task import LABEL
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, require_caught
from planted import planted as planted_bug
from workshop import results_of

BUGS: list[Bug] = []


def planted(kind="binary", outcome="failed", hint="squeeze"):
    return planted_bug(BUGS, "few_rows", hint, material=kind, outcome=outcome)


class Wrapped(nn.Module):
    """A model whose output goes through a function."""

    def __init__(self, model, change):
        super().__init__()
        self.model, self._change = model, change

    def forward(self, **inputs):
        return self._change(self.model(**inputs))


@planted()
class SqueezedPrediction(TabularClassification):
    """predict squeezes all dimensions of size one, the batch's too"""

    def predict(self, output):
        return torch.sigmoid(output.squeeze())


@planted(kind="regression")
class SqueezedOutput(TabularRegression):
    """the model squeezes all dimensions of size one"""

    def build_model(self):
        return Wrapped(super().build_model(), lambda output: output.squeeze())

    def losses(self, output, batch):
        return super().losses(output.unsqueeze(-1), batch)

    def predict(self, output):
        return super().predict(output.unsqueeze(-1))


@planted()
class SqueezedLoss(TabularClassification):
    """losses squeeze the batch's dimension"""

    def losses(self, output, batch):
        return super().losses(output, batch).squeeze()


@planted(hint="normalisation over dimension 0")
class BatchStatisticsWhenServed(TabularClassification):
    """outputs are normalised by the batch in every mode"""

    def build_model(self):
        return Wrapped(
            super().build_model(),
            lambda output: functional.batch_norm(output, None, None, training=True),
        )


@planted(kind="multiclass", hint="dimension 0")
class CenteredScores(TabularClassification):
    """predict takes the batch's mean off the scores"""

    def predict(self, output):
        return torch.softmax(output - output.mean(dim=0), dim=-1)


@planted(kind="regression", hint="dimension 0")
class RankedPredictions(TabularRegression):
    """predictions are scaled by the largest of the batch"""

    def predict(self, output):
        return super().predict(output) * (output / output.abs().max()).squeeze(-1)


@planted(hint="fail with this error")
class NeedsTwoRows(TabularClassification):
    """the model refuses a batch of one row"""

    def build_model(self):
        def required(output):
            if len(output) < 2:
                raise ValueError("expected more than 1 value per channel")
            return output

        return Wrapped(super().build_model(), required)


@planted(hint=r"squeeze\(-1\) instead of squeeze")
class LossOfOneRow(TabularClassification):
    """losses squeeze the outputs, so that one row raises an exception"""

    def losses(self, output, batch):
        label = batch[LABEL].float()
        return functional.binary_cross_entropy_with_logits(
            output.squeeze(), label, reduction="none"
        )


@planted(hint="instead of fixed sizes")
class ReshapesToTwo(TabularClassification):
    """the model reshapes to pairs, so that odd numbers of rows raise an exception"""

    def build_model(self):
        return Wrapped(super().build_model(), lambda output: output.reshape(2, -1).reshape(-1, 1))


@planted(hint="without a dimension")
class SqueezesTheBatch(TabularClassification):
    """predict squeezes the first dimension, which one row has alone"""

    def predict(self, output):
        return torch.sigmoid(output.squeeze(0)).squeeze(-1)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


class NormalisedInTraining(TabularClassification):
    """Batch normalisation, which raises on one row, but in training alone."""

    def build_model(self):
        return Wrapped(super().build_model(), nn.BatchNorm1d(1))


class SqueezesTheLast(TabularClassification):
    """Squeezes the dimension of size one by its place."""

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(
            output.squeeze(-1), batch[LABEL].float(), reduction="none"
        )


@pytest.mark.parametrize("task_type", [NormalisedInTraining, SqueezesTheLast])
def test_a_model_that_serves_one_row_passes(workshop, task_type):
    result = results_of(workshop.subject(task_type, "binary"), "few_rows")["few_rows"]
    assert (result.outcome, result.measured) == ("passed", result.measured)


class NeedsAnotherColumn(TabularClassification):
    """Encodes a column that is no feature, as the hour of `data.time`."""

    def encode(self, rows):
        return super().encode(rows.filter(rows[self.columns.label].is_not_null()))


class NeedsAnotherColumnAndTwoRows(NeedsTwoRows, NeedsAnotherColumn):
    """The same, and its model refuses one row."""


def test_requests_that_lack_a_column_are_reported_once(workshop):
    subject = workshop.subject(NeedsAnotherColumn, "binary")
    assert results_of(subject, "serving_inputs")["serving_inputs"].outcome == "failed"
    result = results_of(subject, "few_rows")["few_rows"]
    assert result.outcome == "passed", result
    assert "the served model: see `serving_inputs`" in result.measured
    other = workshop.subject(NeedsAnotherColumnAndTwoRows, "binary")
    assert results_of(other, "few_rows")["few_rows"].outcome == "failed"


def test_an_exception_is_reported_with_its_line_in_the_users_file(workshop):
    result = results_of(workshop.subject(LossOfOneRow, "binary"), "few_rows")["few_rows"]
    assert "losses: 1 row: losses raises ValueError" in result.measured
    assert re.search(r"test_few_row_bugs\.py:\d+ in losses\)", result.measured), result.measured
    assert "8 rows get answers" in result.measured


class DoubleInputs(TabularClassification):
    """Its inputs are float64, which the model rejects."""

    def encode(self, rows):
        batch = super().encode(rows)
        return batch | {"numbers": batch["numbers"].double()}


class WholeLabels(TabularClassification):
    """Its labels are whole numbers, which the loss rejects."""

    def encode(self, rows):
        batch = super().encode(rows)
        return batch | ({LABEL: batch[LABEL].long()} if LABEL in batch else {})

    def losses(self, output, batch):
        return functional.binary_cross_entropy(
            torch.sigmoid(output.squeeze(-1)), batch[LABEL], reduction="none"
        )


@pytest.mark.parametrize(
    ("task_type", "line"),
    [
        (DoubleInputs, 'batch["numbers"] = batch["numbers"].float()'),
        (WholeLabels, "batch[LABEL] = batch[LABEL].float()"),
    ],
)
def test_a_wrong_type_is_answered_with_the_line_that_casts_it(workshop, task_type, line):
    name = "per_example_losses"
    result = results_of(workshop.subject(task_type, "binary"), name)[name]
    assert (result.outcome, result.measured) == ("failed", result.measured)
    assert line in result.hint, result.hint


class RefusesZeros(TabularClassification):
    """Its model raises where inputs are all zero, as packed sequences without length do."""

    def build_model(self):
        model = super().build_model()

        def refuse(module, args, kwargs):
            numbers = kwargs["numbers"]
            if not bool(numbers.any()):
                raise RuntimeError("Length of all samples has to be greater than 0")

        model.register_forward_pre_hook(refuse, with_kwargs=True)
        return model


class RefusesOtherRows(TabularClassification):
    """Its loss raises where outputs are far off, as losses of probabilities do."""

    def losses(self, output, batch):
        if float(output.detach().abs().max()) > 8:
            raise ValueError("outputs must be standardised")
        return super().losses(output, batch)


def test_rejected_zero_inputs_are_replaced_by_one_repeated_row(workshop):
    subject = workshop.subject(RefusesZeros, "binary")
    result = results_of(subject, "input_independent_baseline")["input_independent_baseline"]
    assert (result.outcome, result.measured) == ("passed", result.measured)


def test_rejected_inputs_of_a_check_are_reported_as_unmeasured(workshop):
    subject = workshop.subject(RefusesOtherRows, "binary")
    results = results_of(subject, "loss_not_clipped")
    result = results["loss_not_clipped"]
    assert (result.outcome, result.measured, result.hint) != ("failed", result.measured, "")
    assert result.outcome in ("skipped", "warned")
    assert "losses raises ValueError" in result.hint + result.measured
    report = SkeletonReport(results=tuple(results.values()), baselines={})
    assert "Ready to train" not in format_verdict(report)


class BrokenWhenRestored(TabularClassification):
    """load_state forgets a part, so that real rows raise: that is a failure."""

    def load_state(self, state):
        self.fitted = None


def test_exception_on_real_rows_fails(workshop):
    subject = workshop.subject(BrokenWhenRestored, "binary")
    result = results_of(subject, "state_round_trip")["state_round_trip"]
    assert result.outcome == "failed"
    assert "encode raises AttributeError" in result.measured or "raises" in result.measured
