"""Opacities in chest films: few positives weighed, patients kept apart, flips and shifts, a small residual network.

data: chest_films

[data]
label = "opacity"
group = "patient"
features = ["film", "view"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3, weight_decay = 0.01 }
normalization = { batch_norm = "sync" }
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIDE = 40


class BasicBlock(nn.Module):
    def __init__(self, c_in, c_out, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(c_in, c_out, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(c_out)
        self.conv2 = nn.Conv2d(c_out, c_out, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(c_out)
        self.shortcut = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.shortcut(x))


class ChestNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 12, 3, 2, 1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.layer1, self.layer2 = BasicBlock(12, 24, 2), BasicBlock(24, 32, 2)
        self.fc = nn.Linear(32 + 1, 1)

    def forward(self, film, is_ap):
        x = self.layer2(self.layer1(self.stem(film)))
        x = F.adaptive_max_pool2d(x, 1).flatten(1)
        return self.fc(torch.cat([x, is_ap], dim=1)).squeeze(1)


class ChestOpacity(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision")

    def fit(self, train):
        share = float(train.collect()["opacity"].to_numpy().mean())
        self.fitted = {"pos_weight": (1 - share) / share}

    def encode(self, rows):
        film = np.stack([np.asarray(f, dtype=np.float32) for f in rows["film"].to_list()]).reshape(-1, 1, SIDE, SIDE)
        film = (film - film.mean(axis=(2, 3), keepdims=True)) / (film.std(axis=(2, 3), keepdims=True) + 1e-6)
        batch = {
            "film": torch.from_numpy(film),
            "is_ap": torch.tensor((rows["view"] == "AP").to_numpy()[:, None], dtype=torch.float32),
        }
        if "opacity" in rows.columns:
            batch[LABEL] = torch.tensor(rows["opacity"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        film = batch["film"]
        flipped = torch.rand(len(film), generator=generator) < 0.5
        film = torch.where(flipped[:, None, None, None], film.flip(-1), film)
        dy, dx = torch.randint(-2, 3, (2,), generator=generator).tolist()
        padded = F.pad(film, (2, 2, 2, 2), mode="replicate")
        return {**batch, "film": padded[:, :, 2 + dy : 2 + dy + SIDE, 2 + dx : 2 + dx + SIDE].contiguous()}

    def build_model(self):
        return ChestNet()

    def losses(self, output, batch):
        weight = torch.tensor(self.fitted["pos_weight"])
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], pos_weight=weight, reduction="none")
