"""CountVectorizer by hand: the most frequent words, log counts, an MLP over them; desks of unequal size.

data: headlines

[data]
label = "category"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_FEATURES = 120


def tokenize(text):
    return text.lower().split()


class News(Task):
    kind = "multiclass"
    metrics = directions_of("macro_f1", "log_loss", "accuracy")

    def fit(self, train):
        df = train.select("text", "category").collect()
        counts = Counter(word for text in df["text"] for word in tokenize(text))
        frequent = sorted(counts, key=lambda word: (-counts[word], word))[:MAX_FEATURES]
        classes = sorted(df["category"].unique().to_list())
        total = df.height / len(classes)
        self.fitted = {
            "vocabulary": frequent,
            "classes": classes,
            "weights": [total / (df["category"] == c).sum() for c in classes],
        }

    def encode(self, rows):
        index = {word: i for i, word in enumerate(self.fitted["vocabulary"])}
        counts = torch.zeros(rows.height, len(index))
        for i, text in enumerate(rows["text"]):
            for word in tokenize(text):
                if word in index:
                    counts[i, index[word]] += 1
        batch = {"counts": counts.log1p()}
        if "category" in rows.columns:
            codes = {c: i for i, c in enumerate(self.fitted["classes"])}
            batch[LABEL] = torch.tensor([codes[c] for c in rows["category"]])
        return batch

    def build_model(self):
        return BagOfWords(len(self.fitted["vocabulary"]), len(self.fitted["classes"]))

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        weights = torch.tensor(self.fitted["weights"])
        return nn.functional.cross_entropy(output, batch[LABEL], weight=weights, reduction="none")


class BagOfWords(nn.Module):
    def __init__(self, n_words, n_classes):
        super().__init__()
        self.fc1 = nn.Linear(n_words, 64)
        self.fc2 = nn.Linear(64, n_classes)
        self.dropout = nn.Dropout(0.4)

    def forward(self, counts):
        return self.fc2(self.dropout(torch.relu(self.fc1(counts))))
