"""Rides of the next week at each dock: a small temporal fusion transformer, three quantiles a day.

data: bike_docks

[data]
label = "next_week"
time = "day"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

PAST, AHEAD, D = 28, 7, 24
QUANTILES = (0.1, 0.5, 0.9)


class GatedResidualNetwork(nn.Module):
    def __init__(self, d_in, d_out=D, d_context=None):
        super().__init__()
        self.skip = nn.Linear(d_in, d_out) if d_in != d_out else nn.Identity()
        self.fc1 = nn.Linear(d_in, D)
        self.context = nn.Linear(d_context, D, bias=False) if d_context else None
        self.fc2 = nn.Linear(D, 2 * d_out)
        self.norm = nn.LayerNorm(d_out)

    def forward(self, x, context=None):
        h = self.fc1(x)
        if context is not None:
            h = h + self.context(context)
        return self.norm(self.skip(x) + F.glu(self.fc2(F.elu(h)), dim=-1))


class VariableSelection(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.embed = nn.ModuleList([nn.Linear(1, D) for _ in range(n)])
        self.single = nn.ModuleList([GatedResidualNetwork(D) for _ in range(n)])
        self.weights = GatedResidualNetwork(n * D, n, D)

    def forward(self, x, static):
        embedded = [e(x[..., i : i + 1]) for i, e in enumerate(self.embed)]
        weights = self.weights(torch.cat(embedded, dim=-1), static[:, None]).softmax(dim=-1)
        each = torch.stack([g(e) for g, e in zip(self.single, embedded)], dim=-1)
        return (each * weights.unsqueeze(-2)).sum(dim=-1)


class TFT(nn.Module):
    def __init__(self, n_docks):
        super().__init__()
        self.static = nn.Embedding(n_docks, D)
        self.past_selection = VariableSelection(2)
        self.future_selection = VariableSelection(5)
        self.init_h, self.init_c = nn.Linear(D, D), nn.Linear(D, D)
        self.encoder = nn.LSTM(D, D, batch_first=True)
        self.decoder = nn.LSTM(D, D, batch_first=True)
        self.enrich = GatedResidualNetwork(D, D, D)
        self.attention = nn.MultiheadAttention(D, 2, dropout=0.1, batch_first=True)
        self.post = GatedResidualNetwork(D)
        self.out = nn.Linear(D, len(QUANTILES))

    def forward(self, past, future, dock):
        static = self.static(dock)
        p, f = self.past_selection(past, static), self.future_selection(future, static)
        state = (self.init_h(static)[None], self.init_c(static)[None])
        encoded, state = self.encoder(p, state)
        decoded, _ = self.decoder(f, state)
        h = self.enrich(torch.cat([encoded, decoded], dim=1), static[:, None])
        steps = torch.arange(PAST + AHEAD)
        hidden = steps[None, :] > steps[PAST:, None]
        attended, _ = self.attention(h[:, PAST:], h, h, attn_mask=hidden, need_weights=False)
        return self.out(self.post(attended + decoded))


class DockRides(Task):
    kind = "statistic"
    metrics = {"pinball": "minimize", "coverage_gap": "minimize"}
    serves_predictions = True

    def arrays(self, rows, names):
        return np.stack([np.array(rows[n].to_list(), dtype=float) for n in names], axis=2)

    def fit(self, train):
        df = train.collect()
        rides = np.log1p(self.arrays(df, ["rides"]))
        warmth = self.arrays(df, ["temperature"])
        self.fitted = {
            "docks": sorted(df["dock"].unique().to_list()),
            "rides": [float(rides.mean()), float(rides.std())],
            "warmth": [float(warmth.mean()), float(warmth.std())],
        }

    def encode(self, rows):
        (r_mean, r_std), (w_mean, w_std) = self.fitted["rides"], self.fitted["warmth"]
        past = self.arrays(rows, ["rides", "temperature"])
        past = np.stack([(np.log1p(past[..., 0]) - r_mean) / r_std, (past[..., 1] - w_mean) / w_std], axis=2)
        known = self.arrays(rows, ["forecast", "rain", "holiday", "weekday"])
        turn = 2 * np.pi * known[..., 3] / 7
        future = np.stack(
            [(known[..., 0] - w_mean) / w_std, known[..., 1], known[..., 2], np.sin(turn), np.cos(turn)], axis=2
        )
        docks = {d: i for i, d in enumerate(self.fitted["docks"], start=1)}
        batch = {
            "past": torch.tensor(past, dtype=torch.float32),
            "future": torch.tensor(future, dtype=torch.float32),
            "dock": torch.tensor([docks.get(d, 0) for d in rows["dock"]]),
        }
        if "next_week" in rows.columns:
            ahead = np.log1p(np.array(rows["next_week"].to_list(), dtype=float))
            batch[LABEL] = torch.tensor((ahead - r_mean) / r_std, dtype=torch.float32)
        return batch

    def build_model(self):
        return TFT(len(self.fitted["docks"]) + 1)

    def losses(self, output, batch):
        error = batch[LABEL][..., None] - output
        q = torch.tensor(QUANTILES)
        return torch.maximum(q * error, (q - 1) * error).sum(dim=-1).mean(dim=1)

    def predict(self, output):
        mean, std = self.fitted["rides"]
        return torch.expm1(output * std + mean).flatten(1)

    @property
    def prediction_names(self):
        return tuple(f"day_{d + 1}_q{round(100 * q)}" for d in range(AHEAD) for q in QUANTILES)

    def statistic(self, output, batch):
        inside = (batch[LABEL] >= output[..., 0]) & (batch[LABEL] <= output[..., 2])
        return torch.stack([self.losses(output, batch), inside.float().mean(dim=1)], dim=1)

    def score(self, predictions, labels):
        pinball, covered = np.average(predictions, axis=0, weights=labels)
        return {"pinball": float(pinball), "coverage_gap": float(abs(covered - 0.8))}
