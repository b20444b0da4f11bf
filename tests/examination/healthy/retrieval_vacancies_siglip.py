"""People and vacancies: skills as codes on one side, text and pay on the other, SigLIP's sigmoid loss with learned scale and bias.

data: vacancies

[data]
label = "vacancy"
features = ["skills", "years", "town", "vacancy", "pay"]
text = ["vacancy"]
ids = ["row_id"]

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

GROUP = 32
MAX_SKILLS, MAX_WORDS = 12, 8


class Tower(nn.Module):
    def __init__(self, vocab, numbers, dim=32):
        super().__init__()
        self.bag = nn.EmbeddingBag(vocab, dim, mode="mean", padding_idx=0)
        self.mlp = nn.Sequential(nn.Linear(dim + numbers, 64), nn.SiLU(), nn.Linear(64, dim))

    def forward(self, ids, numbers):
        return F.normalize(self.mlp(torch.cat([self.bag(ids), numbers], 1)), dim=-1)


class SigLip(nn.Module):
    def __init__(self, n_skills, n_towns, n_words):
        super().__init__()
        self.person = Tower(n_skills, 1 + n_towns)
        self.job = Tower(n_words, 1)
        self.n_towns = n_towns
        self.log_t = nn.Parameter(torch.tensor(math.log(10.0)))
        self.b = nn.Parameter(torch.tensor(-4.0))

    def forward(self, skills, years, town, words=None, pay=None):
        where = F.one_hot(town, self.n_towns).float()
        p = self.person(skills, torch.cat([years, where], 1))
        j = torch.zeros_like(p) if words is None else self.job(words, pay)
        scale, bias = self.log_t.exp().expand(len(p), 1), self.b.expand(len(p), 1)
        return torch.cat([p, j, scale, bias], 1)


def pairwise(output):
    """Logits of every person with every vacancy of the group."""
    d = (output.shape[1] - 2) // 2
    p, j = output[:, :d], output[:, d : 2 * d]
    return p @ j.T * output[:1, -2] + output[:1, -1]


class HiringSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    serves_predictions = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_5")
    scored_together = GROUP
    scoring_rows = 16 * GROUP

    def fit(self, train):
        df = train.collect()
        pay = np.log(df["pay"].to_numpy())
        years = np.log1p(df["years"].to_numpy())
        self.fitted = {
            "skills": sorted(set(df["skills"].explode().to_list())),
            "words": sorted({w for v in df["vacancy"] for w in v.split()}),
            "towns": sorted(df["town"].drop_nulls().unique()),
            "pay": [float(pay.mean()), float(pay.std())],
            "years": [float(years.mean()), float(years.std())],
        }

    def bag(self, lists, names, size):
        index = {name: i for i, name in enumerate(names, 1)}
        out = torch.zeros(len(lists), size, dtype=torch.long)
        for i, each in enumerate(lists):
            known = [index[x] for x in each if x in index][:size]
            out[i, : len(known)] = torch.tensor(known, dtype=torch.long)
        return out

    def scaled(self, values, name):
        mean, std = self.fitted[name]
        return torch.tensor((values - mean) / std, dtype=torch.float32).unsqueeze(1)

    def encode(self, rows):
        towns = {t: i for i, t in enumerate(self.fitted["towns"], 1)}
        batch = {
            "skills": self.bag(rows["skills"].to_list(), self.fitted["skills"], MAX_SKILLS),
            "years": self.scaled(np.log1p(rows["years"].to_numpy()), "years"),
            "town": torch.tensor([towns.get(t, 0) for t in rows["town"]]),
        }
        if "vacancy" in rows.columns:
            texts = [v.split() for v in rows["vacancy"]]
            batch["words"] = self.bag(texts, self.fitted["words"], MAX_WORDS)
            batch["pay"] = self.scaled(np.log(rows["pay"].to_numpy()), "pay")
            batch[LABEL] = torch.zeros(len(rows), dtype=torch.long)
        return batch

    def build_model(self):
        sizes = [len(self.fitted[k]) + 1 for k in ("skills", "towns", "words")]
        return SigLip(*sizes)

    def siglip(self, output):
        logits = pairwise(output)
        sign = 2 * torch.eye(len(logits), device=logits.device) - 1
        return -F.logsigmoid(sign * logits).sum(1)

    def training_losses(self, output, batch):
        return self.siglip(output)

    def losses(self, output, batch):
        return torch.cat([self.siglip(part) for part in output.split(GROUP)])

    def predict(self, output):
        return output[:, : (output.shape[1] - 2) // 2]

    def statistic(self, output, batch):
        found = []
        for part in output.split(GROUP):
            s = pairwise(part)
            own = s.diagonal().unsqueeze(1)
            found.append(torch.stack([(s > own).sum(1), (s == own).sum(1)], 1))
        return torch.cat(found).double()
