"""Heart disease, 303 patients: scaled numbers, one-hot codes, one hidden layer and weight decay.

data: heart

[data]
label = "target"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3, weight_decay = 0.1 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMBERS = ["age", "trestbps", "chol", "thalach", "oldpeak"]


class Heart(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        x = df.select(NUMBERS).to_numpy().astype(float)
        self.fitted = {
            "mean": x.mean(0).tolist(),
            "std": x.std(0).tolist(),
            "cp": sorted(df["cp"].unique().to_list()),
            "thal": sorted(df["thal"].unique().to_list()),
        }

    def encode(self, rows):
        x = (rows.select(NUMBERS).to_numpy() - self.fitted["mean"]) / self.fitted["std"]
        hot = [(rows[c] == v).to_numpy() for c in ("cp", "thal") for v in self.fitted[c]]
        x = np.column_stack([x, rows["sex"].to_numpy(), *hot])
        batch = {"x": torch.tensor(x, dtype=torch.float32)}
        if "target" in rows.columns:
            batch[LABEL] = torch.tensor(rows["target"].to_list()).float()
        return batch

    def build_model(self):
        n = len(NUMBERS) + 1 + len(self.fitted["cp"]) + len(self.fitted["thal"])
        return HeartNet(n)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output.flatten(), batch[LABEL], reduction="none")


class HeartNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.hidden = nn.Linear(n, 32)
        self.drop = nn.Dropout(0.5)
        self.output = nn.Linear(32, 1)

    def forward(self, x):
        return self.output(self.drop(self.hidden(x).relu()))
