"""Metrics of counted parts, such as entities or pixels, over rows that weigh as much as they hold."""

import numpy as np
import polars as pl
import pytest
import torch
from torch.nn import functional

from other_styles import Columns, Module, dataset_of, numbers_table
from perennial.engine.task import LABEL, WEIGHT
from skeleton_tables import prepared
from workshop import results_of

PARTS = 4


def parts(folder):
    """Rows of four places, of which three or four are used; a place is found or not."""
    x, _ = numbers_table(900)
    random = np.random.default_rng(4)
    true = x[:, :PARTS] + random.normal(size=(900, PARTS)) / 2 > 0
    labels = [row[: 3 + place % 2].astype(float).tolist() for place, row in enumerate(true)]
    columns = {f"x{place}": values for place, values in enumerate(x.T)}
    table = pl.DataFrame({"row": np.arange(900), **columns, "label": labels})
    return dataset_of(table, folder)


class Places(Columns):
    """Recall of places by counts, the weight of a row being its number of places."""

    kind = "statistic"
    metrics = {"recall": "maximize", "right": "maximize"}  # noqa: RUF012
    start = 3.0

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch[WEIGHT] = (batch[LABEL] >= 0).sum(dim=1).float()
        return batch

    def encode_label(self, labels):
        lists = labels.to_list()
        return torch.tensor([[*each, *[-1.0] * (PARTS - len(each))] for each in lists])

    def build_model(self):
        return Module(self.network(PARTS), lambda output: output + self.start)

    def losses(self, output, batch):
        used = batch[LABEL] >= 0
        each = functional.binary_cross_entropy_with_logits(
            output, batch[LABEL].clamp_min(0), reduction="none"
        )
        return (each * used).sum(dim=1) / used.sum(dim=1)

    def statistic(self, output, batch):
        used, true = batch[LABEL] >= 0, batch[LABEL] > 0
        found = (output > 0) & used
        counts = [(found & true).sum(1), true.sum(1), ((found == true) & used).sum(1)]
        return torch.stack([*counts, used.sum(1)], dim=1).double()

    def score(self, statistics, weights):
        hits, true, right, used = statistics.sum(axis=0)
        return {"recall": hits / max(true, 1), "right": right / used}


class Minimised(Places):
    """recall is declared to be better when smaller"""

    metrics = {"recall": "minimize", "right": "maximize"}  # noqa: RUF012


class SharesWithoutWeights(Places):
    """the share of right places of each row is averaged without the rows' sizes"""

    def statistic(self, output, batch):
        counts = super().statistic(output, batch)
        return torch.cat([counts, counts[:, 2:3] / counts[:, 3:]], dim=1)

    def score(self, statistics, weights):
        hits, true = statistics[:, 0].sum(), statistics[:, 1].sum()
        return {"recall": hits / max(true, 1), "right": statistics[:, 4].mean()}


@pytest.mark.parametrize(
    ("task_type", "outcome"),
    [(Places, "passed"), (Minimised, "failed"), (SharesWithoutWeights, "failed")],
)
def test_metrics_of_counts_need_no_weights_and_means_do(task_type, outcome, tmp_path):
    """The untrained model finds every place, as a recall asks."""
    result = results_of(prepared(task_type, parts(tmp_path)), "metric_direction")
    assert result["metric_direction"].outcome == outcome, result
