"""Arrivals of P and S in seismograms of three components: a small PhaseNet with Gaussian targets.

data: quake_windows

[data]
label = "arrivals"
features = ["east", "north", "up"]
group = "event"
ids = ["row_id"]
meta = ["station", "network"]

[split]
method = "group"

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 5e-3, weight_decay = 1e-3 }
schedule = { shape = "cosine" }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

LENGTH = 256
SIGMA = 4.0  # samples
TOLERANCE = 6  # samples, 0.12 s
THRESHOLD = 0.3


class Down(nn.Sequential):
    def __init__(self, i, o, stride):
        super().__init__(
            nn.Conv1d(i, o, 7, stride=stride, padding=3, bias=False), nn.BatchNorm1d(o), nn.ReLU()
        )


class Up(nn.Module):
    def __init__(self, i, skip, o):
        super().__init__()
        self.up = nn.ConvTranspose1d(i, o, 4, stride=4)
        self.conv = nn.Sequential(
            nn.Conv1d(o + skip, o, 7, padding=3, bias=False), nn.BatchNorm1d(o), nn.ReLU()
        )

    def forward(self, x, skip):
        return self.conv(torch.cat([self.up(x), skip], dim=1))


class PhaseNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.inc = Down(3, 12, 1)
        self.down1, self.down2, self.down3 = Down(12, 16, 4), Down(16, 24, 4), Down(24, 32, 4)
        self.up3, self.up2, self.up1 = Up(32, 24, 24), Up(24, 16, 16), Up(16, 12, 12)
        self.out = nn.Conv1d(12, 3, 1)  # P, S, noise

    def forward(self, waveform):
        a = self.inc(waveform)
        b = self.down1(a)
        c = self.down2(b)
        x = self.up3(self.down3(c), c)
        return self.out(self.up1(self.up2(x, b), a))


def gaussian_targets(arrivals):
    """[B, 3, LENGTH]: bumps at P and S, and what is left as noise."""
    time = torch.arange(LENGTH, device=arrivals.device)
    bumps = torch.exp(-((time - arrivals[..., None]) ** 2) / (2 * SIGMA**2))
    bumps = bumps * (arrivals >= 0)[..., None]
    both = bumps.sum(1, keepdim=True)
    bumps = bumps / both.clamp(min=1)  # where P and S overlap
    return torch.cat([bumps, 1 - bumps.sum(1, keepdim=True)], dim=1)


class Quakes(Task):
    kind = "statistic"
    metrics = {"f1_s": "maximize", "f1_p": "maximize", "nll": "minimize"}
    serves_predictions = True

    def encode(self, rows):
        names = ("east", "north", "up")
        parts = [np.array(rows[name].to_list(), dtype=np.float32) for name in names]
        wave = np.stack(parts, 1).reshape(-1, 3, LENGTH)
        wave = wave - wave.mean(2, keepdims=True)
        wave = wave / (wave.std(axis=(1, 2), keepdims=True) + 1e-6)
        batch = {"waveform": torch.from_numpy(wave)}
        if "arrivals" in rows.columns:
            batch[LABEL] = torch.tensor(rows["arrivals"].to_list()).view(-1, 2)
        return batch

    def augment(self, batch, generator):
        """Windows that begin up to a second later or earlier; an arrival may leave them."""
        wave, arrivals = batch["waveform"], batch[LABEL]
        shift = torch.randint(-50, 51, (len(wave), 1), generator=generator)
        place = torch.arange(LENGTH) - shift
        there = (place >= 0) & (place < LENGTH)
        place = place.clamp(0, LENGTH - 1)[:, None].expand_as(wave)
        wave = wave.gather(2, place) * there[:, None]
        moved = arrivals + shift
        inside = (arrivals >= 0) & (moved >= 0) & (moved < LENGTH)
        return {**batch, "waveform": wave, LABEL: torch.where(inside, moved, -1)}

    def build_model(self):
        return PhaseNet()

    def losses(self, output, batch):
        target = gaussian_targets(batch[LABEL])
        return -(target * F.log_softmax(output, dim=1)).sum(1).mean(1) * 10

    def predict(self, output):
        """Samples of P and S, -1 where neither is likely."""
        top, at = output.softmax(dim=1)[:, :2].max(dim=2)
        return torch.where(top > THRESHOLD, at, -1)

    def statistic(self, output, batch):
        said, true = self.predict(output), batch[LABEL]
        hit = (said >= 0) & (true >= 0) & ((said - true).abs() <= TOLERANCE)
        counts = torch.cat([hit, said >= 0, true >= 0], dim=1).double()
        return torch.cat([counts, self.losses(output, batch).double()[:, None]], dim=1)

    def score(self, predictions, labels):
        hit_p, hit_s, said_p, said_s, true_p, true_s, loss = predictions.sum(0)
        return {
            "f1_s": float(2 * hit_s / max(said_s + true_s, 1)),
            "f1_p": float(2 * hit_p / max(said_p + true_p, 1)),
            "nll": float(loss / len(predictions)),
        }
