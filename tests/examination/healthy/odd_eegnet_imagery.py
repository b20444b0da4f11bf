"""Imagined movements from brain waves by EEGNet: a temporal filter, a filter per electrode set, then a separable one; whole people are kept apart.

data: imagined_moves

[data]
label = "imagined"
features = ["eeg_uv"]
group = "subject"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 4e-3 }
"""
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CHANNELS, SAMPLES = 8, 64
MOVES = ["feet", "left", "right"]


class EEGNet(nn.Module):
    def __init__(self, F1=8, D=2, F2=16, p=0.25):
        super().__init__()
        self.temporal = nn.Sequential(nn.Conv2d(1, F1, (1, 17), padding=(0, 8), bias=False), nn.BatchNorm2d(F1))
        self.spatial = nn.Conv2d(F1, D * F1, (CHANNELS, 1), groups=F1, bias=False)
        self.bn2, self.drop = nn.BatchNorm2d(D * F1), nn.Dropout(p)
        self.separable = nn.Sequential(
            nn.Conv2d(D * F1, D * F1, (1, 9), padding=(0, 4), groups=D * F1, bias=False),
            nn.Conv2d(D * F1, F2, 1, bias=False),
            nn.BatchNorm2d(F2),
        )
        self.classify = nn.Linear(F2 * 4, len(MOVES))

    def forward(self, eeg):
        x = self.bn2(self.spatial(self.temporal(eeg[:, None])))
        # power in the band rather than its wave: squares before the mean
        x = self.drop(torch.log(F.avg_pool2d(x**2, (1, 4)) + 1e-2))
        x = F.elu(self.separable(x))
        x = self.drop(F.avg_pool2d(x, (1, 4)))
        return self.classify(x.flatten(1))


class MotorImagery(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def encode(self, rows):
        eeg = torch.tensor(rows["eeg_uv"].to_list(), dtype=torch.float32).view(-1, CHANNELS, SAMPLES)
        eeg = eeg - eeg.mean(dim=2, keepdim=True)
        eeg = eeg - eeg.mean(dim=1, keepdim=True)  # common average reference
        batch = {"eeg": (eeg / 15).clamp(-5, 5)}
        if "imagined" in rows.columns:
            batch[LABEL] = torch.tensor([MOVES.index(m) for m in rows["imagined"]])
        return batch

    def augment(self, batch, generator):
        """The scalp's impedance differs from day to day."""
        eeg = batch["eeg"]
        gain = torch.exp(0.1 * torch.randn(len(eeg), 1, 1, generator=generator))
        shift = int(torch.randint(-4, 5, (1,), generator=generator))
        return {**batch, "eeg": torch.roll(eeg * gain, shift, dims=2)}

    def build_model(self):
        return EEGNet()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
