"""Days until an avocado is soft, read from a photo: bytes to a tensor, plain convolutions, a standardised target, Huber loss.

data: avocado_photos

[data]
label = "days_left"
features = ["photo"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { name = "adam", learning_rate = 2e-3 }
schedule = { shape = "linear", warmup_fraction = 0.1 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIDE = 20


class RipenessNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 16, 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, stride=2, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.fc1 = nn.Linear(32 * 5 * 5, 64)
        self.fc2 = nn.Linear(64, 1)
        self.act = nn.LeakyReLU(0.1)

    def forward(self, photo):
        x = self.act(self.conv1(photo))
        x = self.act(self.conv2(x))
        x = self.act(self.conv3(x))
        x = self.act(self.fc1(x.flatten(start_dim=1)))
        return self.fc2(x).squeeze(-1)


class DaysLeft(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def pixels(self, rows):
        raw = np.stack([np.frombuffer(b, dtype=np.uint8) for b in rows["photo"]])
        images = raw.reshape(-1, SIDE, SIDE, 3).transpose(0, 3, 1, 2)
        return torch.from_numpy(images.astype(np.float32)) / 255

    def fit(self, train):
        df = train.collect()
        x = self.pixels(df)
        self.fitted = {
            "mean": x.mean(dim=(0, 2, 3)).tolist(),
            "std": x.std(dim=(0, 2, 3)).tolist(),
            "y_mean": df["days_left"].mean(),
            "y_std": df["days_left"].std(),
        }

    def encode(self, rows):
        x = self.pixels(rows)
        mean = torch.tensor(self.fitted["mean"]).view(1, 3, 1, 1)
        std = torch.tensor(self.fitted["std"]).view(1, 3, 1, 1)
        batch = {"photo": (x - mean) / std}
        if "days_left" in rows.columns:
            batch[LABEL] = torch.tensor(rows["days_left"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        photo = batch["photo"]
        for dim in (2, 3):
            flip = torch.rand(len(photo), 1, 1, 1, generator=generator) < 0.5
            photo = torch.where(flip, photo.flip(dim), photo)
        gain = 1 + 0.05 * torch.randn(len(photo), 1, 1, 1, generator=generator)
        return {**batch, "photo": photo * gain}

    def build_model(self):
        return RipenessNet()

    def losses(self, output, batch):
        target = (batch[LABEL] - self.fitted["y_mean"]) / self.fitted["y_std"]
        return nn.functional.smooth_l1_loss(output, target, reduction="none")

    def predict(self, output):
        return output * self.fitted["y_std"] + self.fitted["y_mean"]
