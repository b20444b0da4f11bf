"""Walkers in a park on a day, by fast.ai's recipe for tables: Categorify, FillMissing, Normalize,
date parts, embeddings and batch normalisation; Poisson, per hour in which the counter ran.

data: park_visits

[data]
label = "walkers"
time = "day"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 600
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
schedule = { shape = "cosine" }
"""

import math

import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

cat_names = ["park", "kind", "sky", "Dayofweek", "Month"]
cont_names = ["temperature", "rain_mm", "Dayofyear_sin", "Dayofyear_cos"]
flags = ["day_off", "temperature_na"]


def add_datepart(df):
    angle = pl.col("day").dt.ordinal_day() * (2 * math.pi / 365.25)
    return df.with_columns(
        Dayofweek=pl.col("day").dt.weekday().cast(pl.String),
        Month=pl.col("day").dt.month().cast(pl.String),
        Dayofyear_sin=angle.sin(),
        Dayofyear_cos=angle.cos(),
        temperature_na=pl.col("temperature").is_null(),
    )


def emb_sz_rule(n_cat):
    return min(12, round(1.6 * n_cat**0.56))


class ParkWalkers(Task):
    kind = "regression"
    metrics = directions_of("rmse", "wape")

    def fit(self, train):
        df = add_datepart(train.collect())
        median = df["temperature"].median()
        conts = df.with_columns(pl.col("temperature").fill_null(median)).select(cont_names)
        conts = conts.to_numpy()
        self.fitted = {
            "classes": {c: sorted(df[c].drop_nulls().unique().to_list()) for c in cat_names},
            "median": median,
            "means": conts.mean(axis=0).tolist(),
            "stds": (conts.std(axis=0) + 1e-7).tolist(),
            "log_rate": math.log(df["walkers"].sum() / df["hours_counted"].sum()),
        }

    def encode(self, rows):
        df = add_datepart(rows).with_columns(pl.col("temperature").fill_null(self.fitted["median"]))
        cats = []
        for c in cat_names:
            o2i = {v: i for i, v in enumerate(["#na#", *self.fitted["classes"][c]])}
            cats.append([o2i.get(v, 0) for v in df[c]])
        conts = (df.select(cont_names).to_numpy() - self.fitted["means"]) / self.fitted["stds"]
        batch = {
            "x_cat": torch.tensor(cats).T.contiguous(),
            "x_cont": torch.tensor(conts, dtype=torch.float32),
            "x_flag": df.select(pl.col(flags).cast(pl.Float32)).to_torch(),
            "log_hours": df["hours_counted"].cast(pl.Float32).log().to_torch(),
        }
        if "walkers" in df.columns:
            batch[LABEL] = df["walkers"].cast(pl.Float32).to_torch()
        return batch

    def build_model(self):
        sizes = [len(self.fitted["classes"][c]) + 1 for c in cat_names]
        return TabularModel([(n, emb_sz_rule(n)) for n in sizes], self.fitted["log_rate"])

    def losses(self, output, batch):
        return nn.functional.poisson_nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()


class TabularModel(nn.Module):
    def __init__(self, emb_szs, start, layers=(64, 32), embed_p=0.05):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(n, d) for n, d in emb_szs])
        for emb in self.embeds:
            nn.init.trunc_normal_(emb.weight, std=0.1)
        self.emb_drop = nn.Dropout(embed_p)
        self.bn_cont = nn.BatchNorm1d(len(cont_names))
        width, blocks = sum(d for _, d in emb_szs) + len(cont_names) + len(flags), []
        for n in layers:
            blocks += [nn.Linear(width, n, bias=False), nn.BatchNorm1d(n), nn.ReLU()]
            width = n
        self.layers = nn.Sequential(*blocks)
        self.out = nn.Linear(width, 1)
        nn.init.constant_(self.out.bias, start)

    def forward(self, x_cat, x_cont, x_flag, log_hours):
        x = [e(x_cat[:, i]) for i, e in enumerate(self.embeds)]
        x = torch.cat([self.emb_drop(torch.cat(x, 1)), self.bn_cont(x_cont), x_flag], 1)
        return self.out(self.layers(x)).squeeze(1) + log_hours
