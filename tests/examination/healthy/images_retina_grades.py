"""Grades of retinopathy as a regression (Kaggle's APTOS): crop, mean grade, rounded for the kappa.

data: retina_grades

[data]
label = "grade"
features = ["fundus"]
group = "patient"
ids = ["row_id"]
meta = ["eye", "clinic"]

[split]
method = "group"

[training]
steps = 420
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 2e-3, weight_decay = 1e-2 }
schedule = { shape = "one_cycle" }
"""
import numpy as np
import torch
from sklearn.metrics import cohen_kappa_score
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SIDE = 32
CROP = 2  # black border around the round picture
GRADES = 5


def conv_block(n_in, n_out):
    return nn.Sequential(
        nn.Conv2d(n_in, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
        nn.Conv2d(n_out, n_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(n_out),
        nn.ReLU(),
    )


class RetinaNet(nn.Module):
    def __init__(self, mean_grade):
        super().__init__()
        self.stage1 = conv_block(3, 12)
        self.stage2 = conv_block(12, 24)
        self.stage3 = conv_block(24, 32)
        self.down = nn.MaxPool2d(2)
        self.head = nn.Sequential(nn.Dropout(0.2), nn.Linear(64, 1))
        nn.init.constant_(self.head[1].bias, mean_grade)

    def forward(self, eye):
        h = self.down(self.stage1(eye))
        h = self.down(self.stage2(h))
        h = self.stage3(h)
        h = torch.cat([h.mean(dim=(2, 3)), h.amax(dim=(2, 3))], dim=1)
        return self.head(h).squeeze(1)


class RetinaGrades(Task):
    kind = "regression"
    metrics = {"kappa": "maximize"} | directions_of("rmse", "mae")

    def fit(self, train):
        df = train.select("fundus", "grade").collect()
        x = self.pictures(df)
        self.fitted = {
            "mean": x.mean(axis=(0, 2, 3)).tolist(),
            "std": x.std(axis=(0, 2, 3)).tolist(),
            "grade": float(df["grade"].mean()),
        }

    def pictures(self, rows):
        x = np.array(rows["fundus"].to_list(), dtype=np.float32).reshape(-1, SIDE, SIDE, 3)
        x = x[:, CROP:-CROP, CROP:-CROP] / 255.0
        return x.transpose(0, 3, 1, 2)

    def encode(self, rows):
        mean = np.array(self.fitted["mean"], dtype=np.float32).reshape(1, 3, 1, 1)
        std = np.array(self.fitted["std"], dtype=np.float32).reshape(1, 3, 1, 1)
        eye = np.ascontiguousarray((self.pictures(rows) - mean) / std)
        batch = {"eye": torch.from_numpy(eye)}
        if "grade" in rows.columns:
            batch[LABEL] = torch.tensor(rows["grade"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        eye = batch["eye"]
        across, down = torch.rand((2, len(eye), 1, 1, 1), generator=generator) < 0.5
        eye = torch.where(across, eye.flip(3), eye)
        eye = torch.where(down, eye.flip(2), eye)
        return {**batch, "eye": eye}

    def build_model(self):
        return RetinaNet(self.fitted["grade"])

    def losses(self, output, batch):
        return (output - batch[LABEL]) ** 2

    def score(self, predictions, labels):
        rounded = np.rint(predictions).clip(0, GRADES - 1).astype(int)
        kappa = cohen_kappa_score(labels.astype(int), rounded, weights="quadratic")
        return super().score(predictions, labels) | {"kappa": float(kappa)}
