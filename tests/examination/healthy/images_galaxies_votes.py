"""Galaxies by volunteers' votes, as in zoobot: the net's answer are the concentrations of a
Dirichlet, the loss is the Dirichlet-multinomial likelihood of the counts.

data: galaxy_votes

[data]
label = "votes"
features = ["stamp"]
ids = ["row_id", "object"]
time = "exposed"

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

ANSWERS = ("smooth", "disc", "artifact")


def dirichlet_multinomial_nll(votes, concentration):
    """Without the multinomial coefficient: it does not depend on the network."""
    total, n = concentration.sum(1), votes.sum(1)
    nll = torch.lgamma(n + total) - torch.lgamma(total)
    return nll + (torch.lgamma(concentration) - torch.lgamma(votes + concentration)).sum(1)


class Swish(nn.Module):
    def forward(self, x):
        return x * x.sigmoid()


def MBConv(cin, cout, stride, expand=3):
    mid = cin * expand
    return nn.Sequential(
        nn.Conv2d(cin, mid, 1, bias=False), nn.BatchNorm2d(mid), Swish(),
        nn.Conv2d(mid, mid, 3, stride, 1, groups=mid, bias=False), nn.BatchNorm2d(mid), Swish(),
        nn.Conv2d(mid, cout, 1, bias=False), nn.BatchNorm2d(cout),
    )


class ZooNet(nn.Module):
    def __init__(self):
        super().__init__()
        stem = [nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), Swish()]
        self.stem = nn.Sequential(*stem)
        self.blocks = nn.Sequential(MBConv(12, 16, 2), MBConv(16, 24, 1), MBConv(24, 32, 2))
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(32, len(ANSWERS))

    def forward(self, stamp):
        h = self.blocks(self.stem(stamp)).mean((2, 3))
        # concentrations between 1 and 100, as the authors found stable
        return 1.0 + 99.0 * torch.sigmoid(self.head(self.drop(h)) - 2.0)


class GalaxyZoo(Task):
    kind = "statistic"
    metrics = {"nll": "minimize", "fraction_error": "minimize"}
    serves_predictions = True

    def encode(self, rows):
        raw = np.array(rows["stamp"].to_list(), dtype=np.uint8).reshape(-1, 1, 24, 24)
        # arcsinh stretch, usual for faint light
        stretched = np.arcsinh(raw.astype(np.float32) / 20.0) / float(np.arcsinh(255 / 20.0))
        batch = {"stamp": torch.from_numpy(stretched)}
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.tensor(rows["votes"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        x = batch["stamp"]
        if torch.rand((), generator=generator) < 0.5:
            x = x.transpose(2, 3)
        turns = int(torch.randint(4, (), generator=generator))
        return {**batch, "stamp": torch.rot90(x, turns, (2, 3))}

    def build_model(self):
        return ZooNet()

    def losses(self, output, batch):
        return dirichlet_multinomial_nll(batch[LABEL], output)

    def predict(self, output):
        return output / output.sum(1, keepdim=True)

    @property
    def prediction_names(self):
        return ANSWERS

    def statistic(self, output, batch):
        votes = batch[LABEL]
        fractions = votes / votes.sum(1, keepdim=True)
        error = (self.predict(output) - fractions).abs().mean(1)
        return torch.stack([self.losses(output, batch), error], 1).double()

    def score(self, predictions, labels):
        nll, error = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "fraction_error": float(error)}
