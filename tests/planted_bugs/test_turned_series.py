"""Two series beside each other: in one order, and one of them backwards."""

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Module, Numbers, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS, STEPS = 400, 12
RANDOM = np.random.default_rng(3)
FLOW = np.cumsum(RANDOM.normal(size=(ROWS, STEPS)), axis=1) + 20
HEAT = np.cumsum(RANDOM.normal(size=(ROWS, STEPS)), axis=1) + 5


class Stacked(Numbers):
    """Flow and heat of the last hours, [B, T, 2]."""

    def fit(self, train):
        self.fitted = {}

    def encode(self, rows):
        flow, heat = (torch.tensor(rows[name].to_list()).float() for name in ("flow", "heat"))
        batch = {"x": self.join(flow / 10 - 2, heat / 10)}
        return batch | ({LABEL: rows["label"].to_torch()} if "label" in rows.columns else {})

    def join(self, flow, heat):
        return torch.stack([flow, heat], dim=2)

    def build_model(self):
        return Module(torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2 * STEPS, 1)))


class NewestFirst(Stacked):
    def join(self, flow, heat):
        return super().join(flow.flip(1), heat)


class ByWindow(NewestFirst):
    """Channels first, and each flow relative to its window."""

    def join(self, flow, heat):
        level = flow.mean(1, keepdim=True)
        return torch.stack([flow - level, heat.flip(1)], dim=1)


class BothTurned(Stacked):
    """As an encoder reads its source."""

    def join(self, flow, heat):
        return super().join(flow, heat).flip(1)


class Changes(Stacked):
    """Each step's change beside the heat."""

    def join(self, flow, heat):
        return super().join(torch.diff(flow, dim=1, prepend=flow[:, :1]), heat)


def examine(task_type, folder):
    frame = {"row": range(ROWS), "flow": FLOW.tolist(), "heat": HEAT.tolist(), "label": FLOW[:, -1]}
    subject = prepared(task_type, dataset_of(pl.DataFrame(frame), folder))
    return results_of(subject, "encoding")["encoding"]


@pytest.mark.parametrize("task_type", [NewestFirst, ByWindow])
def test_one_series_that_runs_backwards_fails(task_type, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome == "failed", result.measured
    assert "from the last to the first" in result.measured


@pytest.mark.parametrize("task_type", [Stacked, BothTurned, Changes])
def test_series_in_one_order_pass(task_type, tmp_path):
    result = examine(task_type, tmp_path)
    assert result.outcome == "passed", (result.measured, result.hint)
