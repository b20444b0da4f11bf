"""The same bird call at two microphones: one encoder, SimCLR's NT-Xent over both, calls shifted and dulled while training.

data: paired_microphones

[data]
label = "far"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GROUP = 32
TAU = 0.2


class CallEncoder(nn.Module):
    def __init__(self, c=24, out=24):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, c, 9, stride=2, padding=4), nn.GroupNorm(4, c), nn.SiLU(),
            nn.Conv1d(c, 2 * c, 5, stride=2, padding=2), nn.GroupNorm(4, 2 * c), nn.SiLU(),
            nn.Conv1d(2 * c, 2 * c, 3, padding=1), nn.SiLU(),
        )
        self.projector = nn.Sequential(nn.Linear(4 * c, 64), nn.ReLU(), nn.Linear(64, out))

    def embed(self, wave):
        h = self.body(wave.unsqueeze(1))
        return F.normalize(self.projector(torch.cat([h.mean(2), h.amax(2)], 1)), dim=1)

    def forward(self, near, far=None):
        a = self.embed(near)
        return torch.stack([a, torch.zeros_like(a) if far is None else self.embed(far)], dim=1)


def nt_xent(views):  # (N, 2, D)
    n = len(views)
    z = torch.cat([views[:, 0], views[:, 1]])
    sim = z @ z.T / TAU
    sim.fill_diagonal_(float("-inf"))
    other = torch.arange(2 * n, device=z.device).roll(n)
    loss = F.cross_entropy(sim, other, reduction="none")
    return (loss[:n] + loss[n:]) / 2


class CallSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    serves_predictions = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    scored_together = GROUP
    scoring_rows = 16 * GROUP

    def wave(self, column):
        x = torch.tensor(column.to_list(), dtype=torch.float32)
        return x / x.square().mean(dim=1, keepdim=True).sqrt()

    def encode(self, rows):
        batch = {"near": self.wave(rows["near"])}
        if "far" in rows.columns:
            batch["far"] = self.wave(rows["far"])
            batch[LABEL] = torch.zeros(len(rows))  # the pair is the label
        return batch

    def augment(self, batch, generator):
        changed = dict(batch)
        for name in ("near", "far"):
            x = batch[name]
            by = int(torch.randint(-4, 5, (1,), generator=generator))
            gain = 1 + 0.1 * torch.randn(len(x), 1, generator=generator)
            changed[name] = x.roll(by, dims=1) * gain + 0.05 * torch.randn(x.shape, generator=generator)
        return changed

    def build_model(self):
        return CallEncoder()

    def training_losses(self, output, batch):
        return nt_xent(output)

    def losses(self, output, batch):
        return torch.cat([nt_xent(part) for part in output.split(GROUP)])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        found = []
        for part in output.split(GROUP):
            s = part[:, 0] @ part[:, 1].T
            own = s.diagonal()[:, None]
            found.append(torch.stack([(s > own).sum(1), (s == own).sum(1)], dim=1))
        return torch.cat(found).double()
