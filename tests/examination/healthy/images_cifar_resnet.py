"""The CIFAR recipe at 20 by 20: a small ResNet, padded crops and flips, SGD, label smoothing.

data: objects

[data]
label = "kind"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "sgd", learning_rate = 0.05, weight_decay = 5e-4 }
normalization = { batch_norm = "sync" }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class BasicBlock(nn.Module):
    def __init__(self, in_planes, planes, stride=1):
        super().__init__()
        self.conv1 = nn.Conv2d(in_planes, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.shortcut = nn.Sequential()
        if stride != 1 or in_planes != planes:
            self.shortcut = nn.Sequential(nn.Conv2d(in_planes, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return F.relu(out + self.shortcut(x))


class ResNet(nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 12, 3, padding=1, bias=False), nn.BatchNorm2d(12), nn.ReLU())
        self.layer1, self.layer2 = BasicBlock(12, 24, 2), BasicBlock(24, 48, 2)
        self.fc = nn.Linear(48, num_classes)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(x.mean(dim=(2, 3)))


class Objects(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        df = train.select("pixels", "kind").collect()
        x = np.array(df["pixels"].to_list(), dtype=np.float64).reshape(-1, 3) / 255
        self.fitted = {"mean": x.mean(0).tolist(), "std": x.std(0).tolist(), "classes": sorted(df["kind"].unique().to_list())}

    def encode(self, rows):
        x = np.array(rows["pixels"].to_list(), dtype=np.float32).reshape(-1, 20, 20, 3) / 255
        x = (x - np.float32(self.fitted["mean"])) / np.float32(self.fitted["std"])
        batch = {"x": torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))}
        if "kind" in rows.columns:
            to_idx = {c: i for i, c in enumerate(self.fitted["classes"])}
            batch[LABEL] = torch.tensor([to_idx[k] for k in rows["kind"]])
        return batch

    def augment(self, batch, generator):
        x = batch["x"]
        flip = torch.rand(len(x), generator=generator) < 0.5
        x = torch.where(flip[:, None, None, None], x.flip(3), x)
        padded = F.pad(x, (2, 2, 2, 2))
        at = torch.randint(0, 5, (len(x), 2), generator=generator).tolist()
        x = torch.stack([p[:, i : i + 20, j : j + 20] for p, (i, j) in zip(padded, at)])
        return batch | {"x": x}

    def build_model(self):
        return ResNet(len(self.fitted["classes"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.1)
