"""Query by humming: two small encoders, InfoNCE over the batch, in einsum.

data: hummed_songs

[data]
label = "melody"
features = ["hum", "melody"]
group = "song"
ids = ["row_id"]
meta = ["singer"]

[split]
method = "group"

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine" }
"""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import einsum, nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

FRAMES = 48
CANDIDATES = 32


def resampled(pitches):
    """FRAMES pitches relative to the median, whatever key and tempo."""
    x = np.array([np.nan if p is None else p for p in pitches], dtype=np.float64)
    known = np.flatnonzero(~np.isnan(x))
    if not len(known):
        return np.zeros(FRAMES, dtype=np.float32)
    x = np.interp(np.linspace(known[0], known[-1], FRAMES), known, x[known])
    return ((x - np.median(x)) / 6.0).astype(np.float32)


class Encoder(nn.Module):
    def __init__(self, width=48, out=32):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, width, 7, padding=3),
            nn.GELU(),
            nn.AvgPool1d(2),
            nn.Conv1d(width, width, 5, padding=2),
            nn.GELU(),
            nn.AvgPool1d(3),
        )
        self.proj = nn.Linear(width * FRAMES // 6, out)

    def forward(self, x):
        return F.normalize(self.proj(self.conv(x[:, None]).flatten(1)), dim=-1)


class DualEncoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.hum, self.melody = Encoder(), Encoder()
        self.log_temperature = nn.Parameter(torch.tensor(math.log(0.1)))

    def forward(self, hum, melody):
        h, m = self.hum(hum), self.melody(melody)
        scale = self.log_temperature.exp().clamp(min=0.02)
        return torch.stack([h / scale, m], dim=1)


class Hums(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    needs_whole_batch = True

    @property
    def scored_together(self):
        return CANDIDATES

    def encode(self, rows):
        hum = [resampled(h) for h in rows["hum"]]
        melody = [resampled(m) for m in rows["melody"]]
        return {
            "hum": torch.from_numpy(np.stack(hum)),
            "melody": torch.from_numpy(np.stack(melody)),
            LABEL: torch.zeros(rows.height, dtype=torch.int64),  # its own melody is right
        }

    def augment(self, batch, generator):
        hum = batch["hum"]
        drift = torch.linspace(-1, 1, FRAMES) * 0.1
        hum = hum + drift * torch.randn(len(hum), 1, generator=generator)
        return {**batch, "hum": hum + 0.03 * torch.randn(hum.shape, generator=generator)}

    def build_model(self):
        return DualEncoder()

    def scores(self, output, melody):
        logits = einsum("i d, j d -> i j", output[:, 0], output[:, 1])
        same = (melody[:, None] == melody[None]).all(dim=-1)
        same.fill_diagonal_(False)  # other hums of one song are no negatives
        return logits.masked_fill(same, -torch.inf)

    def training_losses(self, output, batch):
        logits = self.scores(output, batch["melody"])
        right = torch.arange(len(logits), device=logits.device)
        to_melody = F.cross_entropy(logits, right, reduction="none")
        to_hum = F.cross_entropy(logits.T, right, reduction="none")
        return (to_melody + to_hum) / 2

    def losses(self, output, batch):
        groups = zip(output.split(CANDIDATES), batch["melody"].split(CANDIDATES), strict=True)
        return torch.cat([self.training_losses(o, {"melody": m}) for o, m in groups])

    def statistic(self, output, batch):
        found = []
        for o, m in zip(output.split(CANDIDATES), batch["melody"].split(CANDIDATES), strict=True):
            scores = self.scores(o, m)
            own = scores.diagonal()[:, None]
            found.append(torch.stack([(scores > own).sum(1), (scores == own).sum(1)], dim=1))
        return torch.cat(found).double()
