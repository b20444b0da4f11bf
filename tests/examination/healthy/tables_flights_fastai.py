"""fast.ai's tabular model: an embedding per category, batch norm on what is continuous.

data: flights_late

[data]
label = "late"
time = "departs_at"
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 256
micro_batch_size = 128
optimizer = { learning_rate = 1e-3 }
normalization = { batch_norm = "sync" }
"""
import math

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATS = ["carrier", "origin", "dest", "weekday", "month"]
CONTS = ["sched_dep_time", "distance"]


def emb_sz_rule(n_cat):
    return min(600, round(1.6 * n_cat**0.56))


class TabularModel(nn.Module):
    def __init__(self, sizes, n_cont, prior, layers=(64, 32)):
        super().__init__()
        self.embeds = nn.ModuleList([nn.Embedding(n, emb_sz_rule(n)) for n in sizes])
        self.bn_cont = nn.BatchNorm1d(n_cont)
        n_in = sum(e.embedding_dim for e in self.embeds) + n_cont
        blocks = []
        for n_out in layers:
            blocks += [nn.Linear(n_in, n_out, bias=False), nn.ReLU(), nn.BatchNorm1d(n_out), nn.Dropout(0.1)]
            n_in = n_out
        self.layers = nn.Sequential(*blocks)
        self.head = nn.Linear(n_in, 1)
        nn.init.zeros_(self.head.weight)
        nn.init.constant_(self.head.bias, math.log(prior / (1 - prior)))

    def forward(self, x_cat, x_cont):
        x = torch.cat([e(x_cat[:, i]) for i, e in enumerate(self.embeds)] + [self.bn_cont(x_cont)], 1)
        return self.head(self.layers(x)).squeeze(1)


class FlightsLate(Task):
    kind = "binary"
    metrics = directions_of("roc_auc", "log_loss")

    def fit(self, train):
        df = train.select(*CATS, *CONTS, "late").collect()
        self.vocab = {c: ["#na#"] + sorted(df[c].drop_nulls().cast(str).unique().to_list()) for c in CATS}
        self.norm = {c: [float(df[c].mean()), float(df[c].std())] for c in CONTS}
        self.prior = float(df["late"].mean())

    def state(self):
        return {"vocab": self.vocab, "norm": self.norm, "prior": self.prior}

    def load_state(self, state):
        self.vocab, self.norm, self.prior = state["vocab"], state["norm"], state["prior"]

    def encode(self, rows):
        cats = []
        for c in CATS:
            o2i = {v: i for i, v in enumerate(self.vocab[c])}
            cats.append(torch.tensor([o2i.get(str(v), 0) for v in rows[c]], dtype=torch.long))
        conts = [torch.tensor((rows[c].cast(float) - m).to_numpy() / s, dtype=torch.float32) for c, (m, s) in sorted(self.norm.items())]
        batch = {"x_cat": torch.stack(cats, 1), "x_cont": torch.stack(conts, 1)}
        if "late" in rows.columns:
            batch[LABEL] = torch.tensor(rows["late"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return TabularModel([len(self.vocab[c]) for c in CATS], len(CONTS), self.prior)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.sigmoid()

    def expected_initial_loss(self):
        p = self.prior
        return -p * math.log(p) - (1 - p) * math.log(1 - p)
