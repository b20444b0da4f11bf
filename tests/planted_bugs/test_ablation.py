"""Parts that claim to help: without effect, harmful, or helpful; each is left out in turn."""

from dataclasses import replace

import pytest
import torch
from torch.nn import functional

from own_tasks import Leaving, Net, Praise, Reader
from perennial.engine.task import LABEL
from perennial.tasks.image_classification import ImageClassification
from planted import Bug, planted, require_caught
from workshop import results_of

CHECK = "ablation"
BUGS: list[Bug] = []


@planted(BUGS, CHECK, "not used", material="customers")
class NotReturned(Leaving):
    """noise is drawn and added to a copy that nobody gets"""

    def augment(self, batch, generator):
        noisy = batch["numbers"] + torch.randn(batch["numbers"].shape, generator=generator)
        assert noisy.shape == batch["numbers"].shape
        return batch


@planted(BUGS, CHECK, "divided out", material="customers")
class DividedOut(Leaving):
    """class weights are divided out again by the weighted mean over one example"""

    def training_losses(self, output, batch):
        weights = torch.where(batch[LABEL] > 0.5, 4.0, 1.0)
        return self.losses(output, batch) * weights / weights


@planted(BUGS, CHECK, "undoes all", material="customers")
class LabelsTurned(Leaving):
    """nine rows in ten get the other label"""

    share = 0.9

    def augment(self, batch, generator):
        turned = torch.rand(len(batch[LABEL]), generator=generator) < self.share
        labels = torch.where(turned, 1 - batch[LABEL], batch[LABEL])
        return {**batch, LABEL: labels}


@planted(BUGS, CHECK, "more than half", material="customers", outcome="warned")
class LabelsOfOthers(LabelsTurned):
    """half of the rows get the other label: nothing is left to learn, nothing wrong is learned"""

    share = 0.42


@planted(BUGS, CHECK, "no_decay", material="customers", outcome="warned",
         training={"optimizer": {"weight_decay": 0.1, "no_decay": ("*",)}})  # fmt: skip
class NothingDecays(Leaving):
    """weight decay is set, and all parameters are exempt"""


@planted(BUGS, CHECK, "undoes all", material="customers")
class ForeignPenalty(Leaving):
    """the penalty has the strength that suits a loss summed over all rows: every output is alike"""

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 3.0 * output.abs().mean(dim=-1)


class Counting(Net):
    """The network, which remembers how many rows it has seen last."""

    def forward(self, numbers, job):
        self.rows = len(job)
        return super().forward(numbers, job)


@planted(BUGS, CHECK, "undoes all", material="customers")
class ForeignAuxiliaryPenalty(Leaving):
    """an auxiliary loss that holds all weights at zero"""

    def build_model(self):
        return Counting(4, 1 + len(self.learned["jobs"]))

    def auxiliary_losses(self, model):
        return sum(each.abs().sum() for each in model.parameters()).expand(model.rows)


@planted(BUGS, CHECK, "take adamw", material="customers", outcome="warned",
         training={"optimizer": {"name": "adam", "learning_rate": 1e-3, "weight_decay": 0.1}})  # fmt: skip
class DecayOfAdamwForAdam(Leaving):
    """a weight decay that suits adamw, with adam"""


@planted(BUGS, CHECK, "outweighs the gradients", material="digits", outcome="warned",
         training={"optimizer": {"name": "sgd", "learning_rate": 0.1, "weight_decay": 0.3}})  # fmt: skip
class DecayOfAdamw(ImageClassification):
    """a weight decay that suits adamw, with sgd: most of what is learned is forgotten"""


@planted(BUGS, CHECK, "outweighs the gradients", material="customers",
         training={"optimizer": {"name": "sgd", "learning_rate": 0.3, "weight_decay": 0.9}})  # fmt: skip
class DecayOfEverything(Leaving):
    """a weight decay that leaves no weight"""


class OneKey(Reader):
    """Attention over a single key, whatever its weights."""

    def attended(self, x, is_word):
        pooled = x.mean(dim=1, keepdim=True)
        q, k, v = (each(pooled)[:, None] for each in (self.queries, self.keys, self.values))
        return self.output(functional.scaled_dot_product_attention(q, k, v)[:, 0]).expand_as(x)


@planted(BUGS, CHECK, "more than one key", material="reviews")
class Pooled(Praise):
    """attention after pooling: there is one key, so that its weight is always 1"""

    def build_model(self):
        return OneKey(2 + len(self.learned["words"]), self.length)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_part_without_effect_or_with_harm_is_caught(bug, workshop):
    require_caught(bug, workshop)


class Noisy(Leaving):
    """A little noise."""

    def augment(self, batch, generator):
        noise = 0.1 * torch.randn(batch["numbers"].shape, generator=generator)
        return {**batch, "numbers": batch["numbers"] + noise}


class Smoothed(Noisy):
    """Label smoothing besides."""

    def training_losses(self, output, batch):
        return self.losses(output, {**batch, LABEL: 0.1 + 0.8 * batch[LABEL]})


class Penalised(Leaving):
    """A penalty that costs a little of what is learned."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 0.05 * output.abs()


class Weighed(Leaving):
    """Customers who leave count four times."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) * torch.where(batch[LABEL] > 0.5, 4.0, 1.0)


class WithoutEntropy(Leaving):
    """The same gradients by design: a term is left out that no model can change."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) - 0.25


class SwitchedOff(Leaving):
    """Augmentation that an option has switched off draws nothing."""

    def augment(self, batch, generator):
        return dict(batch)


@pytest.mark.parametrize(
    ("task_type", "material", "outcome"),
    [
        (Noisy, "customers", "passed"),
        (Smoothed, "customers", "passed"),
        (Penalised, "customers", "passed"),
        (Praise, "reviews", "passed"),
        (WithoutEntropy, "customers", "passed"),
        (SwitchedOff, "customers", "skipped"),
        (Leaving, "customers", "skipped"),
    ],
)
def test_parts_that_do_not_harm_pass(task_type, material, outcome, workshop):
    result = results_of(workshop.subject(task_type, material), CHECK)[CHECK]
    assert result.outcome == outcome, result


def test_each_part_has_its_own_measured_effect(workshop):
    """The training loss first, then augmentation on top of it."""
    result = results_of(workshop.subject(Smoothed, "customers"), CHECK)[CHECK]
    assert list(result.evidence) == ["the training loss", "augmentation"]
    assert (
        result.evidence["augmentation"]["without"] == result.evidence["the training loss"]["with"]
    )


def test_weights_of_a_rare_class_have_an_effect_though_the_first_rows_have_none_of_it(workshop):
    subject = workshop.subject(Weighed, "customers")
    ordered = subject.train_rows.sort(subject.task.columns.label)  # those who stay come first
    result = results_of(replace(subject, train_rows=ordered), CHECK)[CHECK]
    assert "has no effect" not in result.measured
