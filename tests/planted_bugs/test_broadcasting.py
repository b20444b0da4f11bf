"""One output that is compared with several labels, because their shapes are broadcast."""

from collections.abc import Mapping

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.checks.loss.losses import check_per_example_losses
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from skeleton_tables import SETTINGS

HOURS = 6


class Network(nn.Module):
    def __init__(self, outputs):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs))

    def forward(self, x):
        return self.layers(x)


def subject_of(folder, losses, *, outputs=1, labels=None):
    class Hours(Task):
        """Prices of six hours from three numbers."""

        kind = "statistic"
        metrics: Mapping[str, str] = {"error": "minimize"}

        def encode(self, rows):
            x = rows.select("a", "b", "c").to_numpy()
            own = torch.tensor(rows["label"].to_list(), dtype=torch.float32)
            return {"x": torch.tensor(x, dtype=torch.float32), LABEL: own}

        def build_model(self):
            return Network(outputs)

        def losses(self, output, batch):
            return losses(output, batch[LABEL])

        def statistic(self, output, batch):
            return losses(output, batch[LABEL]).double()

    rng = np.random.default_rng(3)
    x = rng.normal(size=(400, 3))
    hours = np.linspace(0, 5, HOURS) if labels is None else labels
    prices = x[:, :1] + hours + 0.5 * rng.normal(size=(400, HOURS))
    columns = dict(zip("abc", x.T, strict=True))
    frame = pl.DataFrame({"row": range(400), **columns, "label": prices.tolist()})
    dataset = dataset_of(frame, folder)
    return Subject.prepare(
        lambda: Hours(Hours.Options(), dataset.snapshot.task_columns), dataset, SETTINGS,
        TrainingSection(global_batch_size=32, micro_batch_size=32),
    )  # fmt: skip


def absolute(output, labels):
    return (output - labels).abs().mean(dim=1)


def of_logarithms(output, labels):
    return (functional.softplus(output) - (labels - 1)).square().mean(dim=1)


def by_the_library(output, labels):
    return functional.huber_loss(output.expand_as(labels), labels, reduction="none").mean(dim=1)


@pytest.mark.parametrize("losses", [absolute, of_logarithms])
def test_one_output_for_labels_of_different_means_fails(losses, tmp_path):
    result = check_per_example_losses(subject_of(tmp_path, losses))
    assert result.outcome == "failed"
    assert "one output is compared with 6 labels" in result.measured


@pytest.mark.parametrize(
    ("losses", "options"),
    [
        (absolute, {"outputs": HOURS}),
        (absolute, {"labels": np.zeros(HOURS)}),
        # A survival's time and event, of which one is compared.
        (lambda output, labels: (output[:, 0] - labels[:, 0]).abs(), {}),
        # Quantiles: several outputs for one label.
        (lambda output, labels: (output - labels[:, :1]).abs().mean(dim=1), {"outputs": 3}),
        # Thresholds that belong to the loss.
        (lambda output, labels: (output - torch.arange(3) - labels[:, :3]).abs().mean(dim=1), {}),
        (by_the_library, {}),
    ],
    ids=["an output for each", "readings of one amount", "one of the labels", "quantiles",
         "thresholds", "meant, by expand"],
)  # fmt: skip
def test_other_shapes_pass(losses, options, tmp_path):
    result = check_per_example_losses(subject_of(tmp_path, losses, **options))
    assert result.outcome == "passed", result.measured
