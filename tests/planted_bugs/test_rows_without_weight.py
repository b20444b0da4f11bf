"""Rows of weight 0: no loss follows their predictions, and a batch may hold no others."""

import numpy as np
import pytest
import torch

from mixed_numbers import subject_of
from other_styles import numbers_table, table_of
from perennial.check_skeleton.checks.loss.predictions import check_predictions
from perennial.check_skeleton.checks.training.dynamics import check_first_steps
from perennial.engine.task import WEIGHT
from perennial.tasks.tabular import TabularClassification, TabularRegression

X, SCORE = numbers_table(rows=1200)
CLASS = (SCORE > 0.0).astype(int)


def weighed(task_type, every=3):
    class Weighed(task_type):
        """Only some rows count."""

        def encode(self, rows):
            counts = rows["row"].to_numpy() % every == 0
            return {**super().encode(rows), WEIGHT: torch.from_numpy(counts.astype(np.float32))}

    return Weighed


class OtherWayRound(TabularClassification):
    def predict(self, output):
        return 1.0 - super().predict(output)


@pytest.mark.parametrize(
    ("task_type", "label", "outcome"),
    [
        (TabularClassification, CLASS, "passed"),
        (TabularRegression, SCORE, "passed"),
        (OtherWayRound, CLASS, "failed"),
    ],
)
def test_predictions_of_rows_that_count_agree_with_the_loss(task_type, label, outcome, tmp_path):
    result = check_predictions(subject_of(weighed(task_type), table_of(X, label), tmp_path))
    assert result.outcome == outcome, result


def test_first_steps_go_past_batches_in_which_no_row_counts(tmp_path):
    task_type = weighed(TabularClassification, every=100)
    result = check_first_steps(subject_of(task_type, table_of(X, CLASS), tmp_path))
    assert result.outcome in ("passed", "warned"), result
