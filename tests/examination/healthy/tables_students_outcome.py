"""Dropout, enrolled or graduate: dummies for the codes, standardised marks, log_softmax and
NLLLoss, rare classes weigh more.

data: student_outcomes

[data]
label = "outcome"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
"""

import numpy as np
import pandas as pd
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CODES = ["course", "application_mode", "mother_qualification"]
FLAGS = ["debtor", "tuition_paid", "scholarship"]
NUMBERS = ["admission_grade", "age", "sem1_rate", "sem1_grade", "sem2_rate", "sem2_grade", "trend"]
CLASSES = ["Dropout", "Enrolled", "Graduate"]


def prepare(df):
    df = df.copy()
    df["sem1_rate"] = df["sem1_approved"] / df["sem1_enrolled"]
    df["sem2_rate"] = df["sem2_approved"] / df["sem1_enrolled"]
    df["trend"] = df["sem2_rate"] - df["sem1_rate"]
    # a grade of 0 means that nothing was passed: 10 is the lowest that is given
    df["sem1_grade"] = df["sem1_grade"].where(df["sem1_grade"] > 0, 10.0)
    df["sem2_grade"] = df["sem2_grade"].where(df["sem2_grade"] > 0, 10.0)
    return df


class StudentNet(nn.Module):
    def __init__(self, n_in, n_hidden=48, n_out=3):
        super().__init__()
        self.fc1 = nn.Linear(n_in, n_hidden)
        self.fc2 = nn.Linear(n_hidden, n_hidden)
        self.fc3 = nn.Linear(n_hidden, n_out)
        self.dropout = nn.Dropout(p=0.2)

    def forward(self, x):
        x = self.dropout(F.relu(self.fc1(x)))
        x = self.dropout(F.relu(self.fc2(x)))
        x = self.fc3(x)
        return F.log_softmax(x, dim=1)


class StudentOutcome(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "log_loss", "accuracy")
    prediction_names = CLASSES

    def fit(self, train):
        df = prepare(train.collect().to_pandas())
        counts = df["outcome"].value_counts()
        self.fitted = {
            "median": {c: float(df[c].median()) for c in NUMBERS},
            "mean": {c: float(df[c].mean()) for c in NUMBERS},
            "std": {c: float(df[c].std()) for c in NUMBERS},
            "levels": {c: sorted(df[c].unique().tolist()) for c in CODES},
            "weights": [float(np.sqrt(len(df) / (3 * counts[c]))) for c in CLASSES],
        }

    def encode(self, rows):
        df = prepare(rows.to_pandas())
        parts = []
        for c in NUMBERS:
            col = df[c].astype(float).fillna(self.fitted["median"][c])
            parts.append((col - self.fitted["mean"][c]) / self.fitted["std"][c])
        for c in CODES:
            levels = pd.Categorical(df[c], categories=self.fitted["levels"][c])
            parts.append(pd.get_dummies(pd.Series(levels, index=df.index), prefix=c))
        parts.append(df[FLAGS])
        X = pd.concat(parts, axis=1).to_numpy(dtype=np.float32)
        batch = {"x": torch.from_numpy(X)}
        if "outcome" in df:
            batch[LABEL] = torch.tensor([CLASSES.index(o) for o in df["outcome"]])
        return batch

    def build_model(self):
        n_dummies = sum(len(levels) for levels in self.fitted["levels"].values())
        return StudentNet(len(NUMBERS) + n_dummies + len(FLAGS))

    def losses(self, output, batch):
        return F.nll_loss(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        w = torch.tensor(self.fitted["weights"])
        return F.nll_loss(output, batch[LABEL], weight=w, reduction="none")

    def predict(self, output):
        return F.softmax(output, dim=1)
