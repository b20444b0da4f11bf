"""Lists of items that are cut at the wrong end, and lists of which the right end is kept."""

from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS, KEPT = 1200, 4
RANDOM = np.random.default_rng(3)
VISITS = [RANDOM.integers(1, 20, RANDOM.integers(2, 12)).tolist() for _ in range(ROWS)]


def buys(part):
    """Who saw the first seven pages in that part buys more often."""
    seen = np.array([sum(page < 8 for page in visit[part]) for visit in VISITS])
    return (RANDOM.random(ROWS) < 0.15 + 0.2 * seen).astype(int).tolist()


class KeepsLast(Classes):
    """Reads the last pages of a visit; these tell whether it ends with a purchase."""

    kind = "multiclass"
    labels: ClassVar = buys(slice(-KEPT, None))
    part: ClassVar = slice(-KEPT, None)

    @classmethod
    def table(cls):
        return pl.DataFrame({"row": range(ROWS), "pages": VISITS, "label": cls.labels})

    def fit(self, train):
        self.fitted = {"mean": [0.0], **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        pages = [visit[self.part] for visit in rows["pages"].to_list()]
        codes = [[0] * (KEPT - len(each)) + each for each in pages]
        batch = {"x": torch.tensor(codes, dtype=torch.float32)}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


class KeepsFirst(KeepsLast):
    """The first pages are kept, and the last ones tell."""

    part: ClassVar = slice(KEPT)


class NewestFirst(KeepsFirst):
    """The first pages are kept, and tell."""

    labels: ClassVar = buys(slice(KEPT))


class LastOfNewestFirst(KeepsLast):
    """The last pages are kept of lists that begin with the newest."""

    labels: ClassVar = buys(slice(KEPT))


class KeepsAll(KeepsFirst):
    """All pages fit."""

    part: ClassVar = slice(None)

    def encode(self, rows):
        counts = [np.bincount(visit, minlength=20) for visit in rows["pages"].to_list()]
        batch = {"x": torch.tensor(np.array(counts), dtype=torch.float32)}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


class Chance(KeepsFirst):
    """No page tells anything."""

    labels: ClassVar = RANDOM.integers(0, 2, ROWS).tolist()


def examine(task_type, folder):
    subject = prepared(task_type, dataset_of(task_type.table(), folder))
    return results_of(subject, "text_coverage")["text_coverage"]


@pytest.mark.parametrize(
    ("task_type", "cut"), [(KeepsFirst, "end"), (LastOfNewestFirst, "beginning")]
)
def test_lists_that_are_cut_at_the_wrong_end_fail(task_type, cut, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome == "failed", result.measured
    assert f"{KEPT} items of pages are read; as many of the {cut}" in result.measured


@pytest.mark.parametrize("task_type", [KeepsLast, NewestFirst, KeepsAll, Chance])
def test_lists_of_which_the_telling_end_is_kept_do_not(task_type, tmp_path):
    assert examine(task_type, tmp_path).outcome in ("passed", "skipped")
