"""A cross-encoder re-ranks paragraphs: [CLS] question [SEP] paragraph with segments, a transformer written with nn.MultiheadAttention.

data: answered_questions

[data]
label = "answers"
text = ["question", "paragraph"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
"""
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, CLS, SEP, UNK = range(4)
Q_LEN, P_LEN = 6, 13
T = 1 + Q_LEN + 1 + P_LEN


class Layer(nn.Module):
    def __init__(self, d, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.ff = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))

    def forward(self, x, padding):
        n = self.norm1(x)
        a, _ = self.attention(n, n, n, key_padding_mask=padding, need_weights=False)
        x = x + a
        return x + self.ff(self.norm2(x))


class CrossEncoder(nn.Module):
    def __init__(self, vocab, d=48, heads=4, depth=2):
        super().__init__()
        self.word = nn.Embedding(vocab, d, padding_idx=PAD)
        self.segment = nn.Embedding(2, d)
        self.place = nn.Parameter(0.02 * torch.randn(1, T, d))
        self.layers = nn.ModuleList([Layer(d, heads) for _ in range(depth)])
        self.score = nn.Linear(d, 1)

    def forward(self, ids, segments):
        padding = ids == PAD
        x = self.word(ids) + self.segment(segments) + self.place
        for layer in self.layers:
            x = layer(x, padding)
        return self.score(x[:, 0])


class Reranker(Task):
    kind = "binary"
    metrics = directions_of("average_precision", "roc_auc", "log_loss")

    def fit(self, train):
        df = train.select("question", "paragraph").collect()
        words = sorted({w for column in df for text in column for w in text.split()})
        self.fitted = {"words": words}

    def encode(self, rows):
        index = {w: i for i, w in enumerate(self.fitted["words"], UNK + 1)}
        ids = torch.full((rows.height, T), PAD)
        segments = torch.zeros(rows.height, T, dtype=torch.long)
        for r, (question, paragraph) in enumerate(rows.select("question", "paragraph").iter_rows()):
            q = [index.get(w, UNK) for w in question.split()[:Q_LEN]]
            p = [index.get(w, UNK) for w in paragraph.split()[:P_LEN]]
            line = [CLS, *q, SEP, *p]
            ids[r, : len(line)] = torch.tensor(line)
            segments[r, len(q) + 2 : len(line)] = 1
        batch = {"ids": ids, "segments": segments}
        if "answers" in rows.columns:
            batch[LABEL] = torch.tensor(rows["answers"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return CrossEncoder(UNK + 1 + len(self.fitted["words"]))

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output.squeeze(1), batch[LABEL], reduction="none")
