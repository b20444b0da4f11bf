"""Reading a meter's display: one trunk and three softmax heads (Keras functional style), a reading is right if all digits are.

data: meter_displays

[data]
label = "reading"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 32
micro_batch_size = 32
optimizer = { name = "adam", learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from perennial.engine.task import LABEL, Task

ROWS, COLS, DIGITS = 11, 25, 3
place_values = (100, 10, 1)


def Dense(n_in, n_out):
    layer = nn.Linear(n_in, n_out)
    nn.init.xavier_uniform_(layer.weight)
    nn.init.zeros_(layer.bias)
    return layer


class DisplayReader(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(),
            nn.Conv2d(12, 16, 3, padding=1), nn.ReLU(),
            nn.MaxPool2d((2, 2), ceil_mode=True),
        )
        flat = 16 * 6 * 13
        self.dense = nn.Sequential(nn.Flatten(), Dense(flat, 64), nn.ReLU(), nn.Dropout(0.2))
        self.hundreds, self.tens, self.units = Dense(64, 10), Dense(64, 10), Dense(64, 10)

    def forward(self, display):
        h = self.dense(self.conv(display))
        return torch.stack([self.hundreds(h), self.tens(h), self.units(h)], dim=1)  # (batch, place, digit)


class MeterReading(Task):
    kind = "statistic"
    metrics = {"exact": "maximize", "digit_accuracy": "maximize", "mean_error": "minimize"}

    def encode(self, rows):
        px = np.array(rows["display"].to_list(), dtype=np.float32).reshape(-1, 1, ROWS, COLS)
        # each display by its own light: glare and contrast differ more than digits do
        px = (px - px.mean(axis=(2, 3), keepdims=True)) / (px.std(axis=(2, 3), keepdims=True) + 1.0)
        batch = {"display": torch.from_numpy(px)}
        if "reading" in rows.columns:
            reading = rows["reading"].to_numpy()
            batch[LABEL] = torch.tensor(np.stack([reading // v % 10 for v in place_values], axis=1))
        return batch

    def augment(self, batch, generator):
        x = batch["display"]
        return {**batch, "display": x + 0.1 * torch.randn(x.shape, generator=generator)}

    def build_model(self):
        return DisplayReader()

    def losses(self, output, batch):
        return cross_entropy(output.transpose(1, 2), batch[LABEL], reduction="none").sum(dim=1)

    def predict(self, output):
        return self.value(output.argmax(dim=2)).float()

    @staticmethod
    def value(digits):
        return (digits * torch.tensor(place_values, device=digits.device)).sum(dim=1)

    def statistic(self, output, batch):
        guess = output.argmax(dim=2)
        right = (guess == batch[LABEL]).double()
        error = (self.value(guess) - self.value(batch[LABEL])).abs().double()
        return torch.stack([right.prod(dim=1), right.mean(dim=1), error], dim=1)

    def score(self, predictions, labels):
        exact, each, error = np.average(predictions, axis=0, weights=labels)
        return {"exact": float(exact), "digit_accuracy": float(each), "mean_error": float(error)}
