"""Healthy tasks in other people's styles: idioms of tutorials that the platform's own tasks lack."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.utils import parametrize

from perennial.contracts.data import DataSection, SplitSection
from perennial.data.dataset import Dataset
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task
from perennial.snapshot_data.manifest import take_snapshot

ROWS = 1500


def numbers_table(rows: int = ROWS, width: int = 6, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Standard normal columns and a score that depends on them with honest noise."""
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(rows, width))
    score = 1.5 * x[:, 0] - x[:, 1] + 0.5 * x[:, 2] * x[:, 3] + 0.7 * generator.normal(size=rows)
    return x, score


def table_of(x: np.ndarray, label: Any, **more: Any) -> pl.DataFrame:
    """Columns x0, x1, … beside a row number and the label."""
    columns = {f"x{i}": x[:, i] for i in range(x.shape[1])}
    return pl.DataFrame({"row": range(len(x)), **columns, "label": label, **more})


def dataset_of(frame: pl.DataFrame, folder: Path, **data: Any) -> Dataset:
    """The table as a snapshot of one file."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / "rows.parquet")
    section = DataSection(uri=str(folder), label="label", ids=("row",), **data)
    return Dataset(take_snapshot(section, SplitSection()))


class Columns(Task):
    """Standardised float columns under `x`; what is learned and how is the subclass's."""

    metrics: Mapping[str, Any] = {"log_loss": "minimize"}

    def fit(self, train):
        frame = train.collect()
        x = frame.select(sorted(self.columns.features)).to_numpy()
        self.fitted = {
            "mean": x.mean(0).tolist(), "std": (x.std(0) + 1e-6).tolist(),
            **self.fit_label(frame[self.columns.label]),
        }  # fmt: skip

    def state(self):
        return self.fitted

    def load_state(self, state):
        self.fitted = dict(state)

    def encode(self, rows):
        x = rows.select(sorted(self.columns.features)).to_numpy().astype(np.float32)
        x = (x - np.array(self.fitted["mean"])) / np.array(self.fitted["std"])
        batch = {"x": torch.from_numpy(x.astype(np.float32))}
        if self.columns.label in rows.columns:
            batch[LABEL] = self.encode_label(rows[self.columns.label])
        return batch

    def fit_label(self, labels):
        return {}

    def network(self, outputs: int) -> nn.Sequential:
        """Two hidden layers."""
        width = len(self.fitted["mean"])
        return nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, outputs)
        )


class Module(nn.Module):
    """Calls a function of the network's output."""

    def __init__(self, network: nn.Module, finish: Any = None) -> None:
        super().__init__()
        self.network, self._finish = network, finish

    def forward(self, x):
        found = self.network(x)
        return found if self._finish is None else self._finish(found)


class Classes(Columns):
    """Classes by a label encoder in `fit`, whatever their type."""

    kind = "multiclass"

    def fit_label(self, labels):
        counts = labels.cast(pl.String).value_counts().sort(labels.name)
        shares = (counts["count"] / counts["count"].sum()).to_list()
        return {"classes": counts[labels.name].to_list(), "shares": shares}

    def encode_label(self, labels):
        codes = {name: code for code, name in enumerate(self.fitted["classes"])}
        return torch.tensor([codes[each] for each in labels.cast(pl.String)])

    def build_model(self):
        return Module(self.network(len(self.fitted["classes"])))

    def losses(self, output, batch):
        return functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(-1)

    def score(self, predictions, labels):
        own = predictions[np.arange(len(labels)), labels.astype(int)]
        return {"log_loss": float(-np.log(np.clip(own, 1e-7, 1)).mean())}

    def expected_initial_loss(self):
        return math.log(len(self.fitted["classes"]))


