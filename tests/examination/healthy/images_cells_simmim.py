"""Masked pictures of solar cells are filled in: SimMIM, in a few lines of the lucidrains kind.

data: solar_cells

[data]
label = "cell"
features = ["cell"]
ids = ["row_id"]
meta = ["maker"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine" }
"""

import zlib

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

SIDE, P = 24, 4
PATCHES = (SIDE // P) ** 2
MASKED = PATCHES // 2


def patchify(x):
    """[B, SIDE, SIDE] -> [B, PATCHES, P * P], as `b (h p) (w q) -> b (h w) (p q)`."""
    b = len(x)
    x = x.reshape(b, SIDE // P, P, SIDE // P, P)
    return x.permute(0, 1, 3, 2, 4).reshape(b, PATCHES, P * P)


def pre_norm_block(dim, heads):
    return nn.TransformerEncoderLayer(
        dim, heads, 2 * dim, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
    )


class SimMIM(nn.Module):
    def __init__(self, dim=48, depth=2, heads=4):
        super().__init__()
        self.to_tokens = nn.Linear(P * P, dim)
        self.mask_token = nn.Parameter(0.02 * torch.randn(dim))
        self.pos_emb = nn.Parameter(0.02 * torch.randn(1, PATCHES, dim))
        self.blocks = nn.ModuleList([pre_norm_block(dim, heads) for _ in range(depth)])
        self.to_pixels = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, P * P))

    def forward(self, patches, mask):
        x = self.to_tokens(patches)
        x = torch.where(mask[..., None], self.mask_token, x)
        x = x + self.pos_emb
        for block in self.blocks:
            x = block(x)
        return self.to_pixels(x)


class Cells(Task):
    kind = "statistic"
    reconstructs_inputs = True

    def fit(self, train):
        pixels = np.array(train.select("cell").collect()["cell"].to_list(), dtype=np.float32)
        self.fitted = {"mean": float(pixels.mean()), "std": float(pixels.std())}

    def encode(self, rows):
        cells = rows["cell"].to_list()
        pixels = np.array(cells, dtype=np.float32).reshape(-1, SIDE, SIDE)
        pixels = torch.from_numpy((pixels - self.fitted["mean"]) / self.fitted["std"])
        patches = patchify(pixels)
        mask = torch.zeros(len(cells), PATCHES, dtype=torch.bool)
        for i, cell in enumerate(cells):  # the same cell is masked alike whenever it is measured
            rng = np.random.default_rng(zlib.crc32(bytes(cell)))
            mask[i, rng.permutation(PATCHES)[:MASKED].tolist()] = True
        return {"patches": patches, "mask": mask, LABEL: patches.clone()}

    def augment(self, batch, generator):
        noise = torch.rand(batch["mask"].shape, generator=generator)
        return {**batch, "mask": noise.argsort(dim=1).argsort(dim=1) < MASKED}

    def build_model(self):
        return SimMIM()

    def losses(self, output, batch):
        error = (output - batch[LABEL]).pow(2).mean(dim=-1)  # [B, PATCHES]
        return error[batch["mask"]].view(-1, MASKED).mean(dim=1)  # what was seen does not count
