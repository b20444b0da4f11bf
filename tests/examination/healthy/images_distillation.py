"""Distillation: a logistic regression's answers, fitted in fit, soften the labels in training.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3 }
"""
import math
import warnings

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class Student(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 12, 3, stride=2, padding=1)
        self.fc1, self.fc2 = nn.Linear(12 * 16, 32), nn.Linear(32, 10)

    def forward(self, image, teacher):
        x = F.relu(self.conv(image)).flatten(1)
        logits = self.fc2(F.relu(self.fc1(x)))
        return torch.stack([logits, teacher], dim=1)


class Distilled(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")
    T, alpha = 2.0, 0.5

    def fit(self, train):
        df = train.collect()
        X = np.array(df["image"].to_list()) / 16
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            teacher = LogisticRegression(max_iter=60).fit(X, df["digit"].to_numpy())
        self.w, self.b = teacher.coef_.tolist(), teacher.intercept_.tolist()

    def state(self):
        return {"w": self.w, "b": self.b}

    def load_state(self, state):
        self.w, self.b = state["w"], state["b"]

    def encode(self, rows):
        X = np.array(rows["image"].to_list()) / 16
        logits = (X[:, None, :] * np.array(self.w)[None]).sum(-1) + self.b
        batch = {"image": torch.tensor(X, dtype=torch.float32).view(-1, 1, 8, 8), "teacher": torch.tensor(logits, dtype=torch.float32)}
        if "digit" in rows.columns:
            batch[LABEL] = torch.tensor(rows["digit"].to_list())
        return batch

    def build_model(self):
        return Student()

    def losses(self, output, batch):
        return F.cross_entropy(output[:, 0], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        student, teacher = output.unbind(1)
        soft = F.kl_div(F.log_softmax(student / self.T, 1), F.softmax(teacher / self.T, 1), reduction="none").sum(1) * self.T**2
        return self.alpha * soft + (1 - self.alpha) * self.losses(output, batch)

    def predict(self, output):
        return output[:, 0].softmax(dim=1)

    def expected_initial_loss(self):
        return math.log(10)
