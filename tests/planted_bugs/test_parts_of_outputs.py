"""Outputs of which the loss reads a part, that depend on single or unsaved numbers, or have tails."""

from functools import partial
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.distributions import Normal, StudentT
from torch.func import grad, vmap
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.check_skeleton.trials.rank import digest_attributes
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

ROWS, WIDTH, CLASSES, GROUP = 600, 4, 3, 20
SHARES = 12  # as of words, most of which a sample lacks


def points(label: str) -> pl.DataFrame:
    """Points in three clouds, with the cloud, whether it is the first, or an amount as the label."""
    generator = np.random.default_rng(3)
    cloud = generator.integers(0, CLASSES, ROWS)
    x = generator.normal(size=(ROWS, WIDTH)) + 2 * np.eye(CLASSES, WIDTH)[cloud]
    amount = np.exp(8 + 0.3 * x[:, 0] + 0.3 * generator.standard_t(2.0, ROWS))
    wealth = np.exp(6 + 1.5 * x[:, 0] + 0.5 * generator.normal(size=ROWS))
    amounts = {"amount": amount, "wealth": np.where(cloud == 0, 0.0, wealth)}
    labels = {"cloud": cloud, "first": (cloud == 0).astype(int), **amounts}
    return pl.DataFrame({"row": range(ROWS), "x": x.tolist(), "label": labels[label]})


class Points(Task):
    """Points as they are, under a model of two layers."""

    kind = "statistic"
    metrics: ClassVar = {"value": "minimize"}
    outputs = CLASSES
    number = torch.long

    def encode(self, rows):
        batch = {"x": torch.tensor(rows["x"].to_list(), dtype=torch.float32)}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list(), dtype=self.number)
        return batch

    def build_model(self):
        return Model(self.outputs, self.finish, self.change)

    def finish(self, values, own):
        return values

    def change(self, model):
        pass

    def score(self, predictions, labels):
        return {"value": float(np.average(predictions.reshape(-1), weights=labels))}


class Model(nn.Module):
    """Two layers, parameters beside them, and what a task makes of both."""

    def __init__(self, outputs, finish, change):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, outputs))
        self.own = nn.Parameter(torch.randn(CLASSES, outputs))
        self.finish = finish
        change(self)

    def forward(self, x):
        return self.finish(self.body(x), self.own)


class Proxies(Points):
    """embeddings beside their distances to proxies: the loss reads these, the metric those"""

    metrics: ClassVar = {"value": "maximize"}
    scored_together = GROUP
    scoring_rows = 10 * GROUP
    outputs = 8

    def finish(self, values, own):
        directions = functional.normalize(values, dim=1)
        distances = torch.cdist(directions, functional.normalize(own, dim=1)).square()
        return torch.cat([directions, distances], dim=1)

    def losses(self, output, batch):
        return functional.cross_entropy(-3 * output[:, 8:], batch[LABEL], reduction="none")

    def statistic(self, output, batch):
        found = []
        groups = (each.split(self.scored_together) for each in (output, batch[LABEL]))
        for near, own in zip(*groups, strict=True):
            apart = torch.cdist(near[:, :8], near[:, :8])
            self.leave_itself_out(apart)
            found.append(own[apart.argmin(dim=1)] == own)
        return torch.cat(found).double()

    def leave_itself_out(self, apart):
        apart.fill_diagonal_(torch.inf)


class LargeGroups(Proxies):
    """more rows are judged together than three times fit into the validation split"""

    scored_together = 40
    scoring_rows = 80


class FindsItself(Proxies):
    """each point is among its own neighbours"""

    def leave_itself_out(self, apart):
        pass


class WrongWay(Proxies):
    """the share of right neighbours is minimised"""

    metrics: ClassVar = {"value": "minimize"}


