"""Taggers of steps that read a sequence in both directions, and one that leaves a direction turned."""

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.nn import functional

from other_styles import dataset_of
from perennial.check_skeleton.checks.model.gradients import check_input_use
from perennial.engine.task import LABEL, Task
from skeleton_tables import prepared

ROWS, LENGTH, WIDTH = 300, 14, 12


class Both(nn.Module):
    """Two layers by hand, one of which reads from the end."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, WIDTH)
        self.forwards, self.backwards = (nn.GRU(WIDTH, WIDTH, batch_first=True) for _ in range(2))
        self.tag = nn.Linear(2 * WIDTH, 3)

    def forward(self, steps):
        x = self.embed(steps)
        left, right = self.forwards(x)[0], self.turn(self.backwards(x.flip(1))[0])
        return self.tag(torch.cat([left, right], dim=2))

    def turn(self, states):
        return states.flip(1)


class LeftTurned(Both):
    def turn(self, states):
        return states


class Causal(Both):
    """Both layers read from the beginning."""

    def forward(self, steps):
        x = self.embed(steps)
        return self.tag(torch.cat([self.forwards(x)[0], self.backwards(x)[0]], dim=2))


class Near(Both):
    """A step sees two on each side."""

    def __init__(self):
        super().__init__()
        self.near = nn.Conv1d(WIDTH, 2 * WIDTH, 5, padding=2)

    def forward(self, steps):
        return self.tag(self.near(self.embed(steps).transpose(1, 2)).transpose(1, 2))


class Tags(Task):
    """A tag for each step, by the step and the next one."""

    kind = "statistic"
    metrics = dict.fromkeys(["off"], "minimize")
    model = Both

    def encode(self, rows):
        batch = {"steps": torch.tensor(rows["steps"].to_list())}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list())
        return batch

    def build_model(self):
        return self.model()

    def losses(self, output, batch):
        lost = functional.cross_entropy(output.transpose(1, 2), batch[LABEL], reduction="none")
        return lost.mean(dim=1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"off": float(predictions.mean())}


@pytest.mark.parametrize(
    ("model", "is_turned"), [(LeftTurned, True), (Both, False), (Causal, False), (Near, False)]
)
def test_states_that_stay_turned_are_found(tmp_path, model, is_turned):
    steps = np.random.default_rng(2).integers(0, 20, (ROWS, LENGTH))
    tags = (steps + np.roll(steps, -1, axis=1)) % 3
    columns = {"row": range(ROWS), "steps": steps.tolist(), "label": tags.tolist()}
    task = type("Tagger", (Tags,), {"model": model})
    dataset = dataset_of(pl.DataFrame(columns), tmp_path, features=("steps",))
    found = check_input_use(prepared(task, dataset))
    assert ("as far from the other end" in found.measured) == is_turned, found
    assert (found.outcome == "failed") == is_turned
