"""Four toxicity tests of a compound from its fragments (Tox21, in small): one net for all, tests that were not made are masked.

data: assays

[data]
label = "results"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.1 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.task import LABEL, Task

FRAGMENTS, TESTS = 160, 4
NAMES = ("receptor", "metabolite", "membrane", "repair")


class GatedBlock(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.up = nn.Linear(d, 2 * d)
        self.drop = nn.Dropout(0.3)

    def forward(self, h):
        a, gate = self.up(self.norm(h)).chunk(2, dim=-1)
        return h + self.drop(a * torch.sigmoid(gate))


class MultitaskNet(nn.Module):
    def __init__(self, rates, d=48):
        super().__init__()
        self.embed = nn.Linear(FRAGMENTS, d)
        self.blocks = nn.Sequential(GatedBlock(d), GatedBlock(d))
        self.heads = nn.Linear(d, TESTS)
        r = torch.tensor(rates)
        with torch.no_grad():
            self.heads.bias.copy_(torch.log(r / (1 - r)))

    def forward(self, fingerprint):
        return self.heads(self.blocks(self.embed(fingerprint)))


def auc(scores, positive):
    order = np.argsort(np.argsort(scores)) + 1.0
    p, n = positive.sum(), (~positive).sum()
    return (order[positive].sum() - p * (p + 1) / 2) / (p * n)


class ToxicityAssays(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"mean_auc": "maximize"}

    def fit(self, train):
        y = np.array(train.select("results").collect()["results"].to_list())
        self.fitted = {"rates": [float(y[y[:, t] >= 0, t].mean()) for t in range(TESTS)]}

    def encode(self, rows):
        fp = torch.zeros(rows.height, FRAGMENTS)
        for i, present in enumerate(rows["fragments"].to_list()):
            fp[i, present] = 1.0
        batch = {"fingerprint": fp}
        if "results" in rows.columns:
            batch[LABEL] = torch.tensor(rows["results"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        fp = batch["fingerprint"]
        return {**batch, "fingerprint": fp * (torch.rand(fp.shape, generator=generator) > 0.1)}

    def build_model(self):
        return MultitaskNet(self.fitted["rates"])

    def losses(self, output, batch):
        y = batch[LABEL]
        made = (y >= 0).float()
        each = F.binary_cross_entropy_with_logits(output, y.clamp(min=0), reduction="none")
        return (each * made).sum(dim=1) / made.sum(dim=1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        return torch.cat([output.sigmoid(), batch[LABEL]], dim=1)

    def score(self, predictions, labels):
        p, y = predictions[:, :TESTS], predictions[:, TESTS:]
        found = []
        for t in range(TESTS):
            made = y[:, t] >= 0
            if 0 < y[made, t].sum() < made.sum():
                found.append(auc(p[made, t], y[made, t] == 1))
        return {"mean_auc": float(np.mean(found))} if found else {}

    @property
    def prediction_names(self):
        return NAMES
