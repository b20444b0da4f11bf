"""Three grades of a pupil at once, where a quarter was never given: a masked Huber loss over what is there.

data: school_grades

[data]
label = "grades"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import torch
from torch import nn

import numpy as np

from perennial.engine.task import LABEL, Task

SUBJECTS = ["mathematics", "language", "sport"]


class Trunk(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.shared = nn.Sequential(nn.Linear(n_in, 32), nn.SiLU())
        self.heads = nn.ModuleList(nn.Sequential(nn.Linear(32, 16), nn.SiLU(), nn.Linear(16, 1)) for _ in range(n_out))

    def forward(self, pupil):
        h = self.shared(pupil)
        return torch.cat([head(h) for head in self.heads], dim=1)


class Grades(Task):
    kind = "statistic"
    metrics = {"mean_error": "minimize"}
    serves_predictions = True

    def targets(self, rows):
        return np.array([[np.nan if g is None else g for g in row] for row in rows["grades"].to_list()], dtype=float)

    def inputs(self, rows):
        columns = {name: rows[name].to_numpy().astype(float) for name in sorted(self.columns.features)}
        columns["absences"] = np.log1p(columns["absences"])
        return np.column_stack(list(columns.values()))

    def fit(self, train):
        df = train.collect()
        x, y = self.inputs(df), self.targets(df)
        self.fitted = {
            "x": [x.mean(0).tolist(), x.std(0).tolist()],
            "y": [np.nanmean(y, axis=0).tolist(), np.nanstd(y, axis=0).tolist()],
        }

    def encode(self, rows):
        mean, std = self.fitted["x"]
        batch = {"pupil": torch.tensor((self.inputs(rows) - mean) / std, dtype=torch.float32)}
        if "grades" in rows.columns:
            batch[LABEL] = torch.tensor(self.targets(rows), dtype=torch.float32)
        return batch

    def build_model(self):
        return Trunk(len(self.columns.features), len(SUBJECTS))

    def in_grades(self, output):
        mean, std = torch.tensor(self.fitted["y"])
        return output * std + mean

    def losses(self, output, batch):
        mean, std = torch.tensor(self.fitted["y"])
        present = ~batch[LABEL].isnan()
        target = ((batch[LABEL] - mean) / std).nan_to_num(0.0)
        each = nn.functional.huber_loss(output, target, reduction="none") * present
        return each.sum(1) / present.sum(1)

    def predict(self, output):
        return self.in_grades(output).clamp(0, 20)

    def statistic(self, output, batch):
        present = ~batch[LABEL].isnan()
        error = (self.predict(output) - batch[LABEL]).abs().nan_to_num(0.0)
        return error.sum(1) / present.sum(1)

    def score(self, predictions, labels):
        return {"mean_error": float(np.average(predictions.reshape(-1), weights=labels))}

    @property
    def prediction_names(self):
        return SUBJECTS
