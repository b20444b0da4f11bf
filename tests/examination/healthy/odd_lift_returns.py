"""Monte Carlo Q-values from a log: the value of the action that was taken is fitted to the return that followed (dueling heads).

data: lift_log

[data]
label = "action_and_return"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

FLOORS = 4


class DuelingQ(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(2 + 2 * FLOORS, 64), nn.LayerNorm(64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU())
        self.value, self.advantage = nn.Linear(64, 1), nn.Linear(64, FLOORS)

    def forward(self, state):
        h = self.body(state)
        a = self.advantage(h)
        return self.value(h) + a - a.mean(dim=1, keepdim=True)


class LiftReturns(Task):
    kind = "statistic"
    metrics = {"q_rmse": "minimize", "explained": "maximize"}

    def fit(self, train):
        returns = np.array(train.collect()["action_and_return"].to_list())[:, 1]
        self.fitted = {"mean": float(returns.mean()), "std": float(returns.std())}

    def encode(self, rows):
        hour = 2 * np.pi * rows["hour"].to_numpy() / 24
        at = np.eye(FLOORS)[rows["at_floor"].to_numpy()]
        calls = np.array(rows["recent_calls"].to_list()) / 20 - 0.5
        state = np.concatenate([np.sin(hour)[:, None], np.cos(hour)[:, None], at, calls], axis=1)
        batch = {"state": torch.tensor(state, dtype=torch.float32)}
        if "action_and_return" in rows.columns:
            batch[LABEL] = torch.tensor(rows["action_and_return"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DuelingQ()

    def taken(self, output, batch):
        action = batch[LABEL][:, 0].long()
        return output.gather(1, action[:, None])[:, 0]

    def losses(self, output, batch):
        g = (batch[LABEL][:, 1] - self.fitted["mean"]) / self.fitted["std"]
        return (self.taken(output, batch) - g).square()

    def statistic(self, output, batch):
        g = (batch[LABEL][:, 1] - self.fitted["mean"]) / self.fitted["std"]
        return torch.stack([self.losses(output, batch), g.square()], dim=1)

    def score(self, predictions, labels):
        error, around = np.average(predictions, axis=0, weights=labels)
        return {"q_rmse": float(np.sqrt(error) * self.fitted["std"]), "explained": float(1 - error / around)}
