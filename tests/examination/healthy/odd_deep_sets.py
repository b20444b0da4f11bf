"""Deep sets: a masked sum over up to twelve points, then the size of their box.

data: point_clouds

[data]
label = "box"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N = 12


class DeepSets(nn.Module):
    def __init__(self, h=48):
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(2, h), nn.ELU(), nn.Linear(h, h), nn.ELU())
        self.rho = nn.Sequential(nn.Linear(2 * h, h), nn.ELU(), nn.Linear(h, 1))

    def forward(self, points, mask):
        z = self.phi(points) * mask[..., None]
        top = z.masked_fill(~mask[..., None].bool(), -10.0).amax(1)
        return self.rho(torch.cat([z.sum(1) / N, top], 1))[:, 0]


class Boxes(Task):
    kind = "regression"
    metrics = directions_of("rmse", "mae", "r2")

    def fit(self, train):
        y = train.select("box").collect()["box"]
        self.mean, self.std = float(y.mean()), float(y.std())

    def state(self):
        return {"mean": self.mean, "std": self.std}

    def load_state(self, state):
        self.mean, self.std = state["mean"], state["std"]

    def encode(self, rows):
        points, mask = torch.zeros(len(rows), N, 2), torch.zeros(len(rows), N)
        for i, (xs, ys) in enumerate(rows.select("xs", "ys").iter_rows()):
            n = min(len(xs), N)
            points[i, :n] = torch.tensor([xs[:n], ys[:n]]).T
            mask[i, :n] = 1
        out = {"points": points, "mask": mask}
        if "box" in rows.columns:
            out[LABEL] = torch.tensor(rows["box"].to_list())
        return out

    def build_model(self):
        return DeepSets()

    def losses(self, output, batch):
        return nn.functional.huber_loss(output, (batch[LABEL].float() - self.mean) / self.std, reduction="none", delta=10.0)

    def predict(self, output):
        return output * self.std + self.mean

    def expected_initial_loss(self):
        return 0.5
