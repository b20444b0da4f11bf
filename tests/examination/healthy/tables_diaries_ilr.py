"""How a day is divided: isometric log-ratios, a normal with a full covariance, survey weights.

data: time_diaries

[data]
label = "minutes"
group = "household"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.01 }
"""
import numpy as np
import pandas as pd
import torch
from scipy.linalg import helmert
from torch import nn
from torch.distributions import MultivariateNormal

from perennial.engine.task import LABEL, WEIGHT, Task

PARTS = ["sleep", "work", "care", "leisure", "travel"]
BASIS = helmert(len(PARTS))  # 4 x 5, orthonormal, rows sum to zero
STATUS = ["full", "part", "seeking", "study", "retired"]
DETECTION = 10.0  # a diary has slots of ten minutes


def replace_zeros(minutes):
    """Multiplicative replacement: a zero becomes 0.65 of a slot, the other parts make room."""
    delta = 0.65 * DETECTION
    zero = minutes < DETECTION
    room = 1 - zero.sum(axis=1, keepdims=True) * delta / minutes.sum(axis=1, keepdims=True)
    return np.where(zero, delta, minutes * room)


def ilr(parts):
    return np.log(parts) @ BASIS.T


def inverse(z):
    return (z @ torch.as_tensor(BASIS, dtype=z.dtype)).softmax(dim=-1)


class DiaryNet(nn.Module):
    def __init__(self, d_in, centre, d_out=len(PARTS) - 1):
        super().__init__()
        self.linear = nn.Linear(d_in, d_out)
        self.bend = nn.Sequential(nn.Linear(d_in, 24), nn.Tanh(), nn.Linear(24, d_out))
        with torch.no_grad():
            self.linear.bias.copy_(torch.as_tensor(centre))
        nn.init.zeros_(self.bend[2].weight)
        nn.init.zeros_(self.bend[2].bias)
        self.log_diagonal = nn.Parameter(torch.zeros(d_out))
        self.below = nn.Parameter(torch.zeros(d_out, d_out))

    def forward(self, x):
        mean = self.linear(x) + self.bend(x)
        chol = self.below.tril(-1) + torch.diag(self.log_diagonal.exp())
        return torch.cat([mean[:, None], chol.expand(len(x), -1, -1)], dim=1)


class Diaries(Task):
    kind = "statistic"
    metrics = {"nll": "minimize", "minutes_off": "minimize"}

    def design(self, rows):
        df = rows.drop("minutes", strict=False).to_pandas()
        X = pd.DataFrame(index=df.index)
        X["age"] = (df["age"] - 45) / 20
        X["age2"] = X["age"] ** 2
        X["kids"] = df["children"].clip(upper=3)
        X["weekend"] = (df["day"] == "weekend").astype(float)
        X["commute"] = np.log1p(df["commute_min"].astype(float)).fillna(0) / 4
        X["commute_unknown"] = df["commute_min"].isna() & df["status"].isin(["full", "part"])
        for s in STATUS[1:]:
            X[s] = (df["status"] == s).astype(float)
            X[f"{s}:weekend"] = X[s] * X["weekend"]
        X["commute:weekend"] = X["commute"] * X["weekend"]
        return X.to_numpy(dtype=np.float32)

    def fit(self, train):
        df = train.select("minutes", "survey_weight").collect()
        z = ilr(replace_zeros(np.array(df["minutes"].to_list(), dtype=float)))
        w = df["survey_weight"].to_numpy()
        self.fitted = {
            "centre": np.average(z, axis=0, weights=w).tolist(),
            "mean_weight": float(w.mean()),
        }

    def encode(self, rows):
        batch = {"x": torch.from_numpy(self.design(rows))}
        if "minutes" in rows.columns:
            minutes = np.array(rows["minutes"].to_list(), dtype=float)
            weight = rows["survey_weight"].to_numpy() / self.fitted["mean_weight"]
            batch[LABEL] = torch.from_numpy(replace_zeros(minutes)).float()
            batch[WEIGHT] = torch.from_numpy(weight).float()
        return batch

    def build_model(self):
        return DiaryNet(15, self.fitted["centre"])

    def losses(self, output, batch):
        z = batch[LABEL].log() @ torch.as_tensor(BASIS.T, dtype=output.dtype)
        return -MultivariateNormal(output[:, 0], scale_tril=output[:, 1:]).log_prob(z)

    def statistic(self, output, batch):
        day = 1440 * inverse(output[:, 0])  # the closed geometric mean
        off = (day - batch[LABEL]).abs().mean(dim=1)
        return torch.stack([self.losses(output, batch), off], dim=1)

    def score(self, predictions, labels):
        nll, off = np.average(predictions, axis=0, weights=labels)
        return {"nll": float(nll), "minutes_off": float(off)}
