"""Several things in one picture: a sigmoid each, the mean of their cross entropies.

data: scenes

[data]
label = "tags"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task


class TagNet(nn.Module):
    def __init__(self, n_tags=4):
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 32, 3, padding=1)
        self.conv3 = nn.Conv2d(32, 32, 3, padding=1)
        self.fc = nn.Linear(32, n_tags)

    def forward(self, image):
        x = nn.functional.max_pool2d(torch.relu(self.conv1(image)), 2)
        x = nn.functional.max_pool2d(torch.relu(self.conv2(x)), 2)
        x = torch.relu(self.conv3(x))
        return self.fc(x.amax(dim=(2, 3)))


class SceneTags(Task):
    kind = "statistic"
    metrics = {"hamming_loss": "minimize", "exact_match": "maximize"}

    def fit(self, train):
        x = np.array(train.select("image").collect()["image"].to_list()) / 255
        self.fitted = {"mean": float(x.mean()), "std": float(x.std())}

    def encode(self, rows):
        x = np.array(rows["image"].to_list(), dtype=np.float32).reshape(-1, 1, 28, 28) / 255
        batch = {"image": torch.from_numpy((x - np.float32(self.fitted["mean"])) / np.float32(self.fitted["std"]))}
        if "tags" in rows.columns:
            batch[LABEL] = torch.tensor(rows["tags"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return TagNet()

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none").mean(1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        wrong = (output > 0) != (batch[LABEL] > 0.5)
        return torch.stack([wrong.double().mean(1), (~wrong).all(1).double()], 1)

    def score(self, predictions, labels):
        hamming, exact = np.average(predictions, axis=0, weights=labels)
        return {"hamming_loss": float(hamming), "exact_match": float(exact)}
