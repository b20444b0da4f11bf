"""AutoRec: a reader's ratings from those that are shown, loss where there is a rating.

data: partly_shown_ratings

[data]
label = "rated"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class AutoRec(nn.Module):
    def __init__(self, n_items, hidden, bias):
        super().__init__()
        self.encoder = nn.Linear(n_items, hidden)
        self.decoder = nn.Linear(hidden, n_items)
        nn.init.zeros_(self.decoder.weight)
        nn.init.constant_(self.decoder.bias, bias)

    def forward(self, shown):
        return self.decoder(torch.sigmoid(self.encoder(shown)))


class AutoRecBooks(Task):
    kind = "statistic"
    metrics = {"rmse_hidden": "minimize"}
    reconstructs_inputs = True

    def fit(self, train):
        rated = np.array(train.select("rated").collect()["rated"].to_list())
        known = rated[rated > 0]
        self.mean, self.variance = float(known.mean()), float(known.var())

    def state(self):
        return {"mean": self.mean, "variance": self.variance}

    def load_state(self, state):
        self.mean, self.variance = state["mean"], state["variance"]

    def encode(self, rows):
        shown = np.array(rows["shown"].to_list())
        x = np.where(shown > 0, shown - self.mean, 0)
        batch = {"shown": torch.tensor(x, dtype=torch.float32)}
        if "rated" in rows.columns:
            batch[LABEL] = torch.tensor(rows["rated"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return AutoRec(30, 24, self.mean)

    def losses(self, output, batch):
        rated = batch[LABEL]
        mask = (rated > 0).float()
        return ((output - rated) ** 2 * mask).sum(1) / mask.sum(1).clamp(min=1)

    def predict(self, output):
        return output.clamp(1, 5)

    def statistic(self, output, batch):
        hidden = (batch[LABEL] > 0) & (batch["shown"] == 0)
        error = (self.predict(output) - batch[LABEL]) ** 2 * hidden
        return torch.stack([error.sum(1), hidden.sum(1)], 1).double()

    def score(self, predictions, labels):
        error, count = np.average(predictions, axis=0, weights=labels)
        return {"rmse_hidden": float(np.sqrt(error / count))}

    def expected_initial_loss(self):
        return self.variance
