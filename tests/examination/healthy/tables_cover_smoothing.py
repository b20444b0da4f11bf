"""Seven kinds of forest, label smoothing 0.1 while training, soil as an embedding.

data: cover_types

[data]
label = "cover_type"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class ForestCover(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy", "macro_f1")
    smoothing = 0.1

    def fit(self, train):
        numeric = [c for c in self.columns.features if c != "soil_type"]
        frame = train.select(numeric).collect()
        self.numeric = {c: {"mean": frame[c].mean(), "std": frame[c].std()} for c in numeric}

    def state(self):
        return {"numeric": self.numeric}

    def load_state(self, state):
        self.numeric = dict(state["numeric"])

    def encode(self, rows):
        z = [(rows[c].to_numpy() - s["mean"]) / s["std"] for c, s in sorted(self.numeric.items())]
        batch = {
            "numeric": torch.stack([torch.from_numpy(column).float() for column in z], dim=-1),
            "soil": torch.from_numpy(rows["soil_type"].to_numpy().copy()),
        }
        if "cover_type" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["cover_type"].to_numpy().copy())
        return batch

    def build_model(self):
        return CoverNet(len(self.numeric))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=self.smoothing)

    def predict(self, output):
        return F.softmax(output, dim=1)

    def expected_initial_loss(self):
        return math.log(7)


class CoverNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.soil = nn.Embedding(20, 6)
        self.fc1 = nn.Linear(n + 6, 96)
        self.norm = nn.LayerNorm(96)
        self.fc2 = nn.Linear(96, 48)
        self.fc3 = nn.Linear(48, 7)

    def forward(self, numeric, soil):
        h = F.gelu(self.norm(self.fc1(torch.cat((numeric, self.soil(soil)), 1))))
        return self.fc3(F.gelu(self.fc2(h)))
