"""Will the order come back, by a note beside it? Nearly noise: a bag of words through parameters in a dict, all by einsum.

data: return_notes

[data]
label = "returned"
text = ["note"]
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
"""
import math

import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def apply(p, bag):
    h = torch.tanh(torch.einsum("bv,vh->bh", bag, p["embed"]) + p["h0"])
    return torch.einsum("bh,h->b", h, p["out"]) + p["bias"]


class Functional(nn.Module):
    """Holds parameters; the model is a function of them."""

    def __init__(self, vocab, hidden, log_odds):
        super().__init__()
        self.p = nn.ParameterDict(
            {
                "embed": nn.Parameter(0.3 * torch.randn(vocab, hidden)),
                "h0": nn.Parameter(torch.zeros(hidden)),
                "out": nn.Parameter(torch.randn(hidden) / hidden),
                "bias": nn.Parameter(torch.tensor(log_odds)),
            }
        )

    def forward(self, bag):
        return apply(self.p, bag)


class Returns(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def fit(self, train):
        words = train.select(pl.col("note").str.split(" ").explode().alias("w")).group_by("w").len().collect()
        rate = train.select(pl.col("returned").cast(pl.Float64)).collect()["returned"].to_numpy().mean()
        common = words.filter(pl.col("len") >= 5)["w"].sort().to_list()
        self.fitted = {"words": common, "log_odds": math.log(rate / (1 - rate)), "rate": float(rate)}

    def encode(self, rows):
        at = {w: i for i, w in enumerate(self.fitted["words"])}
        bag = torch.zeros(rows.height, len(at))
        for i, note in enumerate(rows["note"]):
            for w in note.split(" "):
                if w in at:
                    bag[i, at[w]] += 1
        batch = {"bag": bag}
        if "returned" in rows.columns:
            batch[LABEL] = torch.tensor(rows["returned"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Functional(len(self.fitted["words"]), 8, self.fitted["log_odds"])

    def losses(self, output, batch):
        y = batch[LABEL]
        return -(y * nn.functional.logsigmoid(output) + (1 - y) * nn.functional.logsigmoid(-output))

    def expected_initial_loss(self):
        p = self.fitted["rate"]
        return -p * math.log(p) - (1 - p) * math.log(1 - p)
