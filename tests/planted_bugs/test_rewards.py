"""Penalties that are subtracted from the training loss, in `training_losses` or beside it."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from mixed_numbers import Numbers, TwoClasses, subject_of
from other_styles import Module, numbers_table, table_of
from perennial.check_skeleton.checks.loss.training_losses import check_training_losses
from perennial.engine.task import LABEL

X, SCORE = numbers_table()
WIDTH = X.shape[1]


class WithCode(nn.Module):
    """The answer, and the mean and logarithm of the variance of a code, side by side."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh())
        self.mean, self.variance, self.head = nn.Linear(16, 3), nn.Linear(16, 3), nn.Linear(3, 1)

    def forward(self, x):
        hidden = self.body(x)
        mean, variance = self.mean(hidden), self.variance(hidden)
        code = mean
        if self.training:
            code = mean + torch.randn_like(mean) * (variance / 2).exp()
        return torch.cat([self.head(code), mean, variance], dim=1)


class Bottleneck(TwoClasses):
    """A variational bottleneck in front of two classes."""

    sign = 1.0

    def build_model(self):
        return WithCode()

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(
            output[:, 0], batch[LABEL], reduction="none"
        )

    def predict(self, output):
        return output[:, 0].sigmoid()

    def training_losses(self, output, batch):
        mean, variance = output[:, 1:4], output[:, 4:]
        divergence = (variance.exp() + mean**2 - 1 - variance).sum(dim=1) / 2
        return self.losses(output, batch) + self.sign * 0.01 * divergence


class Norms(Numbers):
    """A squared error, and the size of all weights beside it."""

    sign = 1.0

    def auxiliary_losses(self, model):
        weights = sum(each.square().sum() for each in model.parameters())
        return self.sign * 1e-3 * weights.expand(64)


class Activity(Numbers):
    """The output's own size counts, for each row by its share in the label's range."""

    sign = 1.0

    def training_losses(self, output, batch):
        by_row = 1 + batch[LABEL].abs()
        return self.losses(output, batch) + self.sign * 0.1 * output.abs() / by_row


class Confident(TwoClasses):
    """Sure answers count less, whatever the label."""

    sign = 1.0

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def training_losses(self, output, batch):
        return self.losses(output, batch) + self.sign * 0.1 * output.abs()


class Sure(Confident):
    """A confidence that is rewarded, and bounded: small at first, it grows until it is certain."""

    def training_losses(self, output, batch):
        return self.losses(output, batch) - 0.2 * (output.sigmoid() - 0.5).square()


class Members(Numbers):
    """An ensemble, of which members are measured; training lets them differ."""

    def build_model(self):
        return Module(self.network(5))

    def losses(self, output, batch):
        return (output - batch[LABEL][:, None]).square().mean(dim=1)

    def predict(self, output):
        return output.mean(dim=1)

    def training_losses(self, output, batch):
        return self.losses(output, batch) - 0.5 * output.var(dim=1, correction=0)


class Samples(Members):
    """The continuous ranked probability score; samples are measured by their absolute error."""

    def losses(self, output, batch):
        return (output - batch[LABEL][:, None]).abs().mean(dim=1)

    def training_losses(self, output, batch):
        spread = (output[:, :, None] - output[:, None]).abs().mean(dim=(1, 2))
        return self.losses(output, batch) - spread / 2


class Bound(Bottleneck):
    """The whole bound is measured; the divergence counts a tenth in training."""

    def divergence(self, output):
        mean, variance = output[:, 1:4], output[:, 4:]
        return (variance.exp() + mean**2 - 1 - variance).sum(dim=1) / 2

    def losses(self, output, batch):
        return super().losses(output, batch) + self.divergence(output)

    def training_losses(self, output, batch):
        return self.losses(output, batch) - 0.9 * self.divergence(output)


class Robust(Numbers):
    """Trained by a loss that stays below the one that is measured."""

    def training_losses(self, output, batch):
        return functional.smooth_l1_loss(output, batch[LABEL], reduction="none")


class Unsure(TwoClasses):
    """An entropy that is rewarded."""

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def training_losses(self, output, batch):
        p = output.sigmoid()
        entropy = -p * functional.logsigmoid(output) - (1 - p) * functional.logsigmoid(-output)
        return self.losses(output, batch) - 0.1 * entropy


class Smoothed(Unsure):
    """Labels of 0.05 and 0.95."""

    def training_losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(
            output, 0.05 + 0.9 * batch[LABEL], reduction="none"
        )


def examine(task_type, folder):
    label = (SCORE > 0).astype(int) if task_type.kind == "binary" else SCORE
    return check_training_losses(subject_of(task_type, table_of(X, label), folder))


@pytest.mark.parametrize("task_type", [Bottleneck, Norms, Confident], ids=lambda each: each.__doc__)
def test_penalties_that_are_subtracted_fail(task_type, tmp_path):
    bug = type("Subtracted", (task_type,), {"sign": -1.0})
    found = examine(bug, tmp_path)
    assert found.outcome == "failed", found.measured
    assert "by the size of the weights" in found.measured


SUBTRACTED = type("Subtracted", (Activity,), {"sign": -1.0, "__doc__": "A size that counts less."})


@pytest.mark.parametrize(
    "task_type", [SUBTRACTED, Members, Samples, Bound], ids=lambda each: each.__doc__
)
def test_subtracted_terms_that_the_loss_holds_warn(task_type, tmp_path):
    """The sum has a minimum: by mistake, or on purpose as a part of the loss that counts less."""
    found = examine(task_type, tmp_path)
    assert found.outcome == "warned", found.measured
    assert "by the size of the weights" in found.measured


@pytest.mark.parametrize(
    "task_type",
    [Bottleneck, Norms, Activity, Sure, Robust, Unsure, Smoothed],
    ids=lambda each: each.__doc__,
)
def test_terms_that_training_cannot_lower_without_limit_pass(task_type, tmp_path):
    found = examine(task_type, tmp_path)
    assert found.outcome in ("passed", "skipped"), found.measured
