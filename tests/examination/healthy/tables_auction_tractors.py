"""Hammer prices of used tractors: a company's module with dataclasses, one token per column, log-cosh on the standardised logarithm.

data: tractor_auctions

[data]
label = "price"
time = "sold_on"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 3e-3, weight_decay = 0.02 }
schedule = { shape = "cosine" }
"""
from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field

import numpy as np
import polars as pl
import torch
from torch import Tensor, nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Batch, Task

CATEGORICAL: tuple[str, ...] = ("house", "make", "model", "drive", "front_loader", "condition")
NUMERIC: tuple[str, ...] = ("horsepower", "age", "engine_hours", "tyres_percent", "starting_bid")
LOGGED: frozenset[str] = frozenset({"horsepower", "engine_hours", "starting_bid"})
MIN_COUNT = 5


@dataclass
class Scaling:
    """How a number is standardised."""

    mean: float = 0.0
    std: float = 1.0

    @classmethod
    def of(cls, values: np.ndarray) -> Scaling:
        return cls(float(np.nanmean(values)), float(np.nanstd(values)))

    def apply(self, values: np.ndarray) -> np.ndarray:
        return (values - self.mean) / self.std


@dataclass
class Schema:
    """All that is learned from the training rows."""

    vocabularies: dict[str, list[str]] = field(default_factory=dict)
    scalings: dict[str, Scaling] = field(default_factory=dict)
    target: Scaling = field(default_factory=Scaling)

    @classmethod
    def from_dict(cls, data: dict) -> Schema:
        scalings = {name: Scaling(**value) for name, value in data["scalings"].items()}
        return cls(data["vocabularies"], scalings, Scaling(**data["target"]))


class NumberToken(nn.Module):
    """Turns a number into a vector."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(1, width), nn.LayerNorm(width), nn.GELU())

    def forward(self, value: Tensor) -> Tensor:
        return self.layers(value.unsqueeze(-1))


class PriceNetwork(nn.Module):
    def __init__(self, cardinalities: list[int], width: int = 12, hidden: int = 64) -> None:
        super().__init__()
        self.categories = nn.ModuleList([nn.Embedding(size, width) for size in cardinalities])
        self.numbers = nn.ModuleList([NumberToken(width) for _ in NUMERIC])
        self.unknown = nn.Parameter(torch.zeros(len(NUMERIC), width))
        n_in = width * (len(cardinalities) + len(NUMERIC))
        self.inner = nn.Sequential(nn.Linear(n_in, hidden), nn.GELU(), nn.Dropout(0.1))
        self.residual = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden), nn.GELU())
        self.head = nn.Linear(hidden, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, categories: Tensor, numbers: Tensor, known: Tensor) -> Tensor:
        tokens = [table(categories[:, i]) for i, table in enumerate(self.categories)]
        for i, token in enumerate(self.numbers):
            is_known = known[:, i].unsqueeze(-1)
            tokens.append(torch.where(is_known, token(numbers[:, i]), self.unknown[i]))
        h = self.inner(torch.cat(tokens, dim=-1))
        return self.head(h + self.residual(h)).squeeze(-1)


class TractorPrices(Task):
    kind = "regression"
    metrics = directions_of("mae", "median_absolute_error", "mape")

    def raw_numbers(self, rows: pl.DataFrame) -> dict[str, np.ndarray]:
        age = pl.col("sold_on").dt.year() - pl.col("built")
        table = rows.with_columns(age=age).select(pl.col(NUMERIC).cast(pl.Float64))
        raw = {name: table[name].to_numpy() for name in NUMERIC}
        return {name: np.log(v) if name in LOGGED else v for name, v in raw.items()}

    def fit(self, train: pl.LazyFrame) -> None:
        rows = train.collect()
        schema = Schema(target=Scaling.of(np.log(rows["price"].to_numpy())))
        for name in CATEGORICAL:
            counts = rows[name].drop_nulls().value_counts().filter(pl.col("count") >= MIN_COUNT)
            schema.vocabularies[name] = sorted(counts[name].to_list())
        for name, values in self.raw_numbers(rows).items():
            schema.scalings[name] = Scaling.of(values)
        self.fitted = asdict(schema)

    @property
    def schema(self) -> Schema:
        return Schema.from_dict(self.fitted)

    def encode(self, rows: pl.DataFrame) -> Batch:
        schema = self.schema
        codes = []
        for name in CATEGORICAL:
            index = {value: i for i, value in enumerate(schema.vocabularies[name], start=1)}
            codes.append([index.get(value, 0) for value in rows[name]])
        scaled = [schema.scalings[n].apply(v) for n, v in self.raw_numbers(rows).items()]
        numbers = np.stack(scaled, axis=1)
        batch = {
            "categories": torch.tensor(codes).T.contiguous(),
            "numbers": torch.tensor(np.nan_to_num(numbers), dtype=torch.float32),
            "known": torch.tensor(~np.isnan(numbers)),
        }
        if "price" in rows.columns:
            batch[LABEL] = torch.tensor(rows["price"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self) -> nn.Module:
        return PriceNetwork([len(self.schema.vocabularies[name]) + 1 for name in CATEGORICAL])

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        target = self.schema.target
        error = output - (batch[LABEL].log() - target.mean) / target.std
        return error + nn.functional.softplus(-2.0 * error) - math.log(2.0)

    def predict(self, output: Tensor) -> Tensor:
        target = self.schema.target
        return torch.exp(output * target.std + target.mean)