class Hierarchy(Classes):
    """The logarithms of a group's share and of a class within it; one group has a single class."""

    def build_model(self):
        classes = len(self.fitted["classes"])
        groups = torch.arange(classes).clamp_max(classes // 2)
        members = groups == torch.arange(int(groups.max()) + 1)[:, None]

        def join(scores):
            group, own = scores[:, : len(members)].log_softmax(-1), scores[:, len(members) :]
            norms = own[:, None].masked_fill(~members, -1e9).logsumexp(-1)
            return group[:, groups] + own - norms[:, groups]

        return Module(self.network(len(members) + classes), join)

    def losses(self, output, batch):
        return functional.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()


class LogSoftmaxInTheModel(Classes):
    """The MNIST example of PyTorch: log_softmax in forward, nll_loss."""

    def build_model(self):
        return Module(self.network(len(self.fitted["classes"])), lambda z: z.log_softmax(-1))

    def losses(self, output, batch):
        return functional.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()


class SoftmaxInTheModel(Classes):
    """Keras' way: probabilities leave the model, the loss takes their logarithm."""

    def build_model(self):
        return Module(self.network(len(self.fitted["classes"])), lambda z: z.softmax(-1))

    def losses(self, output, batch):
        return functional.nll_loss(output.clamp(1e-7, 1).log(), batch[LABEL], reduction="none")

    def predict(self, output):
        return output


class FocalLoss(Classes):
    """Focal loss of two."""

    def losses(self, output, batch):
        plain = functional.cross_entropy(output, batch[LABEL], reduction="none")
        return (1 - (-plain).exp()) ** 2 * plain

    def expected_initial_loss(self):
        chance = 1 / len(self.fitted["classes"])
        return (1 - chance) ** 2 * -math.log(chance)


class SmoothedLoss(Classes):
    """Label smoothing in the loss that is measured."""

    def losses(self, output, batch):
        return functional.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.2)


class DivergenceFromShares(Classes):
    """The divergence from shares, which is zero up to rounding where they are predicted."""

    def losses(self, output, batch):
        codes = functional.one_hot(batch[LABEL], output.shape[1])
        shares = 0.9 * codes + 0.1 / output.shape[1]
        return functional.kl_div(output.log_softmax(1), shares, reduction="none").sum(1)

    def expected_initial_loss(self):
        return None


class WeightedTraining(Classes):
    """Class weights in what is minimised, not in what is measured; starts at the prior."""

    def build_model(self):
        model = Module(self.network(len(self.fitted["classes"])))
        with torch.no_grad():
            model.network[-1].weight.mul_(0.1)
            model.network[-1].bias.copy_(torch.tensor(self.fitted["shares"]).log())
        return model

    def training_losses(self, output, batch):
        weights = 1 / torch.tensor(self.fitted["shares"]) / len(self.fitted["shares"])
        return functional.cross_entropy(output, batch[LABEL], weight=weights, reduction="none")

    def expected_initial_loss(self):
        return -sum(share * math.log(share) for share in self.fitted["shares"])


class CosineClassifier(Classes):
    """Cosines with the classes' directions at a fixed temperature."""

    scale = 4.0

    def build_model(self):
        return Cosines(self.network(32), len(self.fitted["classes"]), self.scale)


class Cosines(nn.Module):
    """Directions times directions."""

    def __init__(self, network, classes, scale):
        super().__init__()
        self.network, self.scale = network, scale
        self.directions = nn.Parameter(torch.randn(classes, 32))

    def forward(self, x):
        found = functional.normalize(self.network(x), dim=-1)
        return self.scale * found @ functional.normalize(self.directions, dim=-1).T


