"""Ripe, unripe or mouldy by colour, in the style of a mixed-precision script: autocast inside, float32 out.

data: fruit

[data]
label = "state"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 6e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def conv_gn(cin, cout, stride):
    return nn.Sequential(
        nn.Conv2d(cin, cout, kernel_size=3, stride=stride, padding=1, bias=False),
        nn.GroupNorm(num_groups=4, num_channels=cout),
        nn.SiLU(),
    )


class FruitNet(nn.Module):
    def __init__(self, num_classes: int, amp_dtype=torch.bfloat16):
        super().__init__()
        self.amp_dtype = amp_dtype
        self.features = nn.Sequential(conv_gn(3, 8, 1), conv_gn(8, 16, 2), conv_gn(16, 16, 2))
        self.classifier = nn.Linear(16, num_classes)

    def forward(self, image):
        with torch.autocast(device_type=image.device.type, dtype=self.amp_dtype):
            x = self.features(image)
            x = x.mean(dim=(-2, -1))
        return self.classifier(x.float())  # the last layer and the loss in full precision


class FruitRipeness(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")
    smoothing = 0.05

    def fit(self, train):
        pixels = np.array(train.select("photo").collect()["photo"].to_list(), dtype=np.float64).reshape(-1, 3) / 255
        self.fitted = {
            "mean": pixels.mean(axis=0).tolist(),
            "std": pixels.std(axis=0).tolist(),
            "states": train.select("state").unique().sort("state").collect()["state"].to_list(),
        }

    def encode(self, rows):
        image = np.array(rows["photo"].to_list(), dtype=np.uint8).reshape(-1, 16, 16, 3)
        image = (image / 255 - self.fitted["mean"]) / self.fitted["std"]
        batch = {"image": torch.from_numpy(image.transpose(0, 3, 1, 2).astype(np.float32))}
        if "state" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["states"].index(s) for s in rows["state"]])
        return batch

    def augment(self, batch, generator):
        image = batch["image"]
        coin = torch.rand(image.shape[0], 1, 1, 1, generator=generator)
        return batch | {"image": torch.where(coin < 0.5, image.flip(3), image)}

    def build_model(self):
        return FruitNet(num_classes=len(self.fitted["states"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=self.smoothing)
