"""FITS: the window's low frequencies through one complex linear layer, whose inverse transform is longer than the window.

data: tide_gauges

[data]
label = "ahead"
features = ["past"]
time = "issued"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.0 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

PAST, AHEAD, CUT = 96, 12, 40


class FITS(nn.Module):
    def __init__(self):
        super().__init__()
        self.ratio = (PAST + AHEAD) / PAST
        self.upsampler = nn.Linear(CUT, int(CUT * self.ratio)).to(torch.cfloat)

    def forward(self, past):
        mean = past.mean(dim=1, keepdim=True)
        spread = (past.var(dim=1, keepdim=True) + 1e-5).sqrt()
        low = torch.fft.rfft((past - mean) / spread, dim=1)[:, :CUT]
        wide = self.upsampler(low)
        whole = past.new_zeros(len(past), (PAST + AHEAD) // 2 + 1, dtype=wide.dtype)
        whole[:, : wide.shape[1]] = wide
        curve = torch.fft.irfft(whole, n=PAST + AHEAD, dim=1) * self.ratio
        return (curve * spread + mean)[:, -AHEAD:]


class Tides(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"rmse_cm": "minimize", "mae_cm": "minimize"}

    def fit(self, train):
        level = np.array(train.select("past").collect()["past"].to_list())
        self.fitted = {"mean": float(level.mean()), "std": float(level.std())}

    def scale(self, lists):
        return (torch.tensor(lists.to_list(), dtype=torch.float32) - self.fitted["mean"]) / self.fitted["std"]

    def encode(self, rows):
        batch = {"past": self.scale(rows["past"])}
        if "ahead" in rows.columns:
            batch[LABEL] = self.scale(rows["ahead"])
        return batch

    def build_model(self):
        return FITS()

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(dim=1)

    def predict(self, output):
        return output * self.fitted["std"] + self.fitted["mean"]

    def statistic(self, output, batch):
        error = (output - batch[LABEL]) * self.fitted["std"]
        return torch.stack([error.square().mean(1), error.abs().mean(1)], dim=1).double()

    def score(self, predictions, labels):
        square, absolute = np.average(predictions, axis=0, weights=labels)
        return {"rmse_cm": float(np.sqrt(square)), "mae_cm": float(absolute)}
