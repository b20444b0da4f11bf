"""Water a district draws in the next hour: a GRU from scratch, as in Dive into Deep Learning, over
two days of flow and temperature; each district has its own scale.

data: water_demand

[data]
label = "flow_next"
time = "hour"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""

import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

num_steps, num_hiddens = 48, 32


class GRUScratch(nn.Module):
    def __init__(self, num_inputs, num_hiddens, sigma=0.1):
        super().__init__()
        init_weight = lambda *shape: nn.Parameter(torch.randn(*shape) * sigma)
        triple = lambda: (
            init_weight(num_inputs, num_hiddens),
            init_weight(num_hiddens, num_hiddens),
            nn.Parameter(torch.zeros(num_hiddens)),
        )
        self.W_xz, self.W_hz, self.b_z = triple()  # update gate
        self.W_xr, self.W_hr, self.b_r = triple()  # reset gate
        self.W_xh, self.W_hh, self.b_h = triple()  # candidate hidden state

    def forward(self, inputs):
        H = torch.zeros(inputs.shape[0], self.b_h.shape[0], device=inputs.device)
        for X in inputs.unbind(dim=1):
            Z = torch.sigmoid(X @ self.W_xz + H @ self.W_hz + self.b_z)
            R = torch.sigmoid(X @ self.W_xr + H @ self.W_hr + self.b_r)
            H_tilde = torch.tanh(X @ self.W_xh + (R * H) @ self.W_hh + self.b_h)
            H = Z * H + (1 - Z) * H_tilde
        return H


class WaterNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = GRUScratch(num_inputs=5, num_hiddens=num_hiddens)
        self.linear = nn.Sequential(nn.Linear(num_hiddens + 3, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, X, calendar, level):
        H = self.rnn(X)
        change = self.linear(torch.cat([H, calendar], dim=1)).squeeze(1)
        return (X[:, -1, 0] + change) * level


class WaterDemand(Task):
    kind = "regression"
    metrics = directions_of("wape", "rmse")

    def fit(self, train):
        df = train.select("district", "flow_next").collect()
        flows = {}
        for district, flow in df.iter_rows():
            flows.setdefault(district, []).append(flow)
        self.fitted = {
            "level": {d: math.fsum(v) / len(v) for d, v in sorted(flows.items())},
            "mean_level": math.fsum(df["flow_next"]) / df.height,
        }

    @staticmethod
    def filled(flow):
        """A missing reading is taken for the last one before it."""
        last, values = 0.0, []
        for v in flow:
            last = last if v is None else v
            values.append(last)
        return values

    def encode(self, rows):
        flow = torch.tensor([self.filled(f) for f in rows["flow"].to_list()])
        gap = torch.tensor([[float(v is None) for v in f] for f in rows["flow"].to_list()])
        mean_level = self.fitted["mean_level"]
        level = torch.tensor([self.fitted["level"].get(d, mean_level) for d in rows["district"]])
        warm = (torch.tensor(rows["temperature"].to_list()) - 14) / 8
        hour = torch.tensor([w.hour for w in rows["hour"]])
        weekend = torch.tensor([float(w.weekday() >= 5) for w in rows["hour"]])
        past = (hour[:, None] - torch.arange(num_steps, 0, -1)) * (2 * math.pi / 24)
        now = hour * (2 * math.pi / 24)
        batch = {
            "X": torch.stack([flow / level[:, None], gap, warm, past.sin(), past.cos()], dim=2),
            "calendar": torch.stack([now.sin(), now.cos(), weekend], dim=1),
            "level": level,
        }
        if "flow_next" in rows.columns:
            batch[LABEL] = torch.tensor(rows["flow_next"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return WaterNet()

    def losses(self, output, batch):
        return ((output - batch[LABEL]) / batch["level"]) ** 2
