"""SimpleViT after lucidrains: patches of 2 by 2, fixed sine positions, mean pooling.

data: digit_lists

[data]
label = "digit"
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3, weight_decay = 0.05 }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


def posemb_sincos_2d(h, w, dim, temperature=10000):
    y, x = torch.meshgrid(torch.arange(h), torch.arange(w), indexing="ij")
    omega = torch.arange(dim // 4) / (dim // 4 - 1)
    omega = 1.0 / (temperature**omega)
    y, x = y.flatten()[:, None] * omega[None, :], x.flatten()[:, None] * omega[None, :]
    return torch.cat((x.sin(), x.cos(), y.sin(), y.cos()), dim=1)


class FeedForward(nn.Module):
    def __init__(self, dim, hidden):
        super().__init__()
        self.net = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, hidden), nn.GELU(), nn.Linear(hidden, dim))

    def forward(self, x):
        return self.net(x)


class Attention(nn.Module):
    def __init__(self, dim, heads, dim_head):
        super().__init__()
        self.heads, self.scale = heads, dim_head**-0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, heads * dim_head * 3, bias=False)
        self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

    def forward(self, x):
        q, k, v = (t.unflatten(-1, (self.heads, -1)) for t in self.to_qkv(self.norm(x)).chunk(3, dim=-1))
        dots = torch.einsum("bihd,bjhd->bhij", q, k) * self.scale
        out = torch.einsum("bhij,bjhd->bihd", dots.softmax(-1), v)
        return self.to_out(out.flatten(2))


class SimpleViT(nn.Module):
    def __init__(self, dim=48, depth=3, heads=3):
        super().__init__()
        self.to_patch_embedding = nn.Sequential(nn.LayerNorm(4), nn.Linear(4, dim), nn.LayerNorm(dim))
        self.register_buffer("pos", posemb_sincos_2d(4, 4, dim))
        self.layers = nn.ModuleList([nn.ModuleList([Attention(dim, heads, 16), FeedForward(dim, dim * 2)]) for _ in range(depth)])
        self.norm = nn.LayerNorm(dim)
        self.linear_head = nn.Linear(dim, 10)

    def forward(self, img):
        patches = img.unfold(2, 2, 2).unfold(3, 2, 2)
        x = patches.permute(0, 2, 3, 1, 4, 5).flatten(3).flatten(1, 2)
        x = self.to_patch_embedding(x) + self.pos
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        return self.linear_head(self.norm(x).mean(dim=1))


class ViTDigits(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        self.highest = int(train.select("image").explode("image").max().collect().item())

    def state(self):
        return {"highest": self.highest}

    def load_state(self, state):
        self.highest = state["highest"]

    def encode(self, rows):
        img = torch.tensor(rows["image"].to_list(), dtype=torch.float32) / self.highest
        out = {"img": img.view(len(rows), 1, 8, 8)}
        if "digit" in rows.columns:
            out[LABEL] = torch.tensor(rows["digit"].to_list())
        return out

    def build_model(self):
        return SimpleViT()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(dim=-1)

    def expected_initial_loss(self):
        return math.log(10)
