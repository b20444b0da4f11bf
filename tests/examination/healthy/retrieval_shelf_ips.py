"""Products of a search, ranked from clicks without the bias of places (Joachims et al., 2017): a
listwise softmax weighs each click by how rarely its place is looked at; places are no input.

data: shelf_clicks

[data]
label = "clicks"
time = "searched_at"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import math

import torch
from torch import nn

from perennial.engine.task import LABEL, Task

WIDTH = 10
FIELDS = ["match", "price", "stars", "sold", "days_listed"]
ETA = 1.0  # from an experiment in which neighbours were exchanged


def propensity(shown_at):
    """How often somebody looks at the first, the second, … place."""
    return 1 / shown_at.clamp(min=1) ** ETA


class Scorer(nn.Module):
    """Scores a product by itself and by how it differs from the others of its list."""

    def __init__(self, width, hidden=32):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(2 * width, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.out = nn.Linear(hidden, 1)

    def forward(self, docs, mask, shown_at):
        count = mask.sum(dim=1).clamp(min=1)
        mean = (docs * mask[..., None]).sum(dim=1) / count[:, None]
        x = torch.cat([docs, docs - mean[:, None]], dim=-1)
        scores = self.out(self.net(x)).squeeze(-1).masked_fill(~mask, -1e4)
        return torch.stack([scores, propensity(shown_at)], dim=-1)


class ShelfRanking(Task):
    kind = "statistic"
    metrics = {"unbiased_dcg": "maximize"}
    serves_predictions = True

    @property
    def prediction_names(self):
        return [f"score_{place + 1}" for place in range(WIDTH)]

    def columns_of(self, rows):
        """The fields of all products, as lists of lists; None where there is no review."""
        for name in FIELDS:
            values = rows[name].to_list()
            if name in ("sold", "days_listed"):
                values = [[math.log1p(v) for v in listed] for listed in values]
            yield values

    def fit(self, train):
        mean, std = [], []
        for values in self.columns_of(train.collect()):
            flat = [v for listed in values for v in listed if v is not None]
            mean.append(math.fsum(flat) / len(flat))
            std.append(math.sqrt(math.fsum((v - mean[-1]) ** 2 for v in flat) / len(flat)))
        self.fitted = {"mean": mean, "std": std}

    def padded(self, values):
        values = [listed[:WIDTH] for listed in values]
        return torch.tensor([listed + [0.0] * (WIDTH - len(listed)) for listed in values])

    def encode(self, rows):
        columns = []
        scales = zip(self.fitted["mean"], self.fitted["std"])
        for values, (mean, std) in zip(self.columns_of(rows), scales):
            columns.append(
                self.padded([[0.0 if v is None else (v - mean) / std for v in e] for e in values])
            )
        unrated = [[float(s is None) for s in listed] for listed in rows["stars"].to_list()]
        sizes = rows["shown_at"].list.len().to_list()
        batch = {
            "docs": torch.stack([*columns, self.padded(unrated)], dim=-1),
            "mask": torch.arange(WIDTH) < torch.tensor(sizes)[:, None],
            "shown_at": self.padded([[float(p) for p in e] for e in rows["shown_at"].to_list()]),
        }
        if "clicks" in rows.columns:
            clicks = [[float(c) for c in e] for e in rows["clicks"].to_list()]
            batch[LABEL] = self.padded(clicks)
        return batch

    def build_model(self):
        return Scorer(len(FIELDS) + 1)

    def losses(self, output, batch):
        scores, looked_at = output.unbind(dim=-1)
        weight = batch[LABEL] / looked_at
        return -(weight * scores.log_softmax(dim=1)).sum(dim=1)

    def predict(self, output):
        return output[..., 0]

    def statistic(self, output, batch):
        """Sums of clicks, each by its weight: discounted by the rank, and as they are."""
        ranks = self.predict(output).argsort(dim=1, descending=True).argsort(dim=1)
        weight = batch[LABEL] * batch["shown_at"] ** ETA
        gain = weight / torch.log2(ranks + 2.0)
        return torch.stack([gain.sum(dim=1), weight.sum(dim=1)], dim=1)

    def score(self, predictions, labels):
        gain, weight = (predictions * labels[:, None]).sum(axis=0)
        return {"unbiased_dcg": float(gain / weight)}
