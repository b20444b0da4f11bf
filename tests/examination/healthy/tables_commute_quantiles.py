"""Three quantiles of a duration by the pinball loss.

data: commutes

[data]
label = "minutes"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

FEATURES = ["km", "hour", "rain", "weekday"]
TAUS = [0.1, 0.5, 0.9]


class CommuteQuantiles(Task):
    kind = "statistic"
    serves_predictions = True
    metrics = {"pinball": "minimize", "covered": "maximize"}

    def fit(self, train):
        df = train.collect()
        x = df.select(FEATURES).to_pandas().astype("float64").to_numpy()
        y = df["minutes"].to_numpy()
        self.mean, self.std = x.mean(0).tolist(), x.std(0).tolist()
        self.scale = float(y.std())
        self.start = [float(q) for q in np.quantile(y, TAUS)]
        error = y[:, None] - np.array(self.start)
        self.first = float(np.maximum(np.array(TAUS) * error, (np.array(TAUS) - 1) * error).mean() / self.scale)

    def state(self):
        return {"mean": self.mean, "std": self.std, "scale": self.scale, "start": self.start, "first": self.first}

    def load_state(self, state):
        self.__dict__.update(state)

    def encode(self, rows):
        x = rows.select(FEATURES).to_pandas().astype("float64").to_numpy()
        batch = {"x": torch.tensor((x - self.mean) / self.std, dtype=torch.float32)}
        if "minutes" in rows.columns:
            batch[LABEL] = torch.tensor(rows["minutes"].to_numpy(), dtype=torch.float32)
        return batch

    def build_model(self):
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
        nn.init.zeros_(net[-1].weight)
        nn.init.zeros_(net[-1].bias)
        return Quantiles(net, self.start, self.scale)

    def losses(self, output, batch):
        tau = torch.tensor(TAUS)
        error = batch[LABEL][:, None] - output
        return torch.maximum(tau * error, (tau - 1) * error).mean(1) / self.scale

    def predict(self, output):
        return output

    @property
    def prediction_names(self):
        return ["p10", "p50", "p90"]

    def statistic(self, output, batch):
        y = batch[LABEL]
        inside = (y >= output[:, 0]) & (y <= output[:, 2])
        return torch.stack([self.losses(output, batch) * self.scale, inside.float()], 1).double()

    def score(self, predictions, labels):
        loss, inside = np.average(predictions, axis=0, weights=labels)
        return {"pinball": float(loss), "covered": float(inside)}

    def expected_initial_loss(self):
        return self.first


class Quantiles(nn.Module):
    def __init__(self, net, start, scale):
        super().__init__()
        self.net, self.scale = net, scale
        self.register_buffer("start", torch.tensor(start))

    def forward(self, x):
        return self.start + self.scale * self.net(x)
