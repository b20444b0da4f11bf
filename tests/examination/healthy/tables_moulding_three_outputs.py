"""Weight, length and warp of moulded parts from a press' settings: three outputs, scaled by buffers inside the network.

data: moulded_parts

[data]
label = "quality"
time = "shot_at"
ids = ["row_id"]

[split]
period = "week"

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
schedule = { shape = "one_cycle" }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

SENSORS = ("melt_temperature", "mould_temperature", "holding_pressure", "injection_speed", "cooling_seconds", "humidity")
MATERIALS = ("PP-20", "PP-30", "recycled")
TARGETS = ("weight", "length", "warp")


class QualityNet(nn.Module):
    def __init__(self, x_mean, x_std, n_presses):
        super().__init__()
        self.register_buffer("x_mean", torch.tensor(x_mean))
        self.register_buffer("x_std", torch.tensor(x_std))
        n_in = 2 * len(SENSORS) + len(MATERIALS) + n_presses
        self.trunk = nn.Sequential(nn.Linear(n_in, 64), nn.GELU(), nn.Linear(64, 64), nn.GELU())
        self.heads = nn.ModuleDict({name: nn.Linear(64, 1) for name in TARGETS})

    def forward(self, sensors, material, press):
        known = ~torch.isnan(sensors)
        x = torch.where(known, (sensors - self.x_mean) / self.x_std, 0.0)
        h = self.trunk(torch.cat([x, known.float(), material, press], dim=1))
        return torch.cat([self.heads[name](h) for name in TARGETS], dim=1)


class PartQuality(Task):
    kind = "statistic"
    metrics = {"mean_r2": "maximize", **{f"rmse_{name}": "minimize" for name in TARGETS}}
    serves_predictions = True
    prediction_names = TARGETS

    def fit(self, train):
        df = train.collect()
        x = df.select(SENSORS).cast(float).to_numpy()
        y = np.array(df["quality"].to_list())
        self.fitted = {
            "presses": sorted(set(df["press"])),
            "x_mean": np.nanmean(x, axis=0).tolist(),
            "x_std": np.nanstd(x, axis=0).tolist(),
            "y_mean": y.mean(axis=0).tolist(),
            "y_std": y.std(axis=0).tolist(),
        }

    def encode(self, rows):
        presses = self.fitted["presses"]
        batch = {
            "sensors": torch.tensor(rows.select(SENSORS).cast(float).to_numpy(), dtype=torch.float32),
            "material": torch.tensor([[float(m == name) for name in MATERIALS] for m in rows["material"]]),
            "press": torch.tensor([[float(p == name) for name in presses] for p in rows["press"]]),
        }
        if "quality" in rows.columns:
            batch[LABEL] = torch.tensor(rows["quality"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return QualityNet(self.fitted["x_mean"], self.fitted["x_std"], len(self.fitted["presses"]))

    def scaled(self, y):
        return (y - torch.tensor(self.fitted["y_mean"])) / torch.tensor(self.fitted["y_std"])

    def losses(self, output, batch):
        return ((output - self.scaled(batch[LABEL])) ** 2).mean(dim=1)

    def predict(self, output):
        return output * torch.tensor(self.fitted["y_std"]) + torch.tensor(self.fitted["y_mean"])

    def statistic(self, output, batch):
        return torch.cat([self.predict(output), batch[LABEL]], dim=1)

    def score(self, predictions, labels):
        predicted, true = predictions[:, :3], predictions[:, 3:]
        mse = ((predicted - true) ** 2).mean(axis=0)
        found = {f"rmse_{name}": float(value) for name, value in zip(TARGETS, np.sqrt(mse))}
        if (true.std(axis=0) > 0).all():
            found["mean_r2"] = float((1 - mse / true.var(axis=0)).mean())
        return found
