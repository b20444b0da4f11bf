"""Gestures from six frames: a 2D net on every frame and on the differences between them (TSM's shift of channels), the mean over time.

data: gesture_clips

[data]
label = "gesture"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

T, S = 6, 16


def temporal_shift(x, fold_div=4):
    """x: b t c h w; a quarter of the channels comes from the past, a quarter from the future."""
    fold = x.shape[2] // fold_div
    out = torch.zeros_like(x)
    out[:, :-1, :fold] = x[:, 1:, :fold]
    out[:, 1:, fold : 2 * fold] = x[:, :-1, fold : 2 * fold]
    out[:, :, 2 * fold :] = x[:, :, 2 * fold :]
    return out


class ShiftNet(nn.Module):
    def __init__(self, classes, width=24):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, stride=2, padding=1)
        self.convs = nn.ModuleList([nn.Conv2d(width, width, 3, padding=1) for _ in range(2)])
        self.norms = nn.ModuleList([nn.GroupNorm(4, width) for _ in range(2)])
        self.fc = nn.Linear(width * 64, classes)

    def forward(self, clip):
        b = clip.shape[0]
        x = self.stem(clip.reshape(b * T, 1, S, S))
        for conv, norm in zip(self.convs, self.norms):
            shifted = temporal_shift(x.unflatten(0, (b, T)))
            x = x + torch.relu(norm(conv(shifted.flatten(0, 1))))
        return self.fc(x.flatten(1)).view(b, T, -1).mean(dim=1)  # consensus


class Gestures(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.fitted = {"gestures": train.collect()["gesture"].unique().sort().to_list()}

    def encode(self, rows):
        clip = torch.tensor(rows["clip"].to_list(), dtype=torch.uint8).view(-1, T, S, S)
        clip = clip.float() / 255
        clip = clip - clip.mean(dim=(1, 2, 3), keepdim=True)
        batch = {"clip": clip / 0.25}
        if "gesture" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["gestures"].index(g) for g in rows["gesture"]])
        return batch

    def augment(self, batch, generator):
        # small jitter of the whole clip; never mirrored, left would become right
        dy, dx = torch.randint(-1, 2, (2,), generator=generator).tolist()
        return {**batch, "clip": torch.roll(batch["clip"], (dy, dx), dims=(2, 3))}

    def build_model(self):
        return ShiftNet(len(self.fitted["gestures"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.0)

    def training_losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.1)
