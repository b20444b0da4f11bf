"""Pictures that came in twice, under other numbers, and data that repeats for other reasons."""

from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS, SIDE = 900, 10
RANDOM = np.random.default_rng(7)
GRADES = RANDOM.integers(0, 3, ROWS)
PICTURES = RANDOM.normal(GRADES[:, None], 1, (ROWS, SIDE**2)).round(2)
# Two rows of five repeat one of the first two hundred.
ORIGIN = np.where(RANDOM.random(ROWS) < 0.4, RANDOM.integers(0, 200, ROWS), np.arange(ROWS))


class Graded(Classes):
    """Pictures and their grades."""

    pictures: ClassVar = PICTURES
    grades: ClassVar = GRADES

    @classmethod
    def table(cls):
        return pl.DataFrame(
            {"row": range(ROWS), "picture": cls.pictures.tolist(), "label": cls.grades}
        )

    def fit(self, train):
        self.fitted = {"mean": [0.0] * SIDE**2, **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        batch = {"x": torch.tensor(rows["picture"].to_list(), dtype=torch.float32)}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


class UploadedAgain(Graded):
    pictures: ClassVar = PICTURES[ORIGIN]
    grades: ClassVar = GRADES[ORIGIN]


class FewAgain(Graded):
    """One row in twenty is a repetition."""

    origin: ClassVar = np.where(np.arange(ROWS) % 20, np.arange(ROWS), ORIGIN)
    pictures: ClassVar = PICTURES[origin]
    grades: ClassVar = GRADES[origin]


class OftenBlank(Graded):
    """A third of the pictures show nothing, and have one grade."""

    is_blank: ClassVar = RANDOM.random(ROWS) < 0.33
    pictures: ClassVar = np.where(is_blank[:, None], 0.0, PICTURES)
    grades: ClassVar = np.where(is_blank, 0, GRADES)


def examine(task_type, folder):
    subject = prepared(task_type, dataset_of(task_type.table(), folder))
    return results_of(subject, "split_overlap")["split_overlap"]


def test_pictures_that_came_in_twice_fail(tmp_path):
    result = examine(UploadedAgain, tmp_path)
    assert result.outcome == "failed", result.measured
    assert "number by number and with the same label" in result.measured


@pytest.mark.parametrize("task_type", [Graded, FewAgain, OftenBlank])
def test_other_pictures_do_not(task_type, tmp_path):
    assert examine(task_type, tmp_path).outcome != "failed"
