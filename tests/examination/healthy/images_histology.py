"""Tumour in a patch's centre (Camelyon's kernels): flips and quarter turns, patients held out.

data: tissue

[data]
label = "tumor"
group = "patient"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 250
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def block(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, padding=1), nn.GroupNorm(4, c_out), nn.ReLU(), nn.MaxPool2d(2))


class PatchNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(block(1, 12), block(12, 24), block(24, 32))
        self.head = nn.Linear(32 * 9, 1)

    def forward(self, patch):
        return self.head(self.body(patch).flatten(1))


class Histology(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "accuracy", "log_loss")

    def fit(self, train):
        grey = train.select("patch").explode("patch").collect()["patch"].to_numpy() / 255.0
        self.fitted = {"mean": float(grey.mean()), "std": float(grey.std())}

    def encode(self, rows):
        grey = np.stack([np.asarray(p, dtype=np.float32).reshape(24, 24) for p in rows["patch"].to_list()])
        patch = (grey / 255 - self.fitted["mean"]) / self.fitted["std"]
        batch = {"patch": torch.tensor(patch[:, None], dtype=torch.float32)}
        if "tumor" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tumor"].to_numpy(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        turns = torch.randint(0, 4, (len(batch["patch"]),), generator=generator)
        flips = torch.rand(len(turns), generator=generator) < 0.5
        out = [torch.rot90(p, int(k), (1, 2)) for p, k in zip(batch["patch"], turns)]
        out = [p.flip(2) if f else p for p, f in zip(out, flips)]
        return batch | {"patch": torch.stack(out)}

    def build_model(self):
        return PatchNet()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output[:, 0], batch[LABEL], reduction="none")