class LogShares(Points):
    """logarithms of shares beside the mean of a code, which the training loss reads"""

    outputs = SHARES + 2

    def finish(self, values, own):
        return torch.cat([values[:, :SHARES].log_softmax(dim=1), values[:, SHARES:]], dim=1)

    def losses(self, output, batch):
        return functional.nll_loss(output[:, :SHARES], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 0.01 * output[:, SHARES:].square().sum(dim=1)


class LoudLogShares(LogShares):
    """the last layer starts at a hundred times its size"""

    def change(self, model):
        model.body[2].weight.data.mul_(100)


class Frequencies(nn.Module):
    """Random frequencies before a layer."""

    def __init__(self, *, is_saved):
        super().__init__()
        frequencies = torch.randn(WIDTH, 16)
        if is_saved:
            self.register_buffer("frequencies", frequencies)
        else:
            self.frequencies = frequencies
        self.layer = nn.Linear(16, CLASSES)
        nn.init.zeros_(self.layer.weight)

    def forward(self, x):
        return self.layer((x @ self.frequencies).sin())


class Waves(Points):
    """random frequencies are a buffer"""

    is_saved = True

    def build_model(self):
        return Frequencies(is_saved=self.is_saved)

    def losses(self, output, batch):
        return functional.cross_entropy(output, batch[LABEL], reduction="none")


class UnsavedFrequencies(Waves):
    """random frequencies are a plain tensor"""

    is_saved = False


class Token(nn.Module):
    """A token of the model itself before a normalisation and the last layer."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(WIDTH))
        self.norm, self.layer = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 1)
        nn.init.constant_(self.layer.weight, 0.1)

    def forward(self, x):
        return self.layer(self.norm(x + self.token)).squeeze(1)


class OwnLikelihood(Points):
    """the model returns a likelihood, and the loss is what it lacks"""

    def finish(self, values, own):
        return -5 - values.square().sum(dim=1)

    def losses(self, output, batch):
        return -output


class Quadratic(OwnLikelihood):
    """the loss is the square of a likelihood that should be zero"""

    def losses(self, output, batch):
        return output.square()


class Restored(OwnLikelihood):
    """the likelihood of the inputs, under labels that are single numbers"""

    reconstructs_inputs = True


class Energy(nn.Module):
    """The gradient of a learned energy, by transformations of torch.func."""

    def __init__(self, dropout):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 1))
        self.dropout = dropout

    def forward(self, x):
        kept = nn.functional.dropout(x, self.dropout)
        return vmap(grad(lambda each: self.body(each).squeeze()))(kept)


class Transformed(Points):
    """a model within vmap and grad"""

    dropout = 0.0

    def build_model(self):
        return Energy(self.dropout)

    def losses(self, output, batch):
        return (output.sum(dim=1) - batch[LABEL]).square()


class NeverSwitchedOff(Transformed):
    """a model within vmap and grad, behind a dropout that is always on"""

    dropout = 0.3


class Offset(Points):
    """the bias happens to start at 1.2"""

    kind = "binary"
    metrics: ClassVar = {"log_loss": "minimize"}
    number = torch.float32
    outputs = 1
    bias = 1.2
    score = Task.score

    def finish(self, values, own):
        return values.squeeze(1)

    def change(self, model):
        nn.init.constant_(model.body[2].bias, self.bias)

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


class BehindToken(Offset):
    """a token that is normalised does not bound the last layer"""

    def build_model(self):
        return Token()


class FarOffset(Offset):
    """the bias starts at 4"""

    bias = 4.0


class HeavyTails(Points):
    """Student's t with one learned number of degrees of freedom, on logarithms"""

    kind = "regression"
    metrics: ClassVar = {"mae": "minimize"}
    number = torch.float32
    outputs = 2
    score = Task.score

    def finish(self, values, own):
        freedom = 1.1 + functional.softplus(own[:1, :1]).expand(len(values), 1)
        scale = functional.softplus(values[:, 1:] + 0.5) + 1e-3
        return torch.cat([values[:, :1], scale, freedom], dim=1)

    def losses(self, output, batch):
        middle, scale, freedom = output.unbind(dim=1)
        return -StudentT(freedom, middle, scale).log_prob(2 * (batch[LABEL].log() - 8))

    def predict(self, output):
        return (output[:, 0] / 2 + 8).exp()


class ManyWithout(HeavyTails):
    """Whether there is an amount, and the density of its logarithm in the amount's own unit"""

    outputs = 3

    def finish(self, values, own):
        return values

    def losses(self, output, batch):
        amount, has = batch[LABEL], (batch[LABEL] > 0).float()
        known = torch.where(amount > 0, amount, 1.0).log()
        scale = functional.softplus(output[:, 2]) + 1e-3
        density = known - Normal(output[:, 1], scale).log_prob(known)
        asked = functional.binary_cross_entropy_with_logits(output[:, 0], has, reduction="none")
        return asked + has * density

    def predict(self, output):
        scale = functional.softplus(output[:, 2])
        return output[:, 0].sigmoid() * (output[:, 1] + scale**2 / 2).exp()


class ServedAsLogarithm(HeavyTails):
    """predictions are logarithms of the amounts"""

    def predict(self, output):
        return output[:, 0] / 2 + 8


@pytest.fixture(scope="module")
def examine(tmp_path_factory):
    def result_of(task_type, label, check):
        dataset = dataset_of(points(label), tmp_path_factory.mktemp(label))
        make = partial(task_type, task_type.Options(), dataset.snapshot.task_columns)
        training = TrainingSection(seed=1, steps=50, global_batch_size=64)
        subject = Subject.prepare(make, dataset, SETTINGS, training)
        (result,) = [each for each in run_checks(subject, (check,)) if each.check == check]
        return result

    return result_of


@pytest.mark.parametrize(
    ("task_type", "label", "check"),
    [
        (LargeGroups, "cloud", "few_rows"),
        (Proxies, "cloud", "metric_direction"),
        (Proxies, "cloud", "metric_values"),
        (LogShares, "cloud", "initial_loss"),
        (LogShares, "cloud", "output_form"),
        (OwnLikelihood, "cloud", "initial_loss"),
        (Waves, "cloud", "state_round_trip"),
        (Transformed, "cloud", "activations"),
        (Transformed, "cloud", "modes"),
        (Offset, "first", "initial_loss"),
        (BehindToken, "first", "output_form"),
        (HeavyTails, "amount", "predictions"),
        (ManyWithout, "wealth", "predictions"),
        (HeavyTails, "amount", "initial_loss"),
        (HeavyTails, "amount", "metric_values"),
    ],
)
def test_healthy_outputs_pass(examine, task_type, label, check):
    result = examine(task_type, label, check)
    assert result.outcome in ("passed", "skipped"), result.measured


@pytest.mark.parametrize(
    ("bug", "label", "check"),
    [
        (FindsItself, "cloud", "metric_direction"),
        (WrongWay, "cloud", "metric_direction"),
        (LoudLogShares, "cloud", "initial_loss"),
        (Quadratic, "cloud", "initial_loss"),
        (UnsavedFrequencies, "cloud", "state_round_trip"),
        (NeverSwitchedOff, "cloud", "modes"),
        (FarOffset, "first", "initial_loss"),
        (ServedAsLogarithm, "amount", "predictions"),
    ],
)
def test_their_bugs_fail(examine, bug, label, check):
    result = examine(bug, label, check)
    assert result.outcome == "failed", result.measured


def test_labels_of_single_numbers_are_not_compared_with_inputs(examine):
    result = examine(Restored, "cloud", "input_independent_baseline")
    assert "raises" not in result.measured


class Keeping(nn.Module):
    """Keeps the mean of its last output, with the graph or without it."""

    def __init__(self, *, has_graph):
        super().__init__()
        self.layer, self.has_graph, self.last = nn.Linear(2, 2), has_graph, torch.zeros(())

    def forward(self, x):
        output = self.layer(x)
        self.last = output.mean() if self.has_graph else output.detach().mean()
        return output


@pytest.mark.parametrize("has_graph", [True, False])
def test_a_value_of_the_last_pass_is_no_state_of_the_training(has_graph):
    model = Keeping(has_graph=has_graph)
    model(torch.ones(1, 2))
    found = digest_attributes(SimpleNamespace(task=SimpleNamespace(), model=model))
    assert ("model.last" in found) == (not has_graph)
