"""Planets from folded light curves with two views (AstroNet): the whole period and the transit, each in its own tower.

data: light_curves

[data]
label = "planet"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 1.5e-3, weight_decay = 0.02 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def tower(*channels):
    layers = []
    for a, b in zip(channels, channels[1:]):
        layers += [nn.Conv1d(a, b, 5, padding=2), nn.ReLU(), nn.MaxPool1d(3, stride=2)]
    return nn.Sequential(*layers, nn.Flatten())


class AstroNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.global_tower = tower(1, 8, 16, 16)  # 96 -> 47 -> 23 -> 11
        self.local_tower = tower(1, 8, 16)  # 32 -> 15 -> 7
        self.fc = nn.Sequential(
            nn.Linear(16 * 11 + 16 * 7 + 2, 48), nn.ReLU(), nn.Dropout(0.3), nn.Linear(48, 1)
        )

    def forward(self, global_view, local_view, scalars):
        g = self.global_tower(global_view.unsqueeze(1))
        l = self.local_tower(local_view.unsqueeze(1))
        return self.fc(torch.cat([g, l, scalars], dim=1)).squeeze(-1)


def normalise(view):
    """Median to zero, the deepest point of the smoothed curve to minus one."""
    view = view - np.median(view, axis=1, keepdims=True)
    smooth = (view[:, :-2] + view[:, 1:-1] + view[:, 2:]) / 3
    depth = np.abs(smooth.min(axis=1, keepdims=True))
    return view / depth, depth[:, 0]


class Transits(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def scalars(self, rows, depth):
        return np.column_stack([np.log(rows["period_days"].to_numpy()), np.log(depth)])

    def views(self, rows):
        whole, _ = normalise(np.array(rows["global_view"].to_list()))
        close, depth = normalise(np.array(rows["local_view"].to_list()))
        return whole, close, self.scalars(rows, depth)

    def fit(self, train):
        df = train.collect()
        scalars = self.views(df)[2]
        self.mu, self.sd = scalars.mean(0), scalars.std(0)
        self.prior = float(df["planet"].mean())

    def state(self):
        return {"mu": self.mu.tolist(), "sd": self.sd.tolist(), "prior": self.prior}

    def load_state(self, state):
        self.mu, self.sd, self.prior = np.array(state["mu"]), np.array(state["sd"]), state["prior"]

    def encode(self, rows):
        whole, close, scalars = self.views(rows)
        arrays = {"global_view": whole, "local_view": close, "scalars": (scalars - self.mu) / self.sd}
        batch = {name: torch.tensor(a, dtype=torch.float32) for name, a in arrays.items()}
        if "planet" in rows.columns:
            batch[LABEL] = torch.tensor(rows["planet"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        # time may run backwards
        back = torch.rand(len(batch["scalars"]), 1, generator=generator) < 0.5
        return {
            **batch,
            "global_view": torch.where(back, batch["global_view"].flip(1), batch["global_view"]),
            "local_view": torch.where(back, batch["local_view"].flip(1), batch["local_view"]),
        }

    def build_model(self):
        net = AstroNet()
        nn.init.constant_(net.fc[-1].bias, float(np.log(self.prior / (1 - self.prior))))
        return net

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
