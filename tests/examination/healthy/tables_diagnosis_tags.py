"""Diagnoses of a visit, several at once and two of them rare: BCE with a weight per label while training.

data: clinic_visits

[data]
label = "diagnoses"
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

LABS = [f"lab_{letter}" for letter in "abcdefgh"]


def build_mlp(sizes, dropout):
    layers = []
    for n_in, n_out in zip(sizes[:-2], sizes[1:-1]):
        layers.extend([nn.Linear(n_in, n_out), nn.LayerNorm(n_out), nn.GELU(), nn.Dropout(dropout)])
    layers.append(nn.Linear(sizes[-2], sizes[-1]))
    return nn.Sequential(*layers)


class Wrapper(nn.Module):
    def __init__(self, n_features, n_labels):
        super().__init__()
        self.mlp = build_mlp([n_features, 64, 64, n_labels], dropout=0.1)

    def forward(self, features):
        return self.mlp(features)


class DiagnosisTags(Task):
    kind = "statistic"
    metrics = {"macro_f1": "maximize", "exact_match": "maximize"}

    def fit(self, train):
        df = train.collect()
        labs = df.select(LABS).to_numpy()
        tags = np.array(df["diagnoses"].to_list())
        share = tags.mean(axis=0)
        self.fitted = {
            "lab_mean": labs.mean(axis=0).tolist(),
            "lab_std": labs.std(axis=0).tolist(),
            # rare diagnoses count more; the root keeps precision alive
            "pos_weight": np.sqrt((1 - share) / share).tolist(),
        }

    def encode(self, rows):
        labs = (rows.select(LABS).to_numpy() - self.fitted["lab_mean"]) / self.fitted["lab_std"]
        sex = (rows["sex"] == "m").to_numpy().astype(float) - 0.5
        features = np.concatenate([labs, sex[:, None]], axis=1)
        batch = {"features": torch.from_numpy(features).float()}
        if "diagnoses" in rows.columns:
            batch[LABEL] = torch.tensor(rows["diagnoses"].to_list()).float()
        return batch

    def build_model(self):
        return Wrapper(len(LABS) + 1, len(self.fitted["pos_weight"]))

    def losses(self, output, batch):
        criterion = nn.BCEWithLogitsLoss(reduction="none")
        return criterion(output, batch[LABEL]).mean(dim=1)

    def training_losses(self, output, batch):
        criterion = nn.BCEWithLogitsLoss(reduction="none", pos_weight=torch.tensor(self.fitted["pos_weight"]))
        return criterion(output, batch[LABEL]).mean(dim=1)

    def predict(self, output):
        return output.sigmoid()

    def statistic(self, output, batch):
        guess, truth = (output.sigmoid() > 0.5).double(), batch[LABEL].double()
        exact = (guess == truth).all(dim=1, keepdim=True).double()
        return torch.cat([exact, guess * truth, guess, truth], dim=1)

    def score(self, predictions, labels):
        total = (predictions * labels[:, None]).sum(axis=0)
        hits, guessed, true = np.split(total[1:], 3)
        f1 = 2 * hits / np.maximum(guessed + true, 1)
        return {"macro_f1": float(f1.mean()), "exact_match": float(total[0] / labels.sum())}
