"""Items of lists whose code is that of padding, and items that are dropped by design."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import Classes, Module, dataset_of
from skeleton_tables import prepared
from workshop import results_of

ITEMS, LONGEST = ("cart", "remove", "search", "share", "view"), 8


def visits(folder):
    random = np.random.default_rng(1)
    steps = [random.choice(ITEMS, random.integers(1, LONGEST)).tolist() for _ in range(900)]
    label = [int("cart" in each) ^ int(random.random() < 0.2) for each in steps]
    table = {"row": np.arange(900), "steps": steps, "label": label}
    return dataset_of(pl.DataFrame(table), folder)


class Visits(Classes):
    """Codes from 1 on, and zeros behind them."""

    first = 1

    def fit(self, train):
        self.fitted = self.fit_label(train.collect()["label"])

    def read(self, steps):
        return [self.first + ITEMS.index(each) for each in steps]

    def encode(self, rows):
        codes = [self.read(each)[-LONGEST:] for each in rows["steps"].to_list()]
        padded = [each + [0] * (LONGEST - len(each)) for each in codes]
        batch = {"steps": torch.tensor(padded)}
        if "label" in rows.columns:
            batch["label"] = self.encode_label(rows["label"])
        return batch

    def build_model(self):
        layers = nn.Sequential(nn.Embedding(8, 4), nn.Flatten(), nn.Linear(4 * LONGEST, 2))
        return Named(layers)


class Named(Module):
    def forward(self, steps):
        return self.network(steps)


class FromZero(Visits):
    first = 0


class WithoutRemovals(Visits):
    """What was removed again is of no interest."""

    def read(self, steps):
        return super().read([each for each in steps if each != "remove"])


class WithoutRepeats(Visits):
    """The same step several times in a row counts once."""

    def read(self, steps):
        new = [each for each, last in zip(steps, [None, *steps], strict=False) if each != last]
        return super().read(new)


class Counted(Visits):
    """A bag of steps."""

    def encode(self, rows):
        batch = super().encode(rows)
        return {**batch, "steps": batch["steps"].sort(dim=1, descending=True).values}


@pytest.mark.parametrize("task_type", [Visits, WithoutRemovals, WithoutRepeats, Counted])
def test_items_that_are_kept_or_dropped_by_design_pass(task_type, tmp_path):
    result = results_of(prepared(task_type, visits(tmp_path)), "text_coverage")["text_coverage"]
    assert result.outcome == "skipped", result


def test_an_item_with_the_code_of_padding_fails(tmp_path):
    result = results_of(prepared(FromZero, visits(tmp_path)), "text_coverage")["text_coverage"]
    assert (result.outcome, result.measured.partition(",")[0]) == ("failed", "cart in steps")
