"""FT-Transformer: each number a token, a CLS token in front, pre-norm blocks by einsum.

data: breast_cancer

[data]
label = "benign"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 1e-3 }
"""
import math

import torch
from torch import einsum, nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class NumericalEmbedder(nn.Module):
    def __init__(self, dim, n):
        super().__init__()
        self.weights = nn.Parameter(torch.randn(n, dim))
        self.biases = nn.Parameter(torch.randn(n, dim))

    def forward(self, x):
        return x[..., None] * self.weights + self.biases


class Attention(nn.Module):
    def __init__(self, dim, heads=4):
        super().__init__()
        self.heads = heads
        self.scale = (dim // heads) ** -0.5
        self.norm = nn.LayerNorm(dim)
        self.to_qkv = nn.Linear(dim, dim * 3, bias=False)
        self.to_out = nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        attn = (einsum("b h i d, b h j d -> b h i j", q, k) * self.scale).softmax(dim=-1)
        out = einsum("b h i j, b h j d -> b h i d", attn, v)
        return self.to_out(out.transpose(1, 2).reshape(b, n, d))


class FTTransformer(nn.Module):
    def __init__(self, n, dim=32, depth=2):
        super().__init__()
        self.embed = NumericalEmbedder(dim, n)
        self.cls = nn.Parameter(torch.randn(1, 1, dim))
        self.layers = nn.ModuleList([
            nn.ModuleList([Attention(dim), nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim * 2), nn.GELU(), nn.Linear(dim * 2, dim))])
            for _ in range(depth)
        ])
        self.to_logits = nn.Sequential(nn.LayerNorm(dim), nn.ReLU(), nn.Linear(dim, 1))

    def forward(self, x_numer):
        x = self.embed(x_numer)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), dim=1)
        for attn, ff in self.layers:
            x = attn(x) + x
            x = ff(x) + x
        return self.to_logits(x[:, 0]).squeeze(-1)


class FTCancer(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc")

    def fit(self, train):
        self.names = [c for c in sorted(self.columns.features) if c.startswith("mean")]
        X = train.select(self.names).collect().to_numpy()
        self.m, self.s = X.mean(0).tolist(), X.std(0).tolist()

    def state(self):
        return {"names": self.names, "m": self.m, "s": self.s}

    def load_state(self, state):
        self.names, self.m, self.s = state["names"], state["m"], state["s"]

    def encode(self, rows):
        x = torch.from_numpy(rows.select(self.names).to_numpy())
        out = {"x_numer": ((x - torch.tensor(self.m)) / torch.tensor(self.s)).float()}
        if self.columns.label in rows.columns:
            out[LABEL] = torch.tensor(rows[self.columns.label].to_list()).float()
        return out

    def build_model(self):
        return FTTransformer(len(self.names))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
