"""Tickets sold in the next seven days, as quantiles: an encoder and decoder of PyTorch Forecasting.

Mean error of the median 28 tickets; 52 for the median of the past.

data: theatre_sales

[data]
label = "sold_ahead"
time = "today"
ids = ["row_id", "production"]

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 6e-3, weight_decay = 0.01 }
schedule = { shape = "cosine", warmup_fraction = 0.05 }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

PAST, AHEAD = 21, 7
QUANTILES = [0.1, 0.5, 0.9]


class EncoderDecoder(nn.Module):
    def __init__(self, n_houses, n_genres, hidden=28):
        super().__init__()
        self.house = nn.Embedding(n_houses, 4)
        self.genre = nn.Embedding(n_genres, 2)
        self.encoder = nn.LSTM(2 + 6, hidden, batch_first=True)
        self.decoder = nn.LSTM(9 + 6, hidden, batch_first=True)
        self.output = nn.Linear(hidden, len(QUANTILES))

    def forward(self, past, known, house, genre, level):
        static = torch.cat([self.house(house), self.genre(genre)], dim=1)[:, None]
        past = torch.cat([past, static.expand(-1, PAST, -1)], dim=2)
        known = torch.cat([known, static.expand(-1, AHEAD, -1)], dim=2)
        _, state = self.encoder(past)
        decoded, _ = self.decoder(known, state)
        return level[:, None, None] + self.output(decoded)


class TheatreSales(Task):
    kind = "statistic"
    metrics = {"pinball": "minimize", "median_mae": "minimize"}
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "house": sorted(df["house"].unique()),
            "genre": sorted(df["genre"].drop_nulls().unique()),
        }

    def encode(self, rows):
        logs = np.log1p(np.array(rows["sold_past"].to_list(), dtype=float))
        level = logs.mean(axis=1, keepdims=True)
        plays = np.array(rows["plays_past"].to_list(), dtype=float)
        past = np.stack([logs - level, plays], axis=2)
        weekday = (rows["weekday"].to_numpy()[:, None] + np.arange(AHEAD)) % 7
        until = np.array(rows["until_ahead"].to_list()) / 3
        ahead = np.array(rows["plays_ahead"].to_list(), dtype=float)
        known = np.concatenate([np.eye(7)[weekday], until[..., None], ahead[..., None]], axis=2)
        code = lambda c: torch.tensor(
            [self.fitted[c].index(v) + 1 if v in self.fitted[c] else 0 for v in rows[c]]
        )
        batch = {
            "past": torch.tensor(past, dtype=torch.float32),
            "known": torch.tensor(known, dtype=torch.float32),
            "house": code("house"),
            "genre": code("genre"),
            "level": torch.tensor(level[:, 0], dtype=torch.float32),
        }
        if "sold_ahead" in rows.columns:
            batch[LABEL] = torch.tensor(rows["sold_ahead"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return EncoderDecoder(len(self.fitted["house"]) + 1, len(self.fitted["genre"]) + 1)

    @staticmethod
    def pinball(prediction, target):
        """[B], the mean over days and quantiles."""
        q = torch.tensor(QUANTILES, device=prediction.device)
        error = target[..., None] - prediction
        return torch.maximum(q * error, (q - 1) * error).mean(dim=(1, 2))

    def losses(self, output, batch):
        return self.pinball(output, torch.log1p(batch[LABEL]))

    def predict(self, output):
        """The median of each day."""
        return torch.expm1(output[..., QUANTILES.index(0.5)]).clamp(min=0)

    def statistic(self, output, batch):
        tickets = torch.expm1(output).clamp(min=0)
        error = (self.predict(output) - batch[LABEL]).abs().mean(dim=1)
        return torch.stack([self.pinball(tickets, batch[LABEL]), error], dim=1).double()

    def score(self, predictions, labels):
        means = np.average(predictions, axis=0, weights=labels)
        return dict(zip(("pinball", "median_mae"), means.tolist(), strict=False))
