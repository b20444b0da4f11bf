"""Growth stage of seedlings from a picture: five yes-or-no questions ("beyond stage k?"), one convolutional trunk, all answers in one loss.

data: seedlings

[data]
label = "stage"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N_STAGES = 6


def conv_bn(i, o, stride):
    return nn.Sequential(nn.Conv2d(i, o, 3, stride, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU())


class StageNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(conv_bn(3, 16, 1), conv_bn(16, 24, 2), conv_bn(24, 40, 2), conv_bn(40, 40, 1))
        self.thresholds = nn.Linear(40, N_STAGES - 1)

    def forward(self, tray):
        h = self.trunk(tray)
        return self.thresholds(h.mean(dim=[-2, -1]))


class SeedlingStage(Task):
    """Niu et al. 2016: ordinal regression by binary classifiers."""

    kind = "regression"
    metrics = directions_of("mae", "rmse")

    def encode(self, rows):
        tray = np.stack([np.asarray(t, dtype=np.uint8).reshape(24, 24, 3) for t in rows["tray"].to_list()])
        batch = {"tray": torch.from_numpy(tray).permute(0, 3, 1, 2).float().div(127.5).sub(1.0).contiguous()}
        if "stage" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["stage"].to_numpy().astype(np.float32))
        return batch

    def augment(self, batch, generator):
        tray = batch["tray"]
        gain = torch.empty(len(tray), 1, 1, 1).uniform_(0.85, 1.15, generator=generator)
        tray = ((tray + 1) * gain - 1).clamp(-1, 1)
        if torch.rand(1, generator=generator).item() < 0.5:
            tray = tray.flip(-1)
        return {**batch, "tray": tray}

    def build_model(self):
        return StageNet()

    def losses(self, output, batch):
        levels = torch.arange(N_STAGES - 1, device=output.device)
        beyond = (batch[LABEL][:, None] > levels).to(output.dtype)
        return nn.functional.binary_cross_entropy_with_logits(output, beyond, reduction="none").sum(1)

    def predict(self, output):
        return output.sigmoid().sum(1)  # the expected stage
