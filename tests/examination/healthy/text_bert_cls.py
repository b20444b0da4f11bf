"""BertForSequenceClassification written by hand: [CLS], learned positions, attention mask.

data: plot_or_table

[data]
label = "is_plot"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[training]
steps = 300
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 1e-3 }
"""
import math
from collections import Counter

import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task


class BertSelfAttention(nn.Module):
    def __init__(self, hidden_size, num_attention_heads):
        super().__init__()
        self.heads, self.size = num_attention_heads, hidden_size // num_attention_heads
        self.query, self.key, self.value = (nn.Linear(hidden_size, hidden_size) for _ in range(3))
        self.dense = nn.Linear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(0.1)

    def transpose_for_scores(self, x):
        return x.view(*x.shape[:-1], self.heads, self.size).permute(0, 2, 1, 3)

    def forward(self, hidden_states, attention_mask):
        q, k, v = (self.transpose_for_scores(f(hidden_states)) for f in (self.query, self.key, self.value))
        scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(self.size) + attention_mask
        context = torch.matmul(self.dropout(nn.functional.softmax(scores, dim=-1)), v)
        return self.dense(context.permute(0, 2, 1, 3).flatten(2))


class BertLayer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.attention, self.norm1 = BertSelfAttention(width, 4), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width), nn.Dropout(0.1))
        self.norm2 = nn.LayerNorm(width)

    def forward(self, x, mask):
        x = self.norm1(x + self.attention(x, mask))
        return self.norm2(x + self.mlp(x))


class BertClassifier(nn.Module):
    def __init__(self, vocab, width=48, length=64, layers=2):
        super().__init__()
        self.word, self.position = nn.Embedding(vocab, width, padding_idx=0), nn.Embedding(length, width)
        self.norm = nn.LayerNorm(width)
        self.layers = nn.ModuleList(BertLayer(width) for _ in range(layers))
        self.pooler = nn.Linear(width, width)
        self.classifier = nn.Linear(width, 1)

    def forward(self, input_ids, attention_mask):
        x = self.norm(self.word(input_ids) + self.position.weight[: input_ids.shape[1]])
        extended = (1.0 - attention_mask[:, None, None, :].float()) * torch.finfo(torch.float32).min
        for layer in self.layers:
            x = layer(x, extended)
        return self.classifier(torch.tanh(self.pooler(x[:, 0])))


class BertTask(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        counts = Counter(word for text in train.collect()["text"] for word in text.lower().split())
        self.vocab = sorted(word for word, n in counts.items() if n >= 4)

    def state(self):
        return {"vocab": self.vocab}

    def load_state(self, state):
        self.vocab = state["vocab"]

    def tokenize(self, text):
        return [2, *(self.index.get(word, 1) for word in text.lower().split()[:63])]

    def encode(self, rows):
        self.index = {word: i + 3 for i, word in enumerate(self.vocab)}
        encoded = [self.tokenize(text) for text in rows["text"].to_list()]
        input_ids = torch.tensor([ids + [0] * (64 - len(ids)) for ids in encoded])
        batch = {"input_ids": input_ids, "attention_mask": (input_ids != 0).long()}
        if "is_plot" in rows.columns:
            batch[LABEL] = torch.tensor(rows["is_plot"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return BertClassifier(len(self.vocab) + 3)

    def losses(self, output, batch):
        return nn.BCEWithLogitsLoss(reduction="none")(output.squeeze(-1), batch[LABEL])

    def predict(self, output):
        return output.squeeze(-1).sigmoid()

    def expected_initial_loss(self):
        return math.log(2)
