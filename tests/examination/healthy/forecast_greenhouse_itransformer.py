"""Humidity under glass in the next six hours: an inverted transformer (Liu et al., 2024) whose
tokens are the instruments' last days, each normalised by its own mean and deviation and back.

data: greenhouse_air

[data]
label = "humidity_ahead"
time = "hour"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine" }
"""

import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SEQ_LEN, PRED_LEN = 24, 6
VARIATES = ["humidity", "temperature", "co2", "radiation", "vents"]
TARGET = VARIATES.index("humidity")


def filled_forward(values):
    """Each gap has the last reading before it, and 0 where there is none."""
    last, filled = 0.0, []
    for value in values:
        last = last if value is None else value
        filled.append(float(last))
    return filled


class ITransformer(nn.Module):
    def __init__(self, compartments, d_model=32, heads=4):
        super().__init__()
        self.enc_embedding = nn.Linear(2 * SEQ_LEN, d_model)
        self.variate = nn.Parameter(torch.randn(len(VARIATES), d_model) * 0.02)
        self.clock_embedding = nn.Linear(4, d_model)
        self.compartment = nn.Embedding(compartments + 1, d_model)
        layer = nn.TransformerEncoderLayer(d_model, heads, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.projector = nn.Linear(d_model, PRED_LEN)

    def forward(self, x_enc, gaps, clock, compartment):
        # x_enc: [B, T, N], as all of the following until the embedding
        means = x_enc.mean(dim=1, keepdim=True)
        x_enc = x_enc - means
        stdev = torch.sqrt(x_enc.var(dim=1, keepdim=True, unbiased=False) + 1e-2)
        x_enc = x_enc / stdev
        tokens = torch.cat([x_enc, gaps], dim=1).transpose(1, 2)  # [B, N, 2T]
        known = self.clock_embedding(clock) + self.compartment(compartment)
        tokens = torch.cat([self.enc_embedding(tokens) + self.variate, known.unsqueeze(1)], dim=1)
        dec_out = self.projector(self.encoder(tokens))[:, : len(VARIATES)].transpose(1, 2)
        dec_out = dec_out * stdev + means
        return dec_out[:, :, TARGET]


class GreenhouseHumidity(Task):
    kind = "statistic"
    metrics = directions_of("forecast_rmse", "forecast_mae")
    statistics = ("squared", "absolute")
    serves_predictions = True

    @property
    def prediction_names(self):
        return [f"in_{hour + 1}_hours" for hour in range(PRED_LEN)]

    def fit(self, train):
        names = train.select("compartment").unique().collect()["compartment"]
        self.fitted = {"compartments": sorted(names)}

    def encode(self, rows):
        listed = [rows[name].to_list() for name in VARIATES]
        x = torch.tensor([[filled_forward(values) for values in column] for column in listed])
        gaps = [[[float(v is None) for v in values] for values in column] for column in listed]
        hour = torch.tensor([when.hour for when in rows["hour"]]) * (2 * math.pi / 24)
        clock = [hour.sin(), hour.cos(), (2 * hour).sin(), (2 * hour).cos()]
        index = {name: k for k, name in enumerate(self.fitted["compartments"], start=1)}
        batch = {
            "x_enc": x.permute(1, 2, 0).contiguous(),
            "gaps": torch.tensor(gaps).permute(1, 2, 0).contiguous(),
            "clock": torch.stack(clock, dim=1),
            "compartment": torch.tensor([index.get(name, 0) for name in rows["compartment"]]),
        }
        if "humidity_ahead" in rows.columns:
            ahead = rows["humidity_ahead"].to_list()
            batch[LABEL] = torch.tensor(ahead, dtype=torch.float32)
        return batch

    def build_model(self):
        return ITransformer(len(self.fitted["compartments"]))

    def losses(self, output, batch):
        return (output - batch[LABEL]).square().mean(dim=1) / 25

    def statistic(self, output, batch):
        error = output - batch[LABEL]
        return torch.stack([error.square().mean(dim=1), error.abs().mean(dim=1)], dim=1)
