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


class WithMedian(Quantiles):
    """The error of the median is measured beside all quantiles."""

    metrics = {"pinball": "minimize", "mae": "minimize"}  # noqa: RUF012
    median = 1

    def statistic(self, output, batch):
        error = (output[:, self.median] - batch[LABEL]).abs()
        return torch.stack([super().statistic(output, batch), error], dim=1)

    def score(self, statistics, weights):
        means = np.average(statistics, axis=0, weights=weights).tolist()
        return dict(zip(("pinball", "mae"), means, strict=True))


class FirstForMedian(WithMedian):
    """the first quantile is measured as the median"""

    median = 0


class ServedQuantiles(Quantiles):
    """The median is served, as a number."""

    kind = "regression"
    metrics = {"mae": "minimize"}  # noqa: RUF012
    served = 1

    def predict(self, output):
        return output[:, self.served]

    def score(self, predictions, labels):
        return {"mae": float(np.abs(predictions - labels).mean())}


class ServedFirst(ServedQuantiles):
    """the first quantile is served as the median"""

    served = 0


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
        (WithMedian, "passed"), (ServedQuantiles, "passed"),
        (MedianFirst, "failed"), (Exchanged, "failed"),
        (FirstForMedian, "failed"), (ServedFirst, "failed"),
    ],
)  # fmt: skip
def test_a_metric_reads_quantiles_in_the_order_of_the_loss(task_type, outcome, tmp_path):
    result = results_of(prepared(task_type, table(tmp_path)), "metric_direction")
    assert result["metric_direction"].outcome == outcome, result
    if outcome == "failed":
        is_first = task_type in (FirstForMedian, ServedFirst)
        shown = "reads column 0 of the outputs alone" if is_first else "in the order"
        assert shown in result["metric_direction"].measured
