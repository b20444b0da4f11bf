"""Quantiles of one model, which loss and metric read in one order, or in two."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Columns, Module, dataset_of, numbers_table
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

LEVELS = (0.1, 0.5, 0.9)


def table(folder):
    x, _ = numbers_table(900)
    noise = np.random.default_rng(3).gamma(2.0, 1.0, size=900)
    columns = {f"x{place}": values for place, values in enumerate(x.T)}
    return dataset_of(
        pl.DataFrame({"row": np.arange(900), **columns, "label": x[:, 0] + noise}), folder
    )


def pinball(output, label, levels):
    error = label[:, None] - output
    level = torch.tensor(levels)
    return torch.maximum(level * error, (level - 1) * error)


class Quantiles(Columns):
    """Three quantiles, measured as they are learned."""

    kind = "statistic"
    metrics = {"pinball": "minimize"}  # noqa: RUF012
    measured = LEVELS

    def build_model(self):
        return Module(self.network(len(LEVELS)), lambda output: output)

    def encode_label(self, labels):
        return torch.tensor(labels.to_list())

    def losses(self, output, batch):
        return pinball(output, batch[LABEL], LEVELS).sum(dim=1)

    def statistic(self, output, batch):
        return pinball(output, batch[LABEL], self.measured).mean(dim=1)

    def score(self, statistics, weights):
        return {"pinball": float(np.average(statistics, weights=weights))}


class MedianFirst(Quantiles):
    """the metric's levels begin with the median, the loss sorts them"""

    measured = (0.5, 0.1, 0.9)


class Exchanged(Quantiles):
    """the loss gets the label as prediction"""

    def losses(self, output, batch):
        error = output - batch[LABEL][:, None]
        level = torch.tensor(LEVELS)
        return torch.maximum(level * error, (level - 1) * error).sum(dim=1)


class MeanError(Quantiles):
    """Only the median is measured, beside quantiles that nobody asks for."""

    def statistic(self, output, batch):
        return (output[:, 1] - batch[LABEL]).abs()


class MeanAndScale(Quantiles):
    """A mean and the logarithm of a scale, of which the mean's error is measured."""

    def losses(self, output, batch):
        mean, log_scale = output[:, 0], output[:, 1].clamp(-5, 5)
        return log_scale + 0.5 * ((batch[LABEL] - mean) / log_scale.exp()) ** 2

    def statistic(self, output, batch):
        return (output[:, 0] - batch[LABEL]).abs()


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [
        (Quantiles, "passed"), (MeanError, "passed"), (MeanAndScale, "passed"),
        (MedianFirst, "failed"), (Exchanged, "failed"),
    ],
)  # fmt: skip
def test_a_metric_reads_quantiles_in_the_order_of_the_loss(task_type, outcome, tmp_path):
    result = results_of(prepared(task_type, table(tmp_path)), "metric_direction")
    assert result["metric_direction"].outcome == outcome, result
    if outcome == "failed":
        assert "in the order" in result["metric_direction"].measured
