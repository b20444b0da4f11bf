"""RotNet: by how many quarter turns was the photograph turned? While training each is turned once more, and the label with it.

data: street_tiles

[data]
label = "turns"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "sgd", learning_rate = 0.03, weight_decay = 5e-4 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, Task


class BasicBlock(nn.Module):
    def __init__(self, in_planes, out_planes, kernel_size):
        super().__init__()
        padding = (kernel_size - 1) // 2
        self.layers = nn.Sequential()
        self.layers.add_module("Conv", nn.Conv2d(in_planes, out_planes, kernel_size, padding=padding, bias=False))
        self.layers.add_module("BatchNorm", nn.BatchNorm2d(out_planes))
        self.layers.add_module("ReLU", nn.ReLU(inplace=True))

    def forward(self, x):
        return self.layers(x)


class NetworkInNetwork(nn.Module):
    def __init__(self, nChannels=32):
        super().__init__()
        self.block1 = nn.Sequential(BasicBlock(1, nChannels, 5), BasicBlock(nChannels, 24, 1), nn.MaxPool2d(3, 2, 1))
        self.block2 = nn.Sequential(BasicBlock(24, nChannels, 3), BasicBlock(nChannels, nChannels, 1), nn.AvgPool2d(3, 2, 1))
        self.Classifier = nn.Linear(nChannels * 25, 4)
        for m in self.modules():
            if isinstance(m, nn.Linear):
                m.bias.data.zero_()

    def forward(self, x):
        feat = self.block2(self.block1(x))
        return self.Classifier(feat.view(feat.size(0), -1))


class RotNet(Task):
    kind = "multiclass"

    def encode(self, rows):
        x = torch.tensor(rows["tile"].to_list(), dtype=torch.float32).reshape(len(rows), 1, 20, 20)
        x = (x - x.mean(dim=(2, 3), keepdim=True)) / (x.std(dim=(2, 3), keepdim=True) + 8)
        batch = {"x": x}
        if "turns" in rows.columns:
            batch[LABEL] = torch.tensor(rows["turns"].to_list())
        return batch

    def augment(self, batch, generator):
        more = torch.randint(0, 4, (len(batch["x"]),), generator=generator)
        x = torch.stack([torch.rot90(img, int(k), (1, 2)) for img, k in zip(batch["x"], more)])
        return {"x": x, LABEL: (batch[LABEL] + more) % 4}

    def build_model(self):
        return NetworkInNetwork()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def expected_initial_loss(self):
        return math.log(4)
