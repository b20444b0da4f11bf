"""Each planted bug, a few lines from a healthy task, must be caught by the named check."""

import random

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from perennial.engine.task import LABEL
from perennial.tasks.columns.tabular_numbers import num_inputs
from perennial.tasks.tabular import TabularClassification, TabularRegression
from planted import Bug, require_caught
from planted import planted as planted_bug
from workshop import Workshop

BUGS: list[Bug] = []


def planted(check, hint, *, kind="binary", outcome="failed", **shape):
    return planted_bug(BUGS, check, hint, material=kind, outcome=outcome, **shape)


# Encoding


@planted("encoding", "shifted or shuffled")
class ShuffledLabels(TabularClassification):
    """labels are shuffled within each batch"""

    def encode(self, rows):
        batch = super().encode(rows)
        order = torch.randperm(rows.height, generator=torch.Generator().manual_seed(0))
        return {**batch, LABEL: batch[LABEL][order]} if LABEL in batch else batch


@planted("encoding", "shifted or shuffled")
class ShiftedLabels(TabularClassification):
    """labels are shifted by one row"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].roll(1)} if LABEL in batch else batch


@planted("encoding", "move random changes to augment")
class RandomEncoding(TabularClassification):
    """noise is added to the inputs in encode"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "numbers": batch["numbers"] + torch.randn(batch["numbers"].shape)}


@planted("encoding", "random numbers")
class OwnGenerator(TabularClassification):
    """encode draws from a generator of its own, which no seed reaches"""

    def encode(self, rows):
        batch = super().encode(rows)
        noise = np.random.default_rng().normal(size=batch["numbers"].shape)
        return {**batch, "numbers": batch["numbers"] + torch.from_numpy(noise).float()}


@planted("encoding", "statistics come from the batch")
class BatchStatistics(TabularClassification):
    """inputs are standardised with the statistics of their batch"""

    def encode(self, rows):
        batch = super().encode(rows)
        numbers = batch["numbers"]
        return {
            **batch,
            "numbers": (numbers - numbers.mean(0)) / (numbers.std(0, correction=0) + 1e-6),
        }


@planted("encoding", "one example per row")
class DroppedRows(TabularClassification):
    """rows with missing values are dropped"""

    def encode(self, rows):
        return super().encode(rows.drop_nulls())


@planted("serving_inputs", "the label or an id leaks")
class LabelAsInput(TabularClassification):
    """the label is one of the inputs"""

    def encode(self, rows):
        batch = super().encode(rows)
        leak = batch.get(LABEL, torch.zeros(rows.height)).float().unsqueeze(1)
        return {**batch, "numbers": torch.cat([batch["numbers"][:, 1:], leak], dim=1)}


@planted(
    "serving_inputs", "the label or an id leaks", kind="series", options={"relative_to": "history"}
)
class LooksAhead(TabularRegression):
    """a forecast is relative to the value that it is to predict"""

    def _last_values(self, rows):
        label = self.columns.label
        return rows[label].to_numpy() if label in rows.columns else super()._last_values(rows)


@planted("input_independent_baseline", "look for the label", outcome="warned")
class LabelAsInputAtOnce(LabelAsInput):
    """the label is one of the inputs, seen as a result that is too good"""


@planted("serving_inputs", "features only")
class IdAsInput(TabularClassification):
    """the row's id is one of the inputs"""

    def encode(self, rows):
        batch = super().encode(rows)
        batch["numbers"][:, 0] = torch.from_numpy(rows["row"].to_numpy() / 1000.0)
        return batch


@planted("labels", "shuffled, shifted or drawn at random")
class RandomLabels(TabularClassification):
    """labels follow from the row's id instead of the label column"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch[LABEL] = torch.from_numpy(rows["row"].to_numpy() % 2)
        return batch


@planted("labels", "label's definition and its encoding", kind="multiclass")
class LabelsFromOne(TabularClassification):
    """classes are merged into one by a cast"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: (batch[LABEL] / 10).long()} if LABEL in batch else batch


@planted("labels", "of rounded labels", kind="regression", outcome="warned")
class WholeLabels(TabularRegression):
    """labels lose their fractions by a cast"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, LABEL: batch[LABEL].long().float()} if LABEL in batch else batch


@planted("input_scale", "standardise", outcome="warned")
class Unnormalised(TabularClassification):
    """inputs are ten thousand times too large"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "numbers": batch["numbers"] * 1e4}


