"""Fine dust by cheap sensors, calibrated beside reference instruments: what a sensor counts swells
with humidity, and soot from one direction escapes it. The logarithm is learned by a small network.

data: street_air_sensors

[data]
label = "pm_reference"
time = "hour"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class AirSensors(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def frame(self, rows):
        """One number per column; NaN where an instrument gave none that counts."""
        df = rows.to_pandas()
        quarters = np.stack(df["pm_quarters"].to_list())
        valid = np.stack(df["validity"].to_list()) > 0  # not in maintenance, calibration, faulty
        count = valid.sum(axis=1)
        mean = (quarters * valid).sum(axis=1) / np.maximum(count, 1)
        df["log_pm"] = np.where(count > 0, np.log1p(mean.clip(min=0)), np.nan)
        df["humid"] = df["humidity"] / 100
        df["swollen"] = df["humid"] ** 6
        angle = np.deg2rad(df["wind_from"])
        df["wind_north"] = np.cos(angle)
        df["wind_east"] = np.sin(angle)
        df["flow_north"] = df["wind_north"] * df["wind_speed"]
        df["flow_east"] = df["wind_east"] * df["wind_speed"]
        clock = df["hour"].dt.hour * (2 * np.pi / 24)
        df["clock_sin"], df["clock_cos"] = np.sin(clock), np.cos(clock)
        return df[
            [
                "log_pm", "humid", "swollen", "temperature", "wind_speed",
                "wind_north", "wind_east", "flow_north", "flow_east", "clock_sin", "clock_cos",
            ]
        ]  # fmt: skip

    def fit(self, train):
        df = train.collect()
        x = self.frame(df)
        self.fitted = {
            "mean": x.mean().tolist(),
            "std": x.std().tolist(),
            "sensors": sorted(df["sensor"].unique()),
            "sites": sorted(df["site"].unique()),
            "level": float(np.log(df["pm_reference"].to_numpy()).mean()),
        }

    def encode(self, rows):
        x = (self.frame(rows).to_numpy() - self.fitted["mean"]) / self.fitted["std"]
        missing = np.isnan(x[:, :2])
        kinds = [(rows["sensor"] == s).to_numpy() for s in self.fitted["sensors"]]
        kinds += [(rows["site"] == s).to_numpy() for s in self.fitted["sites"]]
        x = np.column_stack([np.nan_to_num(x), missing, *kinds])
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "pm_reference" in rows.columns:
            batch[LABEL] = torch.tensor(rows["pm_reference"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        width = len(self.fitted["mean"]) + 2
        width += len(self.fitted["sensors"]) + len(self.fitted["sites"])
        return Calibration(width, self.fitted["level"])

    def losses(self, output, batch):
        return (output - torch.log(batch[LABEL])).abs()

    def predict(self, output):
        return torch.exp(output)


class Calibration(nn.Module):
    def __init__(self, width, level):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(width, 48), nn.SiLU(), nn.Linear(48, 48), nn.SiLU(), nn.Linear(48, 1)
        )
        nn.init.constant_(self.net[-1].bias, level)

    def forward(self, x):
        return self.net(x).squeeze(-1)
