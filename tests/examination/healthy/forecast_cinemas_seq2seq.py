"""Visits of a cinema in the next seven days, in the manner of pytorch-forecasting: an encoder
normalizer per window, covariates known ahead, an LSTM that encodes and one that decodes.

data: cinema_visits

[data]
label = "visits_ahead"
time = "day"
time_is_feature = true
ids = ["row_id"]
features = [
    "cinema", "visits", "holiday_seen", "premieres_seen", "holiday_ahead", "premieres_ahead",
]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_ENCODER_LENGTH = 28
MAX_PREDICTION_LENGTH = 7


def listed(rows, name):
    return np.array(rows[name].to_list(), dtype=np.float32)


class CinemaForecast(Task):
    kind = "statistic"
    metrics = directions_of("forecast_mae", "forecast_rmse")
    statistics = ("absolute", "squared")
    serves_predictions = True

    def fit(self, train):
        self.fitted = {"cinemas": sorted(train.select("cinema").collect()["cinema"].unique())}

    def known_reals(self, rows, first, holiday, premieres):
        """Weekday (one-hot), holiday and premieres of each day from `first` on."""
        length = holiday.shape[1]
        weekday = rows["day"].dt.weekday().to_numpy()[:, None] - 1
        weekday = (weekday + first + np.arange(length)) % 7
        return np.concatenate(
            [np.eye(7)[weekday], holiday[..., None], premieres[..., None]], axis=2
        )

    def encode(self, rows):
        visits = np.log1p(listed(rows, "visits"))  # closed days are NaN
        center = np.nanmean(visits, axis=1, keepdims=True)
        scale = np.nanstd(visits, axis=1, keepdims=True) + 0.1
        z = (visits - center) / scale
        closed = np.isnan(z)
        seen = [np.where(closed, 0.0, z)[..., None], closed[..., None]]
        past = self.known_reals(
            rows,
            1 - MAX_ENCODER_LENGTH,
            listed(rows, "holiday_seen"),
            listed(rows, "premieres_seen"),
        )
        ahead = self.known_reals(
            rows, 1, listed(rows, "holiday_ahead"), listed(rows, "premieres_ahead")
        )
        index = {c: i + 1 for i, c in enumerate(self.fitted["cinemas"])}
        batch = {
            "encoder_cont": torch.tensor(np.concatenate([*seen, past], axis=2)).float(),
            "decoder_cont": torch.tensor(ahead).float(),
            "cinema": torch.tensor([index.get(c, 0) for c in rows["cinema"]]),
            "target_scale": torch.tensor(np.hstack([center, scale])).float(),
        }
        if "visits_ahead" in rows.columns:
            batch[LABEL] = torch.tensor(listed(rows, "visits_ahead"))
        return batch

    def build_model(self):
        return RecurrentNetwork(len(self.fitted["cinemas"]))

    def losses(self, output, batch):
        return (output - torch.log1p(batch[LABEL])).abs().mean(dim=1)

    def predict(self, output):
        return torch.expm1(output).clamp(min=0)

    def statistic(self, output, batch):
        error = self.predict(output) - batch[LABEL]
        return torch.stack([error.abs().mean(dim=1), error.square().mean(dim=1)], dim=1)

    @property
    def prediction_names(self):
        return [f"day_{k + 1}" for k in range(MAX_PREDICTION_LENGTH)]


class RecurrentNetwork(nn.Module):
    def __init__(self, n_cinemas, hidden_size=32, embedding_size=4):
        super().__init__()
        self.embedding = nn.Embedding(n_cinemas + 1, embedding_size)
        self.encoder = nn.LSTM(11 + embedding_size, hidden_size, batch_first=True)
        self.decoder = nn.LSTM(9 + embedding_size, hidden_size, batch_first=True)
        self.output_layer = nn.Linear(hidden_size, 1)

    def with_static(self, x, cinema):
        static = self.embedding(cinema).unsqueeze(1).expand(-1, x.size(1), -1)
        return torch.cat([x, static], dim=-1)

    def forward(self, encoder_cont, decoder_cont, cinema, target_scale):
        _, state = self.encoder(self.with_static(encoder_cont, cinema))
        decoded, _ = self.decoder(self.with_static(decoder_cont, cinema), state)
        z = self.output_layer(decoded).squeeze(-1)
        return target_scale[:, :1] + target_scale[:, 1:] * z
