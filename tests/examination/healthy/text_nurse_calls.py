"""Is a call at night urgent? A plain PyTorch script: a GRU in both directions, packed by length.

data: nurse_calls

[data]
label = "urgent"
text = ["note"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3, weight_decay = 0.02 }
"""

import torch
import torch.nn as nn
from torch.nn.utils.rnn import pack_padded_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, UNK = 0, 1
STOP_WORDS = {"the", "a", "and", "for", "at"}
LONGEST = 40


def tokenize(note):
    return [w for w in note.lower().split() if w not in STOP_WORDS and not w.isdigit()]


class CallGRU(nn.Module):
    def __init__(self, vocab_size, emb_dim=24, hidden=24):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_dim, padding_idx=PAD)
        self.gru = nn.GRU(emb_dim, hidden, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(2 * hidden, 1)

    def forward(self, text, lengths):
        lengths, order = lengths.sort(descending=True)
        embedded = self.embedding(text[order])
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True)
        _, hidden = self.gru(packed)
        last = torch.cat([hidden[0], hidden[1]], dim=1)
        last = last[order.argsort()]  # as they came
        return self.fc(self.dropout(last)).squeeze(1)


class NurseCalls(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "f1")

    def fit(self, train):
        df = train.collect()
        urgent = df["urgent"] == "yes"
        self.fitted = {
            "words": sorted({w for note in df["note"] for w in tokenize(note)}),
            "not_urgent_per_urgent": float((~urgent).sum() / urgent.sum()),
        }

    def encode(self, rows):
        index = {w: i for i, w in enumerate(self.fitted["words"], start=2)}
        text = torch.full((rows.height, LONGEST), PAD)
        lengths = torch.ones(rows.height, dtype=torch.long)
        for i, note in enumerate(rows["note"]):
            ids = [index.get(w, UNK) for w in tokenize(note)][:LONGEST] or [UNK]
            text[i, : len(ids)] = torch.tensor(ids)
            lengths[i] = len(ids)
        batch = {"text": text, "lengths": lengths}
        if "urgent" in rows.columns:
            batch[LABEL] = torch.tensor([float(v == "yes") for v in rows["urgent"]])
        return batch

    def build_model(self):
        return CallGRU(len(self.fitted["words"]) + 2)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none"
        )

    def training_losses(self, output, batch):
        """Urgent calls, which are rare, count as much as the others together."""
        weight = torch.tensor(self.fitted["not_urgent_per_urgent"], device=output.device)
        return nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], pos_weight=weight, reduction="none"
        )
