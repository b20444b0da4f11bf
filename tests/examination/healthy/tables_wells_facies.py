"""Seven facies from well logs, after the SEG's contest: a window of five depths, small convolutions, whole wells held out.

data: well_logs

[data]
label = "facies"
features = ["formation", "gr", "rhob", "nphi", "dt", "rt"]
group = "well"
meta = ["depth"]
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { name = "adam", learning_rate = 2e-3 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LOGS = ["gr", "rhob", "nphi", "dt", "rt"]
# what a tool can have read; anything else is a spike
RANGES = {"gr": (0, 300), "rhob": (1.5, 3.2), "nphi": (-0.05, 0.6), "dt": (35, 180), "rt": (0.1, 2000)}
DEPTHS = 5
FORMATIONS = ["upper", "middle", "lower"]


class FaciesNet(nn.Module):
    def __init__(self, n_facies):
        super().__init__()
        self.c1 = nn.Conv1d(len(LOGS) + 1, 32, 3, padding=1)
        self.n1 = nn.GroupNorm(4, 32)
        self.c2 = nn.Conv1d(32, 32, 3, padding=1)
        self.drop = nn.Dropout(0.2)
        self.fc1 = nn.Linear(32 * 2 + len(LOGS) + 3, 48)
        self.fc2 = nn.Linear(48, n_facies)

    def forward(self, x, has_dt, formation):
        ch = has_dt[:, None, None].expand(-1, 1, DEPTHS)
        h = F.relu(self.n1(self.c1(torch.cat([x, ch], 1))))
        h = F.relu(self.c2(h))
        h = torch.cat([h[:, :, DEPTHS // 2], h.mean(2), x[:, :, DEPTHS // 2], formation], 1)
        return self.fc2(self.drop(F.relu(self.fc1(h))))


class Facies(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def windows(self, df):
        """[row, log, depth], spikes cut, resistivity in decades."""
        out = np.full((df.height, len(LOGS), DEPTHS), np.nan)
        for k, log in enumerate(LOGS):
            for i, values in enumerate(df[log].to_list()):
                if values is not None:
                    out[i, k] = values
            out[:, k] = np.clip(out[:, k], *RANGES[log])
        out[:, 4] = np.log10(out[:, 4])
        return out

    def fit(self, train):
        df = train.collect()
        x = self.windows(df)
        facies, counts = np.unique(df["facies"].to_numpy(), return_counts=True)
        self.fitted = {
            "facies": facies.tolist(),
            "share": (counts / counts.sum()).tolist(),
            "mean": np.nanmean(x, axis=(0, 2)).tolist(),
            "std": np.nanstd(x, axis=(0, 2)).tolist(),
        }

    def encode(self, rows):
        x = self.windows(rows)
        x = (x - np.array(self.fitted["mean"])[None, :, None]) / np.array(self.fitted["std"])[None, :, None]
        has_dt = ~np.isnan(x[:, 3, 0])
        batch = {
            "x": torch.tensor(np.nan_to_num(x), dtype=torch.float32),
            "has_dt": torch.tensor(has_dt, dtype=torch.float32),
            "formation": torch.tensor([[float(f == g) for g in FORMATIONS] for f in rows["formation"]]),
        }
        if "facies" in rows.columns:
            code = {f: i for i, f in enumerate(self.fitted["facies"])}
            batch[LABEL] = torch.tensor([code[f] for f in rows["facies"]])
        return batch

    def build_model(self):
        return FaciesNet(len(self.fitted["facies"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        w = 1 / torch.tensor(self.fitted["share"], dtype=torch.float32).sqrt()
        w = w / w.mean()
        return F.cross_entropy(output, batch[LABEL], weight=w, reduction="none", label_smoothing=0.05)

    def augment(self, batch, generator):
        # upside down is as good a window; tools drift by a tenth of a deviation
        x = batch["x"]
        turned = torch.rand(len(x), generator=generator) < 0.5
        x = torch.where(turned[:, None, None], x.flip(2), x)
        drift = 0.1 * torch.randn(len(x), len(LOGS), 1, generator=generator)
        drift[:, 3] *= batch["has_dt"][:, None]
        return {**batch, "x": x + drift}

    @property
    def prediction_names(self):
        return self.fitted["facies"]
