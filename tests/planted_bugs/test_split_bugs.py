"""Splits that share examples, windows or entities; hints that name what was measured."""

from functools import partial

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

from other_styles import dataset_of
from own_tasks import Leaving, Next, Praise
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL, Task
from perennial.tasks.tabular import TabularClassification
from planted import Bug, require_caught
from planted import planted as planted_bug
from skeleton_tables import SETTINGS
from workshop import Workshop, results_of

BUGS: list[Bug] = []


def planted(check, hint, *, material="customers", outcome="warned", **how):
    return planted_bug(BUGS, check, hint, material=material, outcome=outcome, **how)


@planted("split_overlap", "copies together", outcome="failed", copies=4, rows=750)
class Copied(Leaving):
    """each row stands four times in the data, under other ids"""


@planted("split_overlap", "multiplied by a join", outcome="failed", copies=8, rows=400)
class Joined(Leaving):
    """a join made eight rows of one"""


@planted("split_overlap", "Deduplicate", outcome="failed", rows=1500, copies=2)
class Twice(Leaving):
    """each row stands twice in the data"""


@planted("split_overlap", "overlap", outcome="failed", material="series", stride=1)
class Overlapping(Next):
    """windows that move by one step are drawn into both splits"""


@planted("split_overlap", "data.time", outcome="failed", material="series", stride=3)
class OverlappingByMost(Next):
    """windows that move by an eighth of their length are drawn into both splits"""


@planted("split_overlap", "not overlap", outcome="failed", material="series", stride=6)
class OverlappingByHalf(Next):
    """windows that move by a quarter of their length are drawn into both splits"""


@planted("split_overlap", 'data.group = "household"', households=400)
class Households(Leaving):
    """a household's rows have one label and lie in both splits, its number is a feature"""


@planted("split_overlap", "recognising it", households=300, meta=("household",))
class KnownHouseholds(Leaving):
    """a household's rows have one label and lie in both splits, its number is kept for reports"""


@planted("split_overlap", "split.method", households=480, meta=("household",), rows=4000)
class SmallHouseholds(Leaving):
    """a few rows for each household have one label"""


@planted("split_overlap", "split.method", households=700, meta=("household",), rows=1500)
class Couples(Leaving):
    """about two rows for each household have one label"""


# Hints


@planted("encoding", "encode changes .*calls", outcome="failed")
class Counts(Leaving):
    """encode counts its calls and adds the number"""

    calls = 0

    def visits(self, rows):
        type(self).calls += 1
        return rows["visits"].to_numpy() + self.calls


@planted("encoding", "encode changes self.seen", outcome="failed")
class Moves(Leaving):
    """encode keeps a running mean, and takes it away"""

    seen = 0.0

    def visits(self, rows):
        self.seen = 0.9 * self.seen + 0.1 * float(rows["visits"].mean())
        return rows["visits"].to_numpy() - self.seen


@planted("encoding", "a generator of its own", outcome="failed")
class Draws(Leaving):
    """encode draws from a generator of its own"""

    def visits(self, rows):
        return rows["visits"].to_numpy() + np.random.default_rng().normal(size=rows.height)


SGD = {"name": "sgd", "learning_rate": 0.1, "momentum": 0.0, "nesterov": False}


@planted(
    "first_steps", "clipping shortens the steps", outcome="failed",
    training={"optimizer": SGD, "clipping": {"max_norm": 1e-4}},
)  # fmt: skip
class TinyLimit(Leaving):
    """gradients are clipped to a ten-thousandth"""


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught(bug: Bug, workshop: Workshop):
    require_caught(bug, workshop)


HEALTHY = [
    (Leaving, "customers", {}),
    (Leaving, "customers", {"also": "noise"}),
    (Next, "series", {}),
    (Next, "series", {"stride": 24}),
    (Praise, "reviews", {}),
    (TabularClassification, "binary", {}),
    (TabularClassification, "multiclass", {}),
    (TabularClassification, "noise", {}),
]


@pytest.mark.parametrize(("task_type", "material", "shape"), HEALTHY)
def test_healthy_tasks_have_no_findings(task_type, material, shape, workshop):
    subject = workshop.subject(task_type, material, **shape)
    result = results_of(subject, "split_overlap")["split_overlap"]
    assert (result.outcome, result.measured) == ("passed", result.measured)


class Life(Task):
    """How much of its life a machine has left, by twelve readings of a worn sensor."""

    kind = "regression"

    def encode(self, rows):
        batch = {"readings": torch.tensor(rows["readings"].to_list(), dtype=torch.float32)}
        if "label" in rows.columns:
            batch[LABEL] = torch.tensor(rows["label"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Readings()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square()


class Readings(nn.Module):
    """A line through the readings."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(12, 1)

    def forward(self, readings):
        return self.layer(readings).squeeze(1)


@pytest.mark.parametrize(("stride", "outcome"), [(2, "failed"), (12, "passed")])
def test_windows_of_one_machine_in_both_splits_are_caught_by_their_labels(
    stride, outcome, tmp_path
):
    """The label is not among the readings, but that of the next window is nearly the same."""
    random, rows = np.random.default_rng(4), []
    for _ in range(120 if stride > 2 else 20):
        left = np.linspace(1, 0, 120)
        worn = (1 - left) ** 2 + 0.3 * random.normal(size=120) + random.normal()
        rows += [
            (worn[end - 12 : end].tolist(), float(left[end - 1])) for end in range(12, 121, stride)
        ]
    frame = pl.DataFrame(rows, schema=["readings", "label"], orient="row").with_row_index("row")
    dataset = dataset_of(frame, tmp_path)
    make = partial(Life, Life.Options(), dataset.snapshot.task_columns)
    subject = Subject.prepare(make, dataset, SETTINGS, TrainingSection())
    result = results_of(subject, "split_overlap")["split_overlap"]
    assert result.outcome == outcome, result
    assert ("whose label explains" in result.measured) == (outcome == "failed")
