"""Answers of which some were never asked for: their places are judged by those that were."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Columns, Module, dataset_of, numbers_table
from perennial.check_skeleton.checks.data.signals import read_labels
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS = 1200
X, SCORE = numbers_table(ROWS)


def table(moved=0, missing=0.4):
    """Two answers, yes or no, of which some are missing."""
    answers = np.stack([SCORE > 0, X[:, 1] > 0.3], axis=1).astype(float)
    gaps = np.random.default_rng(4).random(answers.shape) < missing
    lists = [
        [None if gap else answer for answer, gap in zip(*each, strict=True)]
        for each in zip(answers.tolist(), gaps.tolist(), strict=True)
    ]
    columns = {f"x{place}": X[:, place] for place in range(X.shape[1])}
    label = pl.Series(lists[moved:] + lists[:moved])
    return pl.DataFrame({"row": range(ROWS), **columns, "label": label})


class Masked(Columns):
    """Binary cross-entropy over the answers that there are."""

    kind = "statistic"
    metrics = directions_of("log_loss")

    def build_model(self):
        return Module(self.network(2))

    def encode_label(self, labels):
        return torch.tensor(np.array(labels.to_list(), dtype=float), dtype=torch.float32)

    def losses(self, output, batch):
        known = ~batch[LABEL].isnan()
        losses = torch.nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL].nan_to_num(), reduction="none"
        )
        return (losses * known).sum(dim=1) / known.sum(dim=1).clamp(min=1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, statistics, weights):
        return {"log_loss": float(np.average(statistics, weights=weights))}


@pytest.mark.parametrize(("moved", "outcome"), [(0, "passed"), (1, "warned")])
def test_answers_of_the_row_below_are_found_in_spite_of_gaps(moved, outcome, tmp_path):
    result = results_of(prepared(Masked, dataset_of(table(moved), tmp_path)), "label_alignment")
    assert result["label_alignment"].outcome == outcome, result
    if outcome == "warned":
        assert "1 row above by row" in result["label_alignment"].measured


def test_answers_that_are_mostly_missing_are_not_judged(tmp_path):
    assert read_labels(prepared(Masked, dataset_of(table(missing=0.7), tmp_path))) == []
