"""Inflow of reservoirs five days ahead as an ensemble of ten members, trained on the CRPS; a GRU reads three weeks, a cell walks ahead.

data: basin_inflow

[data]
label = "inflow_ahead"
time = "issued_on"
ids = ["row_id"]
meta = ["basin"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
from typing import Any

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from perennial.engine.task import LABEL, Batch, Task

MEMBERS = 10
PAST, AHEAD = 21, 5
SECONDS = 86_400.0
STATIC = ["area_km2", "height_m", "forest_percent"]


def crps(members: Tensor, truth: Tensor) -> Tensor:
    """CRPS of ensembles [..., M] for what came true [...]."""
    skill = (members - truth.unsqueeze(-1)).abs().mean(dim=-1)
    pairs = (members.unsqueeze(-1) - members.unsqueeze(-2)).abs()
    return skill - 0.5 * pairs.mean(dim=(-2, -1))


class InflowModel(nn.Module):
    def __init__(self, hidden: int = 40) -> None:
        super().__init__()
        self.encoder = nn.GRU(3 + 6, hidden, batch_first=True)
        self.cell = nn.GRUCell(2 + 6, hidden)
        self.read_out = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, MEMBERS))
        nn.init.normal_(self.read_out[1].bias, std=0.5)

    def forward(self, past: Tensor, ahead: Tensor, static: Tensor) -> Tensor:
        repeated = static.unsqueeze(1).expand(-1, PAST, -1)
        _, state = self.encoder(torch.cat([past, repeated], dim=-1))
        state = state[0]
        days = []
        for day in range(AHEAD):
            state = self.cell(torch.cat([ahead[:, day], static], dim=-1), state)
            days.append(self.read_out(state))
        last = past[:, -1:, 2].unsqueeze(-1)
        return torch.stack(days, dim=1) + last


class ReservoirInflow(Task):
    kind = "statistic"
    metrics = {"crps": "minimize", "mae": "minimize", "covered": "maximize"}

    def fit(self, train: pl.LazyFrame) -> None:
        rows = train.collect()
        static = rows.select(STATIC)
        depth = np.log(self.depth(rows, "inflow"))
        self.fitted: dict[str, Any] = {
            "static_mean": list(static.mean().row(0)),
            "static_std": list(static.std().row(0)),
            "depth": [float(depth.mean()), float(depth.std())],
        }

    @staticmethod
    def depth(rows: pl.DataFrame, column: str) -> np.ndarray:
        """Cubic metres a second as millimetres a day over the basin."""
        cubic = np.array(rows[column].to_list(), dtype=float)
        return cubic * SECONDS / (rows["area_km2"].to_numpy()[:, None] * 1e3) + 0.05

    def scaled(self, rows: pl.DataFrame, column: str) -> np.ndarray:
        mean, std = self.fitted["depth"]
        return (np.log(self.depth(rows, column)) - mean) / std

    def encode(self, rows: pl.DataFrame) -> Batch:
        def weather(rain: str, warmth: str) -> list[np.ndarray]:
            fallen, degrees = np.array(rows[rain].to_list()), np.array(rows[warmth].to_list())
            return [np.log1p(fallen) - 0.8, degrees / 10]

        past = [*weather("rain", "temperature"), self.scaled(rows, "inflow")]
        ahead = weather("rain_forecast", "temperature_forecast")
        raw = rows.select(STATIC).to_numpy().astype(float)
        static = (raw - np.array(self.fitted["static_mean"])) / np.array(self.fitted["static_std"])
        static = np.concatenate([np.nan_to_num(static), np.isnan(static)], axis=1)
        batch = {
            "past": torch.tensor(np.stack(past, axis=-1), dtype=torch.float32),
            "ahead": torch.tensor(np.stack(ahead, axis=-1), dtype=torch.float32),
            "static": torch.tensor(static, dtype=torch.float32),
        }
        if "inflow_ahead" in rows.columns:
            batch[LABEL] = torch.tensor(self.scaled(rows, "inflow_ahead"), dtype=torch.float32)
        return batch

    def build_model(self) -> nn.Module:
        return InflowModel()

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        return crps(output, batch[LABEL]).mean(dim=1)

    def statistic(self, output: Tensor, batch: Batch) -> Tensor:
        truth = batch[LABEL]
        middle = (output.median(dim=-1).values - truth).abs()
        inside = (truth >= output.amin(dim=-1)) & (truth <= output.amax(dim=-1))
        return torch.stack([crps(output, truth).mean(1), middle.mean(1), inside.float().mean(1)], dim=1)

    def score(self, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
        means = np.average(predictions, axis=0, weights=labels)
        return dict(zip(["crps", "mae", "covered"], map(float, means), strict=True))
