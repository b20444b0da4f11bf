"""Which team gets a ticket: a small transformer encoder over the end of the mail, joined with plan, channel and numbers; rare teams weigh more.

data: support_tickets

[data]
label = "team"
time = "created_at"
features = ["mail", "plan", "channel", "attachments", "hours_silent"]
text = ["mail"]
ids = ["row_id"]

[training]
steps = 320
global_batch_size = 64
micro_batch_size = 32
optimizer = { learning_rate = 2e-3, weight_decay = 0.01, betas = [0.9, 0.98] }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""
import math
import re
from collections import Counter

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_TOKENS = 24
PAD, UNK, CLS = 0, 1, 2
NUMBERS = ("attachments", "hours_silent")


def tokenize(text):
    return re.findall(r"\w+|[^\w\s]", text.lower())


class TicketModel(nn.Module):
    def __init__(self, vocab, plans, channels, teams, dim=32):
        super().__init__()
        self.tok = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.pos = nn.Parameter(torch.randn(1, MAX_TOKENS + 1, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(
            dim, nhead=4, dim_feedforward=64, dropout=0.1, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)
        self.plan, self.channel = nn.Embedding(plans, 6), nn.Embedding(channels, 4)
        self.head = nn.Sequential(nn.Linear(dim + 6 + 4 + 3, 48), nn.GELU(), nn.Linear(48, teams))

    def forward(self, tokens, plan, channel, numbers):
        is_pad = tokens == PAD
        x = self.encoder(self.tok(tokens) + self.pos, src_key_padding_mask=is_pad)
        keep = (~is_pad).unsqueeze(-1).float()
        mean = (self.norm(x) * keep).sum(dim=1) / keep.sum(dim=1)
        return self.head(torch.cat([mean, self.plan(plan), self.channel(channel), numbers], dim=1))


class TicketTeams(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def fit(self, train):
        df = train.collect()
        words = Counter(w for mail in df["mail"] for w in tokenize(mail))
        teams = Counter(df["team"].to_list())
        silent = np.log1p(df["hours_silent"].drop_nulls().to_numpy())
        self.fitted = {
            "vocab": ["<pad>", "<unk>", "<cls>", *(w for w, n in words.most_common() if n >= 2)],
            "plans": ["<unk>", *sorted(df["plan"].unique().to_list())],
            "channels": ["<unk>", *sorted(df["channel"].unique().to_list())],
            "teams": [t for t, _ in sorted(teams.items(), key=lambda x: (-x[1], x[0]))],
            "counts": sorted(teams.values(), reverse=True),
            "silent": [float(silent.mean()), float(silent.std())],
        }

    def encode(self, rows):
        stoi = {w: i for i, w in enumerate(self.fitted["vocab"])}
        tokens = torch.full((rows.height, MAX_TOKENS + 1), PAD)
        for i, mail in enumerate(rows["mail"]):
            ids = [CLS] + [stoi.get(w, UNK) for w in tokenize(mail)][-MAX_TOKENS:]
            tokens[i, : len(ids)] = torch.tensor(ids)
        batch = {"tokens": tokens, "numbers": self.numbers(rows)}
        for column, known in (("plan", "plans"), ("channel", "channels")):
            index = {v: i for i, v in enumerate(self.fitted[known])}
            batch[column] = torch.tensor([index.get(v, 0) for v in rows[column]])
        if "team" in rows.columns:
            index = {t: i for i, t in enumerate(self.fitted["teams"])}
            batch[LABEL] = torch.tensor([index[t] for t in rows["team"]])
        return batch

    def numbers(self, rows):
        mean, std = self.fitted["silent"]
        hours = rows["hours_silent"].cast(float)
        silent = (np.log1p(hours.fill_null(0.0).to_numpy()) - mean) / std
        missing = hours.is_null().to_numpy()
        files = np.log1p(rows["attachments"].to_numpy())
        x = np.stack([np.where(missing, 0.0, silent), missing, files], axis=1)
        return torch.tensor(x, dtype=torch.float32)

    def build_model(self):
        f = self.fitted
        return TicketModel(len(f["vocab"]), len(f["plans"]), len(f["channels"]), len(f["teams"]))

    @property
    def class_weights(self):
        counts = torch.tensor(self.fitted["counts"], dtype=torch.float32)
        return (counts.sum() / counts).sqrt() / (counts.sum() / counts).sqrt().mean()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], weight=self.class_weights, reduction="none")

    def expected_initial_loss(self):
        return math.log(len(self.fitted["teams"]))

    @property
    def prediction_names(self):
        return self.fitted["teams"]
