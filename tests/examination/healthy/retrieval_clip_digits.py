"""A small CLIP: digits and their captions, learned logit scale, symmetric loss.

data: digit_captions

[data]
label = "caption"
features = ["image", "caption"]
text = ["caption"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N = 16


class CLIP(nn.Module):
    def __init__(self, n_words, dim=32):
        super().__init__()
        self.visual = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(256, dim))
        self.token_embedding = nn.Embedding(n_words, dim)
        self.text = nn.Linear(dim, dim)
        self.logit_scale = nn.Parameter(torch.ones([]) * np.log(1 / 0.2))

    def forward(self, image, caption=None):
        i = F.normalize(self.visual(image), dim=-1)
        t = torch.zeros_like(i) if caption is None else F.normalize(self.text(self.token_embedding(caption).mean(1)), dim=-1)
        return torch.stack([i * self.logit_scale.exp(), t], 1)


def clip_loss(output):
    logits = output[:, 0] @ output[:, 1].t()
    labels = torch.arange(len(logits), device=logits.device)
    return (F.cross_entropy(logits, labels, reduction="none") + F.cross_entropy(logits.t(), labels, reduction="none")) / 2


class DigitCLIP(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("recall_at_5", "mean_reciprocal_rank")
    needs_whole_batch = True

    @property
    def scored_together(self):
        return N

    @property
    def scoring_rows(self):
        return 64 * N

    def fit(self, train):
        captions = train.select("caption").collect()["caption"]
        self.words = ["", *sorted({w for c in captions for w in c.split()})]

    def state(self):
        return {"words": self.words}

    def load_state(self, state):
        self.words = state["words"]

    def encode(self, rows):
        image = torch.tensor(rows["image"].to_list(), dtype=torch.float32).reshape(-1, 1, 8, 8) / 8 - 1
        out = {"image": image}
        if "caption" in rows.columns:
            lookup = {w: i for i, w in enumerate(self.words)}
            out["caption"] = torch.tensor([([lookup.get(w, 0) for w in c.split()] + [0] * 4)[:4] for c in rows["caption"]])
            out[LABEL] = torch.zeros(rows.height, dtype=torch.int64)
        return out

    def build_model(self):
        return CLIP(len(self.words))

    def training_losses(self, output, batch):
        return clip_loss(output)

    def losses(self, output, batch):
        return torch.cat([clip_loss(g) for g in output.split(N)])

    def predict(self, output):
        return F.normalize(output[:, 0], dim=-1)

    def statistic(self, output, batch):
        ranks = []
        for g in output.split(N):
            s = (g[:, 0] @ g[:, 1].t()).double()
            own = s.diag().unsqueeze(1)
            close = (s - own).abs() < 1e-6
            ranks.append(torch.stack([((s > own) & ~close).sum(1), close.sum(1)], 1))
        return torch.cat(ranks).double()

    def expected_initial_loss(self):
        return float(np.log(N))
