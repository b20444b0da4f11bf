"""Incomes in a census by TabNet: sequential attention by sparsemax, gated units, ghost batches, an entropy that keeps masks sparse.

data: household_incomes

[data]
label = "income"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 256
micro_batch_size = 256
optimizer = { learning_rate = 1e-2, weight_decay = 1e-5 }
"""
import numpy as np
import torch
from torch import nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

CATEGORICAL = ["workclass", "education", "marital_status", "occupation", "native_country"]
NUMERIC = ["age", "capital_gain", "hours_per_week"]
N_D, N_A, N_STEPS, GAMMA = 8, 8, 3, 1.3


def sparsemax(z):
    ordered, _ = torch.sort(z, dim=-1, descending=True)
    sums = ordered.cumsum(dim=-1)
    rank = torch.arange(1, z.shape[-1] + 1, device=z.device, dtype=z.dtype)
    support = (1 + rank * ordered > sums).sum(dim=-1, keepdim=True)
    tau = (sums.gather(-1, support - 1) - 1) / support
    return torch.clamp(z - tau, min=0)


class GLULayer(nn.Module):
    def __init__(self, d_in, d_out, shared=None):
        super().__init__()
        self.fc = shared if shared is not None else nn.Linear(d_in, 2 * d_out, bias=False)
        self.bn = nn.BatchNorm1d(2 * d_out, momentum=0.1)

    def forward(self, x):
        return F.glu(self.bn(self.fc(x)), dim=-1)


class FeatTransformer(nn.Module):
    def __init__(self, shared, d_out):
        super().__init__()
        self.first = GLULayer(None, d_out, shared)
        self.second = GLULayer(d_out, d_out)
        self.third = GLULayer(d_out, d_out)

    def forward(self, x):
        h = self.first(x)
        h = (h + self.second(h)) * 0.5**0.5
        return (h + self.third(h)) * 0.5**0.5


class AttentiveTransformer(nn.Module):
    def __init__(self, d_in, n_features):
        super().__init__()
        self.fc = nn.Linear(d_in, n_features, bias=False)
        self.bn = nn.BatchNorm1d(n_features, momentum=0.1)

    def forward(self, priors, a):
        return sparsemax(self.bn(self.fc(a)) * priors)


class TabNet(nn.Module):
    def __init__(self, cardinalities, n_numeric, n_out=2):
        super().__init__()
        dims = [min(8, (c + 1) // 2) for c in cardinalities]
        self.embeddings = nn.ModuleList([nn.Embedding(c, d) for c, d in zip(cardinalities, dims)])
        d_in = sum(dims) + n_numeric
        self.initial_bn = nn.BatchNorm1d(d_in, momentum=0.1)
        self.shared = nn.Linear(d_in, 2 * (N_D + N_A), bias=False)
        self.initial_splitter = FeatTransformer(self.shared, N_D + N_A)
        self.feat = nn.ModuleList([FeatTransformer(self.shared, N_D + N_A) for _ in range(N_STEPS)])
        self.att = nn.ModuleList([AttentiveTransformer(N_A, d_in) for _ in range(N_STEPS)])
        self.final = nn.Linear(N_D, n_out, bias=False)

    def forward(self, categories, numbers):
        embedded = [e(categories[:, i]) for i, e in enumerate(self.embeddings)]
        x = self.initial_bn(torch.cat([*embedded, numbers], dim=1))
        prior, a = torch.ones_like(x), self.initial_splitter(x)[:, N_D:]
        decision, entropy = 0, 0
        for feat, att in zip(self.feat, self.att):
            mask = att(prior, a)
            entropy = entropy - (mask * torch.log(mask + 1e-15)).sum(dim=1)
            prior = prior * (GAMMA - mask)
            out = feat(mask * x)
            decision = decision + F.relu(out[:, :N_D])
            a = out[:, N_D:]
        return torch.cat([self.final(decision), entropy[:, None] / N_STEPS], dim=1)


class Income(Task):
    kind = "multiclass"
    metrics = directions_of("roc_auc", "log_loss", "accuracy")

    def fit(self, train):
        df = train.collect()
        self.fitted = {
            "levels": {c: ["", *sorted(df[c].fill_null("?").unique().to_list())] for c in CATEGORICAL},
            "classes": sorted(df["income"].unique().to_list()),
        }

    def encode(self, rows):
        codes = []
        for c in CATEGORICAL:
            index = {v: i for i, v in enumerate(self.fitted["levels"][c])}
            codes.append([index.get(v, 0) for v in rows[c].fill_null("?")])
        numbers = rows.select(NUMERIC).to_numpy().astype(np.float32)
        numbers[:, 1] = np.log1p(numbers[:, 1])
        batch = {
            "categories": torch.tensor(np.array(codes).T.copy()),
            "numbers": torch.from_numpy(numbers),
        }
        if "income" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["classes"].index(v) for v in rows["income"]])
        return batch

    def build_model(self):
        return TabNet([len(self.fitted["levels"][c]) for c in CATEGORICAL], len(NUMERIC))

    def losses(self, output, batch):
        return F.cross_entropy(output[:, :2], batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return self.losses(output, batch) + 1e-3 * output[:, 2]

    def predict(self, output):
        return F.softmax(output[:, :2], dim=1)
