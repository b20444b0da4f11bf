"""Characters of identifiers (the names tutorial): one-hot letters, a convolution, class or function?

data: identifiers

[data]
label = "is_class"
features = ["name"]
text = ["name"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import math
import string

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

ALL_LETTERS = string.ascii_lowercase + string.digits
N_LETTERS = len(ALL_LETTERS)
MAX_LEN = 24


def line_to_tensor(line):
    tensor = torch.zeros(N_LETTERS, MAX_LEN)
    for i, letter in enumerate(line[-MAX_LEN:]):
        j = ALL_LETTERS.find(letter)
        if j >= 0:
            tensor[j, i] = 1
    return tensor


class CharCNN(nn.Module):
    def __init__(self, prior):
        super().__init__()
        self.conv1 = nn.Conv1d(N_LETTERS, 48, 3, padding=1)
        self.conv2 = nn.Conv1d(48, 48, 3, padding=1)
        self.fc = nn.Linear(48, 1)
        self.fc.bias.data.fill_(math.log(prior / (1 - prior)))

    def forward(self, letters):
        x = F.relu(self.conv1(letters))
        x = F.relu(self.conv2(x))
        return self.fc(x.amax(dim=2))[:, 0]


class Names(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        self.prior = float(train.select("is_class").collect()["is_class"].mean())

    def state(self):
        return {"prior": self.prior}

    def load_state(self, state):
        self.prior = state["prior"]

    def encode(self, rows):
        batch = {"letters": torch.stack([line_to_tensor(name) for name in rows["name"]])}
        if "is_class" in rows.columns:
            batch[LABEL] = torch.tensor(rows["is_class"].to_list()).float()
        return batch

    def build_model(self):
        return CharCNN(self.prior)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return F.sigmoid(output)

    def expected_initial_loss(self):
        return -(self.prior * math.log(self.prior) + (1 - self.prior) * math.log(1 - self.prior))
