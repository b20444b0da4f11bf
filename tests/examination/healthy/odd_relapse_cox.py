"""Time to relapse with Cox' partial likelihood (DeepSurv): the batch is the risk set, judged by concordance.

data: cohort

[data]
label = "relapse"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 2e-3, weight_decay = 0.1 }
"""
import numpy as np
import pandas as pd
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class DeepSurv(nn.Module):
    def __init__(self, n_in):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(n_in, 32), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(32, 16), nn.SELU(),
            nn.Linear(16, 1, bias=False),
        )
        nn.init.zeros_(self.net[-1].weight)

    def forward(self, x):
        return self.net(x)[:, 0]  # log relative hazard


def concordance(risk, time, event):
    """Of the pairs whose order is known, the share whose risks are in that order."""
    known = (time[:, None] < time[None, :]) & (event[:, None] == 1)
    higher = risk[:, None] > risk[None, :]
    tied = risk[:, None] == risk[None, :]
    return float(((higher + 0.5 * tied) * known).sum() / known.sum()) if known.any() else None


class Relapse(Task):
    kind = "statistic"
    metrics = {"c_index": "maximize"}
    needs_whole_batch = True

    def design(self, rows) -> pd.DataFrame:
        df = rows.to_pandas()
        x = pd.DataFrame({
            "age": df["age"],
            "stage": df["stage"].map({"I": 1, "II": 2, "III": 3, "IV": 4}),
            "log_marker": np.log(df["ca_marker"]),
            "log_crp": np.log(df["crp"]),
            "dose": df["dose_mg"] / 50,
            "log_nodes": np.log1p(df["positive_nodes"]),
        }).astype(float)
        x["crp_unknown"] = x["log_crp"].isna().astype(float)
        return x

    def fit(self, train):
        x = self.design(train.collect())
        self.fitted = {"median": x.median().to_dict(), "mean": x.mean().to_dict(), "sd": x.std().to_dict()}

    def encode(self, rows):
        x = self.design(rows)
        x = x.fillna(self.fitted["median"])
        x = (x - pd.Series(self.fitted["mean"])) / pd.Series(self.fitted["sd"])
        batch = {"x": torch.tensor(x[list(self.fitted["mean"])].to_numpy(), dtype=torch.float32)}
        if "relapse" in rows.columns:
            batch[LABEL] = torch.tensor(rows["relapse"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return DeepSurv(len(self.fitted["mean"]))

    def losses(self, output, batch):
        time, event = batch[LABEL].unbind(dim=1)
        at_risk = time[None, :] >= time[:, None]  # row i: who is still there at i's time
        log_total = torch.where(at_risk, output[None, :], -torch.inf).logsumexp(dim=1)
        # less the logarithm of how many they are: zero where all are alike, for batches of any size
        return event * (log_total - at_risk.sum(dim=1).log() - output)

    def statistic(self, output, batch):
        return torch.cat([output[:, None], batch[LABEL]], dim=1)

    def score(self, predictions, labels):
        risk, time, event = predictions.T
        c = concordance(risk, time, event)
        return {} if c is None else {"c_index": c}

    def expected_initial_loss(self):
        return 0.0
