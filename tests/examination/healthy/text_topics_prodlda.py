"""A neural topic model (ProdLDA): a bag of words through a logistic normal of eight topics, perplexity of words.

data: docstring_topics

[data]
label = "text"
features = ["text"]
text = ["text"]
ids = ["row_id"]
meta = ["library"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, betas = [0.9, 0.99] }
"""
import collections
import re

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

K, VOCAB = 8, 400
STOP = set("the a an of to and or in is if be it for that with this by as on are will from not".split())


def words_of(text):
    return [w for w in re.findall(r"[a-z]{3,}", text.lower()) if w not in STOP]


class ProdLDA(nn.Module):
    def __init__(self, n_words, hidden=48):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Linear(n_words, hidden), nn.Softplus(), nn.Linear(hidden, hidden), nn.Softplus(), nn.Dropout(0.2)
        )
        self.mean, self.logvar = nn.Linear(hidden, K), nn.Linear(hidden, K)
        self.mean_bn, self.logvar_bn = nn.BatchNorm1d(K, affine=False), nn.BatchNorm1d(K, affine=False)
        self.beta = nn.Linear(K, n_words)
        self.beta_bn = nn.BatchNorm1d(n_words, affine=False)
        nn.init.xavier_uniform_(self.beta.weight)
        self.drop = nn.Dropout(0.2)

    def forward(self, counts):
        h = self.encoder(torch.log1p(counts))
        mu, logvar = self.mean_bn(self.mean(h)), self.logvar_bn(self.logvar(h))
        z = mu
        if self.training:
            z = mu + torch.randn_like(mu) * (0.5 * logvar).exp()
        theta = self.drop(z.softmax(dim=1))
        log_words = self.beta_bn(self.beta(theta)).log_softmax(dim=1)
        return torch.cat([log_words, mu, logvar], dim=1)


class Topics(Task):
    kind = "statistic"
    reconstructs_inputs = True
    metrics = {"perplexity": "minimize"}

    def fit(self, train):
        seen = collections.Counter()
        for text in train.select("text").collect()["text"]:
            seen.update(set(words_of(text)))
        ranked = sorted(seen, key=lambda w: (-seen[w], w))
        self.fitted = {"words": sorted(ranked[:VOCAB])}

    def encode(self, rows):
        at = {w: i for i, w in enumerate(self.fitted["words"])}
        counts = torch.zeros(len(rows), len(at))
        for i, text in enumerate(rows["text"]):
            for w in words_of(text):
                if w in at:
                    counts[i, at[w]] += 1
        return {"counts": counts, LABEL: counts.clone(), WEIGHT: counts.sum(1).clamp(min=1)}

    def build_model(self):
        return ProdLDA(len(self.fitted["words"]))

    def parts(self, output):
        n = len(self.fitted["words"])
        return output[:, :n], output[:, n : n + K], output[:, n + K :]

    def losses(self, output, batch):
        log_words, _, _ = self.parts(output)
        counts = batch[LABEL]
        return -(counts * log_words).sum(1) / counts.sum(1).clamp(min=1)

    def training_losses(self, output, batch):
        _, mu, logvar = self.parts(output)
        kl = 0.5 * (logvar.exp() + mu.square() - 1 - logvar).sum(1)
        return self.losses(output, batch) + kl / batch[LABEL].sum(1).clamp(min=1)

    def predict(self, output):
        return self.parts(output)[1].softmax(dim=1)

    def score(self, predictions, labels):
        return {"perplexity": float(np.exp(np.average(predictions.ravel(), weights=labels)))}
