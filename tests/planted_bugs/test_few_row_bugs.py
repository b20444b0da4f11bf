"""Bugs that one, two or three rows show: each must be caught by `few_rows`."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from perennial.check_skeleton.verdict import format_verdict
from perennial.contracts.skeleton import SkeletonReport
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


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


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
