"""Outputs that carry inputs past the weights, name places, or hold a variance as it is."""

from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import distributions as laws
from torch import nn
from torch.nn import functional

from other_styles import Columns, dataset_of, numbers_table, table_of
from perennial.check_skeleton.checks.loss.units import is_mode
from perennial.engine.config.training import TrainingSection
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS, GROUP, BINS = 900, 20, 60
X, SCORE = numbers_table(ROWS)
DEMAND = 100 * np.exp(SCORE / 4)
SEATS = np.random.default_rng(3).choice([60.0, 120.0, 300.0], ROWS)
SOLD = np.minimum(DEMAND, SEATS).round(3)
# Every third row asks what an earlier one asks, whose answer is as right.
ANSWER = np.where(np.arange(ROWS) % 3 == 2, np.arange(ROWS) - 1, np.arange(ROWS))
COUNTS = np.random.default_rng(5).poisson(300 * np.exp(SCORE / 3)[:, None] * [0.8, 1.0, 1.3])


class Numbers(Columns):
    """Columns, beside which a subclass encodes others of its own."""

    kind = "regression"
    metrics: ClassVar = directions_of("mae", "rmse")
    labels = SCORE
    others: ClassVar = {}

    @classmethod
    def table(cls):
        return table_of(X, cls.labels.tolist(), **{k: v.tolist() for k, v in cls.others.items()})

    def encode(self, rows):
        names = [name for name in self.columns.features if name not in self.others]
        x = torch.tensor(rows.select(names).to_numpy(), dtype=torch.float32)
        batch = {"x": x, **{name: torch.tensor(rows[name].to_numpy()) for name in self.others}}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list(), dtype=torch.float32)
        return batch

    def body(self, outputs):
        return nn.Sequential(nn.Linear(X.shape[1], 64), nn.ReLU(), nn.Linear(64, outputs))

    def build_model(self):
        return Model(self)


class Model(nn.Module):
    """What a task makes of its inputs."""

    def __init__(self, task):
        super().__init__()
        self.own = nn.ParameterDict(task.parameters())
        self.body, self.finish = task.body(task.outputs), task.finish

    def forward(self, x, **others):
        return self.finish(self.body(x), self.own, **others)


class SoldOut(Numbers):
    """Sales up to the seats: where all are sold, the demand is at least that. Seats are output."""

    labels, outputs = SOLD, 1
    others: ClassVar = {"seats": SEATS.astype(np.float32)}

    def parameters(self):
        return {"spread": nn.Parameter(torch.zeros(1))}

    def finish(self, values, own, seats):
        spread = own["spread"].exp().expand(len(values))
        return torch.stack([values[:, 0] + 4.5, spread, seats.log()], dim=1)

    def losses(self, output, batch):
        mean, spread, seats = output.unbind(1)
        z = (batch[LABEL].log() - mean) / spread
        seen = z**2 / 2 + spread.log() + 0.92
        return torch.where(batch[LABEL].log() >= seats - 1e-5, -torch.special.log_ndtr(-z), seen)

    def predict(self, output):
        return torch.minimum(output[:, 0], output[:, 2]).exp()


class ShareOfSeats(Numbers):
    """A share of the seats is learned; seats are output, as predictions are numbers of people."""

    labels, outputs = SEATS / (1 + np.exp(-SCORE)), 1
    others: ClassVar = {"seats": SEATS.astype(np.float32)}

    def parameters(self):
        return {}

    def finish(self, values, own, seats):
        return torch.stack([0.5 + values[:, 0], seats], dim=1)

    def losses(self, output, batch):
        share, seats = output.unbind(1)
        return (share - batch[LABEL] / seats).square()

    def predict(self, output):
        share, seats = output.unbind(1)
        return share.clamp(0, 1) * seats


class ShareOfUsualSeats(ShareOfSeats):
    """All rows are taken for halls of the usual size when predictions are made."""

    def predict(self, output):
        return output[:, 0].clamp(0, 1) * 120


