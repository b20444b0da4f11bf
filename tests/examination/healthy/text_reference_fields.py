"""Authors, title, journal, year and pages of a reference: a tag per word by a BiGRU.

Loss per word 0.10; 1.4 for the shares of the tags.

data: reference_strings

[data]
label = "tags"
features = ["reference"]
text = ["reference", "tags"]
ids = ["row_id"]

[training]
steps = 200
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 5e-3, weight_decay = 0.01 }
"""

import re
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

PAD, UNK = 0, 1
LENGTH = 32
IGNORE = -100
TAGS = ["O", "AUTHOR", "JOURNAL", "PAGES", "TITLE", "YEAR"]


def normal(word):
    return re.sub(r"\d", "0", word)


class BiGRUTagger(nn.Module):
    def __init__(self, vocab, dim=24, hidden=24):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.dropout = nn.Dropout(0.2)
        self.gru = nn.GRU(dim, hidden, batch_first=True, bidirectional=True)
        self.hidden2tag = nn.Linear(2 * hidden, len(TAGS))

    def forward(self, words):
        states, _ = self.gru(self.dropout(self.embed(words)))
        return self.hidden2tag(self.dropout(states))


class ReferenceFields(Task):
    kind = "statistic"
    statistics = ("loss", "correct")
    metrics = directions_of("mean_loss", "token_accuracy")
    tokens = "words"
    serves_predictions = True

    def fit(self, train):
        df = train.collect()
        counts = Counter(normal(w) for text in df["reference"] for w in text.split())
        self.fitted = {"words": sorted(w for w, n in counts.items() if n > 1)}

    def encode(self, rows):
        index = {w: i for i, w in enumerate(self.fitted["words"], start=2)}
        words = torch.full((rows.height, LENGTH), PAD)
        for i, text in enumerate(rows["reference"]):
            ids = [index.get(normal(w), UNK) for w in text.split()][:LENGTH]
            words[i, : len(ids)] = torch.tensor(ids)
        batch = {"words": words}
        if "tags" in rows.columns:
            labels = torch.full((rows.height, LENGTH), IGNORE)
            for i, text in enumerate(rows["tags"]):
                tags = [TAGS.index(t) for t in text.split()][:LENGTH]
                labels[i, : len(tags)] = torch.tensor(tags)
            batch[LABEL] = labels
            batch[WEIGHT] = (labels != IGNORE).sum(dim=1).float()
        return batch

    def build_model(self):
        return BiGRUTagger(len(self.fitted["words"]) + 2)

    def losses(self, output, batch):
        labels = batch[LABEL]
        loss = F.cross_entropy(
            output.transpose(1, 2), labels, ignore_index=IGNORE, reduction="none"
        )
        return loss.sum(dim=1) / (labels != IGNORE).sum(dim=1).clamp(min=1)

    def predict(self, output):
        return output.argmax(dim=2)

    def statistic(self, output, batch):
        labels = batch[LABEL]
        seen = labels != IGNORE
        right = ((self.predict(output) == labels) & seen).sum(1) / seen.sum(1).clamp(min=1)
        return torch.stack([self.losses(output, batch), right], dim=1).double()
