"""Healthy models whose tensors are unlike most: no gradient, single numbers, large integers."""

import torch
from torch import nn

from tiny_training import FEATURES, TinyOptions, TinyTask, tiny_job

WIDTH = 8


class Backcast(nn.Module):
    """A block of N-BEATS: what it explains of its input, and what it forecasts."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(FEATURES, WIDTH)
        self.back = nn.Linear(WIDTH, FEATURES)
        self.fore = nn.Linear(WIDTH, 1)

    def forward(self, x):
        hidden = self.layer(x).relu()
        return x - self.back(hidden), self.fore(hidden)


class Residual(nn.Module):
    """Blocks that hand on what they leave; nobody takes what the last one leaves."""

    def __init__(self, uses_scalars):
        super().__init__()
        self.blocks = nn.ModuleList([Backcast() for _ in range(2)])
        self.temperature = nn.Parameter(torch.tensor(0.5)) if uses_scalars else None
        self.offset = nn.Parameter(torch.tensor(0.1)) if uses_scalars else None
        # As of hashes: they have more bits than float64, and must stay odd.
        self.register_buffer("multipliers", torch.tensor([2**61 + 1, 1 - 2**62, -1, 3]))

    def forward(self, x):
        total = torch.zeros(len(x), 1, device=x.device)
        for block in self.blocks:
            x, forecast = block(x)
            total = total + forecast
        if self.temperature is not None:
            total = total * self.temperature.exp() + self.offset
        return total


class OddOptions(TinyOptions):
    scalars: bool = False
    """Whether the model has a temperature and an offset without dimensions."""


class OddTask(TinyTask):
    """Regression by a residual stack."""

    Options = OddOptions

    def build_model(self):
        return Residual(self.options.scalars)

    def blocks(self, model):
        return list(model.blocks)


IDLE = ("blocks.1.back.weight", "blocks.1.back.bias")


def odd_job(root, *, scalars=False, **settings):
    """A job of this task, as `tiny_job` makes one."""
    options = OddOptions(scalars=scalars)
    job = tiny_job(root, options=options, **settings)
    model = job.model.model_copy(update={"task": "odd_parameters:OddTask"})
    return job.model_copy(update={"model": model})


def with_fault(job, fault, call):
    """The same training, in which something happens at a forward pass."""
    options = job.model.options | {"fault": fault, "fault_call": call}
    return job.model_copy(update={"model": job.model.model_copy(update={"options": options})})
