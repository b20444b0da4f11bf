"""Heart rate from a wrist: light and acceleration as four channels, standardised target, smooth L1.

data: wrist_pulse

[data]
label = "bpm"
features = ["light", "acceleration", "skin_celsius"]
group = "wearer"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "one_cycle" }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SAMPLES = 128


class PulseCNN(nn.Module):
    def __init__(self):
        super().__init__()
        def block(cin, cout, k, pool):
            return [nn.Conv1d(cin, cout, k, padding=k // 2), nn.BatchNorm1d(cout), nn.ReLU(),
                    nn.MaxPool1d(pool)]
        self.cnn = nn.Sequential(*block(4, 24, 9, 2), *block(24, 32, 9, 2), *block(32, 32, 5, 2))
        self.regressor = nn.Sequential(
            nn.Flatten(), nn.Dropout(0.1), nn.Linear(32 * 16 + 2, 64), nn.ReLU(), nn.Linear(64, 1)
        )

    def forward(self, signals, skin):
        h = self.cnn(signals).flatten(1)
        return self.regressor(torch.cat([h, skin], dim=1)).squeeze(-1)


class PulseRate(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "bpm_mean": float(df["bpm"].mean()),
            "bpm_std": float(df["bpm"].std()),
            "skin_median": float(df["skin_celsius"].median()),
            "skin_std": float(df["skin_celsius"].std()),
        }

    def encode(self, rows):
        light = np.array(rows["light"].to_list(), dtype=np.float32).reshape(-1, SAMPLES)
        # the pulse is a few percent of the light: take the level off, each row by itself
        light = light - light.mean(axis=1, keepdims=True)
        light = light / (light.std(axis=1, keepdims=True) + 1e-6)
        acc = np.array(rows["acceleration"].to_list(), dtype=np.float32)
        acc = acc.reshape(-1, SAMPLES, 3).transpose(0, 2, 1)
        acc = acc - acc.mean(axis=2, keepdims=True)  # gravity
        signals = np.concatenate([light[:, None, :], acc], axis=1)
        known = rows["skin_celsius"].is_not_null().to_numpy()
        celsius = rows["skin_celsius"].fill_null(self.fitted["skin_median"]).to_numpy()
        skin = (celsius - self.fitted["skin_median"]) / self.fitted["skin_std"]
        skin = np.stack([skin, known], axis=1).astype(np.float32)
        batch = {"signals": torch.from_numpy(signals), "skin": torch.from_numpy(skin)}
        if "bpm" in rows.columns:
            batch[LABEL] = torch.tensor(rows["bpm"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return PulseCNN()

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["bpm_mean"]) / self.fitted["bpm_std"]
        return nn.functional.smooth_l1_loss(output, target, beta=0.5, reduction="none")

    def predict(self, output):
        return output * self.fitted["bpm_std"] + self.fitted["bpm_mean"]
