"""The AG_NEWS tutorial's mean of embeddings, on padded rows with padding_idx.

data: docstring_topics

[data]
label = "library"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math
import re
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, UNK = 0, 1
MAX_LEN = 64


def tokenizer(text):
    return re.findall(r"[a-z_]+", text.lower())


class TextClassificationModel(nn.Module):
    def __init__(self, vocab_size, embed_dim, num_class):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embed_dim, padding_idx=PAD)
        self.fc = nn.Linear(embed_dim, num_class)

    def forward(self, text):
        mask = (text != PAD).unsqueeze(-1)
        embedded = (self.embedding(text) * mask).sum(1) / mask.sum(1).clamp(min=1)
        return self.fc(embedded)


class AgNewsStyle(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        df = train.select("text", "library").collect()
        counter = Counter(tok for t in df["text"] for tok in tokenizer(t))
        words = sorted(counter, key=lambda w: (-counter[w], w))[:2000]
        self.itos = ["<pad>", "<unk>", *words]
        self.classes = sorted(set(df["library"]))

    def state(self):
        return {"itos": self.itos, "classes": self.classes}

    def load_state(self, state):
        self.itos, self.classes = state["itos"], state["classes"]

    def encode(self, rows):
        stoi = {w: i for i, w in enumerate(self.itos)}
        text = torch.full((len(rows), MAX_LEN), PAD)
        for i, t in enumerate(rows["text"]):
            ids = [stoi.get(w, UNK) for w in tokenizer(t)][:MAX_LEN]
            text[i, : len(ids)] = torch.tensor(ids, dtype=torch.long)
        batch = {"text": text}
        if "library" in rows.columns:
            batch[LABEL] = torch.tensor([self.classes.index(c) for c in rows["library"]])
        return batch

    def build_model(self):
        return TextClassificationModel(len(self.itos), 64, len(self.classes))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return output.softmax(1)

    def expected_initial_loss(self):
        return math.log(len(self.classes))
