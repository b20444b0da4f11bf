"""Rows with several tags: some that are lost on the way, and probabilities that exclude each other."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import dataset_of
from perennial.check_skeleton.checks.data.encoding.encoding import check_labels
from perennial.check_skeleton.checks.loss.predictions import check_predictions
from perennial.engine.task import LABEL, Task
from skeleton_tables import prepared

ROWS, TAGS = 600, ["brakes", "chain", "lights", "tyres"]


def repairs(separator=",", *, several=True):
    """What was repaired, by three numbers; with `several`, often more than one thing."""
    random = np.random.default_rng(7)
    x = random.normal(size=(ROWS, 4))
    named = [
        [tag for tag, score in zip(TAGS, row, strict=True) if score > 0.6] if several else []
        for row in x
    ]
    best = [TAGS[place] for place in x.argmax(axis=1)]
    label = [separator.join(tags or [one]) for tags, one in zip(named, best, strict=True)]
    columns = {f"x{place}": x[:, place] for place in range(4)}
    return pl.DataFrame({"row": range(ROWS), **columns, "label": label})


class Repairs(Task):
    """Each tag has a sigmoid of its own."""

    kind = "statistic"
    statistics = ("loss",)
    metrics = dict.fromkeys(["mean_loss"], "minimize")
    serves_predictions = True
    prediction_names = TAGS
    separator = ","

    def tags(self, text):
        return text.split(self.separator)

    def encode(self, rows):
        names = [f"x{place}" for place in range(4)]
        batch = {"x": torch.tensor(rows.select(names).to_numpy(), dtype=torch.float32)}
        if "label" in rows.columns:
            named = [self.tags(text) for text in rows["label"]]
            batch[LABEL] = torch.tensor([[float(tag in row) for tag in TAGS] for row in named])
        return batch

    def build_model(self):
        return Scores()

    def losses(self, output, batch):
        lost = nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none"
        )
        return lost.mean(dim=1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        return self.losses(output, batch)[:, None].double()


class Scores(nn.Module):
    def __init__(self):
        super().__init__()
        self.scores = nn.Linear(4, len(TAGS))

    def forward(self, x):
        return self.scores(x)


class OnlyTheFirst(Repairs):
    def tags(self, text):
        return super().tags(text)[:1]


class OtherSeparator(Repairs):
    separator = " / "


class OnlyTheFirstOfOthers(OtherSeparator):
    def tags(self, text):
        return super().tags(text)[:1]


class OneSoftmax(Repairs):
    """One softmax for all tags."""

    def losses(self, output, batch):
        return -(batch[LABEL] * output.log_softmax(dim=1)).mean(dim=1)

    def predict(self, output):
        return output.softmax(dim=1)


@pytest.mark.parametrize(
    ("task", "separator", "outcome"),
    [
        (Repairs, ",", "passed"),
        (OtherSeparator, " / ", "passed"),
        (OnlyTheFirst, ",", "failed"),
        (OnlyTheFirstOfOthers, " / ", "failed"),
    ],
)
def test_tags_that_do_not_reach_the_label_are_found(tmp_path, task, separator, outcome):
    found = check_labels(prepared(task, dataset_of(repairs(separator), tmp_path)))
    assert found.outcome == outcome, found
    assert ("where they stand alone" in found.measured) == (outcome == "failed")


@pytest.mark.parametrize(
    ("task", "several", "outcome"),
    [(Repairs, True, "passed"), (OneSoftmax, True, "failed"), (OneSoftmax, False, "passed")],
)
def test_tags_whose_probabilities_exclude_each_other_are_found(tmp_path, task, several, outcome):
    found = check_predictions(prepared(task, dataset_of(repairs(several=several), tmp_path)))
    assert found.outcome == outcome, found
    assert ("add up to 1" in found.measured) == (outcome == "failed")
