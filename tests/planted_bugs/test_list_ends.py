"""Lists that end with the answer, or with what follows the outcome, and histories that do not."""

from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS = 900
RANDOM = np.random.default_rng(8)
ITEMS = [f"item {number}" for number in range(12)]
SEEN = [RANDOM.choice(ITEMS, RANDOM.integers(3, 9)).tolist() for _ in range(ROWS)]
NEXT = RANDOM.choice(ITEMS, ROWS).tolist()
IS_BAD = RANDOM.random(ROWS) < 0.3
PAID = [RANDOM.uniform(0.1, 1, RANDOM.integers(4, 8)).round(2).tolist() for _ in range(ROWS)]
NUMBER = {name: float(place) for place, name in enumerate(ITEMS)}


class Histories(Classes):
    """Reads the last four elements of a list of items, or of numbers."""

    lists: ClassVar = SEEN
    labels: ClassVar = NEXT
    last: ClassVar = slice(-4, None)

    @classmethod
    def table(cls):
        other = np.random.default_rng(2).random(ROWS)
        return pl.DataFrame(
            {"row": range(ROWS), "seen": cls.lists, "age": other, "label": cls.labels}
        )

    def fit(self, train):
        self.fitted = {"mean": [0.0], **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        numbers = [
            [NUMBER.get(each, each) for each in [0.0] * 4 + (found or [])[self.last]][-4:]
            for found in rows["seen"].to_list()
        ]
        batch = {"x": torch.tensor(numbers)}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


class ReadTooLate(Histories):
    """The history was read after the answer had been watched."""

    lists: ClassVar = [[*seen, item] for seen, item in zip(SEEN, NEXT, strict=True)]


class LeftOut(ReadTooLate):
    """The answer at the end is left out by encode."""

    last: ClassVar = slice(-5, -1)


class Payments(Histories):
    """Shares that were paid; some of the last ones are nothing, in both classes."""

    lists: ClassVar = [
        [*paid[:-1], 0.0] if place % 9 == 0 else paid for place, paid in enumerate(PAID)
    ]
    labels: ClassVar = np.where(IS_BAD, "bad", "good").tolist()


class WrittenOff(Payments):
    """The last statement is of the month after: nearly nothing of what is lost was paid."""

    lists: ClassVar = [
        [*paid, 0.0 if bad and place % 5 else paid[0]]
        for place, (paid, bad) in enumerate(zip(PAID, IS_BAD, strict=True))
    ]


class Closed(Histories):
    """The last event is the bank's, after the card was written off or kept."""

    lists: ClassVar = [
        [*seen, ITEMS[(0 if bad else 1) + 2 * (place % 2)]]
        for place, (seen, bad) in enumerate(zip(SEEN, IS_BAD, strict=True))
    ]
    labels: ClassVar = np.where(IS_BAD, "bad", "good").tolist()


def examine(task_type, folder):
    subject = prepared(task_type, dataset_of(task_type.table(), folder))
    return results_of(subject, "telling_columns")["telling_columns"]


@pytest.mark.parametrize(
    ("task_type", "measured"),
    [
        (ReadTooLate, "seen[-1] is the label, in every row"),
        (Closed, "the class of every row is determined by seen[-1]"),
    ],
)
def test_a_list_that_ends_with_the_answer_fails(task_type, measured, tmp_path):
    result = examine(task_type, tmp_path)
    assert (result.outcome, result.measured) == ("failed", measured)


def test_a_number_at_the_end_that_one_class_alone_has_warns(tmp_path):
    result = examine(WrittenOff, tmp_path)
    assert result.outcome == "warned"
    assert "others in other rows: seen[-1]" in result.measured


@pytest.mark.parametrize("task_type", [Histories, LeftOut, Payments])
def test_histories_of_the_past_pass(task_type, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome == "passed", (result.measured, result.hint)
