"""Do two photographs show one stamp? The siamese network of the PyTorch examples: shared trunk, joined, a sigmoid, BCELoss.

data: stamp_pairs

[data]
label = "same"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class SiameseNetwork(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(32 * 9, 48),
        )
        self.fc = nn.Sequential(nn.Linear(96, 64), nn.ReLU(inplace=True), nn.Linear(64, 1))
        self.sigmoid = nn.Sigmoid()
        self.apply(self.init_weights)

    def init_weights(self, m):
        if isinstance(m, nn.Linear):
            torch.nn.init.xavier_uniform_(m.weight)
            m.bias.data.fill_(0.01)

    def forward(self, input1, input2):
        one, two = self.trunk(input1), self.trunk(input2)
        output = self.fc(torch.cat(((one - two).abs(), one * two), 1))
        return self.sigmoid(output).squeeze(1)


class SameStamp(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def picture(self, column):
        x = np.array(column.to_list(), dtype=np.float32).reshape(-1, 1, 12, 12)
        x = x - x.mean(axis=(1, 2, 3), keepdims=True)
        return torch.from_numpy(x / (x.std(axis=(1, 2, 3), keepdims=True) + 1))

    def encode(self, rows):
        batch = {"input1": self.picture(rows["left"]), "input2": self.picture(rows["right"])}
        if "same" in rows.columns:
            batch[LABEL] = torch.tensor(rows["same"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return SiameseNetwork()

    def losses(self, output, batch):
        return nn.BCELoss(reduction="none")(output, batch[LABEL])

    def predict(self, output):
        return output
