"""A policy from logged offers: inverse propensity, a loss below zero; a label of offer, chance and answer.

data: offers

[data]
label = "outcome"
features = ["age_z", "visits_z", "hour_z", "basket_z"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class Policy(nn.Module):
    def __init__(self, d=4, offers=3):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(d, 32), nn.Tanh())
        self.head = nn.Linear(32, offers)
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, visitor):
        return self.head(self.body(visitor))


def value(output, outcome):
    """What the policy would have earned on each logged row, by importance."""
    shown, chance, taken = outcome.unbind(1)
    ours = output.softmax(1).gather(1, shown.long()[:, None])[:, 0]
    return taken * ours / chance.clamp(min=0.05)


class LoggedOffers(Task):
    kind = "statistic"
    metrics = {"policy_value": "maximize"}

    def fit(self, train):
        outcome = torch.tensor(train.select("outcome").collect()["outcome"].to_list())
        self.by_chance = float(value(torch.zeros(len(outcome), 3), outcome).mean())

    def state(self):
        return {"by_chance": self.by_chance}

    def load_state(self, state):
        self.by_chance = state["by_chance"]

    def encode(self, rows):
        names = ["age_z", "visits_z", "hour_z", "basket_z"]
        batch = {"visitor": torch.tensor(rows.select(names).to_numpy(), dtype=torch.float32)}
        if "outcome" in rows.columns:
            batch[LABEL] = torch.tensor(rows["outcome"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return Policy()

    def losses(self, output, batch):
        return -value(output, batch[LABEL])

    def training_losses(self, output, batch):
        """With a little entropy, so that the policy stays soft."""
        log_p = output.log_softmax(1)
        return self.losses(output, batch) + 0.01 * (log_p.exp() * log_p).sum(1)

    def predict(self, output):
        return output.softmax(1)

    def statistic(self, output, batch):
        return value(output, batch[LABEL])

    def score(self, predictions, labels):
        return {"policy_value": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return -self.by_chance
