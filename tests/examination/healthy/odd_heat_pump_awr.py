"""Offline control of heat pumps by advantage-weighted regression: what turned out better than usual is imitated more.

data: heating_log

[data]
label = "logged"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

ACTIONS = ("off", "low", "high")
BETA = 0.5  # temperature of the advantages
MAX_WEIGHT = 8.0


def ridge(x, y, alpha=1.0):
    x = np.column_stack([np.ones(len(x)), x])
    return np.linalg.solve(x.T @ x + alpha * np.eye(x.shape[1]), x.T @ y)


class Actor(nn.Module):
    def __init__(self, obs_dim, act_dim=len(ACTIONS)):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(obs_dim, 48), nn.Tanh(), nn.Linear(48, 48), nn.Tanh())
        self.pi = nn.Linear(48, act_dim)
        nn.init.orthogonal_(self.pi.weight, gain=0.01)
        nn.init.zeros_(self.pi.bias)

    def forward(self, obs):
        return self.pi(self.trunk(obs))


class HeatPumpPolicy(Task):
    """Weights are of the data, not of the model: exp(advantage / beta), the baseline a ridge regression of returns."""

    kind = "statistic"
    serves_predictions = True
    metrics = {"weighted_nll": "minimize"}

    def observe(self, rows):
        hour = 2 * np.pi * rows["hour"].to_numpy() / 24
        return np.column_stack([
            (rows["inside_c"].to_numpy() - 20) / 2,
            (rows["outside_c"].to_numpy() - 5) / 6,
            np.sin(hour), np.cos(hour),
            rows["eur_per_kwh"].to_numpy() / 0.15 - 2,
            rows["at_home"].to_numpy().astype(float),
        ])

    @staticmethod
    def value_features(obs):
        return np.column_stack([obs, obs**2, obs[:, :1] * obs[:, 1:2]])

    def fit(self, train):
        df = train.collect()
        returns = np.array(df["logged"].to_list())[:, 1]
        self.fitted = {"baseline": ridge(self.value_features(self.observe(df)), returns).tolist()}

    def encode(self, rows):
        obs = self.observe(rows)
        batch = {"obs": torch.tensor(obs, dtype=torch.float32)}
        if "logged" in rows.columns:
            action, returns = np.array(rows["logged"].to_list()).T
            b = np.array(self.fitted["baseline"])
            advantage = returns - (b[0] + self.value_features(obs) @ b[1:])
            weight = np.minimum(np.exp(advantage / BETA), MAX_WEIGHT)
            batch[LABEL] = torch.tensor(action, dtype=torch.long)
            batch[WEIGHT] = torch.tensor(weight, dtype=torch.float32)
        return batch

    def build_model(self):
        return Actor(6)

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        log_p = output.log_softmax(dim=1)
        entropy = -(log_p.exp() * log_p).sum(dim=1)
        return self.losses(output, batch) - 0.01 * entropy

    def predict(self, output):
        return output.softmax(dim=1)

    def statistic(self, output, batch):
        return self.losses(output, batch)

    def score(self, predictions, labels):
        return {"weighted_nll": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return float(np.log(len(ACTIONS)))

    @property
    def prediction_names(self):
        return ACTIONS
