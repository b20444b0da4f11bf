"""Which of two steps of a manual comes first? Both in one sequence, with segments, as BERT has it.

Log loss 0.24; 0.69 for a guess.

data: manual_steps

[data]
label = "in_order"
features = ["shown_first", "shown_second"]
text = ["shown_first", "shown_second"]
group = "manual"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 300
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3, weight_decay = 0.05 }
schedule = { shape = "linear", warmup_fraction = 0.1 }
"""

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, UNK, CLS, SEP = 0, 1, 2, 3
LENGTH = 28


class PairEncoder(nn.Module):
    def __init__(self, vocab, dim=32):
        super().__init__()
        self.word = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.position, self.segment = nn.Embedding(LENGTH, dim), nn.Embedding(2, dim)
        for table in (self.word, self.position, self.segment):
            nn.init.normal_(table.weight, std=0.2)
        self.norm = nn.LayerNorm(dim)
        layer = nn.TransformerEncoderLayer(
            dim, 2, 2 * dim, dropout=0.1, batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.classify = nn.Linear(dim, 1)

    def forward(self, tokens, segments):
        x = self.word(tokens) + self.position.weight + self.segment(segments)
        h = self.layers(self.norm(x), src_key_padding_mask=tokens == PAD)
        return self.classify(h[:, 0]).squeeze(1)


class StepsOrder(Task):
    kind = "binary"
    metrics = directions_of("accuracy", "log_loss", "roc_auc")
    tokens = "tokens"

    def fit(self, train):
        df = train.collect()
        texts = [*df["shown_first"], *df["shown_second"]]
        self.fitted = {"words": sorted({w for text in texts for w in text.split()})}

    def encode(self, rows):
        index = {w: k for k, w in enumerate(self.fitted["words"], start=4)}
        tokens = torch.full((rows.height, LENGTH), PAD)
        segments = torch.zeros(rows.height, LENGTH, dtype=torch.long)
        pairs = zip(rows["shown_first"], rows["shown_second"])
        for i, (first, second) in enumerate(pairs):
            a, b = ([index.get(w, UNK) for w in text.split()] for text in (first, second))
            ids = ([CLS, *a, SEP, *b, SEP])[:LENGTH]
            tokens[i, : len(ids)] = torch.tensor(ids)
            segments[i, len(a) + 2 : len(ids)] = 1
        batch = {"tokens": tokens, "segments": segments}
        if "in_order" in rows.columns:
            batch[LABEL] = torch.tensor(rows["in_order"].to_list()).float()
        return batch

    def build_model(self):
        return PairEncoder(len(self.fitted["words"]) + 4)

    def losses(self, output, batch):
        return F.binary_cross_entropy_with_logits(output, batch[LABEL], reduction="none")
