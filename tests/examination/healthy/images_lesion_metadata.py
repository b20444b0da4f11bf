"""Moles with what is known of the patient, as in the melanoma competitions: a small CNN's features beside age and place.

data: skin_lesions

[data]
label = "malignant"
group = "patient"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 350
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
"""
import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class CFG:
    size = 18
    sites = ["arm", "back", "face", "leg"]
    width = 16
    drop = 0.3
    # one malignant in eleven; the full ratio made the validation loss jump about
    pos_weight = 3.0


class Swish(nn.Module):
    def forward(self, x):
        return x * torch.sigmoid(x)


class LesionModel(nn.Module):
    def __init__(self, n_meta, prior):
        super().__init__()
        w = CFG.width
        self.enet = nn.Sequential(
            nn.Conv2d(3, w, 3, padding=1, bias=False), nn.BatchNorm2d(w), Swish(), nn.MaxPool2d(2),
            nn.Conv2d(w, 2 * w, 3, padding=1, bias=False), nn.BatchNorm2d(2 * w), Swish(), nn.MaxPool2d(2),
            nn.Conv2d(2 * w, 2 * w, 3, padding=1, bias=False), nn.BatchNorm2d(2 * w), Swish(),
        )
        self.meta = nn.Sequential(nn.Linear(n_meta, 16), nn.LayerNorm(16), Swish())
        self.dropout = nn.Dropout(CFG.drop)
        self.myfc = nn.Linear(2 * w + 16, 1)
        nn.init.constant_(self.myfc.bias, float(np.log(prior / (1 - prior))))

    def forward(self, img, meta):
        x = self.enet(img).mean(dim=(2, 3))
        x = torch.cat([x, self.meta(meta)], dim=1)
        return self.myfc(self.dropout(x)).squeeze(1)


class Melanoma(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "average_precision", "log_loss")

    def fit(self, train):
        df = train.select("age", "malignant", "photo").collect()
        rgb = np.array(df["photo"].to_list(), dtype=np.float64).reshape(-1, 3)
        self.fitted = {
            "age_mean": df["age"].mean(), "age_std": df["age"].std(), "prior": df["malignant"].mean(),
            "rgb_mean": rgb.mean(0).tolist(), "rgb_std": rgb.std(0).tolist(),
        }

    def encode(self, rows):
        img = np.array(rows["photo"].to_list(), dtype=np.float32).reshape(-1, CFG.size, CFG.size, 3)
        img = (img - np.array(self.fitted["rgb_mean"])) / np.array(self.fitted["rgb_std"])
        age = (rows["age"].cast(float) - self.fitted["age_mean"]) / self.fitted["age_std"]
        meta = [age.fill_null(0.0).to_numpy(), age.is_null().cast(float).to_numpy()]
        meta += [(rows["site"] == s).cast(float).to_numpy() for s in CFG.sites]
        out = {
            "img": torch.tensor(img.transpose(0, 3, 1, 2), dtype=torch.float32),
            "meta": torch.tensor(np.stack(meta, 1), dtype=torch.float32),
        }
        if "malignant" in rows.columns:
            out[LABEL] = torch.tensor(rows["malignant"].to_numpy(), dtype=torch.float32)
        return out

    def augment(self, batch, generator):
        img, n = batch["img"], len(batch["img"])
        pick = lambda: torch.rand(n, 1, 1, 1, generator=generator) < 0.5
        img = torch.where(pick(), img.flip(3), img)
        img = torch.where(pick(), img.flip(2), img)
        img = torch.where(pick(), img.transpose(2, 3), img)
        light = 1 + 0.1 * torch.randn(n, 1, 1, 1, generator=generator)
        return {**batch, "img": img * light}

    def build_model(self):
        return LesionModel(2 + len(CFG.sites), self.fitted["prior"])

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        # the weight multiplies the odds: what it adds is added here, so that the output's own odds stay right
        weight = torch.tensor(CFG.pos_weight, device=output.device)
        return F.binary_cross_entropy_with_logits(
            output + weight.log(), batch[LABEL], pos_weight=weight, reduction="none"
        )

    def expected_initial_loss(self):
        p = self.fitted["prior"]
        return float(-p * np.log(p) - (1 - p) * np.log(1 - p))
