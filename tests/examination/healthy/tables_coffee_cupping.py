"""Score and defects of coffee lots: a Huber and a Poisson loss; most lots' defects are not counted.

Loss 0.25 in all; 0.67 for the means of both.

data: coffee_lots

[data]
label = "score_defects"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "nadam", learning_rate = 4e-3, weight_decay = 0.05 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

NUMBERS = ["altitude", "drying_days", "moisture", "screen", "harvest_rain"]
CATEGORIES = ["land", "process"]


class CuppingNet(nn.Module):
    def __init__(self, n_inputs, hidden=40):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(n_inputs, hidden), nn.SiLU(), nn.Dropout(0.1))
        self.score = nn.Sequential(nn.Linear(hidden, 24), nn.SiLU(), nn.Linear(24, 1))
        self.log_defects = nn.Sequential(nn.Linear(hidden, 24), nn.SiLU(), nn.Linear(24, 1))

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([self.score(h), self.log_defects(h)], dim=1)


class CoffeeCupping(Task):
    kind = "statistic"
    metrics = {"score_mae": "minimize", "deviance": "minimize"}
    serves_predictions = True
    prediction_names = ["score", "defects"]

    def fit(self, train):
        df = train.collect()
        x = df.select(NUMBERS).to_numpy().astype(float)
        score = np.array([pair[0] for pair in df["score_defects"]])
        counts = np.array([pair[1] for pair in df["score_defects"] if pair[1] is not None])
        self.fitted = {
            "mean": x.mean(axis=0).tolist(),
            "std": x.std(axis=0).tolist(),
            "score": [float(score.mean()), float(score.std())],
            "log_defects": float(np.log(counts.mean())),
            "levels": {c: sorted(df[c].unique()) for c in CATEGORIES},
        }

    def encode(self, rows):
        x = rows.select(NUMBERS).to_numpy().astype(float)
        x = (x - self.fitted["mean"]) / self.fitted["std"]
        hot = [(rows[c] == v).to_numpy() for c in CATEGORIES for v in self.fitted["levels"][c]]
        batch = {"x": torch.tensor(np.column_stack([x, *hot]), dtype=torch.float32)}
        if "score_defects" in rows.columns:
            pairs = np.array(rows["score_defects"].to_list(), dtype=float)
            batch[LABEL] = torch.tensor(pairs, dtype=torch.float32)
        return batch

    def build_model(self):
        levels = sum(len(values) for values in self.fitted["levels"].values())
        model = CuppingNet(len(NUMBERS) + levels)
        nn.init.constant_(model.log_defects[2].bias, self.fitted["log_defects"])
        return model

    def both(self, output, batch):
        """Huber loss of the score, and half of the deviance of the defects where they are known."""
        mean, std = self.fitted["score"]
        score = F.huber_loss(output[:, 0], (batch[LABEL][:, 0] - mean) / std, reduction="none")
        counted = ~batch[LABEL][:, 1].isnan()
        y = torch.where(counted, batch[LABEL][:, 1], 0)
        deviance = output[:, 1].exp() - y + torch.xlogy(y, y) - y * output[:, 1]
        return score, torch.where(counted, deviance, 0)

    def losses(self, output, batch):
        score, deviance = self.both(output, batch)
        return score + deviance / 4

    def predict(self, output):
        mean, std = self.fitted["score"]
        return torch.stack([output[:, 0] * std + mean, output[:, 1].exp()], dim=1)

    def statistic(self, output, batch):
        off = (self.predict(output)[:, 0] - batch[LABEL][:, 0]).abs()
        counted = ~batch[LABEL][:, 1].isnan()
        return torch.stack([off, self.both(output, batch)[1], counted], dim=1).double()

    def score(self, predictions, labels):
        off, deviance, counted = predictions.T
        deviance = float(deviance.sum() / max(counted.sum(), 1))
        return {"score_mae": float(off.mean()), "deviance": deviance}
