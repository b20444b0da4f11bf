"""A binary network for a microcontroller: weights and activations are signs, a custom autograd function lets gradients through.

data: digit_columns

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 0.0 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Sign(torch.autograd.Function):
    """sign(x), whose gradient is that of hardtanh."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.where(x >= 0, 1.0, -1.0).to(x.dtype)

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * (x.abs() <= 1)


binarize = Sign.apply


class BinaryLinear(nn.Linear):
    def forward(self, x):
        w = binarize(self.weight)
        alpha = self.weight.abs().mean(dim=1)
        return F.linear(x, w, self.bias) * alpha


class BinaryConv(nn.Conv2d):
    def forward(self, x):
        alpha = self.weight.abs().mean(dim=(1, 2, 3))
        y = F.conv2d(x, binarize(self.weight), None, self.stride, self.padding)
        return y * alpha[:, None, None]


class BNN(nn.Module):
    def __init__(self, c=32):
        super().__init__()
        self.stem = nn.Conv2d(1, c, 3, padding=1, bias=False)
        self.bn0 = nn.BatchNorm2d(c)
        self.conv1 = BinaryConv(c, 2 * c, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(2 * c)
        self.fc1 = BinaryLinear(2 * c * 16, 96)
        self.bn2 = nn.BatchNorm1d(96)
        self.out = nn.Linear(96, 10)

    def forward(self, pixels):
        x = binarize(self.bn0(self.stem(pixels)))
        x = binarize(self.bn1(F.max_pool2d(self.conv1(x), 2)))
        x = binarize(self.bn2(self.fc1(x.flatten(1))))
        return self.out(x)


class BinaryDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def encode(self, rows):
        columns = [f"pixel_{i:02}" for i in range(64)]
        x = rows.select(columns).to_numpy().astype(np.float32) / 8 - 1
        batch = {"pixels": torch.from_numpy(x).view(-1, 1, 8, 8)}
        if "digit" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["digit"].to_numpy(writable=True))
        return batch

    def build_model(self):
        return BNN()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
