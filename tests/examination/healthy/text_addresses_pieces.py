"""Parts of an address, as the token classification tutorial has it: word pieces, the first of a word carries its BIO tag, the others -100; spans are judged by F1.

data: parcel_addresses

[data]
label = "tags"
features = ["address"]
text = ["address", "tags"]
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3 }
"""
import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

MAX_LENGTH = 40
PAD, UNK = 0, 1


def pieces(word):
    """At most four letters each, ## in front of those that continue a word."""
    return [("##" if i else "") + word[i : i + 4] for i in range(0, len(word), 4)]


class TinyBertForTokenClassification(nn.Module):
    def __init__(self, vocab_size, num_labels, hidden=48, layers=2):
        super().__init__()
        self.word_embeddings = nn.Embedding(vocab_size, hidden, padding_idx=PAD)
        self.position_embeddings = nn.Embedding(MAX_LENGTH, hidden)
        self.norm = nn.LayerNorm(hidden)
        layer = nn.TransformerEncoderLayer(hidden, 4, 96, dropout=0.1, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(hidden, num_labels)

    def forward(self, input_ids, attention_mask):
        position = torch.arange(input_ids.shape[1], device=input_ids.device)
        h = self.norm(self.word_embeddings(input_ids) + self.position_embeddings(position))
        h = self.encoder(h, src_key_padding_mask=attention_mask == 0)
        return self.classifier(self.dropout(h))


def spans(tags):
    found, start = set(), None
    for i, tag in enumerate([*tags, "O"]):
        if start is not None and tag != f"I-{tags[start][2:]}":
            found.add((start, i, tags[start][2:]))
            start = None
        if tag.startswith("B-"):
            start = i
    return found


class AddressParts(Task):
    kind = "statistic"
    metrics = {"span_f1": "maximize", "token_loss": "minimize"}

    def fit(self, train):
        df = train.collect()
        vocab = {p for a in df["address"] for w in a.split() for p in pieces(w)}
        self.fitted = {
            "vocab": ["[PAD]", "[UNK]", *sorted(vocab)],
            "labels": sorted({t for tags in df["tags"] for t in tags.split()}),
        }

    def encode(self, rows):
        vocab = {p: i for i, p in enumerate(self.fitted["vocab"])}
        label2id = {t: i for i, t in enumerate(self.fitted["labels"])}
        has_tags = "tags" in rows.columns
        ids = np.zeros((len(rows), MAX_LENGTH), dtype=np.int64)
        mask = np.zeros_like(ids)
        target = np.full_like(ids, -100)
        for r, address in enumerate(rows["address"]):
            tags = rows["tags"][r].split() if has_tags else None
            at = 0
            for w, word in enumerate(address.split()):
                for k, piece in enumerate(pieces(word)):
                    if at == MAX_LENGTH:
                        break
                    ids[r, at], mask[r, at] = vocab.get(piece, UNK), 1
                    if tags and k == 0:
                        target[r, at] = label2id.get(tags[w], -100)
                    at += 1
        batch = {"input_ids": torch.from_numpy(ids), "attention_mask": torch.from_numpy(mask)}
        if has_tags:
            batch[LABEL] = torch.from_numpy(target)
            batch[WEIGHT] = (batch[LABEL] != -100).sum(1).float()
        return batch

    def build_model(self):
        return TinyBertForTokenClassification(len(self.fitted["vocab"]), len(self.fitted["labels"]))

    def losses(self, output, batch):
        labels = batch[LABEL]
        loss = nn.functional.cross_entropy(output.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="none")
        return loss.view_as(labels).sum(1) / (labels != -100).sum(1).clamp(min=1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        """Spans found and right, found, there; and the loss of a token."""
        names = self.fitted["labels"]
        counts = []
        for guess, truth in zip(output.argmax(-1).tolist(), batch[LABEL].tolist()):
            kept = [(names[g], names[t]) for g, t in zip(guess, truth) if t != -100]
            a, b = spans([g for g, _ in kept]), spans([t for _, t in kept])
            n = max(len(kept), 1)  # rows weigh by words, counts do not
            counts.append([len(a & b) / n, len(a) / n, len(b) / n])
        counts = torch.tensor(counts, dtype=torch.float64)
        return torch.cat([counts, self.losses(output, batch).double().cpu()[:, None]], dim=1)

    def score(self, predictions, labels):
        right, found, there, loss = (predictions * labels[:, None]).sum(0)
        return {"span_f1": float(2 * right / max(found + there, 1e-9)), "token_loss": float(loss / labels.sum())}
