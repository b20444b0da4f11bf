"""Who answers a letter? Hardly anybody can tell: a small net with strong decay, probabilities near the mean.

data: letters_answered

[data]
label = "answered"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 2e-3, weight_decay = 0.3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class LettersAnswered(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def raw(self, rows):
        df = rows.to_pandas()
        df["log_average"] = np.log1p(df.pop("average_gift"))
        for region in "NES":
            df[f"region_{region}"] = (df["region"] == region) * 1.0
        names = ["age", "gifts", "months_since", "log_average", "opened", "household", "street_number"]
        return df[names + [f"region_{r}" for r in "NES"]].to_numpy(dtype=np.float32)

    def fit(self, train):
        df = train.collect()
        x = self.raw(df)
        rate = df["answered"].mean()
        self.fitted = {"mu": x.mean(0).tolist(), "sd": x.std(0).tolist(), "bias": float(np.log(rate / (1 - rate)))}

    def encode(self, rows):
        x = (self.raw(rows) - np.array(self.fitted["mu"])) / np.array(self.fitted["sd"])
        batch = {"x": torch.from_numpy(x.astype(np.float32))}
        if "answered" in rows.columns:
            batch[LABEL] = torch.from_numpy(rows["answered"].to_numpy().astype(np.float32))
        return batch

    def build_model(self):
        net = nn.Sequential(nn.Linear(10, 16), nn.Tanh(), nn.Dropout(0.3), nn.Linear(16, 1), nn.Flatten(0))
        nn.init.constant_(net[3].bias, self.fitted["bias"])
        return Named(net)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")


class Named(nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return self.net(x)
