"""Which desk gets a complaint: hashed character trigrams, a linear layer, the multi-class hinge of Crammer and Singer, as LinearSVC did before.

data: complaints

[data]
label = "desk"
text = ["complaint"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 100
micro_batch_size = 100
optimizer = { learning_rate = 1e-2, weight_decay = 1e-3 }
"""
import zlib

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

BUCKETS = 1024


def trigrams(text):
    padded = f"  {text.lower()} "
    return [zlib.crc32(padded[i : i + 3].encode()) % BUCKETS for i in range(len(padded) - 2)]


class Desks(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1")

    def fit(self, train):
        df = train.collect()
        counts = torch.zeros(BUCKETS)
        for text in df["complaint"]:
            counts[list(set(trigrams(text)))] += 1
        idf = torch.log((1 + len(df)) / (1 + counts)) + 1
        self.fitted = {"desks": df["desk"].unique().sort().to_list(), "idf": idf.tolist()}

    def encode(self, rows):
        x = torch.zeros(len(rows), BUCKETS)
        for i, text in enumerate(rows["complaint"]):
            ids = torch.tensor(trigrams(text))
            x[i].index_add_(0, ids, torch.ones(len(ids)))
        x = torch.log1p(x) * torch.tensor(self.fitted["idf"])
        batch = {"x": nn.functional.normalize(x, dim=1)}
        if "desk" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["desks"].index(d) for d in rows["desk"]])
        return batch

    def build_model(self):
        svm = nn.Linear(BUCKETS, len(self.fitted["desks"]))
        nn.init.zeros_(svm.weight)
        nn.init.zeros_(svm.bias)
        return Svm(svm)

    def losses(self, output, batch):
        own = output.gather(1, batch[LABEL][:, None])
        margins = (1 + output - own).scatter(1, batch[LABEL][:, None], 0.0)
        return margins.amax(1).clamp(min=0)

    def expected_initial_loss(self):
        return 1.0


class Svm(nn.Module):
    def __init__(self, linear):
        super().__init__()
        self.linear = linear

    def forward(self, x):
        return self.linear(x)
