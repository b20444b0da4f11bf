"""Phishing by thirty signs of -1, 0 and 1, weights of -1 and 1 through a custom autograd function (straight-through, BinaryConnect).

data: phishing_sites

[data]
label = "result"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.0 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SignSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, w):
        ctx.save_for_backward(w)
        return torch.where(w >= 0, 1.0, -1.0)

    @staticmethod
    def backward(ctx, grad):
        (w,) = ctx.saved_tensors
        return grad * (w.abs() <= 1)


class BinaryLinear(nn.Module):
    def __init__(self, d_in, d_out):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(d_out, d_in).uniform_(-0.3, 0.3))
        self.gain = d_in**-0.5

    def forward(self, x):
        return nn.functional.linear(x, SignSTE.apply(self.weight)) * self.gain


class BinaryNet(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.layer1, self.bn1 = BinaryLinear(d, 64), nn.BatchNorm1d(64)
        self.layer2, self.bn2 = BinaryLinear(64, 32), nn.BatchNorm1d(32)
        self.out = nn.Linear(32, 1)

    def forward(self, signs):
        h = nn.functional.hardtanh(self.bn1(self.layer1(signs)))
        h = nn.functional.hardtanh(self.bn2(self.layer2(h)))
        return self.out(h)[..., 0]


class Phishing(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "roc_auc", "log_loss")

    def encode(self, rows):
        signs = rows.select(list(self.columns.features)).to_torch().float()
        batch = {"signs": signs}
        if self.columns.label in rows.columns:
            batch[LABEL] = (rows[self.columns.label] == "phishing").to_torch().float()
        return batch

    def build_model(self):
        return BinaryNet(len(self.columns.features))

    def losses(self, output, batch):
        return nn.functional.softplus(output) - batch[LABEL] * output
