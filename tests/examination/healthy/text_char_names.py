"""Names of towns, a character at a time: a GRU as in the name generation tutorial, padding masked.

data: town_names

[data]
label = "name"
features = ["name"]
text = ["name"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

PAD, START = 0, 1
LENGTH = 26


class CharRNN(nn.Module):
    def __init__(self, n_chars, hidden=64):
        super().__init__()
        self.embed = nn.Embedding(n_chars, 24, padding_idx=PAD)
        self.gru = nn.GRU(24, hidden, batch_first=True)
        self.out = nn.Linear(hidden, n_chars)

    def forward(self, chars):
        states, _ = self.gru(self.embed(chars))
        return self.out(states)


class TownNames(Task):
    kind = "statistic"
    statistics = ("loss",)
    metrics = directions_of("perplexity")

    def fit(self, train):
        names = train.select("name").collect()["name"]
        self.fitted = {"alphabet": sorted(set("".join(names)))}

    def encode(self, rows):
        index = {c: i + 3 for i, c in enumerate(self.fitted["alphabet"])}
        end = 2
        chars = np.zeros((rows.height, LENGTH), dtype=np.int64)
        targets = np.zeros((rows.height, LENGTH), dtype=np.int64)
        for i, name in enumerate(rows["name"]):
            ids = [START, *(index.get(c, PAD) for c in name)][:LENGTH]
            chars[i, : len(ids)] = ids
            after = [*ids[1:], end]
            targets[i, : len(after)] = after
        return {
            "chars": torch.from_numpy(chars),
            LABEL: torch.from_numpy(targets),
            WEIGHT: torch.from_numpy((targets != PAD).sum(1)).float(),
        }

    def build_model(self):
        return CharRNN(len(self.fitted["alphabet"]) + 3)

    def losses(self, output, batch):
        target = batch[LABEL]
        each = nn.functional.cross_entropy(output.transpose(1, 2), target, reduction="none", ignore_index=PAD)
        return each.sum(1) / (target != PAD).sum(1).clamp(min=1)
