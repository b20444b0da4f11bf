"""Two loads of one building from a shared trunk: two heads, one list of labels.

data: buildings

[data]
label = "loads"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class EnergyLoads(Task):
    kind = "statistic"
    metrics = {"rmse_heating": "minimize", "rmse_cooling": "minimize"}

    def fit(self, train):
        loads = np.array(train.select("loads").collect()["loads"].to_list())
        self.mean, self.std = loads.mean(0).tolist(), loads.std(0).tolist()

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        batch = {"x": torch.tensor(rows.select(sorted(self.columns.features)).to_numpy() * 2 - 1, dtype=torch.float32)}
        if "loads" in rows.columns:
            batch[LABEL] = torch.tensor(rows["loads"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return TwoHeads(len(self.columns.features))

    def _errors(self, output, batch):
        return output - (batch[LABEL] - torch.tensor(self.mean)) / torch.tensor(self.std)

    def losses(self, output, batch):
        return self._errors(output, batch).square().mean(dim=1)

    def predict(self, output):
        return output * torch.tensor(self.std) + torch.tensor(self.mean)

    def statistic(self, output, batch):
        return (self._errors(output, batch) * torch.tensor(self.std)).square()

    def score(self, predictions, labels):
        heating, cooling = np.sqrt(np.average(predictions, axis=0, weights=labels))
        return {"rmse_heating": float(heating), "rmse_cooling": float(cooling)}

    def expected_initial_loss(self):
        return 1.0


class TwoHeads(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(d, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.heating = nn.Linear(64, 1)
        self.cooling = nn.Linear(64, 1)

    def forward(self, x):
        h = self.trunk(x)
        return torch.cat([self.heating(h), self.cooling(h)], dim=1)
