"""Red cells that a hospital uses on each of the next five days, as quantiles: an MQ-RNN (Wen et
al., 2017) with a global and a local decoder, planned operations and holidays known ahead.

data: blood_demand

[data]
label = "units_ahead"
time = "day"
time_is_feature = true
ids = ["row_id"]
features = ["hospital", "units", "planned_past", "planned_ahead", "holiday_ahead"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
schedule = { shape = "cosine" }
"""

import math

import torch
from torch import nn

from perennial.engine.task import LABEL, Task

CONTEXT, HORIZON = 28, 5
QUANTILES = (0.1, 0.5, 0.9)


class QuantileOutput:
    """Pinball losses of the quantiles, in ascending order."""

    def __init__(self, quantiles):
        self.quantiles = sorted(quantiles)

    def loss(self, predicted, target):
        q = torch.tensor(self.quantiles, device=predicted.device)
        error = target - predicted
        return torch.maximum(q * error, (q - 1) * error)


def on_a_circle(weekday):
    """Sine and cosine of the day of the week, 0 to 6."""
    angle = weekday * (2 * math.pi / 7)
    return torch.stack([angle.sin(), angle.cos(), (2 * angle).sin(), (2 * angle).cos()], dim=-1)


class MQRNN(nn.Module):
    def __init__(self, hospitals, hidden=32, context=8):
        super().__init__()
        self.hospital = nn.Embedding(hospitals + 1, 4)
        self.encoder = nn.LSTM(7 + 4, hidden, batch_first=True)
        self.global_mlp = nn.Linear(hidden + 6 * HORIZON, context * (HORIZON + 1))
        self.local_mlp = nn.Sequential(
            nn.Linear(2 * context + 6 + 4, 32), nn.ReLU(), nn.Linear(32, len(QUANTILES))
        )
        self.context = context

    def forward(self, past, ahead, hospital, level):
        static = self.hospital(hospital).unsqueeze(1)
        _, (h, _) = self.encoder(torch.cat([past, static.expand(-1, CONTEXT, -1)], dim=-1))
        contexts = self.global_mlp(torch.cat([h[-1], ahead.flatten(1)], dim=-1)).relu()
        contexts = contexts.view(-1, HORIZON + 1, self.context)
        agnostic = contexts[:, -1:].expand(-1, HORIZON, -1)
        each = [contexts[:, :-1], agnostic, ahead, static.expand(-1, HORIZON, -1)]
        return (1 + self.local_mlp(torch.cat(each, dim=-1))) * level[:, None, None]


class BloodDemand(Task):
    kind = "statistic"
    metrics = {"pinball": "minimize"}
    serves_predictions = True
    quantile_output = QuantileOutput(QUANTILES)

    @property
    def prediction_names(self):
        return [f"day_{day + 1}_q{q:g}" for day in range(HORIZON) for q in QUANTILES]

    def fit(self, train):
        df = train.select("hospital", "units_ahead").collect()
        used = {}
        for hospital, units in df.iter_rows():
            used.setdefault(hospital, []).extend(units)
        self.fitted = {
            "level": {h: math.fsum(u) / len(u) for h, u in sorted(used.items())},
            "any": math.fsum(sum(used.values(), [])) / sum(map(len, used.values())),
        }

    def encode(self, rows):
        known = {h: k for k, h in enumerate(sorted(self.fitted["level"]), start=1)}
        level = [self.fitted["level"].get(h, self.fitted["any"]) for h in rows["hospital"]]
        level = torch.tensor(level)
        units = torch.tensor([[u or 0 for u in us] for us in rows["units"].to_list()])
        lost = torch.tensor([[u is None for u in us] for us in rows["units"].to_list()])
        units = torch.where(lost, 0.0, units / level[:, None] - 1)
        weekday = torch.tensor([day.weekday() for day in rows["day"]])[:, None]
        planned = torch.tensor(rows["planned_past"].to_list()) / 4
        soon = torch.tensor(rows["planned_ahead"].to_list()) / 4
        holiday = torch.tensor(rows["holiday_ahead"].to_list()).float()
        past_days = on_a_circle((weekday + torch.arange(1 - CONTEXT, 1)) % 7)
        next_days = on_a_circle((weekday + torch.arange(1, HORIZON + 1)) % 7)
        batch = {
            "past": torch.cat([torch.stack([units, lost, planned], dim=2), past_days], dim=2),
            "ahead": torch.cat([torch.stack([soon, holiday], dim=2), next_days], dim=2),
            "hospital": torch.tensor([known.get(h, 0) for h in rows["hospital"]]),
            "level": level,
        }
        if "units_ahead" in rows.columns:
            batch[LABEL] = torch.tensor(rows["units_ahead"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MQRNN(len(self.fitted["level"]))

    def losses(self, output, batch):
        loss = self.quantile_output.loss(output, batch[LABEL].unsqueeze(-1))
        return loss.sum(dim=2).mean(dim=1) / batch["level"]

    def predict(self, output):
        return output.flatten(1)

    def statistic(self, output, batch):
        """The pinball loss in units of blood, of each quantile as it is served."""
        served = self.predict(output).view(-1, HORIZON, len(QUANTILES))
        total = 0.0
        for k, q in enumerate(QUANTILES):
            error = batch[LABEL] - served[..., k]
            total = total + torch.maximum(q * error, (q - 1) * error).mean(dim=1)
        return total

    def score(self, predictions, labels):
        return {"pinball": float((predictions.ravel() * labels).sum() / labels.sum())}
