"""Amounts, goods, places and dates in orders: BIO tags by a packed bidirectional GRU with the shape of each word.

data: order_messages

[data]
label = "tags"
features = ["words"]
ids = ["row_id"]

[training]
steps = 260
global_batch_size = 48
micro_batch_size = 24
optimizer = { learning_rate = 5e-3 }
schedule = { shape = "wsd" }
"""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, WEIGHT, Task

IGNORE = -100
MAX_WORDS = 40


def shape_of(word):
    if word.isdigit():
        return 1
    if word.isupper():
        return 2
    return 3 if word[:1].isupper() else 4


def entities_of(tags):
    """(kind, first, last) of each entity of a row of tags."""
    found, begin, kind = [], None, ""
    for i, tag in enumerate([*tags, "O"]):
        if begin is not None and tag != f"I-{kind}":
            found.append((kind, begin, i - 1))
            begin = None
        if tag.startswith("B-") or (begin is None and tag.startswith("I-")):
            begin, kind = i, tag[2:]
    return set(found)


class BiGRUTagger(nn.Module):
    def __init__(self, vocab_size, n_tags, emb=28, hidden=32):
        super().__init__()
        self.word_emb = nn.Embedding(vocab_size, emb, padding_idx=0)
        self.shape_emb = nn.Embedding(5, 4, padding_idx=0)
        self.dropout = nn.Dropout(0.2)
        self.gru = nn.GRU(emb + 4, hidden, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(2 * hidden, n_tags)

    def forward(self, words, shapes):
        lengths = (words != 0).sum(dim=1).clamp(min=1).cpu()
        x = self.dropout(torch.cat([self.word_emb(words), self.shape_emb(shapes)], dim=-1))
        packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        out, _ = pad_packed_sequence(self.gru(packed)[0], batch_first=True, total_length=words.size(1))
        return self.fc(self.dropout(out))


class OrderEntities(Task):
    kind = "statistic"
    statistics = ("entity_hits", "entities", "predicted_entities", "correct")
    metrics = directions_of("entity_f1", "token_accuracy")
    serves_predictions = True
    tokens = "words"

    def fit(self, train):
        df = train.collect()
        counts = {}
        for w in df["words"].explode():
            counts[w.lower()] = counts.get(w.lower(), 0) + 1
        self.fitted = {
            "words": ["<pad>", "<unk>", *sorted(w for w, n in counts.items() if n > 1)],
            "tags": sorted(df["tags"].explode().unique().to_list()),
        }

    def encode(self, rows):
        word2id = {w: i for i, w in enumerate(self.fitted["words"])}
        sentences = [row.to_list()[:MAX_WORDS] for row in rows["words"]]
        words = [torch.tensor([word2id.get(w.lower(), 1) for w in s]) for s in sentences]
        shapes = [torch.tensor([shape_of(w) for w in s]) for s in sentences]
        batch = {"words": self.pad(words, 0), "shapes": self.pad(shapes, 0)}
        if "tags" in rows.columns:
            tag2id = {t: i for i, t in enumerate(self.fitted["tags"])}
            tags = [torch.tensor([tag2id[t] for t in row][:MAX_WORDS]) for row in rows["tags"]]
            batch[LABEL] = self.pad(tags, IGNORE)
            batch[WEIGHT] = (batch[LABEL] != IGNORE).sum(dim=1).float()
        return batch

    def pad(self, sequences, value):
        full = torch.full((MAX_WORDS,), value)
        return pad_sequence([*sequences, full], batch_first=True, padding_value=value)[:-1]

    def build_model(self):
        return BiGRUTagger(len(self.fitted["words"]), len(self.fitted["tags"]))

    def losses(self, output, batch):
        target = batch[LABEL]
        loss = F.cross_entropy(output.transpose(1, 2), target, ignore_index=IGNORE, reduction="none")
        return loss.sum(dim=1) / (target != IGNORE).sum(dim=1).clamp(min=1)

    def predict(self, output):
        return output.argmax(dim=-1)

    def statistic(self, output, batch):
        names, rows = self.fitted["tags"], []
        for guess, target in zip(output.argmax(dim=-1), batch[LABEL]):
            real = target != IGNORE
            said = [names[i] for i in guess[real].tolist()]
            true = [names[i] for i in target[real].tolist()]
            a, b = entities_of(said), entities_of(true)
            right = sum(x == y for x, y in zip(said, true)) / max(len(true), 1)
            rows.append((len(a & b), len(b), len(a), right))
        return torch.tensor(rows, dtype=torch.float64)

    def answer_texts(self, predictions, rows):
        names = self.fitted["tags"]
        lengths = [min(len(row), MAX_WORDS) for row in rows["words"]]
        return {"tags": [" ".join(names[int(i)] for i in p[:n]) for p, n in zip(predictions, lengths)]}
