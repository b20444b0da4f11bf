"""Flow of rivers from a month of rain and warmth: an LSTM whose input gate is the basin, errors divided by each basin's spread.

data: rivers

[data]
label = "flow"
features = ["basin", "rain", "warmth", "area", "slope", "clay"]
time = "day"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

DAYS = 31


class EALSTM(nn.Module):
    def __init__(self, n_dynamic=3, n_static=3, hidden=32, initial_forget_bias=3.0):
        super().__init__()
        self.hidden = hidden
        self.static_gate = nn.Linear(n_static, hidden)
        self.dynamic = nn.Linear(n_dynamic, 3 * hidden)
        self.recurrent = nn.Linear(hidden, 3 * hidden, bias=False)
        nn.init.orthogonal_(self.recurrent.weight)
        with torch.no_grad():
            self.dynamic.bias[:hidden] = initial_forget_bias
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(hidden, 1)

    def forward(self, weather, basin):
        i = torch.sigmoid(self.static_gate(basin))
        h = c = weather.new_zeros(len(weather), self.hidden)
        for t in range(weather.shape[1]):
            f, o, g = (self.dynamic(weather[:, t]) + self.recurrent(h)).chunk(3, dim=-1)
            c = torch.sigmoid(f) * c + i * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.head(self.dropout(h)).squeeze(-1)


class Rivers(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"nse": "maximize", "scaled_mae": "minimize"}

    def fit(self, train):
        df = train.collect()
        rain = np.array(df["rain"].to_list(), dtype=float)
        warmth = np.array(df["warmth"].to_list(), dtype=float)
        static = self.static(df)
        per_basin = df.with_columns(specific=pl.col("flow") / pl.col("area")).group_by("basin").agg(
            pl.col("specific").mean().alias("m"), pl.col("specific").std().alias("s")
        ).sort("basin")
        flow = df["flow"].to_numpy() / df["area"].to_numpy()
        self.fitted = {
            "rain": float(np.nanstd(rain)),
            "warmth": [float(warmth.mean()), float(warmth.std())],
            "static": [static.mean(0).tolist(), static.std(0).tolist()],
            "flow": [float(flow.mean()), float(flow.std())],
            "spread": {b: [m, s] for b, m, s in per_basin.iter_rows()},
        }

    @staticmethod
    def static(df):
        return np.stack([np.log(df["area"].to_numpy()), df["slope"].to_numpy(), df["clay"].to_numpy()], axis=1)

    def encode(self, rows):
        f = self.fitted
        rain = np.array(rows["rain"].to_list(), dtype=float)
        warmth = np.array(rows["warmth"].to_list(), dtype=float)
        broken = np.isnan(rain)
        weather = np.stack(
            [np.where(broken, 0, rain) / f["rain"], (warmth - f["warmth"][0]) / f["warmth"][1], broken], axis=2
        )
        mean, std = map(np.array, f["static"])
        batch = {
            "weather": torch.tensor(weather, dtype=torch.float32),
            "basin": torch.tensor((self.static(rows) - mean) / std, dtype=torch.float32),
        }
        if "flow" in rows.columns:
            known = [f["spread"].get(b, f["flow"]) for b in rows["basin"]]
            specific = rows["flow"].to_numpy() / rows["area"].to_numpy()
            y = (specific - f["flow"][0]) / f["flow"][1]
            # beside the target: mean and spread of its basin, in the same unit
            beside = np.array([((m - f["flow"][0]) / f["flow"][1], s / f["flow"][1]) for m, s in known])
            batch[LABEL] = torch.tensor(np.column_stack([y, beside]), dtype=torch.float32)
        return batch

    def build_model(self):
        return EALSTM()

    def losses(self, output, batch):
        y, _, spread = batch[LABEL].unbind(1)
        return (output - y).square() / (spread + 0.1).square()

    def predict(self, output):
        """In cubic metres a second for each square kilometre."""
        return output * self.fitted["flow"][1] + self.fitted["flow"][0]

    def statistic(self, output, batch):
        y, mean, spread = batch[LABEL].unbind(1)
        error, around = (output - y) / spread, (y - mean) / spread
        return torch.stack([error.square(), around.square(), error.abs()], 1).double()

    def score(self, predictions, labels):
        error, around, absolute = np.average(predictions, axis=0, weights=labels)
        return {"nse": float(1 - error / around), "scaled_mae": float(absolute)}
