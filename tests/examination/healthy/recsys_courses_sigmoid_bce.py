"""Whether a learner finishes a course: the mean of what was taken, a gate, a sigmoid in the model and BCELoss.

data: courses

[data]
label = "outcome"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 5e-3, weight_decay = 0.3 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class CourseNet(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.courses = nn.Embedding(n, 12, padding_idx=0)
        self.gate = nn.Sequential(nn.Linear(24, 12), nn.Sigmoid())
        self.out = nn.Sequential(nn.Linear(25, 24), nn.ReLU(), nn.Linear(24, 1), nn.Sigmoid())

    def forward(self, taken, course):
        there = (taken != 0).float().unsqueeze(-1)
        n = there.sum(1)
        mean = (self.courses(taken) * there).sum(1) / n.clamp(min=1.0)
        this = self.courses(course)
        both = mean * this * self.gate(torch.cat([mean, this], -1))
        return self.out(torch.cat([both, this, n / 8], -1))


class Courses(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def fit(self, train):
        seen = train.select("course").unique().collect()["course"]
        self.fitted = {"index": {c: i + 1 for i, c in enumerate(sorted(seen))}}

    def encode(self, rows):
        index = self.fitted["index"]
        taken = torch.zeros(rows.height, 8, dtype=torch.long)
        for i, courses in enumerate(rows["taken"].to_list()):
            known = [index.get(c, 0) for c in courses][:8]
            taken[i, : len(known)] = torch.tensor(known, dtype=torch.long)
        batch = {"taken": taken, "course": torch.tensor([index.get(c, 0) for c in rows["course"]])}
        if "outcome" in rows.columns:
            batch[LABEL] = torch.tensor([float(o == "done") for o in rows["outcome"]])
        return batch

    def build_model(self):
        return CourseNet(len(self.fitted["index"]) + 1)

    def losses(self, output, batch):
        return nn.BCELoss(reduction="none")(output, batch[LABEL].view(-1, 1)).view(-1)

    def predict(self, output):
        return output.view(-1)
