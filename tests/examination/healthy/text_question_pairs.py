"""Do two questions ask the same? A shared LSTM, its last real state, and what the two have in common (the Quora kernels).

data: asked_twice

[data]
label = "is_duplicate"
features = ["question1", "question2"]
text = ["question1", "question2"]
ids = ["row_id"]

[training]
steps = 450
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 4e-3 }
"""
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_LEN = 18


class SiameseLSTM(nn.Module):
    def __init__(self, vocab_size, embedding_dim=32, hidden_dim=48):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, embedding_dim, padding_idx=0)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim, batch_first=True)
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Sequential(
            nn.Linear(4 * hidden_dim, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1)
        )

    def encode(self, tokens, lengths):
        outputs, _ = self.lstm(self.dropout(self.embedding(tokens)))
        last = (lengths - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, outputs.size(2))
        return outputs.gather(1, last).squeeze(1)

    def forward(self, q1, q2, len1, len2):
        u = self.encode(q1, len1)
        v = self.encode(q2, len2)
        joined = torch.cat([u, v, torch.abs(u - v), u * v], dim=1)
        return self.classifier(joined).squeeze(1)


class DuplicateQuestions(Task):
    kind = "binary"
    metrics = directions_of("log_loss", "roc_auc", "f1")

    def fit(self, train):
        df = train.select("question1", "question2").collect()
        counter = Counter()
        for text in [*df["question1"], *df["question2"]]:
            counter.update(text.lower().split())
        self.fitted = {"itos": ["<pad>", "<unk>"] + sorted(w for w, c in counter.items() if c > 1)}

    def numericalize(self, texts):
        stoi = {w: i for i, w in enumerate(self.fitted["itos"])}
        ids = [[stoi.get(w, 1) for w in t.lower().split()][:MAX_LEN] for t in texts]
        lengths = torch.tensor([len(x) for x in ids])
        return torch.tensor([x + [0] * (MAX_LEN - len(x)) for x in ids]), lengths

    def encode(self, rows):
        q1, len1 = self.numericalize(rows["question1"])
        q2, len2 = self.numericalize(rows["question2"])
        batch = {"q1": q1, "q2": q2, "len1": len1, "len2": len2}
        if "is_duplicate" in rows.columns:
            batch[LABEL] = torch.tensor(rows["is_duplicate"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return SiameseLSTM(len(self.fitted["itos"]))

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
