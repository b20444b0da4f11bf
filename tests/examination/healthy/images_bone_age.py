"""Age of the bones from an X-ray of the hand and the child's sex, in fast.ai's manner: a learner's head with concat pooling and a range for y.

data: hand_xrays

[data]
label = "boneage"
features = ["film", "sex"]
meta = ["hospital"]
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3, weight_decay = 0.01 }
schedule = { shape = "one_cycle" }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

SZ = 28
Y_RANGE = (0, 240)  # months
SEXES = {"female": 0, "male": 1}


def conv_layer(ni, nf, ks=3, stride=1):
    return nn.Sequential(nn.Conv2d(ni, nf, ks, stride, ks // 2, bias=False), nn.BatchNorm2d(nf), nn.ReLU())


class ResBlock(nn.Module):
    def __init__(self, nf):
        super().__init__()
        self.convs = nn.Sequential(conv_layer(nf, nf), conv_layer(nf, nf))

    def forward(self, x): return x + self.convs(x)


class AdaptiveConcatPool2d(nn.Module):
    def forward(self, x): return torch.cat([x.amax(dim=(2, 3)), x.mean(dim=(2, 3))], dim=1)


class SigmoidRange(nn.Module):
    def __init__(self, low, high):
        super().__init__()
        self.low, self.high = low, high

    def forward(self, x): return torch.sigmoid(x) * (self.high - self.low) + self.low


class BoneAgeModel(nn.Module):
    def __init__(self, y_range, sex_emb=6):
        super().__init__()
        self.body = nn.Sequential(
            conv_layer(1, 16, stride=2), conv_layer(16, 32), ResBlock(32),
            conv_layer(32, 48, stride=2), ResBlock(48), AdaptiveConcatPool2d(),
        )
        self.sex = nn.Embedding(3, sex_emb)
        self.head = nn.Sequential(
            nn.BatchNorm1d(96 + sex_emb), nn.Dropout(0.1), nn.Linear(96 + sex_emb, 64), nn.ReLU(),
            nn.BatchNorm1d(64), nn.Linear(64, 1), SigmoidRange(*y_range),
        )

    def forward(self, film, sex):
        return self.head(torch.cat([self.body(film), self.sex(sex)], dim=1)).squeeze(1)


class BoneAge(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        df = train.select("film", "boneage").collect()
        x = np.array(df["film"].to_list(), dtype=np.float32)
        self.fitted = {"mean": float(x.mean()), "std": float(x.std()), "y_std": float(df["boneage"].std())}

    def encode(self, rows):
        x = np.array(rows["film"].to_list(), dtype=np.float32).reshape(-1, 1, SZ, SZ)
        film = torch.from_numpy((x - self.fitted["mean"]) / self.fitted["std"]).float()
        sex = torch.tensor([SEXES.get(s, 2) for s in rows["sex"]])
        batch = {"film": film, "sex": sex}
        if "boneage" in rows.columns:
            batch[LABEL] = torch.tensor(rows["boneage"].to_list(), dtype=torch.float32)
        return batch

    def augment(self, batch, generator):
        film, n = batch["film"], len(batch["film"])
        flip = torch.rand(n, 1, 1, 1, generator=generator) < 0.5
        film = torch.where(flip, film.flip(-1), film)
        angle = 0.1 * torch.randn(n, generator=generator)
        zoom = 1 + 0.02 * torch.randn(n, generator=generator)
        cos, sin, zero = angle.cos() * zoom, angle.sin() * zoom, torch.zeros(n)
        theta = torch.stack([torch.stack([cos, -sin, zero], 1), torch.stack([sin, cos, zero], 1)], 1)
        grid = F.affine_grid(theta, list(film.shape), align_corners=False)
        return {**batch, "film": F.grid_sample(film, grid, padding_mode="border", align_corners=False)}

    def build_model(self):
        return BoneAgeModel(Y_RANGE)

    def losses(self, output, batch):
        return F.mse_loss(output, batch[LABEL], reduction="none") / self.fitted["y_std"] ** 2
