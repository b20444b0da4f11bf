"""Hardness of alloys from a ragged list of elements: weighted soft attention, a robust L1 loss.

data: alloy_hardness

[data]
label = "hardness_hv"
group = "paper"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 4e-3, weight_decay = 0.01 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, SYMBOLS = 0, "Al Co Cr Cu Fe Mn Mo Nb Ni Si Ti V W Zr".split()
Z = {s: i for i, s in enumerate(SYMBOLS, start=1)}
STATES = ["cast", "annealed", "aged", "sputtered"]
MAX_ELEMENTS = 8


class WeightedAttention(nn.Module):
    """Softmax whose terms are weighed by fractions: an element split in two changes nothing."""

    def __init__(self, dim):
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(dim, dim), nn.LeakyReLU(), nn.Linear(dim, 1))
        self.message = nn.Sequential(nn.Linear(dim, dim), nn.LeakyReLU(), nn.Linear(dim, dim))
        self.pow = nn.Parameter(torch.ones(()))

    def forward(self, x, weights, index):
        # x: (..., n, dim), weights: (..., n), zero where nothing is
        gate = self.gate(x).squeeze(-1)
        gate = gate - gate.masked_fill(~index, -1e9).amax(dim=-1, keepdim=True).detach()
        w = weights.clamp(min=1e-9) ** self.pow * gate.exp() * index
        w = w / (w.sum(dim=-1, keepdim=True) + 1e-10)
        return (w[..., None] * self.message(x)).sum(dim=-2)


class Roost(nn.Module):
    def __init__(self, dim=24):
        super().__init__()
        self.elem = nn.Embedding(len(SYMBOLS) + 1, dim - 1, padding_idx=PAD)
        self.pair = WeightedAttention(2 * dim)
        self.down = nn.Linear(2 * dim, dim)
        self.pool = WeightedAttention(dim)
        self.head = nn.Sequential(nn.Linear(dim + len(STATES) + 2, 48), nn.SiLU(), nn.Linear(48, 2))

    def forward(self, elements, fractions, process):
        present = elements != PAD
        x = torch.cat([self.elem(elements), fractions[..., None]], dim=-1)
        n = x.shape[1]
        both = torch.cat(
            [x[:, :, None].expand(-1, -1, n, -1), x[:, None].expand(-1, n, -1, -1)], dim=-1
        )
        around = fractions[:, None].expand(-1, n, -1)
        x = x + self.down(self.pair(both, around, present[:, None].expand(-1, n, -1)))
        crystal = self.pool(x, fractions, present)
        return self.head(torch.cat([crystal, process], dim=-1))


class AlloyHardness(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        log = train.select("hardness_hv").collect()["hardness_hv"].log()
        self.fitted = {"mean": log.mean(), "std": log.std()}

    def encode(self, rows):
        elements = torch.full((len(rows), MAX_ELEMENTS), PAD)
        fractions = torch.zeros(len(rows), MAX_ELEMENTS)
        for r, (names, amounts) in enumerate(rows.select("elements", "atomic_pct").iter_rows()):
            stated = sum(a for a in amounts if a is not None)
            parts = [100 - stated if a is None else a for a in amounts]  # "balance"
            elements[r, : len(names)] = torch.tensor([Z[s] for s in names])
            fractions[r, : len(names)] = torch.tensor(parts) / sum(parts)
        state = F.one_hot(torch.tensor([STATES.index(s) for s in rows["state"]]), len(STATES))
        heated = torch.tensor(rows["kelvin"].is_not_null().to_list()).float()
        kelvin = torch.tensor(rows["kelvin"].fill_null(900.0).to_list()) / 450 - 2
        batch = {
            "elements": elements,
            "fractions": fractions,
            "process": torch.cat([state, torch.stack([heated, kelvin], dim=1)], dim=1),
        }
        if "hardness_hv" in rows.columns:
            batch[LABEL] = torch.tensor(rows["hardness_hv"].to_list(), dtype=torch.float)
        return batch

    def build_model(self):
        return Roost()

    def losses(self, output, batch):
        """RobustL1: a Laplace distribution whose width is told by the network."""
        mean, log_std = output.unbind(dim=-1)
        target = (batch[LABEL].log() - self.fitted["mean"]) / self.fitted["std"]
        return math.sqrt(2) * (mean - target).abs() * (-log_std).exp() + log_std

    def predict(self, output):
        return (output[:, 0] * self.fitted["std"] + self.fitted["mean"]).exp()
