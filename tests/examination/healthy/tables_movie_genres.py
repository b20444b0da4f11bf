"""Multi-label: five genres at once, a sigmoid each, as in the multi-label tutorials.

data: movie_genres

[data]
label = "genres"
ids = ["film"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

NUMBERS = ["budget", "runtime", "effects", "songs"]
RATINGS = ["G", "PG", "PG-13", "R"]


class MovieGenres(Task):
    kind = "statistic"
    metrics = {"hamming_loss": "minimize", "exact_match": "maximize"}

    def fit(self, train):
        df = train.collect()
        x = np.log1p(df.select(NUMBERS).to_numpy())
        self.mean, self.std = x.mean(0).tolist(), x.std(0).tolist()

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        x = (np.log1p(rows.select(NUMBERS).to_numpy()) - self.mean) / self.std
        one_hot = np.stack([(rows["rating"] == r).to_numpy() for r in RATINGS], 1)
        batch = {"x": torch.tensor(np.hstack([x, one_hot]), dtype=torch.float32)}
        if "genres" in rows.columns:
            batch[LABEL] = torch.tensor(rows["genres"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return MultiLabelNet(8, 5)

    def losses(self, output, batch):
        loss = nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
        return loss.mean(dim=1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        wrong = (self.predict(output) > 0.5) != (batch[LABEL] > 0.5)
        return torch.stack([wrong.double().mean(1), (~wrong).all(1).double()], 1)

    def score(self, predictions, labels):
        wrong, exact = np.average(predictions, axis=0, weights=labels)
        return {"hamming_loss": float(wrong), "exact_match": float(exact)}

    def expected_initial_loss(self):
        return math.log(2)


class MultiLabelNet(nn.Module):
    def __init__(self, n_features, n_labels):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(n_features, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.out = nn.Linear(32, n_labels)

    def forward(self, x):
        return self.out(self.hidden(x))
