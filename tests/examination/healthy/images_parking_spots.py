"""Is a parking spot busy? A little CNN as in PyTorch's tutorial, one logit, camera embedded.

data: parking_spots

[data]
label = "busy"
time = "taken"
features = ["camera", "patch"]
ids = ["row_id"]

[training]
steps = 260
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIZE = 20


class SpotNet(nn.Module):
    def __init__(self, n_cameras):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 8, 3)
        self.conv2 = nn.Conv2d(8, 16, 3)
        self.pool = nn.MaxPool2d(2)
        self.camera = nn.Embedding(n_cameras + 1, 4)  # the last one is for a camera put up later
        self.fc1 = nn.Linear(16 * 3 * 3 + 4, 48)
        self.drop = nn.Dropout(0.2)
        self.fc2 = nn.Linear(48, 1)

    def forward(self, patch, camera):
        x = self.pool(F.relu(self.conv1(patch)))
        x = self.pool(F.relu(self.conv2(x)))
        x = torch.flatten(x, 1)
        x = torch.cat([x, self.camera(camera)], dim=1)
        x = self.drop(F.relu(self.fc1(x)))
        return self.fc2(x)


class ParkingSpots(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def fit(self, train):
        self.fitted = {"cameras": sorted(train.select("camera").unique().collect()["camera"])}

    def encode(self, rows):
        patch = np.array(rows["patch"].to_list(), dtype=np.float32).reshape(-1, 1, SIZE, SIZE)
        # every patch by itself: the light changes over the day
        mean = patch.mean(axis=(2, 3), keepdims=True)
        std = patch.std(axis=(2, 3), keepdims=True)
        patch = (patch - mean) / (std + 1e-3)
        number = {name: i for i, name in enumerate(self.fitted["cameras"])}
        unknown = len(number)
        camera = [number.get(name, unknown) for name in rows["camera"]]
        batch = {"patch": torch.from_numpy(patch), "camera": torch.tensor(camera)}
        if "busy" in rows.columns:
            batch[LABEL] = torch.tensor(rows["busy"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        patch = batch["patch"]
        mirror = torch.rand(len(patch), generator=generator) < 0.5
        patch = torch.where(mirror[:, None, None, None], patch.flip(-1), patch)
        return {**batch, "patch": patch}

    def build_model(self):
        return SpotNet(len(self.fitted["cameras"]))

    def losses(self, output, batch):
        target = batch[LABEL].unsqueeze(1)
        return F.binary_cross_entropy_with_logits(output, target, reduction="none").squeeze(1)