@planted("initial_loss", "inputs are not normalised")
class UnnormalisedLoss(Unnormalised):
    """inputs are ten thousand times too large, seen in the first loss"""


@planted("input_scale", "missing values")
class NaNInput(TabularClassification):
    """a missing value becomes NaN"""

    def encode(self, rows):
        batch = super().encode(rows)
        missing = torch.from_numpy(rows["x1"].is_null().to_numpy())
        batch["numbers"][missing, 1] = torch.nan
        return batch


@planted("input_scale", "encode returns constants")
class ZeroedInputs(TabularClassification):
    """every input is zero"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {n: t if n == LABEL else torch.zeros_like(t) for n, t in batch.items()}


@planted("input_independent_baseline", "do not reach the output: constant encoding")
class ZeroedInputsLearn(ZeroedInputs):
    """every input is zero, seen in what is learned"""


@planted("input_scale", "columns are lost", outcome="warned")
class ConstantColumns(TabularClassification):
    """most columns are lost"""

    def encode(self, rows):
        batch = super().encode(rows)
        batch["numbers"][:, 1:] = 0.0
        return batch


# Fitting


@planted("statistics_scope", "validation and test included")
class FitOnEverything(TabularClassification):
    """fit scans the whole file instead of the training split"""

    def fit(self, train):
        super().fit(EVERYTHING.lazy())


@planted("statistics_scope", "all data, validation and test included", outcome="warned")
class ScalesOfEverything(TabularClassification):
    """means and scales come from the whole file, the classes from the training split"""

    def fit(self, train):
        super().fit(EVERYTHING.lazy())
        numeric = self.fitted.numeric
        super().fit(train)
        self.fitted = self.fitted.model_copy(update={"numeric": numeric})


@planted("statistics_scope", "seed random numbers")
class RandomFit(TabularClassification):
    """fit draws a random subset without a seed"""

    def fit(self, train):
        super().fit(train.collect().sample(fraction=0.5, seed=random.randrange(10**9)).lazy())


@planted("state_round_trip", "restore it in load_state")
class ForgottenState(TabularClassification):
    """load_state forgets the categories"""

    def load_state(self, state):
        super().load_state({**state, "categories": {}})


@planted("state_round_trip", "not in the state")
class UnsavedState(TabularClassification):
    """a fitted number is kept beside the state"""

    factor = 1.0

    def fit(self, train):
        super().fit(train)
        self.factor = 2.0

    def predict(self, output):
        return super().predict(output * self.factor)


@planted("augmentation", "generator=generator")
class GlobalAugmentation(TabularClassification):
    """augment draws from the global generator"""

    def augment(self, batch, generator):
        return {**batch, "numbers": batch["numbers"] + torch.randn(batch["numbers"].shape)}


@planted("augmentation", "clone before writing")
class AugmentationInPlace(TabularClassification):
    """augment overwrites the batch it is given"""

    def augment(self, batch, generator):
        batch["numbers"].mul_(0.9)
        return batch


# Loss, predictions, metrics


@planted("per_example_losses", "reduction='none'")
class MeanLoss(TabularClassification):
    """the loss is averaged over the batch"""

    def losses(self, output, batch):
        return super().losses(output, batch).mean()


@planted("per_example_losses", "one loss per example", kind="regression")
class BroadcastLoss(TabularRegression):
    """[B, 1] minus [B] broadcasts to [B, B]"""

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted.target_mean) / self.fitted.target_scale
        return (output - target).square()


@planted("per_example_losses", "batch means")
class BatchNormalisedLoss(TabularClassification):
    """each loss is divided by the batch's mean loss"""

    def losses(self, output, batch):
        losses = super().losses(output, batch)
        return losses / losses.mean()


@planted("loss_floor", "sigmoid or softmax is applied before")
class SigmoidTwice(TabularClassification):
    """a sigmoid is applied before the loss that applies one"""

    def losses(self, output, batch):
        return super().losses(torch.sigmoid(output), batch)


@planted("loss_floor", "sigmoid or softmax is applied before", kind="multiclass")
class SoftmaxTwice(TabularClassification):
    """a softmax is applied before the loss that applies one"""

    def losses(self, output, batch):
        return super().losses(torch.softmax(output, dim=-1), batch)


