"""log(pay) ~ grade + years + region + hours + (1 | employer), after lme4: the employers' levels are shrunk.

data: pay_slips

[data]
label = "pay"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-2, weight_decay = 0.0 }
"""
import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIGMA2, TAU2 = 0.03, 0.06  # of the residual and of the employers, from last year's fit
GRADES, REGIONS = ["mid", "senior", "lead"], ["south", "capital", "islands"]  # treatment contrasts


class MixedModel(nn.Module):
    def __init__(self, n_fixed, n_employers):
        super().__init__()
        self.beta = nn.Linear(n_fixed, 1)
        self.u = nn.Embedding(n_employers + 1, 1, padding_idx=0)  # 0: an employer not seen before
        nn.init.zeros_(self.beta.weight)
        nn.init.zeros_(self.beta.bias)
        nn.init.zeros_(self.u.weight)

    def forward(self, x, employer):
        u = self.u(employer)
        return torch.cat([self.beta(x) + u, u], dim=1)


class PayModel(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        df = train.collect()
        log_pay = np.log(df["pay"].to_numpy())
        per_employer = df.group_by("employer").len().sort("employer")
        self.fitted = {
            "employers": per_employer["employer"].to_list(),
            "staff": per_employer["len"].to_list(),
            "centre": float(log_pay.mean()),
            "first_loss": float(0.5 * np.var(log_pay) / SIGMA2),
        }

    def model_matrix(self, rows):
        columns = [(pl.col("grade") == g).cast(pl.Float32).alias(f"grade{g}") for g in GRADES]
        columns += [(pl.col("region") == r).cast(pl.Float32).alias(f"region{r}") for r in REGIONS]
        columns += [pl.col("years").log1p().alias("log_years") - 2, (pl.col("hours") / 38).log().alias("log_hours")]
        return rows.select(columns).to_numpy().astype(np.float32)

    def encode(self, rows):
        level = {name: k + 1 for k, name in enumerate(self.fitted["employers"])}
        batch = {
            "x": torch.from_numpy(self.model_matrix(rows)),
            "employer": torch.tensor([level.get(e, 0) for e in rows["employer"]]),
        }
        if "pay" in rows.columns:
            batch[LABEL] = torch.tensor(np.log(rows["pay"].to_numpy()) - self.fitted["centre"]).float()
        return batch

    def build_model(self):
        return MixedModel(8, len(self.fitted["employers"]))

    def losses(self, output, batch):
        return 0.5 * (output[:, 0] - batch[LABEL]) ** 2 / SIGMA2

    def training_losses(self, output, batch):
        # u ~ N(0, tau2), once per employer: divided over the employer's rows
        staff = torch.tensor([1.0, *self.fitted["staff"]])[batch["employer"]]
        return self.losses(output, batch) + 0.5 * output[:, 1] ** 2 / TAU2 / staff

    def predict(self, output):
        return torch.exp(output[:, 0] + self.fitted["centre"])

    def score(self, predictions, labels):
        return super().score(predictions, np.exp(labels + self.fitted["centre"]))

    def expected_initial_loss(self):
        return self.fitted["first_loss"]
