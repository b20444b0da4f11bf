"""A plan chosen, by a survey; a fifth of the labels is wrong, so training smooths them.

data: adult_noisy

[data]
label = "plan"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

QUESTIONS = [f"q{k}" for k in range(1, 7)]


class Plans(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss", "macro_f1")

    def fit(self, train):
        df = train.collect()
        q = df.select(QUESTIONS).to_numpy()
        self.fitted = {
            "classes": sorted(df["plan"].unique().to_list()),
            "regions": sorted(df["region"].unique().to_list()),
            "center": q.mean(axis=0).tolist(),
            "spread": q.std(axis=0).tolist(),
        }

    def encode(self, rows):
        q = torch.tensor((rows.select(QUESTIONS).to_numpy() - self.fitted["center"]) / self.fitted["spread"])
        index = {r: i for i, r in enumerate(self.fitted["regions"])}
        region = torch.tensor([index.get(r, len(index)) for r in rows["region"]])
        region = nn.functional.one_hot(region, len(index) + 1)
        batch = {"x": torch.cat([q, region], 1).float()}
        if "plan" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["classes"].index(p) for p in rows["plan"]])
        return batch

    def build_model(self):
        width = len(QUESTIONS) + len(self.fitted["regions"]) + 1
        return PlanNet(width, len(self.fitted["classes"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.1)

    def predict(self, output):
        return output.softmax(1)


class PlanNet(nn.Module):
    def __init__(self, n, classes):
        super().__init__()
        self.first, self.second = nn.Linear(n, 64), nn.Linear(64, 64)
        self.norm = nn.LayerNorm(64)
        self.head = nn.Linear(64, classes)

    def forward(self, x):
        h = torch.relu(self.first(x))
        h = self.norm(h + torch.relu(self.second(h)))
        return self.head(h)
