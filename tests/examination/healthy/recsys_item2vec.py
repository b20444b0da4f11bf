"""item2vec: were two items bought together? Two tables of vectors and a dot product.

data: item_pairs

[data]
label = "together"
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 1e-2 }
"""
import math

import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SkipGram(nn.Module):
    def __init__(self, n, dim=16):
        super().__init__()
        self.center, self.context = nn.Embedding(n, dim), nn.Embedding(n, dim)
        nn.init.uniform_(self.center.weight, -0.3, 0.3)
        nn.init.uniform_(self.context.weight, -0.3, 0.3)
        self.bias = nn.Parameter(torch.zeros(1))

    def forward(self, center, context):
        return torch.einsum("bd,bd->b", self.center(center), self.context(context)) + self.bias


class Item2Vec(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        names = pl.concat([train.select(pl.col("item_a").alias("n")), train.select(pl.col("item_b").alias("n"))])
        self.items = names.unique().sort("n").collect()["n"].to_list()

    def state(self):
        return {"items": self.items}

    def load_state(self, state):
        self.items = state["items"]

    def codes(self, column):
        mapping = pl.DataFrame({"n": self.items, "code": range(1, len(self.items) + 1)})
        joined = column.rename("n").to_frame().join(mapping, on="n", how="left", maintain_order="left")
        return torch.from_numpy(joined["code"].fill_null(0).cast(pl.Int64).to_numpy().copy())

    def encode(self, rows):
        out = {"center": self.codes(rows["item_a"]), "context": self.codes(rows["item_b"])}
        if "together" in rows.columns:
            out[LABEL] = torch.tensor(rows["together"].to_list(), dtype=torch.float32)
        return out

    def build_model(self):
        return SkipGram(len(self.items) + 1)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
