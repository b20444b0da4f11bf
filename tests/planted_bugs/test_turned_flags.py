"""Labels that are flags, of which one class is looked for: its code is 1, whatever it says."""

import numpy as np
import pytest
import torch
from torch.nn import functional

from other_styles import Columns, Module, dataset_of, numbers_table, table_of
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of


class Hatches(Columns):
    """Whether an egg hatches."""

    kind = "binary"
    metrics = directions_of("log_loss")

    def build_model(self):
        return Module(self.network(1), lambda output: output.squeeze(1))

    def encode_label(self, labels):
        return torch.tensor(labels.to_list()).float()

    def losses(self, output, batch):
        return functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


class DoesNotHatch(Hatches):
    """The other answer has code 1."""

    def encode_label(self, labels):
        return 1 - super().encode_label(labels)


@pytest.mark.parametrize(
    ("task_type", "hatching", "outcome"),
    [
        (Hatches, 0.5, "passed"), (Hatches, 0.92, "passed"),
        (DoesNotHatch, 0.92, "warned"),  # the rare failure is looked for
        (DoesNotHatch, 0.5, "failed"), (DoesNotHatch, 0.08, "failed"),
    ],
)  # fmt: skip
def test_a_turned_flag_fails_unless_it_finds_the_rare_class(task_type, hatching, outcome, tmp_path):
    x, score = numbers_table(1200)
    label = score < np.quantile(score, hatching)
    dataset = dataset_of(table_of(x, label), tmp_path)
    result = results_of(prepared(task_type, dataset), "labels")["labels"]
    assert result.outcome == outcome, result
    if outcome != "passed":
        assert "2 of 2 classes have the code of another class" in result.measured
