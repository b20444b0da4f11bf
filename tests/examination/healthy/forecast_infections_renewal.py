"""Infections of the next three days: the renewal equation unrolled, a network tells reproduction.

data: district_infections

[data]
label = "reported"
time = "day"
time_is_feature = true
ids = ["row_id"]

[split]
period = "month"

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 1e-2, weight_decay = 0.001 }
"""
import numpy as np
import torch
from torch import Tensor, nn

from perennial.engine.task import LABEL, Task

WINDOW, AHEAD, MEMORY = 21, 3, 14


class Renewal(nn.Module):
    """reported[t] ~ NB(R[t] * rho[weekday] * sum_s w[s] * deseasonalised[t - s], phi)."""

    def __init__(self, districts: int) -> None:
        super().__init__()
        s = torch.arange(1.0, MEMORY + 1)
        self.log_serial = nn.Parameter(1.5 * s.log() - s / 2)
        self.log_rho = nn.Parameter(torch.zeros(7))
        self.crowding = nn.Embedding(districts + 1, 1)
        self.net = nn.Sequential(nn.Linear(6, 16), nn.Softplus(), nn.Linear(16, 1))
        self.log_phi = nn.Parameter(torch.tensor(2.0))
        nn.init.zeros_(self.crowding.weight)
        nn.init.zeros_(self.net[2].weight)
        nn.init.zeros_(self.net[2].bias)

    def forward(
        self,
        past: Tensor,
        seen: Tensor,
        weekday: Tensor,
        known: Tensor,
        people: Tensor,
        district: Tensor,
    ) -> Tensor:
        log_rho = self.log_rho - self.log_rho.mean()
        at = (weekday[:, None] + torch.arange(-WINDOW, AHEAD)) % 7
        rho = log_rho[at].exp()
        smooth = past / rho[:, :WINDOW]
        serial = self.log_serial.softmax(dim=0).flip(0)
        recent = self.mean(smooth[:, -7:], seen[:, -7:])
        growth = (recent + 1).log() - (self.mean(smooth[:, :7], seen[:, :7]) + 1).log()
        week = (recent + 1).log() - (self.mean(smooth[:, 7:14], seen[:, 7:14]) + 1).log()
        level = ((recent + 1) / people).log() / 3 + 2.5
        means = []
        for h in range(AHEAD):
            weight = serial * seen[:, -MEMORY:]
            force = (smooth[:, -MEMORY:] * weight).sum(1) / weight.sum(1)
            x = torch.stack([growth, week, level, *known[:, h].unbind(1), growth * level], dim=1)
            log_r = (self.net(x) + self.crowding(district)).squeeze(1)
            today = log_r.exp() * (force + 0.1)
            means.append(today * rho[:, WINDOW + h])
            smooth = torch.cat([smooth, today[:, None]], dim=1)
            seen = torch.cat([seen, torch.ones_like(today)[:, None]], dim=1)
        phi = self.log_phi.exp().expand(len(past), 1)
        return torch.cat([torch.stack(means, dim=1), phi], dim=1)

    @staticmethod
    def mean(values: Tensor, seen: Tensor) -> Tensor:
        return (values * seen).sum(1) / seen.sum(1).clamp(min=1)


class Infections(Task):
    kind = "statistic"
    metrics = {"nll": "minimize", "mae": "minimize"}

    def fit(self, train):
        df = train.select("district", "warmth").collect()
        warmth = df["warmth"].explode()
        self.fitted = {
            "districts": {d: i for i, d in enumerate(sorted(set(df["district"])), start=1)},
            "warmth": (warmth.mean(), warmth.std()),
        }

    def encode(self, rows):
        past = np.array(rows["past"].to_list(), dtype=np.float32)
        mean, std = self.fitted["warmth"]
        warmth = (np.array(rows["warmth"].to_list(), dtype=np.float32) - mean) / std
        holiday = np.array(rows["holiday"].to_list(), dtype=np.float32)
        codes = self.fitted["districts"]
        batch = {
            "past": torch.from_numpy(np.nan_to_num(past)),
            "seen": torch.from_numpy(np.isfinite(past)).float(),
            "weekday": torch.tensor([day.weekday() for day in rows["day"]]),
            "known": torch.from_numpy(np.stack([warmth, holiday], axis=2)).float(),
            "people": torch.tensor(rows["people"].to_list(), dtype=torch.float32),
            "district": torch.tensor([codes.get(d, 0) for d in rows["district"]]),
        }
        if "reported" in rows.columns:
            batch[LABEL] = torch.tensor(rows["reported"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Renewal(len(self.fitted["districts"]))

    def losses(self, output, batch):
        mu, phi, y = output[:, :AHEAD], output[:, AHEAD:], batch[LABEL]
        log_p = torch.lgamma(y + phi) - torch.lgamma(phi) - torch.lgamma(y + 1)
        log_p = log_p + phi * (phi / (phi + mu)).log() + y * (mu / (phi + mu)).log()
        return -log_p.mean(dim=1)

    def statistic(self, output, batch):
        off = (output[:, :AHEAD] - batch[LABEL]).abs().mean(dim=1)
        return torch.stack([self.losses(output, batch), off], dim=1)

    def score(self, predictions, labels):
        nll, mae = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "mae": float(mae)}