class Answers(Numbers):
    """Each question finds its answer among those of the batch; equal answers are no negatives."""

    kind = "statistic"
    metrics: ClassVar = {"mean_reciprocal_rank": "maximize"}
    scored_together, scoring_rows, outputs = GROUP, 10 * GROUP, 16
    labels = np.zeros(ROWS)
    others: ClassVar = {"answer": ANSWER}

    def encode(self, rows):
        batch = super().encode(rows)
        x, near = batch["x"], torch.randn(3, X.shape[1], generator=torch.Generator().manual_seed(1))
        batch["reply"] = torch.cat([x * 2, x @ near.T], dim=1)
        return batch

    def parameters(self):
        return {"replies": nn.Parameter(torch.randn(X.shape[1] + 3, 16) / 3)}

    def finish(self, values, own, reply, answer):
        asked = functional.normalize(values, dim=1)
        given = functional.normalize(reply @ own["replies"], dim=1)
        return torch.cat([asked, given, answer[:, None].float()], dim=1)

    def losses(self, output, batch):
        return torch.cat([self.loss(part) for part in output.split(GROUP)])

    def loss(self, output):
        scores = 10 * output[:, :16] @ output[:, 16:32].T
        return functional.cross_entropy(
            scores.masked_fill(self.twins(output), -1e4),
            torch.arange(len(scores)), reduction="none",
        )  # fmt: skip

    def twins(self, output):
        same = output[:, -1:] == output[:, -1:].T
        return same & ~torch.eye(len(same), dtype=torch.bool)

    def statistic(self, output, batch):
        ranks = []
        for part in output.split(GROUP):
            scores = part[:, :16] @ part[:, 16:32].T
            ranks.append((scores > scores.diagonal()[:, None]).sum(dim=1) + 1)
        return 1 / torch.cat(ranks).double()

    def score(self, predictions, labels):
        return {"mean_reciprocal_rank": float(np.average(predictions, weights=labels))}


class OnlyOnce(Answers):
    """The same without the ids in the loss."""

    def twins(self, output):
        return torch.zeros(len(output), len(output), dtype=torch.bool)


class Triplets(Numbers):
    """Rows beside noisy copies of themselves and of others; equal outputs have no slope."""

    kind = "statistic"
    metrics: ClassVar = {"nearer": "maximize"}
    outputs, labels = 4, np.zeros(ROWS)

    def encode(self, rows):
        batch = super().encode(rows)
        x, noise = batch["x"], torch.randn(ROWS, X.shape[1], generator=torch.Generator())
        row = rows["x0"].hash(seed=1).to_numpy() % ROWS
        near = x + 0.3 * noise[torch.from_numpy(row.astype(np.int64))]
        return batch | {"near": near, "far": near.flip(0)}

    def parameters(self):
        return {"common": nn.Parameter(torch.randn(X.shape[1], 4) / 3)}

    def finish(self, values, own, near, far):
        return torch.cat([values, near @ own["common"], far @ own["common"]], dim=1)

    def distances(self, output):
        parts = output[:, 4:].split(4, dim=1)
        return [(output[:, :4] - each).square().sum(dim=1) for each in parts]

    def losses(self, output, batch):
        near, far = self.distances(output)
        return functional.relu(near - far + 0.5)

    def statistic(self, output, batch):
        near, far = self.distances(output)
        return (near < far).double()

    def score(self, predictions, labels):
        return {"nearer": float(np.average(predictions, weights=labels))}


class FartherIsBetter(Triplets):
    metrics: ClassVar = {"nearer": "minimize"}


class Places(Numbers):
    """A probability for each of sixty places; the answer is the mean around the highest."""

    labels, outputs = DEMAND**1.5, BINS
    lowest, step = float(np.log(DEMAND.min()) * 1.5), float(np.log(np.ptp(DEMAND) + 2) / BINS * 1.5)

    def parameters(self):
        return {}

    def finish(self, values, own):
        return values - 3

    def at(self, place):
        return (self.lowest + self.step * place).exp()

    def losses(self, output, batch):
        place = (batch[LABEL].log() - self.lowest) / self.step
        wanted = torch.exp(-((torch.arange(BINS) - place[:, None]) ** 2) / 2)
        found = functional.binary_cross_entropy_with_logits(output, wanted, reduction="none")
        return found.mean(dim=1)

    def predict(self, output):
        chances = output.double().sigmoid()
        places, peak = torch.arange(BINS), chances.argmax(dim=1, keepdim=True)
        chances = chances * ((places - peak).abs() <= 3)
        return self.at((chances * places).sum(dim=1) / chances.sum(dim=1))


class WholePlaces(Places):
    """The place of the highest probability, without what is around it."""

    def predict(self, output):
        return self.at(output.argmax(dim=1).double())


class PlacesFromOne(Places):
    """Places are counted from 1 where they are read and from 0 where they are learned."""

    def at(self, place):
        return super().at(place + 4)


