"""Tomorrow's 24 prices of power: asinh of prices about their median, known forecasts of wind and load, a small MLP, absolute errors.

data: power_prices

[data]
label = "price"
time = "day"
ids = ["row_id"]
features = ["weekday", "day_of_year", "price_yesterday", "price_week_ago", "wind_forecast", "load_forecast"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.02 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

HISTORY = ["price_yesterday", "price_week_ago"]
FORESEEN = ["wind_forecast", "load_forecast"]


class DNN(nn.Module):
    def __init__(self, n_in, n_hidden=(96, 64)):
        super().__init__()
        self.norm = nn.BatchNorm1d(n_in)
        layers = []
        for a, b in zip((n_in, *n_hidden), n_hidden):
            layers += [nn.Linear(a, b), nn.Softplus(), nn.Dropout(0.1)]
        self.layers = nn.Sequential(*layers)
        self.out = nn.Linear(n_hidden[-1], 24)

    def forward(self, X):
        return self.out(self.layers(self.norm(X)))


class DayAhead(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"mae": "minimize", "relative_mae": "minimize"}

    def fit(self, train):
        df = train.collect()
        prices = np.array(df["price_yesterday"].to_list())
        median = np.median(prices)
        mad = np.median(np.abs(prices - median)) / 0.6745
        self.median, self.mad = float(median), float(mad)
        self.foreseen = {}
        for name in FORESEEN:
            x = np.array(df[name].to_list())
            self.foreseen[name] = (float(x.mean()), float(x.std()))

    def state(self):
        return {"median": self.median, "mad": self.mad, "foreseen": self.foreseen}

    def load_state(self, state):
        self.median, self.mad, self.foreseen = state["median"], state["mad"], state["foreseen"]

    def transform(self, p):
        return np.arcsinh((p - self.median) / self.mad)

    def encode(self, rows):
        parts = [self.transform(np.array(rows[name].to_list())) for name in HISTORY]
        for name in FORESEEN:
            mean, std = self.foreseen[name]
            parts.append((np.array(rows[name].to_list()) - mean) / std)
        parts.append(np.eye(7)[rows["weekday"].to_numpy()])
        yearly = 2 * np.pi * rows["day_of_year"].to_numpy() / 365
        parts.append(np.stack([np.sin(yearly), np.cos(yearly)], axis=1))
        batch = {"X": torch.tensor(np.concatenate(parts, axis=1), dtype=torch.float32)}
        if "price" in rows.columns:
            price = np.array(rows["price"].to_list())
            naive = np.array(rows["price_week_ago"].to_list())
            both = np.stack([self.transform(price), self.transform(naive)], axis=1)
            batch[LABEL] = torch.tensor(both, dtype=torch.float32)
        return batch

    def build_model(self):
        return DNN(24 * 4 + 7 + 2)

    def losses(self, output, batch):
        return (output - batch[LABEL][:, 0]).abs().mean(dim=1)

    def predict(self, output):
        return torch.sinh(output) * self.mad + self.median

    def statistic(self, output, batch):
        real, naive = self.predict(batch[LABEL][:, 0]), self.predict(batch[LABEL][:, 1])
        own = (self.predict(output) - real).abs().mean(1)
        return torch.stack([own, (naive - real).abs().mean(1)], 1).double()

    def score(self, predictions, labels):
        own, naive = np.average(predictions, axis=0, weights=labels)
        return {"mae": float(own), "relative_mae": float(own / naive)}
