"""Claims a year of home insurance: the rate is the target, the exposure its weight, as in scikit-learn's Poisson example.

data: home_policies

[data]
label = "claims"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 512
micro_batch_size = 512
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

CATEGORIES = ["building", "region", "alarm"]
KNOTS = 6


def poisson_deviance(mu, y):
    return 2 * (np.where(y > 0, y * np.log(np.where(y > 0, y, 1) / mu), 0) - y + mu)


class RateNet(nn.Module):
    def __init__(self, d_in, log_rate):
        super().__init__()
        self.hidden = nn.Linear(d_in, 32)
        self.hidden2 = nn.Linear(32, 16)
        self.log_rate = nn.Linear(16, 1)
        self.skip = nn.Linear(d_in, 1, bias=False)
        nn.init.zeros_(self.skip.weight)
        nn.init.zeros_(self.log_rate.weight)
        nn.init.constant_(self.log_rate.bias, log_rate)

    def forward(self, x):
        h = torch.tanh(self.hidden2(torch.tanh(self.hidden(x))))
        return (self.log_rate(h) + self.skip(x))[:, 0]


class ClaimRate(Task):
    kind = "statistic"
    metrics = {"poisson_deviance": "minimize"}
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        area = df["living_area"].log().to_numpy()
        built = df["built"].drop_nulls().to_numpy()
        self.fitted = {
            "one_hot": {c: sorted(df[c].unique().to_list()) for c in CATEGORIES},
            "area": [float(area.mean()), float(area.std())],
            "bonus": [float(df["bonus_class"].mean()), float(df["bonus_class"].std())],
            "knots": np.quantile(built, np.linspace(0, 1, KNOTS + 2)[1:-1]).tolist(),
            "rate": df["claims"].sum() / df["exposure"].sum(),
        }

    def encode(self, rows):
        n = rows.height
        area = (rows["living_area"].log().to_numpy() - self.fitted["area"][0]) / self.fitted["area"][1]
        bonus = (rows["bonus_class"].to_numpy() - self.fitted["bonus"][0]) / self.fitted["bonus"][1]
        built = np.array([np.nan if b is None else b for b in rows["built"]], dtype=float)
        steps = (built[:, None] > np.array(self.fitted["knots"])).astype(float)
        columns = [area.reshape(n, 1), bonus.reshape(n, 1), steps, np.isnan(built).reshape(n, 1)]
        for c in CATEGORIES:
            levels = self.fitted["one_hot"][c]
            columns.append(np.array([[value == level for level in levels] for value in rows[c]]).reshape(n, -1))
        batch = {"x": torch.as_tensor(np.hstack(columns), dtype=torch.float32)}
        if "claims" in rows.columns:
            exposure = rows["exposure"].to_numpy()
            batch[LABEL] = torch.as_tensor(rows["claims"].to_numpy() / exposure, dtype=torch.float32)
            batch[WEIGHT] = torch.as_tensor(exposure, dtype=torch.float32)
        return batch

    def build_model(self):
        d_in = 2 + KNOTS + 1 + sum(len(levels) for levels in self.fitted["one_hot"].values())
        return RateNet(d_in, float(np.log(self.fitted["rate"])))

    def losses(self, output, batch):
        return nn.functional.poisson_nll_loss(output, batch[LABEL], log_input=True, reduction="none")

    def predict(self, output):
        return output.exp()

    def statistic(self, output, batch):
        return torch.stack([output.exp(), batch[LABEL]], dim=1)

    def score(self, predictions, labels):
        deviance = poisson_deviance(predictions[:, 0], predictions[:, 1])
        return {"poisson_deviance": float(np.average(deviance, weights=labels.reshape(-1)))}
