"""Stiffness of polymers in pascal: gated residual networks and variable selection, as in the TFT paper.

data: polymers

[data]
label = "modulus_pa"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import Tensor, nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

RESINS = ["PA6", "PA66", "PBT", "PP"]
REALS = ["glass_pct", "filler_pct", "viscosity", "melt_c", "mould_c", "pressure_bar"]
SKEWED = ["viscosity"]


class GatedResidualNetwork(nn.Module):
    def __init__(self, width: int, context: bool = False, dropout: float = 0.05) -> None:
        super().__init__()
        self.w1 = nn.Linear(width, width)
        self.wc = nn.Linear(width, width, bias=False) if context else None
        self.w2 = nn.Linear(width, width)
        self.drop = nn.Dropout(dropout)
        self.gate = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)

    def forward(self, a: Tensor, c: Tensor | None = None) -> Tensor:
        h = self.w1(a)
        if self.wc is not None and c is not None:
            h = h + self.wc(c)
        h = self.w2(nn.functional.elu(h))
        return self.norm(a + nn.functional.glu(self.gate(self.drop(h)), dim=-1))


class VariableSelection(nn.Module):
    """Softmax weights per variable, from all variables and the resin."""

    def __init__(self, variables: int, width: int) -> None:
        super().__init__()
        self.embed = nn.ModuleList([nn.Linear(1, width) for _ in range(variables)])
        self.each = nn.ModuleList([GatedResidualNetwork(width) for _ in range(variables)])
        self.weigh = nn.Linear(variables + width, variables)

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        weights = self.weigh(torch.cat([x, c], dim=-1)).softmax(dim=-1)
        parts = [
            grn(embed(x[:, k : k + 1])) for k, (embed, grn) in enumerate(zip(self.embed, self.each, strict=True))
        ]
        return (torch.stack(parts, dim=1) * weights[..., None]).sum(dim=1)


class Regressor(nn.Module):
    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.resin = nn.Embedding(len(RESINS), width)
        self.select = VariableSelection(len(REALS), width)
        self.mix = GatedResidualNetwork(width, context=True)
        self.head = nn.Linear(width, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, reals: Tensor, resin: Tensor) -> Tensor:
        c = self.resin(resin)
        return self.head(self.mix(self.select(reals, c), c)).squeeze(-1)


class PolymerStiffness(Task):
    kind = "regression"
    metrics = directions_of("r2", "mape", "rmse")

    def reals(self, rows):
        columns = [np.log10(rows[c].to_numpy()) if c in SKEWED else rows[c].to_numpy() for c in REALS]
        return np.stack(columns, axis=1)

    def fit(self, train):
        rows = train.collect()
        x, y = self.reals(rows), rows["modulus_pa"].to_numpy()
        self.fitted = {
            "x_mean": x.mean(0).tolist(), "x_std": x.std(0).tolist(),
            "y_mean": float(y.mean()), "y_std": float(y.std()),
        }

    def encode(self, rows):
        f = self.fitted
        x = (self.reals(rows) - np.array(f["x_mean"])) / np.array(f["x_std"])
        batch = {
            "reals": torch.tensor(x, dtype=torch.float32),
            "resin": torch.tensor([RESINS.index(r) for r in rows["resin"]]),
        }
        if "modulus_pa" in rows.columns:
            batch[LABEL] = torch.tensor(rows["modulus_pa"].to_numpy(), dtype=torch.float64)
        return batch

    def build_model(self):
        return Regressor()

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["y_mean"]) / self.fitted["y_std"]
        return (output - target.float()).square()

    def predict(self, output):
        return output * self.fitted["y_std"] + self.fitted["y_mean"]

    def expected_initial_loss(self):
        return 1.0
