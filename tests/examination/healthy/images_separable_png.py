"""PNG bytes opened with Pillow, depthwise separable convolutions, ported from Keras.

data: digit_pngs

[data]
label = "digit"
features = ["png"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
normalization = { batch_norm = "sync" }
"""
import io
import math

import numpy as np
import torch
from PIL import Image
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SeparableConv2D(nn.Module):
    def __init__(self, cin, cout, strides=1):
        super().__init__()
        self.depthwise = nn.Conv2d(cin, cin, 3, strides, padding=1, groups=cin, bias=False)
        self.pointwise = nn.Conv2d(cin, cout, 1, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return torch.relu(self.bn(self.pointwise(self.depthwise(x))))


def open_image(raw):
    with Image.open(io.BytesIO(raw)) as im:
        return np.asarray(im.convert("L"), dtype=np.float32) / 255.0


class PngDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "macro_f1")

    def fit(self, train):
        pixels = np.stack([open_image(b) for b in train.select("png").collect()["png"]])
        self.mean = float(pixels.mean())

    def state(self):
        return {"mean": self.mean}

    def load_state(self, state):
        self.mean = state["mean"]

    def encode(self, rows):
        image = np.stack([open_image(b) for b in rows["png"]])[:, None] - self.mean
        out = {"image": torch.from_numpy(image)}
        if "digit" in rows.columns:
            out[LABEL] = torch.from_numpy(rows["digit"].to_numpy().copy())
        return out

    def build_model(self):
        return SeparableNet()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(10)


class SeparableNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.entry = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU())
        self.sep1, self.sep2 = SeparableConv2D(16, 32), SeparableConv2D(32, 64, strides=2)
        self.top = nn.Linear(64, 10)

    def forward(self, image):
        x = self.sep2(self.sep1(self.entry(image)))
        return self.top(x.mean(dim=(2, 3)))
