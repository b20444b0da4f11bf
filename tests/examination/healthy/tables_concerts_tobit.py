"""Tickets of concerts: a Tobit likelihood on the logarithm, censored at each hall's own seats.

data: concert_tickets

[data]
label = "sold"
time = "concert_day"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 8e-3, weight_decay = 0.02 }
"""
# What we want is demand; what we see is min(demand, seats). An ordinary regression learns the
# ceiling. A sold-out night says only "at least this many", so it enters with its survival.
import math
from typing import NamedTuple

import polars as pl
import torch
import torch.nn as nn
from torch.special import log_ndtr, ndtr

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUM = ["log_listeners", "no_listeners", "log_price", "log_lead", "root_posts"]


class Demand(NamedTuple):
    mu: torch.Tensor
    sigma: torch.Tensor
    ceiling: torch.Tensor


class TobitNet(nn.Module):
    def __init__(self, n_halls, n_genres, start):
        super().__init__()
        self.hall = nn.EmbeddingBag(n_halls + 1, 1, mode="sum")
        self.genre = nn.Embedding(n_genres + 1, 3)
        self.weekday = nn.Embedding(7, 1)
        self.net = nn.Sequential(nn.Linear(len(NUM) + 3, 32), nn.GELU(), nn.Linear(32, 1))
        self.log_sigma = nn.Parameter(torch.zeros(()))
        self.register_buffer("start", torch.tensor(start))
        nn.init.zeros_(self.hall.weight)
        nn.init.zeros_(self.weekday.weight)

    def forward(self, num, hall, genre, weekday, log_seats):
        h = self.net(torch.cat([num, self.genre(genre)], dim=-1)).squeeze(-1)
        effects = self.hall(hall[:, None]) + self.weekday(weekday)
        mu = self.start + h + effects.squeeze(-1)
        return torch.stack([mu, self.log_sigma.exp().expand_as(mu), log_seats], dim=-1)


class Concerts(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def frame(self, rows):
        listeners = pl.col("monthly_listeners").cast(pl.Float64)
        return rows.with_columns(
            log_listeners=listeners.log(),
            no_listeners=listeners.is_null().cast(pl.Float64),
            log_price=pl.col("price_eur").log(),
            log_lead=pl.col("days_on_sale").log(),
            root_posts=pl.col("posts").sqrt(),
        )

    def fit(self, train):
        df = self.frame(train).collect()
        self.fitted = {
            "mean": df.select(pl.col(NUM).mean()).row(0),
            "std": df.select(pl.col(NUM).std()).row(0),
            "hall": df["hall"].unique().sort().to_list(),
            "genre": df.filter(pl.len().over("genre") >= 20)["genre"].unique().sort().to_list(),
            "start": df["sold"].log().mean(),
        }

    def encode(self, rows):
        df = self.frame(rows)
        num = torch.tensor(df.select(NUM).fill_null(float("nan")).to_numpy())
        num = (num - torch.tensor(self.fitted["mean"])) / torch.tensor(self.fitted["std"])

        def ids(name):
            known = {value: k + 1 for k, value in enumerate(self.fitted[name])}
            return torch.tensor([known.get(value, 0) for value in df[name]])

        batch = {
            "num": num.nan_to_num(0.0).float(),
            "hall": ids("hall"),
            "genre": ids("genre"),
            "weekday": torch.tensor((df["concert_day"].dt.weekday() - 1).to_list()),
            "log_seats": torch.tensor(df["seats"].log().to_list()),
        }
        if "sold" in df.columns:
            batch[LABEL] = torch.tensor(df["sold"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return TobitNet(len(self.fitted["hall"]), len(self.fitted["genre"]), self.fitted["start"])

    def losses(self, output, batch):
        d = Demand(*output.unbind(-1))
        y = batch[LABEL].log()
        z = (y - d.mu) / d.sigma
        seen = 0.5 * z**2 + d.sigma.log() + 0.5 * math.log(2 * math.pi)
        sold_out = y >= d.ceiling - 1e-6
        return torch.where(sold_out, -log_ndtr(-z), seen)

    def predict(self, output):
        """E[min(demand, seats)] of a log-normal demand."""
        d = Demand(*output.double().unbind(-1))
        a = (d.ceiling - d.mu) / d.sigma
        below = (d.mu + d.sigma**2 / 2).exp() * ndtr(a - d.sigma)
        return below + d.ceiling.exp() * ndtr(-a)
