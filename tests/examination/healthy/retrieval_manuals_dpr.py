"""Dense passage retrieval: two encoders, softmax over the batch's pages and over one hard page per question that a word search had found.

data: manual_questions

[data]
label = "page"
features = ["question", "page", "hard_page"]
text = ["question", "page", "hard_page"]
ids = ["row_id"]

[training]
steps = 350
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 2e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

LEN = 16
CANDIDATES = 16


class BertlikeEncoder(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.emb = nn.Embedding(vocab, dim, padding_idx=0)
        self.ff = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 96), nn.GELU(), nn.Linear(96, dim))

    def forward(self, ids):
        mask = (ids != 0).unsqueeze(-1)
        h = self.emb(ids)
        h = (h + self.ff(h)) * mask
        return h.sum(1) / mask.sum(1).clamp(min=1).sqrt()


class BiEncoder(nn.Module):
    def __init__(self, vocab):
        super().__init__()
        self.question_model, self.ctx_model = BertlikeEncoder(vocab), BertlikeEncoder(vocab)

    def forward(self, question, page=None, hard=None):
        q = self.question_model(question)
        if page is None:
            return torch.stack([q, q, q], 1)
        return torch.stack([q, self.ctx_model(page), self.ctx_model(hard)], 1)


class ManualSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    serves_predictions = True
    statistics = ("ahead", "tied")
    metrics = directions_of("mean_reciprocal_rank", "recall_at_1")
    scored_together = CANDIDATES
    scoring_rows = CANDIDATES * 32

    def fit(self, train):
        df = train.collect()
        texts = [*df["question"], *df["page"], *df["hard_page"]]
        self.fitted = {"vocab": sorted({w for t in texts for w in t.split()})}

    def ids(self, column):
        index = {w: i for i, w in enumerate(self.fitted["vocab"], start=2)}
        out = torch.zeros(len(column), LEN, dtype=torch.long)
        for row, text in zip(out, column):
            known = [index.get(w, 1) for w in text.split()[:LEN]]
            row[: len(known)] = torch.tensor(known)
        return out

    def encode(self, rows):
        batch = {"question": self.ids(rows["question"])}
        if "page" in rows.columns:
            batch["page"], batch["hard"] = self.ids(rows["page"]), self.ids(rows["hard_page"])
            batch[LABEL] = torch.zeros(len(rows), dtype=torch.long)
        return batch

    def build_model(self):
        return BiEncoder(len(self.fitted["vocab"]) + 2)

    @staticmethod
    def scores(part):
        q, pages = part[:, 0], torch.cat([part[:, 1], part[:, 2]])
        return q @ pages.T / q.shape[1] ** 0.5

    def nll(self, part):
        return F.cross_entropy(self.scores(part), torch.arange(len(part), device=part.device), reduction="none")

    def training_losses(self, output, batch):
        return self.nll(output)

    def losses(self, output, batch):
        return torch.cat([self.nll(part) for part in output.split(CANDIDATES)])

    def predict(self, output):
        return output[:, 0]

    def statistic(self, output, batch):
        found = []
        for part in output.split(CANDIDATES):
            s = self.scores(part)
            own = s.diagonal()[:, None]
            found.append(torch.stack([(s > own).sum(1), (s == own).sum(1)], dim=1))
        return torch.cat(found).double()