@planted("loss_floor", "wrong for a clipped loss", kind="regression", outcome="warned")
class ClippedFromBelow(TabularRegression):
    """squared errors below a fifth of the variance are clipped"""

    def losses(self, output, batch):
        return super().losses(output, batch).clamp(min=0.2)


@planted("loss_not_clipped", "clipped")
class ClippedLoss(TabularClassification):
    """the loss is clipped at 2"""

    def losses(self, output, batch):
        return super().losses(output, batch).clamp(max=2.0)


@planted("loss_not_clipped", "clipped", kind="regression")
class ClippedError(TabularRegression):
    """squared errors above 4 are clipped"""

    def losses(self, output, batch):
        return super().losses(output, batch).clamp(max=4.0)


@planted("predictions", "losses and predict disagree")
class LossIgnoresLabels(TabularClassification):
    """the loss does not use the labels"""

    def losses(self, output, batch):
        return nn.functional.softplus(output.squeeze(-1)) + 0 * batch[LABEL]


@planted("predictions", "what predict returns")
class Logits(TabularClassification):
    """predict returns logits"""

    def predict(self, output):
        return output.squeeze(-1) * 20


@planted("predictions", "order of classes")
class OtherClass(TabularClassification):
    """predict returns the probability of the other class"""

    def predict(self, output):
        return 1 - super().predict(output)


@planted("predictions", "what predict returns", kind="multiclass")
class SigmoidOfClasses(TabularClassification):
    """predict applies a sigmoid to each class instead of a softmax"""

    def predict(self, output):
        return torch.sigmoid(output)


@planted("predictions", "not scaled back in predict", kind="regression")
class NotScaledBack(TabularRegression):
    """predict does not scale the target back"""

    def predict(self, output):
        return output.squeeze(-1)


@planted("predictions", "what predict returns")
class ColumnOfPredictions(TabularClassification):
    """predictions keep a dimension too many"""

    def predict(self, output):
        return torch.sigmoid(output)


@planted("metric_direction", "declared wrongly")
class FlippedMetric(TabularClassification):
    """a metric's direction is declared the wrong way round"""

    def __init__(self, options, columns):
        super().__init__(options, columns)
        self.metrics = {"roc_auc": "minimize", "log_loss": "minimize"}


@planted("metric_direction", "exactly the declared names")
class UndeclaredMetric(TabularClassification):
    """score forgets a declared metric"""

    def score(self, predictions, labels):
        return {"roc_auc": super().score(predictions, labels)["roc_auc"]}


# Model


class Rebuilt(TabularClassification):
    def build_model(self):
        return self.changed(super().build_model())


@planted("reproducibility", "torch's global generator only")
class UnseededInit(Rebuilt):
    """weights are drawn from an unseeded generator"""

    def changed(self, model):
        noise = np.random.default_rng().normal(size=model.output.weight.shape)
        nn.init.zeros_(model.output.weight).data.add_(torch.from_numpy(noise).float() * 0.1)
        return model


@planted("reproducibility", "remove manual_seed")
class OwnSeed(Rebuilt):
    """build_model sets the global seed"""

    def changed(self, model):
        torch.manual_seed(42)
        return model


@planted("initial_loss", "initial weights are too large")
class HugeInit(Rebuilt):
    """the last layer starts at a hundred times its usual size"""

    def changed(self, model):
        model.output.weight.data.mul_(1000)
        return model


@planted("initial_loss", "number of classes", kind="multiclass")
class WrongNumberOfClasses(TabularClassification):
    """the model has six outputs for four classes"""

    def _initial_output(self):
        return torch.zeros(6)


@planted("initial_loss", "expected_initial_loss")
class WrongTheory(TabularClassification):
    """expected_initial_loss is that of ten classes"""

    def expected_initial_loss(self):
        return float(np.log(10))


@planted("initial_bias", "last layer's bias to", positive=0.04, outcome="warned")
class NoPrior(Rebuilt):
    """the last bias ignores a label that is rare"""

    def changed(self, model):
        nn.init.zeros_(model.output.bias)
        return model

    def expected_initial_loss(self):
        return float(np.log(2))


class Wrapped(nn.Module):
    """The reference model with a change between inputs and hidden layers."""

    def __init__(self, model, change):
        super().__init__()
        self.model = model
        self.change = change

    def forward(self, numbers, categories):
        return self.model(*self.change(numbers, categories))