class AngularMargin(CosineClassifier):
    """A margin on the angle while training, whose cosines are kept off their ends."""

    scale = 1.0
    temperature, margin = 6.0, 0.2

    def losses(self, output, batch):
        return functional.cross_entropy(self.temperature * output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        cosines = output.clamp(-1 + 1e-6, 1 - 1e-6)
        is_own = functional.one_hot(batch[LABEL], output.shape[1]).bool()
        harder = torch.where(is_own, (cosines.acos() + self.margin).cos(), cosines)
        return self.losses(harder, batch)

    def predict(self, output):
        return (self.temperature * output).softmax(-1)

    def expected_initial_loss(self):
        return math.log(len(self.fitted["classes"])) + 0.13


class Taught(Classes):
    """A teacher's scores pass through the model to the training's loss alone."""

    def encode(self, rows):
        batch = super().encode(rows)
        directions = torch.randn(
            batch["x"].shape[1], len(self.fitted["classes"]),
            generator=torch.Generator().manual_seed(1),
        )  # fmt: skip
        return {**batch, "teacher": batch["x"] @ directions / 4}

    def build_model(self):
        return Student(self.network(len(self.fitted["classes"])))

    def losses(self, output, batch):
        return functional.cross_entropy(output[:, 0], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        student, teacher = output.log_softmax(-1).unbind(1)
        difference = functional.kl_div(student, teacher, reduction="none", log_target=True)
        return self.losses(output, batch) + 0.1 * difference.sum(1)

    def predict(self, output):
        return output[:, 0].softmax(-1)


class Student(nn.Module):
    """Its own scores beside the teacher's."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def forward(self, x, teacher):
        return torch.stack([self.network(x), teacher], dim=1)


class BatchNormalised(Classes):
    """Batch norm and dropout; cannot be called in training mode with one row."""

    momentum: ClassVar = None

    def network(self, outputs):
        width = len(self.fitted["mean"])
        return nn.Sequential(
            nn.Linear(width, 64, bias=False), nn.BatchNorm1d(64, momentum=self.momentum), nn.ReLU(),
            nn.Dropout(0.3), nn.Linear(64, outputs),
        )  # fmt: skip


class SlowlyNormalised(BatchNormalised):
    """A momentum of other libraries' defaults, which the training is long enough for."""

    momentum: ClassVar = 0.03


class ForgetfulTrain(Classes):
    """Overrides train() to keep a part frozen and, as many do, returns nothing."""

    def build_model(self):
        class Frozen(Module):
            def train(self, mode=True):
                super().train(mode)

        return Frozen(self.network(len(self.fitted["classes"])))


class Binary(Columns):
    """Two classes, one output."""

    kind = "binary"
    names = ("no", "yes")

    def fit_label(self, labels):
        return {"share": float(self.encode_label(labels).double().mean())}

    def encode_label(self, labels):
        if labels.dtype == pl.String:
            return torch.from_numpy((labels == self.names[1]).to_numpy().astype(np.float32))
        return torch.from_numpy(labels.cast(pl.Float32).to_numpy().copy())

    def build_model(self):
        return Module(self.network(1), lambda z: z.squeeze(-1))

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def score(self, predictions, labels):
        own = np.where(labels > 0.5, predictions, 1 - predictions)
        return {"log_loss": float(-np.log(np.clip(own, 1e-7, 1)).mean())}

    def expected_initial_loss(self):
        return math.log(2)


class SigmoidInTheModel(Binary):
    """nn.Sigmoid at the end and nn.BCELoss, as many tutorials have it."""

    def build_model(self):
        return Module(self.network(1), lambda z: z.sigmoid().squeeze(-1))

    def losses(self, output, batch):
        return functional.binary_cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output


class BrierLoss(Binary):
    """Squared error of the probability."""

    def losses(self, output, batch):
        return (output.sigmoid() - batch[LABEL]).square()

    def expected_initial_loss(self):
        return 0.25


class HingeLoss(Binary):
    """A linear margin."""

    def losses(self, output, batch):
        return (1 - output * (2 * batch[LABEL] - 1)).clamp_min(0)

    def predict(self, output):
        return (2 * output).sigmoid()

    def expected_initial_loss(self):
        return 1.0


class Distances(Binary):
    """Distances of pairs, small for label 1, with a margin: 1 is as good as 2."""

    metrics = directions_of("roc_auc")

    def build_model(self):
        return Module(self.network(8), lambda z: (z[:, :4] - z[:, 4:]).square().sum(1).sqrt())

    def losses(self, output, batch):
        beyond = (1 - output).clamp_min(0).square()
        return torch.where(batch[LABEL] == 1, output.square(), beyond)

    def predict(self, output):
        return (-output.square()).exp()

    def score(self, predictions, labels):
        return Task.score(self, predictions, labels)

    def expected_initial_loss(self):
        return None


class Numbers(Columns):
    """One number, standardised in fit."""

    kind = "regression"
    metrics: Mapping[str, Any] = {"mae": "minimize"}

    def fit_label(self, labels):
        return {"center": float(labels.mean()), "scale": float(labels.std())}

    def encode_label(self, labels):
        return torch.from_numpy(labels.cast(pl.Float32).to_numpy().copy())

    def target(self, batch):
        return (batch[LABEL] - self.fitted["center"]) / self.fitted["scale"]

    def build_model(self):
        return Module(self.network(1), lambda z: z.squeeze(-1))

    def losses(self, output, batch):
        return (output - self.target(batch)).square()

    def predict(self, output):
        return output * self.fitted["scale"] + self.fitted["center"]

    def score(self, predictions, labels):
        return {"mae": float(np.abs(predictions - labels).mean())}

    def expected_initial_loss(self):
        return 1.0


class AbsoluteError(Numbers):
    """L1 of the standardised target."""

    def losses(self, output, batch):
        return (output - self.target(batch)).abs()

    def expected_initial_loss(self):
        return 0.8


class HuberLoss(Numbers):
    """Huber with a small delta."""

    def losses(self, output, batch):
        return functional.huber_loss(output, self.target(batch), reduction="none", delta=0.5)

    def expected_initial_loss(self):
        return 0.3


class Pinball(Numbers):
    """Three quantiles, the middle one predicted."""

    def build_model(self):
        return Module(self.network(3))

    def losses(self, output, batch):
        error = self.target(batch)[:, None] - output
        levels = torch.tensor([0.1, 0.5, 0.9])
        return torch.maximum(levels * error, (levels - 1) * error).mean(-1)

    def predict(self, output):
        return super().predict(output[:, 1])

    def expected_initial_loss(self):
        return 0.4


class GaussianLikelihood(Numbers):
    """A mean and a logarithm of the variance; the loss goes below zero."""

    def build_model(self):
        return Module(self.network(2))

    def losses(self, output, batch):
        mean, log_variance = output.unbind(-1)
        return 0.5 * (log_variance + (self.target(batch) - mean).square() / log_variance.exp())

    def predict(self, output):
        return super().predict(output[:, 0])

    def expected_initial_loss(self):
        return 0.5


class GaussianWithSoftplus(GaussianLikelihood):
    """The deviation leaves the model positive, and torch's loss takes it."""

    def build_model(self):
        return Module(
            self.network(2),
            lambda z: torch.stack([z[:, 0], functional.softplus(z[:, 1]) + 1e-3], dim=-1),
        )

    def losses(self, output, batch):
        return functional.gaussian_nll_loss(
            output[:, 0], self.target(batch), output[:, 1].square(), reduction="none"
        )

    def expected_initial_loss(self):
        return 0.67


class SeparateHeads(GaussianLikelihood):
    """A mean and a variance from two layers of their own."""

    def build_model(self):
        return MeanAndVariance(self.network(32))

    def losses(self, output, batch):
        mean, variance = output.unbind(-1)
        return functional.gaussian_nll_loss(mean, self.target(batch), variance, reduction="none")

    def expected_initial_loss(self):
        return 0.5


class MeanAndVariance(nn.Module):
    """Two heads on one trunk; the variance starts at one."""

    def __init__(self, trunk):
        super().__init__()
        self.trunk, self.mean, self.variance = trunk, nn.Linear(32, 1), nn.Linear(32, 1)
        nn.init.zeros_(self.variance.weight)
        nn.init.constant_(self.variance.bias, math.log(math.e - 1))

    def forward(self, x):
        found = self.trunk(x)
        variance = functional.softplus(self.variance(found)) + 1e-4
        return torch.cat([self.mean(found), variance], dim=-1)


class TimesInPart(Numbers):
    """Times until an event, negative where it had not come: judged by their order alone."""

    metrics: Mapping[str, Any] = {"concordance": "maximize"}

    def fit_label(self, labels):
        times = labels.to_numpy()
        return {"rate": float((times > 0).sum() / np.abs(times).sum())}

    def losses(self, output, batch):
        time, happened = batch[LABEL].abs() * self.fitted["rate"], (batch[LABEL] > 0).float()
        return time * output.exp() - happened * output

    def predict(self, output):
        return math.log(2) / self.fitted["rate"] / output.exp()

    def score(self, predictions, labels):
        times, happened = np.abs(labels), labels > 0
        earlier = (times[:, None] < times[None, :]) & happened[:, None]
        right = predictions[:, None] < predictions[None, :]
        return {"concordance": float((right & earlier).sum() / earlier.sum())}

    def expected_initial_loss(self):
        return 1.0


class Counts(Numbers):
    """Poisson with a logarithmic link, without the constant."""

    def losses(self, output, batch):
        return functional.poisson_nll_loss(output, batch[LABEL], reduction="none")

    def build_model(self):
        model = Module(self.network(1), lambda z: z.squeeze(-1))
        with torch.no_grad():
            model.network[-1].bias.fill_(math.log(self.fitted["center"]))
            model.network[-1].weight.mul_(0.1)
        return model

    def predict(self, output):
        return output.exp()

    def expected_initial_loss(self):
        return self.fitted["center"] * (1 - math.log(self.fitted["center"]))


class CountsByExp(Counts):
    """The rate leaves the model, already positive."""

    def build_model(self):
        model = super().build_model()
        model._finish = lambda z: z.squeeze(-1).exp()
        return model

    def losses(self, output, batch):
        return functional.poisson_nll_loss(output, batch[LABEL], log_input=False, reduction="none")

    def predict(self, output):
        return output


class PositiveFactors(CountsByExp):
    """Rates are products of positive factors, kept so by parametrizations: no layer is plain."""

    def build_model(self):
        return Factors(self.fitted["center"])


class Factors(nn.Module):
    """Two tables of factors, looked up by the signs of three columns each."""

    def __init__(self, mean: float, width: int = 6) -> None:
        super().__init__()
        self.first, self.second = nn.Embedding(8, width), nn.Embedding(8, width)
        start = math.log(math.expm1(math.sqrt(mean / width)))
        for table in (self.first, self.second):
            nn.init.normal_(table.weight, start, 0.1)
            parametrize.register_parametrization(table, "weight", nn.Softplus())

    def forward(self, x):
        signs = (x > 0).long() * torch.tensor([1, 2, 4, 1, 2, 4])
        return (self.first(signs[:, :3].sum(1)) * self.second(signs[:, 3:].sum(1))).sum(1)


class SlopesOfEnergy(Numbers):
    """The answer is a derivative of what the network gives, by `torch.func`."""

    def build_model(self):
        return Slopes(nn.Sequential(nn.Linear(6, 32), nn.Tanh(), nn.Linear(32, 1)))


class Slopes(nn.Module):
    """The sum of the energy's derivatives by the inputs, row by row."""

    def __init__(self, energy: nn.Module) -> None:
        super().__init__()
        self.energy = energy

    def forward(self, x):
        weights = dict(self.energy.named_parameters())
        slope = grad(lambda row: functional_call(self.energy, weights, (row,)).squeeze())
        return vmap(slope)(x).sum(-1)


class ScatteredCounts(Counts):
    """A negative binomial with a logarithm of the mean and one of the scatter."""

    def build_model(self):
        return Module(self.network(2))

    def losses(self, output, batch):
        mean, scatter = output.exp().unbind(-1)
        law = torch.distributions.NegativeBinomial(
            scatter, logits=(mean / scatter).log(), validate_args=False
        )
        return -law.log_prob(batch[LABEL])

    def predict(self, output):
        return output[:, 0].exp()

    def expected_initial_loss(self):
        return None


class LogTarget(Numbers):
    """Prices in millions, learned as logarithms and scored by a logarithmic error."""

    metrics: Mapping[str, Any] = {"rmsle": "minimize"}

    def fit_label(self, labels):
        logs = np.log1p(labels.to_numpy())
        return {"center": float(logs.mean()), "scale": float(logs.std())}

    def target(self, batch):
        return (batch[LABEL].log1p() - self.fitted["center"]) / self.fitted["scale"]

    def predict(self, output):
        return super().predict(output).expm1()

    def score(self, predictions, labels):
        if (predictions < 0).any():
            raise ValueError("RMSLE cannot be used with negative predictions")
        return {"rmsle": float(np.sqrt(np.mean((np.log1p(predictions) - np.log1p(labels)) ** 2)))}


class RawPrices(Numbers):
    """Prices in their own unit, L1, the last bias at their median."""

    def target(self, batch):
        return batch[LABEL]

    def losses(self, output, batch):
        return (output - batch[LABEL]).abs()

    def build_model(self):
        center, scale = self.fitted["center"], self.fitted["scale"]
        return Module(self.network(1), lambda z: z.squeeze(-1) * scale + center)

    def predict(self, output):
        return output

    def expected_initial_loss(self):
        return 0.8 * self.fitted["scale"]


class SigmoidRange(Numbers):
    """Ratings from 1 to 5 through a sigmoid that is stretched, as fastai does."""

    def target(self, batch):
        return batch[LABEL]

    def build_model(self):
        return Module(self.network(1), lambda z: z.squeeze(-1).sigmoid() * 5 + 0.5)

    def predict(self, output):
        return output

    def expected_initial_loss(self):
        return self.fitted["scale"] ** 2


class Ordinal(Classes):
    """CORAL: one score and thresholds, classes by differences of sigmoids."""

    def build_model(self):
        return Thresholds(self.network(1), len(self.fitted["classes"]))

    def losses(self, output, batch):
        levels = torch.arange(output.shape[1])
        targets = (batch[LABEL][:, None] > levels).float()
        return functional.binary_cross_entropy_with_logits(
            output, targets, reduction="none"
        ).sum(-1)  # fmt: skip

    def predict(self, output):
        above = output.sigmoid()
        ends = torch.ones(len(output), 1), torch.zeros(len(output), 1)
        return (torch.cat([ends[0], above], 1) - torch.cat([above, ends[1]], 1)).clamp_min(0)

    def expected_initial_loss(self):
        return math.log(2) * (len(self.fitted["classes"]) - 1)


class Thresholds(nn.Module):
    """A score minus thresholds."""

    def __init__(self, network, classes):
        super().__init__()
        self.network = network
        self.thresholds = nn.Parameter(torch.linspace(-0.2, 0.2, classes - 1))

    def forward(self, x):
        return self.network(x) - self.thresholds


class AuxiliaryHead(Classes):
    """A second head that only what is minimised uses."""

    def build_model(self):
        return Module(self.network(len(self.fitted["classes"]) + 1))

    def losses(self, output, batch):
        return functional.cross_entropy(output[:, :-1], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 0.1 * (output[:, -1] - batch["x"][:, 0]).square()

    def predict(self, output):
        return output[:, :-1].softmax(-1)


class TwoHeads(Classes):
    """The second head is a layer of its own, which only what is minimised uses."""

    def build_model(self):
        return Forked(self.network(16), len(self.fitted["classes"]))

    losses, predict = AuxiliaryHead.losses, AuxiliaryHead.predict
    training_losses = AuxiliaryHead.training_losses


class Forked(nn.Module):
    """Two heads side by side."""

    def __init__(self, network, classes):
        super().__init__()
        self.network, self.main, self.second = network, nn.Linear(16, classes), nn.Linear(16, 1)

    def forward(self, x):
        hidden = self.network(x).relu()
        return torch.cat([self.main(hidden), self.second(hidden)], dim=-1)


class ZeroInflated(Numbers):
    """Nothing in half of the rows, else a log-normal amount, whose loss may be below zero."""

    expected_initial_loss = Task.expected_initial_loss  # of none

    def fit_label(self, labels):
        logs = labels.filter(labels > 0).log()
        share = float((labels > 0).mean())
        return {"start": [math.log(share / (1 - share)), logs.mean(), math.log(logs.std())]}

    def encode_label(self, labels):
        return torch.from_numpy(labels.to_numpy().astype(np.float32))

    def build_model(self):
        network = self.network(3)
        nn.init.normal_(network[-1].weight, std=0.01)
        network[-1].bias.data = torch.tensor(self.fitted["start"])
        return Module(network)

    def losses(self, output, batch):
        logit, mean, log_scale = output.unbind(1)
        log_scale, is_some = log_scale.clamp(-3, 2), batch[LABEL] > 0
        logs = torch.where(is_some, batch[LABEL], 1.0).log()
        amount = 0.5 * ((logs - mean) / log_scale.exp()).square() + log_scale + logs
        chance = functional.binary_cross_entropy_with_logits(
            logit, is_some.float(), reduction="none"
        )
        return chance + is_some * amount

    def predict(self, output):
        logit, mean, log_scale = output.unbind(1)
        return logit.sigmoid() * (mean + log_scale.clamp(-3, 2).exp().square() / 2).exp()
