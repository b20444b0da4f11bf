"""Click-through rate: codes looked up in vocabularies, embeddings side by side, an MLP.

data: banner_clicks

[data]
label = "click"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 5e-3 }
"""
import math

import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

FIELDS = ["site", "device", "hour"]


class CTR(nn.Module):
    def __init__(self, sizes, dim=6, bias=0.0):
        super().__init__()
        self.tables = nn.ModuleDict({name: nn.Embedding(size, dim) for name, size in sizes.items()})
        self.mlp = nn.Sequential(nn.Linear(dim * len(sizes), 32), nn.ReLU(), nn.Linear(32, 1))
        nn.init.zeros_(self.mlp[-1].weight)
        nn.init.constant_(self.mlp[-1].bias, bias)

    def forward(self, **codes):
        x = torch.cat([self.tables[name](codes[name]) for name in FIELDS], 1)
        return self.mlp(x).squeeze(1)


class AdClicks(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def fit(self, train):
        df = train.collect()
        self.vocabulary = {name: [str(v) for v in sorted(df[name].unique())] for name in FIELDS}
        self.rate = float(df["click"].mean())

    def state(self):
        return {"vocabulary": self.vocabulary, "rate": self.rate}

    def load_state(self, state):
        self.vocabulary, self.rate = state["vocabulary"], state["rate"]

    def encode(self, rows):
        batch = {}
        for name in FIELDS:
            code = {value: k for k, value in enumerate(self.vocabulary[name], start=1)}
            batch[name] = torch.tensor([code.get(str(value), 0) for value in rows[name]])
        if "click" in rows.columns:
            batch[LABEL] = rows["click"].cast(float).to_torch().float()
        return batch

    def build_model(self):
        sizes = {name: len(known) + 1 for name, known in self.vocabulary.items()}
        return CTR(sizes, bias=math.log(self.rate / (1 - self.rate)))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return -(self.rate * math.log(self.rate) + (1 - self.rate) * math.log(1 - self.rate))