class Stages(Numbers):
    """Chances to have passed each of five stages; the answer is how many are."""

    labels, outputs = np.digitize(SCORE, [-2.0, -0.8, 0.0, 0.8, 2.0]).astype(float), 5

    def parameters(self):
        return {}

    def finish(self, values, own):
        return values

    def losses(self, output, batch):
        passed = (batch[LABEL][:, None] > torch.arange(5)).float()
        found = functional.binary_cross_entropy_with_logits(output, passed, reduction="none")
        return found.sum(dim=1)

    def predict(self, output):
        return output.sigmoid().sum(dim=1)


class Filter(Numbers):
    """A mean and a variance, which a filter's parameters make: louder ones are not a number."""

    labels, outputs = 20 + 3 * SCORE, 1

    def parameters(self):
        return {name: nn.Parameter(torch.tensor(-5.0)) for name in ("walk", "noise")}

    def finish(self, values, own):
        walk, noise = own["walk"].exp(), own["noise"].exp()
        mean = 20 + values[:, 0] * walk / (walk + noise)
        return torch.stack([mean, (walk + noise).expand(len(mean))], dim=1).double()

    def losses(self, output, batch):
        mean, variance = output.unbind(1)
        return ((batch[LABEL] - mean) ** 2 / variance + (6.2832 * variance).log()) / 2

    def predict(self, output):
        return output[:, 0]


class TwiceTheMean(Filter):
    def predict(self, output):
        return 2 * output[:, 0]


class ThreeDays(Numbers):
    """Counts of three days around means, with one dispersion for all rows."""

    kind = "statistic"
    metrics: ClassVar = {"nll": "minimize", "mae": "minimize"}
    labels, outputs = COUNTS, 3

    def parameters(self):
        return {"dispersion": nn.Parameter(torch.tensor(2.0))}

    def finish(self, values, own):
        dispersion = own["dispersion"].exp().expand(len(values), 1)
        return torch.cat([300 * values.exp(), dispersion], dim=1)

    def losses(self, output, batch):
        mean, total = output[:, :3], output[:, 3:]
        law = laws.NegativeBinomial(total, logits=(mean / total).log(), validate_args=False)
        return -law.log_prob(batch[LABEL]).mean(dim=1)

    def statistic(self, output, batch):
        off = (output[:, :3] - batch[LABEL]).abs().mean(dim=1)
        return torch.stack([self.losses(output, batch), off], dim=1)

    def score(self, predictions, labels):
        nll, mae = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "mae": float(mae)}


class OneMeanForAll(ThreeDays):
    """The layers before the means are cut off."""

    def finish(self, values, own):
        return super().finish(values.mean(dim=0).detach().expand_as(values), own)


class HigherIsBetter(ThreeDays):
    metrics: ClassVar = {"nll": "minimize", "mae": "maximize"}


def examined(task_type, check, folder):
    dataset = dataset_of(task_type.table(), folder)
    subject = prepared(task_type, dataset, training=TrainingSection(seed=1))
    return results_of(subject, check)[check]


@pytest.mark.parametrize(("task_type", "check"), [
    (SoldOut, "output_form"), (SoldOut, "input_use"), (SoldOut, "prediction_detail"),
    (ShareOfSeats, "predictions"), (ShareOfSeats, "prediction_detail"), (Answers, "input_use"),
    (Answers, "initial_loss"), (Places, "predictions"), (Places, "prediction_detail"),
    (Triplets, "metric_direction"), (Stages, "prediction_detail"), (Filter, "predictions"), (Filter, "loss_not_clipped"), (ThreeDays, "metric_direction"), (ThreeDays, "overfit_one_batch"),
])  # fmt: skip
def test_healthy_outputs_pass(task_type, check, tmp_path):
    found = examined(task_type, check, tmp_path)
    assert found.outcome == "passed", (found.measured, found.hint)


@pytest.mark.parametrize(("task_type", "check"), [
    (ShareOfUsualSeats, "predictions"), (OnlyOnce, "input_use"), (WholePlaces, "prediction_detail"), (PlacesFromOne, "predictions"),
    (TwiceTheMean, "predictions"), (HigherIsBetter, "metric_direction"),
    (FartherIsBetter, "metric_direction"),
    (OneMeanForAll, "overfit_one_batch"),
])  # fmt: skip
def test_mistakes_beside_them_are_caught(task_type, check, tmp_path):
    found = examined(task_type, check, tmp_path)
    assert found.outcome == "failed", found.measured


def test_a_mode_lies_among_as_many_labels_as_any_other_place():
    heights = np.exp(np.random.default_rng(1).normal(size=2000))
    assert is_mode(0.4, heights)  # of the heights
    assert is_mode(1.0, heights)  # of their logarithms
    assert not is_mode(3.0, heights)
