"""Beetles by transfer: filters that `fit` finds by PCA of patches start the stem, the head is trained alone first, then all of it.

data: beetles

[data]
label = "species"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }

[[training.stages]] # the new head
steps = 120
trainable = ["head.*"]
learning_rate = 4e-3

[[training.stages]] # everything
steps = 280
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIZE = 20


class TransferNet(nn.Module):
    def __init__(self, filters, num_classes):
        super().__init__()
        k = len(filters)
        self.stem = nn.Conv2d(3, 2 * k, 5, padding=2)
        with torch.no_grad():
            self.stem.weight.copy_(torch.cat([filters, -filters]))
            self.stem.bias.zero_()
        self.body = nn.Sequential(
            nn.MaxPool2d(2), nn.Conv2d(2 * k, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(inplace=True),
            nn.MaxPool2d(2), nn.Conv2d(32, 48, 3, padding=1), nn.BatchNorm2d(48), nn.ReLU(inplace=True),
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(48 * 25, num_classes))

    def forward(self, img):
        return self.head(self.body(F.relu(self.stem(img))))


class Beetles(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")

    def fit(self, train):
        df = train.collect()
        x = np.array(df["photo"].to_list(), dtype=np.float64).reshape(-1, SIZE, SIZE, 3) / 255
        mean, std = x.mean((0, 1, 2)), x.std((0, 1, 2))
        x = (x - mean) / std
        patches = np.concatenate([x[:400, i : i + 5, j : j + 5].reshape(-1, 75) for i in (2, 7, 12) for j in (2, 7, 12)])
        _, vectors = np.linalg.eigh(patches.T @ patches / len(patches))
        filters = vectors[:, ::-1][:, :8].T.reshape(8, 5, 5, 3).transpose(0, 3, 1, 2)
        self.fitted = {
            "mean": mean.tolist(),
            "std": std.tolist(),
            "classes": sorted(df["species"].unique().to_list()),
            "filters": filters.tolist(),
        }

    def encode(self, rows):
        x = np.array(rows["photo"].to_list(), dtype=np.float32).reshape(-1, SIZE, SIZE, 3) / 255
        x = (x - np.float32(self.fitted["mean"])) / np.float32(self.fitted["std"])
        batch = {"img": torch.from_numpy(x.transpose(0, 3, 1, 2).copy())}
        if "species" in rows.columns:
            to_idx = {c: i for i, c in enumerate(self.fitted["classes"])}
            batch[LABEL] = torch.tensor([to_idx[s] for s in rows["species"]])
        return batch

    def augment(self, batch, generator):
        img = batch["img"]
        img = torch.rot90(img, int(torch.randint(4, (), generator=generator)), (2, 3))
        flip = torch.rand(len(img), 1, 1, 1, generator=generator) < 0.5
        return {**batch, "img": torch.where(flip, img.flip(3), img)}

    def build_model(self):
        return TransferNet(torch.tensor(self.fitted["filters"]), len(self.fitted["classes"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")
