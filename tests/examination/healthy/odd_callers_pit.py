"""Two callers pulled apart: Conv-TasNet in small (learned filters, dilated blocks, two masks)
under permutation invariant training, the loss is the negative SI-SNR of the better assignment.

data: overlapping_callers

[data]
label = "sources"
features = ["mixture"]
meta = ["line"]
ids = ["row_id"]

[training]
steps = 550
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3, weight_decay = 0.0 }
"""
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

EPS = 1e-8


def si_snr(estimate, reference):
    """Decibels, scale-invariant, over the last dimension."""
    estimate = estimate - estimate.mean(-1, keepdim=True)
    reference = reference - reference.mean(-1, keepdim=True)
    energy = reference.pow(2).sum(-1, keepdim=True) + EPS
    projected = (estimate * reference).sum(-1, keepdim=True) * reference / energy
    noise = estimate - projected
    ratio = projected.pow(2).sum(-1) / (noise.pow(2).sum(-1) + EPS)
    return 10 * torch.log10(ratio + EPS)


def pit(estimate, reference):
    straight = si_snr(estimate, reference).mean(-1)
    crossed = si_snr(estimate, reference.flip(1)).mean(-1)
    return torch.maximum(straight, crossed)


class GlobalLayerNorm(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.gamma = nn.Parameter(torch.ones(1, channels, 1))
        self.beta = nn.Parameter(torch.zeros(1, channels, 1))

    def forward(self, y):
        mean = y.mean(dim=(1, 2), keepdim=True)
        var = (y - mean).pow(2).mean(dim=(1, 2), keepdim=True)
        return self.gamma * (y - mean) / (var + EPS).sqrt() + self.beta


class TemporalBlock(nn.Module):
    def __init__(self, b, h, dilation):
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(b, h, 1), nn.PReLU(), GlobalLayerNorm(h),
            nn.Conv1d(h, h, 3, padding=dilation, dilation=dilation, groups=h),
            nn.PReLU(), GlobalLayerNorm(h),
            nn.Conv1d(h, b, 1),
        )  # fmt: skip

    def forward(self, x):
        return x + self.net(x)


class ConvTasNet(nn.Module):
    def __init__(self, n=64, kernel=40, b=32, h=48, c=2):
        super().__init__()
        self.c = c
        self.encoder = nn.Conv1d(1, n, kernel, stride=kernel // 4, padding=kernel // 2, bias=False)
        self.bottleneck = nn.Sequential(GlobalLayerNorm(n), nn.Conv1d(n, b, 1))
        self.tcn = nn.Sequential(*[TemporalBlock(b, h, 2**i) for i in (0, 1, 2, 3, 0, 1, 2)])
        self.masks = nn.Conv1d(b, c * n, 1)
        self.decoder = nn.ConvTranspose1d(
            n, 1, kernel, kernel // 4, padding=kernel // 2, bias=False
        )

    def forward(self, mixture):
        w = self.encoder(mixture.unsqueeze(1))
        m = self.masks(self.tcn(self.bottleneck(w.abs())))
        m = m.view(len(m), self.c, -1, m.shape[-1]).sigmoid()
        parts = (w.unsqueeze(1) * m).flatten(0, 1)
        return self.decoder(parts).view(len(mixture), self.c, -1)


class Callers(Task):
    kind = "statistic"
    metrics = {"si_snri": "maximize", "si_snr": "maximize"}
    serves_predictions = True
    scoring_rows = 256

    def encode(self, rows):
        batch = {"mixture": torch.tensor(rows["mixture"].to_list(), dtype=torch.float32)}
        if "sources" in rows.columns:
            batch[LABEL] = torch.tensor(rows["sources"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        # louder, softer, upside down: mixture and sources alike
        n = len(batch["mixture"])
        gain = torch.empty(n, 1).uniform_(0.5, 2.0, generator=generator)
        gain = gain * (torch.rand(n, 1, generator=generator) < 0.5).float().mul(2).sub(1)
        return {"mixture": batch["mixture"] * gain, LABEL: batch[LABEL] * gain.unsqueeze(1)}

    def build_model(self):
        return ConvTasNet()

    def losses(self, output, batch):
        return -pit(output, batch[LABEL])

    def statistic(self, output, batch):
        reached = pit(output, batch[LABEL])
        # the sum of both sources stands for the mixture, from which it differs by a hiss
        both = batch[LABEL].sum(1, keepdim=True).expand_as(batch[LABEL])
        before = si_snr(both, batch[LABEL]).mean(-1)
        return torch.stack([reached - before, reached], 1).double()

    def predict(self, output):
        return output.flatten(1)

    def score(self, predictions, labels):
        gained, reached = predictions.mean(0)
        return {"si_snri": float(gained), "si_snr": float(reached)}
