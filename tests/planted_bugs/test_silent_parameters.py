"""Parameters without a gradient: harmless at the end of a row or where they cancel, else a bug."""

from functools import partial

import pytest
import torch
from torch import nn

from other_styles import Numbers, dataset_of, numbers_table, table_of
from perennial.check_skeleton.checks.model.gradients import check_parameter_gradients
from perennial.check_skeleton.subject import Subject
from perennial.engine.config.training import TrainingSection
from skeleton_tables import SETTINGS

WIDTH, INPUTS = 8, 6


class Block(nn.Module):
    """Hands on what it leaves of its input, and forecasts."""

    def __init__(self):
        super().__init__()
        self.layer, self.back = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, INPUTS)
        self.fore = nn.Linear(WIDTH, 1)

    def forward(self, x):
        hidden = self.layer(x).relu()
        return x - self.back(hidden), self.fore(hidden)


class Stack(nn.Module):
    """N-BEATS: the last block's remainder is left over."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([Block() for _ in range(3)])

    def forward(self, x):
        total = torch.zeros(len(x), 1)
        for block in self.blocks:
            x, forecast = self.passed(x, *block(x))
            total = total + forecast
        return total[:, 0]

    def passed(self, given, rest, forecast):
        return rest, forecast


class Skips(nn.Module):
    """WaveNet with its layers in lists: the last residual is left over."""

    def __init__(self):
        super().__init__()
        self.gates, self.rests, self.skips = (
            nn.ModuleList([nn.Linear(INPUTS, width) for _ in range(3)])
            for width in (INPUTS, INPUTS, 1)
        )

    def forward(self, x):
        total = torch.zeros(len(x), 1)
        for gate, rest, skip in zip(self.gates, self.rests, self.skips, strict=True):
            hidden = gate(x).tanh()
            total, x = total + skip(hidden), x + rest(hidden)
        return total[:, 0]


class Differences(nn.Module):
    """The difference of two passes through one tower, whose last bias cancels out."""

    def __init__(self):
        super().__init__()
        self.tower = nn.Sequential(nn.Linear(INPUTS, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, x):
        return self.head(self.tower(x) - self.tower(x.flip(1)))[:, 0]


class DiscardedBranch(Stack):
    """no block's remainder is taken"""

    def passed(self, given, rest, forecast):
        return given, forecast


class DetachedRests(Stack):
    """what each block leaves is detached"""

    def passed(self, given, rest, forecast):
        return rest.detach(), forecast


class DetachedForecast(Stack):
    """the last forecast is detached"""

    def forward(self, x):
        for block in self.blocks[:-1]:
            x, forecast = block(x)
        return forecast[:, 0] + self.blocks[-1](x)[1].detach()[:, 0]


class LastBlockLeftOut(Stack):
    """the last block is called and its forecast forgotten"""

    def forward(self, x):
        total, forecast = torch.zeros(len(x), 1), torch.zeros(len(x), 1)
        for block in self.blocks:
            total = total + forecast
            x, forecast = block(x)
        return total[:, 0]


class BlocksBesideEachOther(Stack):
    """each block is given the input, and the last one's answer is taken"""

    def forward(self, x):
        for block in self.blocks:
            _, forecast = block(x)
        return forecast[:, 0]


class NeverCalled(Stack):
    """the blocks have a layer that is never called"""

    def __init__(self):
        super().__init__()
        for block in self.blocks:
            block.gate = nn.Linear(2, 2)


class LastLayerNeverCalled(Stack):
    """the last block's layer is not called"""

    def forward(self, x):
        total = torch.zeros(len(x), 1)
        for block in self.blocks[:-1]:
            x, forecast = block(x)
            total = total + forecast
        last = self.blocks[-1]
        return (total + last.fore(last.layer(x).relu()))[:, 0]


class MultipliedByZero(Stack):
    """a weight is multiplied by zero"""

    def __init__(self):
        super().__init__()
        self.gain, self.shift = nn.Parameter(torch.ones(1)), nn.Parameter(torch.ones(1))

    def forward(self, x):
        return super().forward(x) * self.gain + 0 * self.shift


class Rounded(Differences):
    """a layer is behind a step that has no gradient"""

    def forward(self, x):
        return self.head(self.tower[:2](x) + self.tower[2](x.round()[:, :1] * 9).round())[:, 0]

    def __init__(self):
        super().__init__()
        self.tower[2] = nn.Linear(1, WIDTH)


class MissingAssignment(nn.Module):
    """what a convolution gives is not kept"""

    def __init__(self):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv1d(1, 1, 3, padding=1), nn.Conv1d(1, 1, 3, padding=1)
        self.norm1, self.norm2 = nn.LayerNorm(INPUTS), nn.LayerNorm(INPUTS)
        self.head = nn.Linear(INPUTS, 1)

    def forward(self, x):
        x = self.norm1(self.conv1(x.unsqueeze(1)))
        self.conv2(x)
        return self.head(self.norm2(x))[:, 0, 0]


@pytest.fixture(scope="module")
def examine(tmp_path_factory):
    x, score = numbers_table(400)
    dataset = dataset_of(table_of(x, score), tmp_path_factory.mktemp("table"))
    training = TrainingSection(seed=1, steps=50, global_batch_size=64)

    def check(model_type):
        class Task(Numbers):
            def build_model(self):
                return model_type()

        make = partial(Task, Task.Options(), dataset.snapshot.task_columns)
        return check_parameter_gradients(Subject.prepare(make, dataset, SETTINGS, training))

    return check


@pytest.mark.parametrize(
    ("model_type", "names"),
    [(Stack, "blocks.2.back.weight, blocks.2.back.bias"), (Skips, "rests.2.weight, rests.2.bias")],
)
def test_unused_parts_of_the_last_equal_block_only_warn(examine, model_type, names):
    result = examine(model_type)
    assert result.outcome == "warned"
    assert names in result.measured
    assert "omit these layers" in result.hint


def test_a_bias_that_cancels_out_is_no_bug(examine):
    result = examine(Differences)
    assert (result.outcome, "tower.2.bias cancels out" in result.measured) == ("passed", True)


@pytest.mark.parametrize(
    "bug",
    [
        DiscardedBranch, DetachedRests, DetachedForecast, LastBlockLeftOut, BlocksBesideEachOther,
        NeverCalled, LastLayerNeverCalled, MultipliedByZero, Rounded, MissingAssignment,
    ],
    ids=lambda bug: bug.__doc__,
)  # fmt: skip
def test_every_other_silent_parameter_fails(examine, bug):
    result = examine(bug)
    assert result.outcome == "failed", result.measured
    assert "get no gradient" in result.measured
