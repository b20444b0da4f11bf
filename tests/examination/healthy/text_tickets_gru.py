"""Urgent or not: embeddings, a packed GRU, its last states, as in the sentiment notebooks.

data: tickets

[data]
label = "urgent"
features = ["message"]
text = ["message"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, UNK = 0, 1
MAX_LEN = 32


class RNN(nn.Module):
    def __init__(self, vocab_size, embedding_dim=32, hidden_dim=40):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=PAD)
        self.rnn = nn.GRU(embedding_dim, hidden_dim, batch_first=True, bidirectional=True)
        self.dropout = nn.Dropout(0.2)
        self.fc = nn.Linear(2 * hidden_dim, 1)

    def forward(self, text, text_lengths):
        embedded = self.dropout(self.embedding(text))
        packed = pack_padded_sequence(embedded, text_lengths.cpu().clamp(min=1), batch_first=True, enforce_sorted=False)
        _, hidden = self.rnn(packed)
        hidden = torch.cat((hidden[-2], hidden[-1]), dim=1)
        return self.fc(self.dropout(hidden)).squeeze(1)


class Tickets(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "accuracy", "log_loss")

    def fit(self, train):
        words = set()
        for message in train.select("message").collect()["message"]:
            words.update(message.split())
        self.fitted = {"itos": ["<pad>", "<unk>", *sorted(words)]}

    def encode(self, rows):
        stoi = {w: i for i, w in enumerate(self.fitted["itos"])}
        text = torch.full((rows.height, MAX_LEN), PAD)
        lengths = torch.zeros(rows.height, dtype=torch.long)
        for i, message in enumerate(rows["message"]):
            ids = [stoi.get(w, UNK) for w in message.split()][:MAX_LEN]
            text[i, : len(ids)] = torch.tensor(ids)
            lengths[i] = len(ids)
        batch = {"text": text, "text_lengths": lengths}
        if "urgent" in rows.columns:
            batch[LABEL] = torch.tensor(rows["urgent"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return RNN(len(self.fitted["itos"]))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")

    def predict(self, output):
        return torch.sigmoid(output)
