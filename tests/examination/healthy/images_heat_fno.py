"""Heat on a plate by a Fourier neural operator: complex weights on the lowest modes, the relative L2 error.

data: heated_plates

[data]
label = "temperature"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3, weight_decay = 1e-4 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

N, MODES = 16, 5


class SpectralConv2d(nn.Module):
    def __init__(self, c):
        super().__init__()
        scale = 1 / (c * c)
        self.w1 = nn.Parameter(scale * torch.rand(c, c, MODES, MODES, dtype=torch.cfloat))
        self.w2 = nn.Parameter(scale * torch.rand(c, c, MODES, MODES, dtype=torch.cfloat))

    def forward(self, x):
        xf = torch.fft.rfft2(x)
        out = torch.zeros_like(xf)
        out[:, :, :MODES, :MODES] = torch.einsum("bixy,ioxy->boxy", xf[:, :, :MODES, :MODES], self.w1)
        out[:, :, -MODES:, :MODES] = torch.einsum("bixy,ioxy->boxy", xf[:, :, -MODES:, :MODES], self.w2)
        return torch.fft.irfft2(out, s=x.shape[-2:])


class FNO(nn.Module):
    def __init__(self, width=16, depth=3, pad=4):
        super().__init__()
        self.pad = pad
        self.lift = nn.Conv2d(3, width, 1)
        self.spectral = nn.ModuleList(SpectralConv2d(width) for _ in range(depth))
        self.pointwise = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(depth))
        self.project = nn.Sequential(nn.Conv2d(width, 32, 1), nn.GELU(), nn.Conv2d(32, 1, 1))
        line = torch.linspace(0, 1, N)
        self.register_buffer("grid", torch.stack(torch.meshgrid(line, line, indexing="ij")))

    def forward(self, source):
        grid = self.grid.expand(len(source), -1, -1, -1)
        x = self.lift(torch.cat([source.unsqueeze(1), grid], dim=1))
        x = F.pad(x, (0, self.pad, 0, self.pad))  # the edges are not periodic
        for spectral, pointwise in zip(self.spectral, self.pointwise):
            x = F.gelu(spectral(x) + pointwise(x))
        return self.project(x[..., :N, :N]).squeeze(1)


class HeatOperator(Task):
    kind = "statistic"
    metrics = {"relative_l2": "minimize"}

    def fit(self, train):
        df = train.collect()
        self.fitted = {name: float(np.array(df[name].to_list()).std()) for name in ("source", "temperature")}

    def field(self, rows, name):
        x = torch.tensor(rows[name].to_list(), dtype=torch.float32) / self.fitted[name]
        return x.view(-1, N, N)

    def encode(self, rows):
        batch = {"source": self.field(rows, "source")}
        if "temperature" in rows.columns:
            batch[LABEL] = self.field(rows, "temperature")
        return batch

    def augment(self, batch, generator):
        if torch.rand((), generator=generator) < 0.5:
            return {**batch, "source": batch["source"].mT, LABEL: batch[LABEL].mT}
        return batch

    def build_model(self):
        return FNO()

    def losses(self, output, batch):
        error = (output - batch[LABEL]).flatten(1).norm(dim=1)
        return error / batch[LABEL].flatten(1).norm(dim=1).clamp(min=1e-3)

    def score(self, predictions, labels):
        return {"relative_l2": float(np.average(predictions.ravel(), weights=labels))}
