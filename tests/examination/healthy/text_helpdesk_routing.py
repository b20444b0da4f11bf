"""Routing of help desk mails: an EmbeddingBag's mean, one hidden layer, label smoothing in training.

data: helpdesk_mails

[data]
label = "queue"
features = ["mail"]
text = ["mail"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import re
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_TOKENS = 24
PAD, UNK = 0, 1


def tokenize(text):
    return re.findall(r"[a-z0-9]+", text.lower())


class AveragedEmbeddings(nn.Module):
    def __init__(self, vocab_size, num_class, embed_dim=48):
        super().__init__()
        self.embedding = nn.EmbeddingBag(vocab_size, embed_dim, mode="mean", padding_idx=PAD)
        self.fc1 = nn.Linear(embed_dim, 64)
        self.fc2 = nn.Linear(64, num_class)
        self.dropout = nn.Dropout(0.3)

    def forward(self, tokens):
        x = self.dropout(self.embedding(tokens))
        return self.fc2(torch.relu(self.fc1(x)))


class MailRouting(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "accuracy", "log_loss")

    def fit(self, train):
        df = train.select("mail", "queue").collect()
        counts = Counter(w for mail in df["mail"] for w in tokenize(mail))
        self.fitted = {
            "vocab": ["<pad>", "<unk>", *sorted(w for w, n in counts.items() if n >= 3)],
            "queues": sorted(df["queue"].unique().to_list()),
        }

    def encode(self, rows):
        stoi = {w: i for i, w in enumerate(self.fitted["vocab"])}
        ids = []
        for mail in rows["mail"]:
            found = [stoi.get(w, UNK) for w in tokenize(mail)][:MAX_TOKENS]
            ids.append(found + [PAD] * (MAX_TOKENS - len(found)))
        batch = {"tokens": torch.tensor(ids)}
        if "queue" in rows.columns:
            index = {q: i for i, q in enumerate(self.fitted["queues"])}
            batch[LABEL] = torch.tensor([index[q] for q in rows["queue"]])
        return batch

    def build_model(self):
        return AveragedEmbeddings(len(self.fitted["vocab"]), len(self.fitted["queues"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none", label_smoothing=0.1)

    @property
    def prediction_names(self):
        return self.fitted["queues"]
