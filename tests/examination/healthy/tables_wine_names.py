"""Names of cultivars as labels, a pandas frame in encode, 178 rows.

data: wine

[data]
label = "cultivar"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class WineClassifier(Task):
    kind = "multiclass"
    metrics = {"accuracy": "maximize", "log_loss": "minimize"}

    def fit(self, train):
        df = train.collect().to_pandas()
        X = df[sorted(self.columns.features)]
        self.mu, self.sigma = X.mean(), X.std(ddof=0)
        self.classes = sorted(df[self.columns.label].unique())

    def state(self):
        return {"cols": list(self.mu.index), "mu": self.mu.tolist(), "sigma": self.sigma.tolist(), "classes": list(self.classes)}

    def load_state(self, state):
        import pandas as pd

        self.mu = pd.Series(state["mu"], index=state["cols"])
        self.sigma = pd.Series(state["sigma"], index=state["cols"])
        self.classes = state["classes"]

    def encode(self, rows):
        df = rows.to_pandas()
        X = (df[self.mu.index] - self.mu) / self.sigma
        out = {"features": torch.from_numpy(X.to_numpy(dtype="float32"))}
        if self.columns.label in df:
            lookup = {name: i for i, name in enumerate(self.classes)}
            out[LABEL] = torch.tensor(df[self.columns.label].map(lookup).to_numpy(), dtype=torch.long)
        return out

    def build_model(self):
        class Net(nn.Module):
            def __init__(self, d, c):
                super().__init__()
                self.fc1, self.fc2 = nn.Linear(d, 32), nn.Linear(32, c)

            def forward(self, features):
                return self.fc2(torch.relu(self.fc1(features)))

        return Net(len(self.mu), len(self.classes))

    def losses(self, output, batch):
        return nn.CrossEntropyLoss(reduction="none")(output, batch[LABEL])

    def predict(self, output):
        return nn.Softmax(dim=1)(output)

    def score(self, predictions, labels):
        from sklearn.metrics import accuracy_score, log_loss

        return {"accuracy": accuracy_score(labels, predictions.argmax(1)),
                "log_loss": log_loss(labels, predictions, labels=list(range(predictions.shape[1])))}

    def expected_initial_loss(self):
        return math.log(len(self.classes))
