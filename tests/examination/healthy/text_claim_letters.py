"""Which department answers a letter: an encoder in Hugging Face's manner, smoothed labels.

data: claim_letters

[data]
label = "department"
features = ["letter"]
text = ["letter"]
ids = ["row_id"]

[training]
steps = 250
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""

from collections import Counter
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_LENGTH = 44
SPECIAL = ["[PAD]", "[UNK]", "[CLS]"]
SMOOTHING = 0.1


@dataclass
class Config:
    vocab_size: int
    num_labels: int
    hidden_size: int = 48
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    hidden_dropout_prob: float = 0.1


class SelfAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.heads = config.num_attention_heads
        self.qkv = nn.Linear(config.hidden_size, 3 * config.hidden_size)
        self.out = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, x, attention_mask):
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (d // self.heads) ** 0.5
        scores = scores + (1.0 - attention_mask[:, None, None, :]) * -1e4
        return self.out((scores.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, t, d))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        d = config.hidden_size
        self.attention = SelfAttention(config)
        self.mlp = nn.Sequential(nn.Linear(d, 2 * d), nn.GELU(), nn.Linear(2 * d, d))
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, x, attention_mask):
        x = x + self.dropout(self.attention(self.norm1(x), attention_mask))
        return x + self.dropout(self.mlp(self.norm2(x)))


class LetterForSequenceClassification(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.words = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=0)
        self.positions = nn.Embedding(MAX_LENGTH, config.hidden_size)
        nn.init.normal_(self.words.weight, std=0.3)
        nn.init.normal_(self.positions.weight, std=0.05)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.num_hidden_layers))
        self.norm = nn.LayerNorm(config.hidden_size)
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)

    def forward(self, input_ids, attention_mask):
        x = self.words(input_ids)
        x = x + self.positions(torch.arange(input_ids.shape[1], device=x.device))
        for layer in self.layers:
            x = layer(x, attention_mask)
        return self.classifier(self.norm(x)[:, 0])


class ClaimLetters(Task):
    kind = "multiclass"
    metrics = directions_of("log_loss", "accuracy", "macro_f1")
    tokens = "input_ids"

    def fit(self, train):
        df = train.collect()
        counts = Counter(w for text in df["letter"] for w in text.lower().split())
        self.fitted = {
            "vocab": SPECIAL + sorted(w for w, n in counts.items() if n >= 2),
            "id2label": sorted(df["department"].unique()),
        }

    def tokenize(self, text):
        return text.lower().split()

    def encode(self, rows):
        ids_of = {w: i for i, w in enumerate(self.fitted["vocab"])}
        input_ids = torch.zeros(rows.height, MAX_LENGTH, dtype=torch.long)
        for i, text in enumerate(rows["letter"]):
            ids = [2, *(ids_of.get(w, 1) for w in self.tokenize(text))][:MAX_LENGTH]
            input_ids[i, : len(ids)] = torch.tensor(ids)
        batch = {"input_ids": input_ids, "attention_mask": (input_ids != 0).float()}
        if "department" in rows.columns:
            label2id = {name: i for i, name in enumerate(self.fitted["id2label"])}
            batch[LABEL] = torch.tensor([label2id[name] for name in rows["department"]])
        return batch

    def build_model(self):
        config = Config(len(self.fitted["vocab"]), len(self.fitted["id2label"]))
        return LetterForSequenceClassification(config)

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def training_losses(self, output, batch):
        log_probs = F.log_softmax(output, dim=-1)
        nll = -log_probs.gather(dim=-1, index=batch[LABEL][:, None]).squeeze(-1)
        smoothed = -log_probs.mean(dim=-1)
        return (1 - SMOOTHING) * nll + SMOOTHING * smoothed
