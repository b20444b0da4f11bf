"""Tomorrow's pollen warning from five hundred days: strided convolutions, then a GRU; rare classes weigh more.

data: pollen

[data]
label = "warning"
time = "day"
meta = ["town"]
ids = ["row_id"]

[training]
steps = 150
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CLASSES = ["none", "low", "high"]


class PollenNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(1, 16, 10, stride=5), nn.GroupNorm(4, 16), nn.ReLU(), nn.Conv1d(16, 24, 5, stride=2), nn.ReLU()
        )
        self.gru = nn.GRU(24, 24, batch_first=True)
        self.head = nn.Linear(24 + 7, 3)

    def forward(self, counts):
        h = self.conv(counts[:, None]).transpose(1, 2)
        _, last = self.gru(h)
        return self.head(torch.cat([last[0], counts[:, -7:]], 1))


class Pollen(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def fit(self, train):
        counts = train.collect()["warning"].value_counts()
        n = dict(counts.iter_rows())
        total = sum(n.values())
        self.fitted = {"class_weights": [(total / (3 * n[c])) ** 0.5 for c in CLASSES]}

    def encode(self, rows):
        batch = {"counts": torch.log1p(torch.tensor(rows["counts"].to_list(), dtype=torch.float32)) - 2}
        if "warning" in rows.columns:
            batch[LABEL] = torch.tensor([CLASSES.index(w) for w in rows["warning"]])
        return batch

    def build_model(self):
        return PollenNet()

    def losses(self, output, batch):
        weight = torch.tensor(self.fitted["class_weights"])
        return nn.functional.cross_entropy(output, batch[LABEL], weight=weight, reduction="none")
