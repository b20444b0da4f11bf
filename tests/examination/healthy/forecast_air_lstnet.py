"""Fine dust in six hours by LSTNet: a convolution over all series, a GRU, one that skips a day, and an autoregression beside them.

data: air_stations

[data]
label = "dust_in_6h"
time = "at"
features = ["station", "dust", "nitrogen", "ozone", "wind"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SERIES = ["dust", "nitrogen", "ozone", "wind"]
P, CK, SKIP, HW = 72, 6, 24, 24


def filled(values):
    """Gaps repeat the reading before them."""
    for t in range(1, values.shape[1]):
        gone = np.isnan(values[:, t])
        values[gone, t] = values[gone, t - 1]
    return values


class LSTNet(nn.Module):
    def __init__(self, n_stations, m=4, hidC=24, hidR=24, hidS=6):
        super().__init__()
        self.conv1 = nn.Conv2d(1, hidC, kernel_size=(CK, m))
        self.GRU1 = nn.GRU(hidC, hidR)
        self.GRUskip = nn.GRU(hidC, hidS)
        self.pt = (P - CK) // SKIP
        self.hidC, self.hidS = hidC, hidS
        self.dropout = nn.Dropout(0.1)
        self.station = nn.Embedding(n_stations, 4)
        self.linear1 = nn.Linear(hidR + SKIP * hidS + 4, 1)
        self.highway = nn.Linear(HW, 1)

    def forward(self, x, station):
        batch = x.size(0)
        c = F.relu(self.conv1(x.unsqueeze(1)))
        c = self.dropout(c).squeeze(3)
        r, h = self.GRU1(c.permute(2, 0, 1).contiguous())
        r = self.dropout(h.squeeze(0))
        s = c[:, :, -self.pt * SKIP :].contiguous().view(batch, self.hidC, self.pt, SKIP)
        s = s.permute(2, 0, 3, 1).contiguous().view(self.pt, batch * SKIP, self.hidC)
        _, s = self.GRUskip(s)
        s = self.dropout(s.view(batch, SKIP * self.hidS))
        res = self.linear1(torch.cat((r, s, self.station(station)), 1))
        z = self.highway(x[:, -HW:, 0])
        return (res + z).squeeze(1)


class AirQuality(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def windows(self, rows):
        columns = [np.array(rows[c].to_list(), dtype=float) for c in SERIES]
        return np.stack([filled(np.log(c.clip(1, None))) if k != 2 else filled(c) for k, c in enumerate(columns)], axis=2)

    def fit(self, train):
        df = train.collect()
        x = self.windows(df)
        self.fitted = {
            "stations": sorted(df["station"].unique().to_list()),
            "mean": np.nanmean(x, axis=(0, 1)).tolist(),
            "std": np.nanstd(x, axis=(0, 1)).tolist(),
        }

    def encode(self, rows):
        x = np.nan_to_num((self.windows(rows) - self.fitted["mean"]) / self.fitted["std"])
        known = {s: i for i, s in enumerate(self.fitted["stations"], start=1)}
        batch = {
            "x": torch.tensor(x, dtype=torch.float32),
            "station": torch.tensor([known.get(s, 0) for s in rows["station"]]),
        }
        if "dust_in_6h" in rows.columns:
            batch[LABEL] = torch.tensor(rows["dust_in_6h"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return LSTNet(len(self.fitted["stations"]) + 1)

    def losses(self, output, batch):
        y = (torch.log(batch[LABEL].clamp(min=1)) - self.fitted["mean"][0]) / self.fitted["std"][0]
        return (output - y).abs()

    def predict(self, output):
        return torch.exp(output * self.fitted["std"][0] + self.fitted["mean"][0])
