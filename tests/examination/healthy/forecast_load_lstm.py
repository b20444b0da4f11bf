"""The LSTM of every energy notebook: a scaled sliding window of load and temperature, the next hour.

data: electricity

[data]
label = "load_next"
time = "datetime"
features = ["load_48h", "temp_48h"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class LSTMModel(nn.Module):
    def __init__(self, input_size=2, hidden_size=32):
        super().__init__()
        self.lstm = nn.LSTM(input_size, hidden_size, batch_first=True)
        self.linear = nn.Linear(hidden_size, 1)

    def forward(self, window):
        out, _ = self.lstm(window)
        return self.linear(out[:, -1, :]).squeeze(-1)


class LoadForecast(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "mape")

    def fit(self, train):
        df = train.select("load_48h", "temp_48h").collect()
        load, temp = (np.array(df[c].to_list()) for c in df.columns)
        self.fitted = {
            "load": [float(load.mean()), float(load.std())],
            "temp": [float(temp.mean()), float(temp.std())],
        }

    def scale(self, name, values):
        mean, std = self.fitted[name]
        return (np.asarray(values, dtype=np.float64) - mean) / std

    def encode(self, rows):
        load = self.scale("load", rows["load_48h"].to_list())
        temp = self.scale("temp", rows["temp_48h"].to_list())
        batch = {"window": torch.tensor(np.stack([load, temp], axis=-1), dtype=torch.float32)}
        if "load_next" in rows.columns:
            batch[LABEL] = torch.tensor(rows["load_next"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        return LSTMModel()

    def losses(self, output, batch):
        mean, std = self.fitted["load"]
        return nn.functional.mse_loss(output, (batch[LABEL] - mean) / std, reduction="none")

    def predict(self, output):
        mean, std = self.fitted["load"]
        return output * std + mean