@planted("example_independence", "a reduction over dimension 0")
class BatchMean(Rebuilt):
    """the batch's mean is subtracted from the inputs"""

    def changed(self, model):
        return Wrapped(model, lambda n, c: (n - n.mean(0), c))


@planted("example_independence", "view or reshape where permute")
class ViewInsteadOfPermute(Rebuilt):
    """view is used where a transposition is meant"""

    def changed(self, model):
        return Wrapped(model, lambda n, c: (n.t().contiguous().view(n.shape), c))


@planted("example_independence", "mixes the batch")
class CumulatedCodes(Rebuilt):
    """category codes, which have no gradient, come from the row before"""

    def changed(self, model):
        return Wrapped(model, lambda n, c: (n, c.roll(1, 0)))


@planted("input_use", "forward ignores it")
class IgnoredInput(Rebuilt):
    """the numbers are multiplied by zero"""

    def changed(self, model):
        return Wrapped(model, lambda n, c: (n * 0, c))


@planted("input_use", "a slice or an index", outcome="warned")
class IgnoredColumn(Rebuilt):
    """a slice leaves the last column out"""

    def changed(self, model):
        mask = torch.ones(num_inputs(self.fitted.numeric))
        mask[3] = 0
        return Wrapped(model, lambda n, c: (n * mask, c))


@planted("parameter_gradients", "requires_grad_")
class FrozenLayer(Rebuilt):
    """a hidden layer is frozen"""

    def changed(self, model):
        model.hidden[0].requires_grad_(False)
        return model


@planted("parameter_gradients", "requires_grad")
class AllFrozen(Rebuilt):
    """every parameter is frozen"""

    def changed(self, model):
        return model.requires_grad_(False)


class Unregistered(nn.Module):
    def __init__(self, model, width):
        super().__init__()
        self.model = model
        self.layers = [nn.Linear(width, width)]

    def forward(self, numbers, categories):
        return self.model(self.layers[0](numbers), categories)


@planted("parameter_gradients", "ModuleList")
class UnregisteredLayer(Rebuilt):
    """a layer is kept in a Python list"""

    def changed(self, model):
        return Unregistered(model, num_inputs(self.fitted.numeric))


@planted("parameter_gradients", "not used in forward")
class UnusedLayer(Rebuilt):
    """a layer is made and never used"""

    def changed(self, model):
        model.forgotten = nn.Linear(4, 4)
        return model


@planted("parameter_gradients", "a dropout of 1")
class DroppedOut(Rebuilt):
    """dropout is 1"""

    def changed(self, model):
        model.hidden[2] = nn.Dropout(1.0)
        return model


class Detached(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, numbers, categories):
        return self.model(numbers, categories).detach()


@planted("parameter_gradients", "detach")
class DetachedOutput(Rebuilt):
    """the output is detached from the graph"""

    def changed(self, model):
        return Detached(model)


@planted("overfit_one_batch", "detach")
class DetachedOverfit(DetachedOutput):
    """the output is detached from the graph, seen in what cannot be learned"""


def zero_weights(model):
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.zeros_(module.weight)
    nn.init.zeros_(model.hidden[0].bias)
    nn.init.zeros_(model.hidden[3].bias)
    return model


@planted("parameter_gradients", "zero weights")
class ZeroInit(Rebuilt):
    """all weights start at zero"""

    def changed(self, model):
        return zero_weights(model)


@planted("overfit_one_batch", "without gradient")
class ZeroInitOverfit(ZeroInit):
    """all weights start at zero, seen in what cannot be learned"""


@planted("input_independent_baseline", "do not reach the output")
class ZeroInitLearns(ZeroInit):
    """all weights start at zero, seen in the rows' equal outputs"""


@planted("overfit_one_batch", "do not distinguish the examples")
class SharedInput(Rebuilt):
    """only the sign of the first number reaches the model"""

    def changed(self, model):
        keep = torch.zeros(num_inputs(self.fitted.numeric))
        keep[0] = 1
        return Wrapped(model, lambda n, c: (torch.sign(n) * keep, c * 0))


EVERYTHING = pl.DataFrame()


def use(workshop: Workshop) -> None:
    """Let the bugs that fit on everything see everything."""
    globals()["EVERYTHING"] = workshop.dataset("binary").scan().collect()


@pytest.fixture(autouse=True)
def everything(workshop):
    use(workshop)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)
