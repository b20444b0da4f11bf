"""Hotel bookings that are cancelled: entity embeddings, lead time in logs, arrival month from a text, AdamW and a cosine.

data: bookings

[data]
label = "is_canceled"
time = "booked_at"
time_is_feature = true
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3, weight_decay = 0.01 }
"""
import numpy as np
import polars as pl
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATEGORICAL = ["hotel", "market_segment", "deposit_type", "country", "agent", "arrival_month"]
NUMERICAL = ["lead_time", "adults", "children", "weekend_nights", "week_nights", "previous_cancellations",
             "special_requests", "parking_spaces", "adr"]
RARE = 20


class CancellationNet(nn.Module):
    def __init__(self, cardinalities, n_numerical, hidden=64):
        super().__init__()
        self.embeddings = nn.ModuleList([nn.Embedding(n, min(8, (n + 1) // 2)) for n in cardinalities])
        width = sum(e.embedding_dim for e in self.embeddings) + n_numerical
        self.fc1, self.fc2, self.fc3 = nn.Linear(width, hidden), nn.Linear(hidden, hidden // 2), nn.Linear(hidden // 2, 1)
        self.norm = nn.LayerNorm(hidden)
        self.dropout = nn.Dropout(0.2)

    def forward(self, categorical, numerical):
        x = [e(categorical[:, i]) for i, e in enumerate(self.embeddings)]
        x = torch.cat(x + [numerical], dim=-1)
        x = self.dropout(F.gelu(self.norm(self.fc1(x))))
        return self.fc3(F.gelu(self.fc2(x)))


class HotelCancellations(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def prepare(self, rows):
        arrival = pl.col("arrival_date").str.to_date("%Y-%m-%d")
        return rows.with_columns(
            lead_time=(arrival - pl.col("booked_at").dt.date()).dt.total_days().clip(0).log1p(),
            arrival_month=arrival.dt.month(),
            agent=pl.col("agent").cast(pl.Int64),
            children=pl.col("children").fill_null(0),
            previous_cancellations=pl.col("previous_cancellations").clip(0, 3),
        )

    def fit(self, train):
        df = self.prepare(train.collect())
        x = df.select(NUMERICAL).to_numpy().astype(float)
        self.fitted = {"mean": x.mean(0).tolist(), "std": x.std(0).tolist(), "levels": {}}
        for c in CATEGORICAL:
            counts = df[c].cast(pl.String).fill_null("missing").value_counts()
            frequent = counts.filter(pl.col("count") >= RARE)[c].to_list()
            self.fitted["levels"][c] = sorted(frequent)

    def encode(self, rows):
        df = self.prepare(rows)
        codes = []
        for c in CATEGORICAL:
            index = {v: i + 1 for i, v in enumerate(self.fitted["levels"][c])}
            codes.append([index.get(v, 0) for v in df[c].cast(pl.String).fill_null("missing")])
        x = (df.select(NUMERICAL).to_numpy().astype(float) - self.fitted["mean"]) / self.fitted["std"]
        batch = {
            "categorical": torch.from_numpy(np.array(codes).T.copy()),
            "numerical": torch.from_numpy(x).float(),
        }
        if "is_canceled" in df.columns:
            batch[LABEL] = torch.from_numpy(df["is_canceled"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        return CancellationNet([len(self.fitted["levels"][c]) + 1 for c in CATEGORICAL], len(NUMERICAL))

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output.squeeze(-1), batch[LABEL], reduction="none")
