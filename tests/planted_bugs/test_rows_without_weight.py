"""Rows of weight 0: a batch may hold no others."""

import numpy as np
import torch

from mixed_numbers import subject_of
from other_styles import numbers_table, table_of
from perennial.check_skeleton.checks.training.dynamics import check_first_steps
from perennial.engine.task import WEIGHT
from perennial.tasks.tabular import TabularClassification

X, SCORE = numbers_table(rows=1200)
CLASS = (SCORE > 0.0).astype(int)


def weighed(task_type, every=3):
    class Weighed(task_type):
        """Only some rows count."""

        def encode(self, rows):
            counts = rows["row"].to_numpy() % every == 0
            return {**super().encode(rows), WEIGHT: torch.from_numpy(counts.astype(np.float32))}

    return Weighed


def test_first_steps_go_past_batches_in_which_no_row_counts(tmp_path):
    task_type = weighed(TabularClassification, every=100)
    result = check_first_steps(subject_of(task_type, table_of(X, CLASS), tmp_path))
    assert result.outcome in ("passed", "warned"), result
