"""Names of villages, letter by letter, given the region: the recurrent cell of the PyTorch tutorial, written out.

data: village_names

[data]
label = "name"
features = ["region", "name"]
text = ["name"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

MAX = 20
IGNORE = -100


class RNN(nn.Module):
    def __init__(self, n_categories, n_letters, hidden_size=64):
        super().__init__()
        self.hidden_size = hidden_size
        self.n_categories, self.n_letters = n_categories, n_letters
        joined = n_categories + n_letters + hidden_size
        self.i2h = nn.Linear(joined, hidden_size)
        self.i2o = nn.Linear(joined, n_letters)
        self.o2o = nn.Linear(hidden_size + n_letters, n_letters)
        self.dropout = nn.Dropout(0.1)

    def forward(self, category, letters):
        category = F.one_hot(category, self.n_categories).float()
        hidden = torch.zeros(len(category), self.hidden_size, device=category.device)
        outputs = []
        for i in range(letters.shape[1]):
            letter = F.one_hot(letters[:, i], self.n_letters).float()
            combined = torch.cat((category, letter, hidden), 1)
            hidden = torch.tanh(self.i2h(combined))
            output = self.o2o(torch.cat((hidden, self.i2o(combined)), 1))
            outputs.append(self.dropout(output))
        return torch.stack(outputs, dim=1)


class VillageNames(Task):
    kind = "statistic"
    metrics = {"bits_per_letter": "minimize"}

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "letters": sorted(set("".join(df["name"]))),
            "regions": sorted(df["region"].unique().to_list()),
        }

    def encode(self, rows):
        letters = {c: i for i, c in enumerate(self.fitted["letters"], start=3)}
        regions = {r: i for i, r in enumerate(self.fitted["regions"], start=1)}
        ids = torch.zeros(rows.height, MAX, dtype=torch.long)
        target = torch.full((rows.height, MAX), IGNORE)
        for row, name in enumerate(rows["name"]):
            line = [0, *[letters.get(c, 2) for c in name][: MAX - 1], 1]
            ids[row, : len(line) - 1] = torch.tensor(line[:-1])
            target[row, : len(line) - 1] = torch.tensor(line[1:])
        return {
            "category": torch.tensor([regions.get(r, 0) for r in rows["region"]]),
            "letters": ids,
            LABEL: target,
            WEIGHT: (target != IGNORE).sum(1).float(),
        }

    def build_model(self):
        return RNN(len(self.fitted["regions"]) + 1, len(self.fitted["letters"]) + 3)

    def losses(self, output, batch):
        nll = F.cross_entropy(output.permute(0, 2, 1), batch[LABEL], ignore_index=IGNORE, reduction="none")
        return nll.sum(1) / batch[WEIGHT]

    def score(self, predictions, labels):
        return {"bits_per_letter": float((predictions.reshape(-1) * labels).sum() / labels.sum() / math.log(2))}

    def expected_initial_loss(self):
        return math.log(len(self.fitted["letters"]) + 3)
