"""A small ResNet of basic blocks, zero-initialised residuals.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 32
optimizer = { name = "sgd", learning_rate = 0.05 }
normalization = { batch_norm = "sync" }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def conv3x3(i, o, stride=1):
    return nn.Conv2d(i, o, 3, stride=stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    def __init__(self, i, o, stride=1):
        super().__init__()
        self.conv1, self.bn1 = conv3x3(i, o, stride), nn.BatchNorm2d(o)
        self.conv2, self.bn2 = conv3x3(o, o), nn.BatchNorm2d(o)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = nn.Sequential(nn.Conv2d(i, o, 1, stride, bias=False), nn.BatchNorm2d(o)) if stride != 1 or i != o else None

    def forward(self, x):
        identity = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class ResNet(nn.Module):
    def __init__(self, num_classes=10):
        super().__init__()
        self.stem = nn.Sequential(conv3x3(1, 16), nn.BatchNorm2d(16), nn.ReLU(inplace=True))
        self.layer1 = BasicBlock(16, 16)
        self.layer2 = BasicBlock(16, 32, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(32, num_classes)
        for m in self.modules():
            if isinstance(m, nn.Conv2d):
                nn.init.kaiming_normal_(m.weight, mode="fan_out", nonlinearity="relu")
            if isinstance(m, BasicBlock):
                nn.init.constant_(m.bn2.weight, 0)

    def forward(self, x):
        x = self.layer2(self.layer1(self.stem(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class DigitsResNet(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy")

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        x = torch.tensor(rows["image"].to_list()).view(-1, 1, 8, 8).float() / 8 - 1
        y = {LABEL: torch.tensor(rows["digit"].to_list())} if "digit" in rows.columns else {}
        return {"x": x} | y

    def build_model(self):
        return ResNet()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(10)
