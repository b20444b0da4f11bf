"""A dataset's examples become the batch of their rows, and what does not fit is refused by name."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.engine.task import LABEL, NoOptions
from perennial.tasks.dataset import DatasetTask, Logits

NUMBERS = [f"x{number}" for number in range(6)]
ROWS = pl.DataFrame({"x": [1.0, 2.0, 3.0], "label": [0, 1, 1]})
COLUMNS = TaskColumns(label="label", features={"x": "Float64"})


class Pairs(DatasetTask):
    """Tuples of numbers and a label, as most scripts have them."""

    kind = "binary"

    def dataset(self, rows):
        return [(np.float32([x]), label) for x, label in rows.select("x", "label").iter_rows()]

    def build_model(self):
        return nn.Linear(1, 1)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output[:, 0], batch[LABEL].float(), reduction="none"
        )


def fitted(task_type):
    task = task_type(NoOptions(), COLUMNS)
    task.fit(ROWS.lazy())
    return task


def with_dataset(make, **members):
    return type("Own", (Pairs,), {"dataset": lambda self, rows: make(rows), **members})


def test_examples_are_stacked_in_order_and_rows_to_predict_need_no_label():
    task = fitted(Pairs)
    batch = task.encode(ROWS)
    assert batch["inputs"].tolist() == [[1.0], [2.0], [3.0]]
    assert batch[LABEL].tolist() == [0, 1, 1]
    served = task.encode(ROWS.drop("label"))
    assert served.keys() == {"inputs"}
    assert torch.equal(served["inputs"], batch["inputs"])


@pytest.mark.parametrize(
    "examples",
    [
        lambda rows: [(np.ones(at + 1), 0) for at in range(rows.height)],
        lambda rows: [{"x": 1.0, "y": 2.0, LABEL: 0}, *[{"x": 1.0, LABEL: 0}] * (rows.height - 1)],
    ],
    ids=["lengths", "parts"],
)
def test_examples_that_cannot_be_stacked_are_refused(examples):
    """A script pads them in its collate_fn, which the engine does not call."""
    with pytest.raises(BadTaskError, match="same parts of the same shapes"):
        fitted(with_dataset(examples)).encode(ROWS)


def test_examples_may_be_dictionaries_of_lists():
    def examples(rows):
        return [{"input_ids": [1, 2], LABEL: label} for label in rows["label"]]

    batch = fitted(with_dataset(examples)).encode(ROWS)
    assert batch["input_ids"].tolist() == [[1, 2]] * 3
    assert batch["input_ids"].dtype == torch.int64


@pytest.mark.parametrize(
    ("examples", "problem"),
    [
        (lambda rows: [(1.0, 0)] * 2, "has 2 examples for 3 rows"),
        (lambda rows: [(1.0, 2.0, 0)] * 3, "names does not name the parts"),
        (lambda rows: [("a word", 0)] * 3, "does not consist of numbers"),
        (lambda rows: [{"input_ids": [1]}] * 3, "has no label"),
    ],
)
def test_other_examples_are_refused(examples, problem):
    with pytest.raises(BadTaskError, match=problem):
        fitted(with_dataset(examples)).encode(ROWS)


def test_a_training_split_without_labels_is_refused():
    with pytest.raises(BadDataError, match="'label' is missing in every row"):
        Pairs(NoOptions(), COLUMNS).fit(ROWS.with_columns(label=pl.lit(None)).lazy())


def test_logits_are_taken_from_what_a_model_of_transformers_returns():
    class Model(nn.Module):
        def forward(self, input_ids):
            return type("Output", (), {"logits": input_ids * 2.0})

    assert Logits(Model())(input_ids=torch.ones(2, 3)).tolist() == [[2.0] * 3] * 2


class Table(Pairs):
    """All numbers of the tables that the sanity checks are tested on."""

    def fit(self, train):
        super().fit(train)
        rows = train.select(NUMBERS).collect()
        self.fitted |= {name: [rows[name].mean(), rows[name].std()] for name in NUMBERS}

    def dataset(self, rows):
        scaled = [
            ((rows[name] - mean) / scale).fill_null(0.0)
            for name, (mean, scale) in ((name, self.fitted[name]) for name in NUMBERS)
        ]
        groups = [(rows["group"] == f"g{group}").cast(pl.Float64) for group in range(5)]
        table = np.column_stack([*scaled, rows["amount"] / 3, *groups]).astype(np.float32)
        return list(zip(table, rows["label"], strict=True))

    def build_model(self):
        return Network()


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 64), nn.ReLU(), nn.Linear(64, 1))

    def forward(self, inputs):
        return self.layers(inputs)


class RandomTransform(Table):
    """the dataset adds noise, as datasets with random transforms do"""

    def dataset(self, rows):
        return [
            (x + np.random.normal(size=12).astype(np.float32), y) for x, y in super().dataset(rows)
        ]


def test_a_healthy_dataset_passes_every_check(examine):
    results = examine(Table, "binary")
    doubted = {check: r for check, r in results.items() if r.outcome in ("failed", "warned")}
    assert not doubted


def test_random_transforms_in_the_dataset_are_found(examine):
    result = examine(RandomTransform, "binary", only="encoding")["encoding"]
    assert result.outcome == "failed"
    assert "augment" in result.hint
