"""Brand, model, size and price in adverts: a tag per word by two LSTMs, as tutorials write them.

data: bicycle_adverts

[data]
label = "tags"
features = ["advert"]
text = ["advert", "tags"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3, weight_decay = 0.02 }
"""

from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

LENGTH = 40
IGNORE = -100
TAGS = ["O", "BRAND", "MODEL", "PRICE", "SIZE"]


def shape_of(word):
    """Numbers by their length: 1987 is ####."""
    return "#" * len(word) if word.isdigit() else word


class Tagger(nn.Module):
    def __init__(self, vocab, dim=24, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=0)
        self.forwards = nn.LSTM(dim, hidden, batch_first=True)
        self.backwards = nn.LSTM(dim, hidden, batch_first=True)
        self.dropout = nn.Dropout(0.2)
        self.tag = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, words):
        x = self.dropout(self.embed(words))
        left, _ = self.forwards(x)
        right, _ = self.backwards(x.flip(1))
        right = right.flip(1)
        return self.tag(self.dropout(torch.cat([left, right], dim=-1)))


class AdvertTags(Task):
    kind = "statistic"
    statistics = ("loss", "correct")
    metrics = directions_of("mean_loss", "token_accuracy")
    tokens = "words"

    def fit(self, train):
        counts = Counter(shape_of(w) for text in train.collect()["advert"] for w in text.split())
        self.fitted = {"words": sorted(w for w, n in counts.items() if n >= 2)}

    def encode(self, rows):
        index = {w: i for i, w in enumerate(self.fitted["words"], start=2)}
        words = torch.zeros(rows.height, LENGTH, dtype=torch.long)
        for i, text in enumerate(rows["advert"]):
            ids = [index.get(shape_of(w), 1) for w in text.split()][:LENGTH]
            words[i, : len(ids)] = torch.tensor(ids)
        batch = {"words": words}
        if "tags" in rows.columns:
            labels = torch.full((rows.height, LENGTH), IGNORE)
            for i, text in enumerate(rows["tags"]):
                tags = [TAGS.index(t) for t in text.split()][:LENGTH]
                labels[i, : len(tags)] = torch.tensor(tags)
            batch[LABEL] = labels
            batch[WEIGHT] = (labels != IGNORE).sum(1).float()
        return batch

    def build_model(self):
        return Tagger(len(self.fitted["words"]) + 2)

    def losses(self, output, batch):
        target = batch[LABEL]
        seen = target != IGNORE
        log_probs = output.log_softmax(dim=2)
        nll = -log_probs.gather(2, target.clamp(min=0)[..., None]).squeeze(2)
        return (nll * seen).sum(1) / seen.sum(1).clamp(min=1)

    def statistic(self, output, batch):
        target = batch[LABEL]
        seen = target != IGNORE
        right = ((output.argmax(2) == target) & seen).sum(1) / seen.sum(1).clamp(min=1)
        return torch.stack([self.losses(output, batch), right], dim=1).double()
