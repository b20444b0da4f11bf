"""A task needs a kind, `encode`, `build_model` and `losses`; the defaults of the rest are checked too."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from perennial.contracts.data import TaskColumns
from perennial.engine.task import LABEL, NoOptions, Task

NUMBERS = [f"x{column}" for column in range(6)]


class Least(Task):
    """Numbers and groups through a small network; each subclass names its kind and its loss."""

    outputs = 1

    def fit(self, train):
        rows = train.select(*NUMBERS, "label").collect()
        self.fitted = {
            "means": [rows[name].mean() for name in NUMBERS],
            "scales": [rows[name].std() for name in NUMBERS],
            "label": [rows["label"].mean(), rows["label"].std()],
        }

    def encode(self, rows):
        table = rows.select(pl.col(NUMBERS).cast(pl.Float64).fill_null(float("nan"))).to_numpy()
        scaled = (table - np.array(self.fitted["means"])) / np.array(self.fitted["scales"])
        groups = [(rows["group"] == f"g{group}").to_numpy() for group in range(5)]
        inputs = np.column_stack([np.nan_to_num(scaled), rows["amount"] / 3, *groups])
        batch = {"inputs": torch.from_numpy(inputs.astype(np.float32))}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["label"].to_numpy(writable=True))
        return batch

    def build_model(self):
        return Network(self.outputs)


class Network(nn.Sequential):
    def __init__(self, outputs):
        super().__init__(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, outputs))

    def forward(self, inputs):
        return super().forward(inputs)


class Scaled(nn.Module):
    """Outputs in the unit of the label."""

    def __init__(self, network, mean, scale):
        super().__init__()
        self.network, self.mean, self.scale = network, mean, scale

    def forward(self, inputs):
        return self.network(inputs) * self.scale + self.mean


class Binary(Least):
    kind = "binary"

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output[:, 0], batch[LABEL].float(), reduction="none"
        )


class Multiclass(Least):
    kind = "multiclass"
    outputs = 4

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")


class OneHot(Multiclass):
    """classes are encoded as in Keras, for labels that are mixed later"""

    def encode(self, rows):
        batch = super().encode(rows)
        if LABEL in batch:
            batch[LABEL] = nn.functional.one_hot(batch[LABEL], self.outputs).float()
        return batch


class Numbers(Least):
    def build_model(self):
        return Scaled(super().build_model(), *self.fitted["label"])

    def losses(self, output, batch):
        return ((output[:, 0] - batch[LABEL].float()) / self.fitted["label"][1]).square()


class Regression(Numbers):
    kind = "regression"


class Measured(Numbers):
    kind = "statistic"


class Wild(Binary):
    """the last layer starts with large weights"""

    def build_model(self):
        model = super().build_model()
        nn.init.normal_(model[2].weight, std=5.0)
        return model


class Forgetful(Binary):
    """what was fitted is kept outside of `fitted`"""

    largest = 1.0

    def fit(self, train):
        super().fit(train)
        self.largest = train.select(pl.col("amount").max()).collect().item()

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "inputs": batch["inputs"] / self.largest}


@pytest.mark.parametrize("task_type", [Binary, Multiclass, Regression, Measured])
def test_the_least_task_passes_every_check(task_type, examine):
    kind = "regression" if task_type is Measured else task_type.kind
    results = examine(task_type, kind)
    doubted = {check: r for check, r in results.items() if r.outcome in ("failed", "warned")}
    assert not doubted
    assert results["initial_loss"].outcome == "passed"


@pytest.mark.parametrize(
    ("task_type", "check", "hint"),
    [
        (Wild, "initial_loss", "initial weights are too large"),
        (Forgetful, "state_round_trip", "keep everything that fit learned in `fitted`"),
    ],
)
def test_defaults_hide_no_bug(task_type, check, hint, examine):
    result = examine(task_type, "binary", only=check)[check]
    assert result.outcome == "failed"
    assert hint in result.hint


def test_defaults_follow_the_kind():
    columns = TaskColumns(label="label", features=dict.fromkeys(NUMBERS, "Float64"))
    output, expected = (
        torch.tensor([[0.0, 2.0]]),
        {
            Multiclass: torch.tensor([[0.0, 2.0]]).softmax(dim=1),
            Measured: torch.tensor([[0.0, 2.0]]),
        },
    )
    for task_type, prediction in expected.items():
        torch.testing.assert_close(task_type(NoOptions(), columns).predict(output), prediction)
    one = torch.tensor([[2.0], [0.0]])
    for shaped in (one, one[:, 0]):
        torch.testing.assert_close(
            Binary(NoOptions(), columns).predict(shaped), one[:, 0].sigmoid()
        )
        torch.testing.assert_close(Regression(NoOptions(), columns).predict(shaped), one[:, 0])
    assert next(iter(Binary.metrics)) == "roc_auc"
    assert Measured.statistics == ("loss",)
    assert Measured.metrics == {"mean_loss": "minimize"}


def test_classes_that_are_encoded_as_in_keras_are_told_where_mixtures_belong(examine):
    results = examine(OneHot, "multiclass")
    assert results["labels"].measured.startswith("labels have shape [1024, 4]")
    assert "augment and training_losses" in results["labels"].hint
    hints = [each.hint for each in results.values() if "score raises" in each.measured]
    assert hints
    assert not [hint for hint in hints if "float()" in hint]  # nothing rejects the type
