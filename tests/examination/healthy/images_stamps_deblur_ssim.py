"""Stamps brought into focus: a residual network adds what the lens took, Charbonnier's loss and in training a share of SSIM.

data: blurred_stamps

[data]
label = "sharp"
features = ["blurred"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 16
micro_batch_size = 16
optimizer = { learning_rate = 1e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task

N = 20


def ssim(a, b, window=5):
    pool = lambda t: F.avg_pool2d(t, window, stride=1)
    mu_a, mu_b = pool(a), pool(b)
    var_a, var_b = pool(a * a) - mu_a**2, pool(b * b) - mu_b**2
    cov = pool(a * b) - mu_a * mu_b
    c1, c2 = 0.01**2, 0.03**2
    s = ((2 * mu_a * mu_b + c1) * (2 * cov + c2)) / ((mu_a**2 + mu_b**2 + c1) * (var_a + var_b + c2))
    return s.mean(dim=(1, 2, 3))


class EDSRBlock(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.a, self.b = nn.Conv2d(c, c, 3, padding=1), nn.Conv2d(c, c, 3, padding=1)

    def forward(self, x):
        return x + 0.1 * self.b(F.relu(self.a(x)))


class Deblur(nn.Module):
    def __init__(self, c=24, depth=3):
        super().__init__()
        self.head = nn.Conv2d(1, c, 5, padding=2)
        self.body = nn.Sequential(*[EDSRBlock(c) for _ in range(depth)])
        self.tail = nn.Conv2d(c, 1, 3, padding=1)

    def forward(self, blurred):
        h = self.head(blurred - 0.5)
        return blurred + self.tail(h + self.body(h))


class StampFocus(Task):
    kind = "statistic"
    metrics = {"psnr": "maximize", "ssim": "maximize"}

    @staticmethod
    def image(column):
        return torch.tensor(column.to_list(), dtype=torch.float32).view(-1, 1, N, N) / 255

    def encode(self, rows):
        batch = {"blurred": self.image(rows["blurred"])}
        if "sharp" in rows.columns:
            batch[LABEL] = self.image(rows["sharp"])
        return batch

    def augment(self, batch, generator):
        k = int(torch.randint(4, (1,), generator=generator))
        return {name: torch.rot90(t, k, (2, 3)) for name, t in batch.items()}

    def build_model(self):
        return Deblur()

    def losses(self, output, batch):
        return torch.sqrt((output - batch[LABEL]) ** 2 + 1e-6).mean(dim=(1, 2, 3))

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 0.1 * (1 - ssim(output, batch[LABEL]))

    def predict(self, output):
        return output.clamp(0, 1).mul(255).round().flatten(1)

    def statistic(self, output, batch):
        seen = output.clamp(0, 1)
        mse = (seen - batch[LABEL]).square().mean(dim=(1, 2, 3)).clamp_min(1e-8)
        return torch.stack([-10 * mse.log10(), ssim(seen, batch[LABEL])], dim=1).double()

    def score(self, predictions, labels):
        psnr, similarity = np.average(predictions, axis=0, weights=labels)
        return {"psnr": float(psnr), "ssim": float(similarity)}
