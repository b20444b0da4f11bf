"""MLP-Mixer on digits: patches of two by two, mixing over patches and over channels.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class MlpBlock(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class MixerBlock(nn.Module):
    def __init__(self, patches, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.token_mix, self.channel_mix = MlpBlock(patches, 32), MlpBlock(dim, 64)

    def forward(self, x):
        x = x + self.token_mix(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.channel_mix(self.norm2(x))


class MlpMixer(nn.Module):
    def __init__(self, dim=32, depth=2):
        super().__init__()
        self.stem = nn.Conv2d(1, dim, kernel_size=2, stride=2)
        self.blocks = nn.Sequential(*[MixerBlock(16, dim) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.head = nn.Linear(dim, 10)
        nn.init.zeros_(self.head.weight)

    def forward(self, image):
        x = self.stem(image).flatten(2).transpose(1, 2)
        x = self.norm(self.blocks(x)).mean(1)
        return self.head(x)


class MixerDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        pass

    def state(self):
        return {}

    def load_state(self, state):
        pass

    def encode(self, rows):
        pixels = np.array(rows["image"].to_list(), dtype=np.float32).reshape(-1, 1, 8, 8)
        batch = {"image": torch.from_numpy(pixels / 8 - 1)}
        if "digit" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["digit"].to_numpy().copy())
        return batch

    def build_model(self):
        return MlpMixer()

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(10)
