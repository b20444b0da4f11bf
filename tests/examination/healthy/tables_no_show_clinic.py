"""Who misses the appointment? pandas dates, the patient's record up to the day, a small fc net.

data: appointments

[data]
label = "no_show"
time = "starts_at"
ids = ["row_id"]
meta = ["patient"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import pandas as pd
import torch
import torch.nn as nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def featurize(df):
    booked, slot = pd.to_datetime(df.booked_at), pd.to_datetime(df.slot)
    wait = slot - booked
    out = pd.DataFrame(index=df.index)
    out["wait_days"] = (wait.dt.total_seconds() / 86400).pow(0.5)
    out["starts_hour"] = slot.dt.hour
    out["monday"] = (slot.dt.day_of_week == 0) * 1.0
    out["age"] = df.age
    out["far"] = (df.distance_km + 1).map(lambda km: km ** (1 / 3))
    out["sms"] = df.sms
    # (missed + prior) / (visits + prior): a new patient gets the clinic's 30%
    out["record"] = (df.missed_before + 0.6) / (df.visits_before + 2)
    out["visits"] = df.visits_before
    return out


class NoShow(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision", "log_loss")

    def fit(self, train):
        X = featurize(train.collect().to_pandas())
        stats = X.describe().loc[["mean", "std"]]
        self.fitted = {"names": list(X.columns), "mean": stats.loc["mean"].tolist(), "std": stats.loc["std"].tolist()}

    def encode(self, rows):
        df = rows.to_pandas()
        X = (featurize(df)[self.fitted["names"]] - self.fitted["mean"]) / self.fitted["std"]
        out = {"X": torch.tensor(X.to_numpy(dtype="float32"))}
        if "no_show" in df:
            out[LABEL] = torch.tensor(df.no_show.map({"No": 0.0, "Yes": 1.0}).to_numpy(dtype="float32"))
        return out

    def build_model(self):
        return Net(len(self.fitted["names"]))

    def losses(self, output, batch):
        return nn.BCEWithLogitsLoss(reduction="none")(output, batch[LABEL].unsqueeze(1)).squeeze(1)

    def predict(self, output):
        return output.sigmoid().squeeze(1)


class Net(nn.Module):
    def __init__(self, n):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(n, 32), nn.Linear(32, 16), nn.Linear(16, 1)
        self.do = nn.Dropout(0.15)

    def forward(self, X):
        X = self.do(torch.relu(self.fc1(X)))
        X = torch.relu(self.fc2(X))
        return self.out(X)
