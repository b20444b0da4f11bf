"""The desk's next reply in a dialogue: a poly-encoder, replies of the batch as negatives.

data: inn_dialogues

[data]
label = "reply"
features = ["context", "reply"]
text = ["context", "reply"]
ids = ["row_id"]
meta = ["desk"]

[training]
steps = 500
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 2e-3, weight_decay = 0.02 }
schedule = { shape = "cosine", warmup_fraction = 0.1 }
strategy = "single"

[resources]
num_processes = 1
"""
from collections import Counter

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

PAD, CLS, UNK = 0, 1, 2
CONTEXT_LENGTH, REPLY_LENGTH = 36, 14
CANDIDATES = 24


def dot_attention(q, k, v, v_mask=None):
    """Queries [B, M, D] over values [B, L, D]; padding gets no weight."""
    weights = torch.matmul(q, k.transpose(2, 1))  # [B, M, L]
    if v_mask is not None:
        weights = weights + (1.0 - v_mask.unsqueeze(1).float()) * -1e4
    return torch.matmul(F.softmax(weights, dim=-1), v)


class Encoder(nn.Module):
    def __init__(self, vocab, length, dim=48):
        super().__init__()
        self.words = nn.Embedding(vocab, dim, padding_idx=PAD)
        self.positions = nn.Embedding(length, dim)
        nn.init.normal_(self.words.weight, std=0.3)
        nn.init.normal_(self.positions.weight, std=0.1)
        layer = nn.TransformerEncoderLayer(
            dim, 4, 2 * dim, dropout=0.05, activation="gelu", batch_first=True, norm_first=True
        )
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(dim)

    def forward(self, ids):
        x = self.words(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return self.norm(self.layers(x, src_key_padding_mask=ids == PAD))


class PolyEncoder(nn.Module):
    def __init__(self, vocab, dim=48, codes=8):
        super().__init__()
        self.context_encoder = Encoder(vocab, CONTEXT_LENGTH)
        self.reply_encoder = Encoder(vocab, REPLY_LENGTH)
        self.poly_codes = nn.Parameter(torch.randn(codes, dim) * dim**-0.5)

    def forward(self, context, reply):
        h = self.context_encoder(context)
        codes = self.poly_codes.expand(len(h), -1, -1)
        poly = dot_attention(codes, h, h, context != PAD)  # [B, codes, D]
        candidate = self.reply_encoder(reply)[:, :1]  # at [CLS]
        return torch.cat([poly, candidate], dim=1)


class InnReplies(Task):
    kind = "statistic"
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    needs_whole_batch = True
    scored_together = CANDIDATES

    def fit(self, train):
        df = train.collect()
        counts = Counter(w for text in [*df["context"], *df["reply"]] for w in text.split())
        self.fitted = {"vocab": sorted(w for w, n in counts.items() if n >= 2)}

    def encode(self, rows):
        index = {w: i + 3 for i, w in enumerate(self.fitted["vocab"])}
        context = torch.full((rows.height, CONTEXT_LENGTH), PAD)
        reply = torch.full((rows.height, REPLY_LENGTH), PAD)
        for i, (turns, answer) in enumerate(zip(rows["context"], rows["reply"])):
            ids = [index.get(w, UNK) for w in turns.split()]
            ids = ids[-CONTEXT_LENGTH:]  # the latest turns
            context[i, : len(ids)] = torch.tensor(ids)
            ids = [CLS, *(index.get(w, UNK) for w in answer.split())][:REPLY_LENGTH]
            reply[i, : len(ids)] = torch.tensor(ids)
        return {
            "context": context,
            "reply": reply,
            LABEL: torch.zeros(rows.height, dtype=torch.long),  # its own reply is right
        }

    def build_model(self):
        return PolyEncoder(len(self.fitted["vocab"]) + 3)

    @staticmethod
    def scores(output, reply):
        poly, candidate = output[:, :-1], output[:, -1]
        everyone = candidate.expand(len(output), -1, -1)  # [B, B, D]
        final = dot_attention(everyone, poly, poly)
        logits = (final * everyone).sum(-1) / candidate.shape[1] ** 0.5
        same = (reply[:, None] == reply[None]).all(-1)
        same = same & ~torch.eye(len(reply), dtype=torch.bool, device=reply.device)
        return logits.masked_fill(same, float("-inf"))  # the same words are no negative

    def nll(self, output, reply):
        logits = self.scores(output, reply)
        own = torch.arange(len(logits), device=logits.device)
        return F.cross_entropy(logits, own, reduction="none")

    def training_losses(self, output, batch):
        return self.nll(output, batch["reply"])

    def groups(self, output, batch):
        return zip(output.split(CANDIDATES), batch["reply"].split(CANDIDATES), strict=True)

    def losses(self, output, batch):
        return torch.cat([self.nll(o, r) for o, r in self.groups(output, batch)])

    def statistic(self, output, batch):
        found = []
        for o, r in self.groups(output, batch):
            s = self.scores(o, r)
            own = s.diagonal()[:, None]
            found.append(torch.stack([(s > own).sum(1), (s == own).sum(1)], dim=1))
        return torch.cat(found).double()
