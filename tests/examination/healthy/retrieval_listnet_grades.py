"""ListNet: three to eight candidates with grades as a list of labels, absent ones masked; judged by NDCG.

data: graded_lists

[data]
label = "grade"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

SLOTS, FIELDS = 8, ("match", "freshness", "length")
ABSENT = -1


class Ranker(nn.Module):
    def __init__(self):
        super().__init__()
        self.ffn = nn.Sequential(nn.Linear(len(FIELDS), 24), nn.LeakyReLU(), nn.Linear(24, 1))

    def forward(self, candidates, present):
        return self.ffn(candidates).squeeze(-1).masked_fill(present == 0, -1e4)


class ListNet(Task):
    kind = "statistic"
    metrics = {"ndcg": "maximize"}

    def fit(self, train):
        sizes = [len(g) for g in train.select("grade").collect()["grade"].to_list()]
        self.undecided = sum(math.log(n) for n in sizes) / len(sizes)

    def state(self):
        return {"undecided": self.undecided}

    def load_state(self, state):
        self.undecided = state["undecided"]

    def encode(self, rows):
        x = np.zeros((len(rows), SLOTS, len(FIELDS)), dtype=np.float32)
        present = np.zeros((len(rows), SLOTS), dtype=np.float32)
        for r, lists in enumerate(rows.select(FIELDS).iter_rows()):
            n = min(len(lists[0]), SLOTS)
            x[r, :n] = np.stack([values[:n] for values in lists], axis=1)
            present[r, :n] = 1
        batch = {"candidates": torch.from_numpy(x), "present": torch.from_numpy(present)}
        if "grade" in rows.columns:
            padded = [(list(g) + [ABSENT] * SLOTS)[:SLOTS] for g in rows["grade"].to_list()]
            batch[LABEL] = torch.tensor(padded)
        return batch

    def build_model(self):
        return Ranker()

    def losses(self, output, batch):
        grades = batch[LABEL].float().masked_fill(batch[LABEL] == ABSENT, -1e4)
        return -(grades.softmax(1) * output.log_softmax(1)).sum(1)

    def training_losses(self, output, batch):
        """Without the entropy of the grades, which no scorer can take away."""
        grades = batch[LABEL].float().masked_fill(batch[LABEL] == ABSENT, -1e4)
        return nn.functional.kl_div(output.log_softmax(1), grades.softmax(1), reduction="none").sum(1)

    def predict(self, output):
        return output.softmax(1)

    def statistic(self, output, batch):
        gain = 2.0 ** batch[LABEL].clamp(min=0).double() - 1
        discount = 1 / torch.log2(torch.arange(SLOTS, device=output.device) + 2.0).double()
        found = (gain.gather(1, output.argsort(1, descending=True)) * discount).sum(1)
        best = (gain.sort(1, descending=True).values * discount).sum(1)
        return torch.where(best > 0, found / best.clamp(min=1e-9), torch.ones_like(best))

    def score(self, predictions, labels):
        return {"ndcg": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.undecided
