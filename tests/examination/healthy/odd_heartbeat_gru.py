"""Beats of three kinds by a GRU's last state; the rare kinds weigh more.

data: heartbeats

[data]
label = "kind"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class BeatGRU(nn.Module):
    def __init__(self, hidden=24):
        super().__init__()
        self.gru = nn.GRU(4, hidden, batch_first=True)
        self.fc = nn.Linear(hidden, 3)

    def forward(self, beat):
        steps, last = self.gru(beat)
        return self.fc(steps[:, -1])


class Heartbeats(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "log_loss")

    def fit(self, train):
        counts = dict(train.group_by("kind").len().sort("kind").collect().iter_rows())
        self.kinds = list(counts)
        total = sum(counts.values())
        self.class_weight = [total / (len(counts) * n) for n in counts.values()]

    def state(self):
        return {"kinds": self.kinds, "class_weight": self.class_weight}

    def load_state(self, state):
        self.kinds, self.class_weight = state["kinds"], state["class_weight"]

    def encode(self, rows):
        beat = np.array(rows["beat"].to_list(), dtype=np.float32)
        batch = {"beat": torch.from_numpy(beat).view(-1, 24, 4)}
        if "kind" in rows.columns:
            batch[LABEL] = torch.tensor([self.kinds.index(k) for k in rows["kind"]])
        return batch

    def build_model(self):
        return BeatGRU()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) * torch.tensor(self.class_weight)[batch[LABEL]]

    def predict(self, output):
        return output.softmax(-1)

    def expected_initial_loss(self):
        return math.log(3)
