"""Words from the raw wave: M5, as in torchaudio's speech command tutorial.

data: spoken_words

[data]
label = "word"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class M5(nn.Module):
    def __init__(self, n_output, n_channel=16):
        super().__init__()
        self.conv1 = nn.Conv1d(1, n_channel, kernel_size=20, stride=2)
        self.bn1 = nn.BatchNorm1d(n_channel)
        self.conv2 = nn.Conv1d(n_channel, n_channel, kernel_size=3)
        self.bn2 = nn.BatchNorm1d(n_channel)
        self.conv3 = nn.Conv1d(n_channel, 2 * n_channel, kernel_size=3)
        self.bn3 = nn.BatchNorm1d(2 * n_channel)
        self.pool = nn.MaxPool1d(4)
        self.fc1 = nn.Linear(2 * n_channel * 6, n_output)

    def forward(self, wave):
        x = self.pool(F.relu(self.bn1(self.conv1(wave))))
        x = self.pool(F.relu(self.bn2(self.conv2(x))))
        x = F.relu(self.bn3(self.conv3(x)))
        x = F.adaptive_avg_pool1d(x, 6)
        return F.log_softmax(self.fc1(x.flatten(1)), dim=1)


class SpeechCommands(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.labels = sorted(set(train.select("word").collect()["word"]))

    def state(self):
        return {"labels": self.labels}

    def load_state(self, state):
        self.labels = state["labels"]

    def encode(self, rows):
        wave = np.stack(rows["wave"].to_list()).astype(np.float32)
        batch = {"wave": torch.from_numpy(wave).unsqueeze(1)}
        if "word" in rows.columns:
            batch[LABEL] = torch.tensor([self.labels.index(w) for w in rows["word"]])
        return batch

    def build_model(self):
        return M5(len(self.labels))

    def losses(self, output, batch):
        return F.nll_loss(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.exp()

    @property
    def prediction_names(self):
        return self.labels

    def expected_initial_loss(self):
        return math.log(len(self.labels))
