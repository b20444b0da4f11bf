"""Extractive question answering after SQuAD: a start and an end among the tokens of question and passage.

data: passages

[data]
label = "span"
text = ["context", "question"]
ids = ["row_id"]

[training]
steps = 700
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
"""
import math

import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

QUESTION, CONTEXT = 4, 16


class SpanReader(nn.Module):
    def __init__(self, vocab, dim=48):
        super().__init__()
        self.tokens = nn.Embedding(vocab, dim, padding_idx=0)
        self.asked = nn.GRU(dim, dim, batch_first=True)
        self.reader = nn.GRU(3 * dim, dim // 2, batch_first=True, bidirectional=True)
        self.qa_outputs = nn.Linear(dim, 2)
        nn.init.zeros_(self.qa_outputs.weight)
        nn.init.zeros_(self.qa_outputs.bias)

    def forward(self, ids):
        embedded = self.tokens(ids)
        _, question = self.asked(embedded[:, :QUESTION])
        asked = question[0][:, None].expand_as(embedded)
        hidden, _ = self.reader(torch.cat([embedded, asked, embedded * asked], -1))
        logits = self.qa_outputs(hidden).masked_fill((ids == 0).unsqueeze(-1), -1e4)
        return torch.cat([logits[:, QUESTION:, 0], logits[:, QUESTION:, 1]], 1)


class SpanQA(Task):
    kind = "statistic"
    metrics = {"exact_match": "maximize", "nll": "minimize"}

    def fit(self, train):
        df = train.collect()
        words = {w for text in [*df["context"], *df["question"]] for w in text.split()}
        lengths = [len(text.split()) for text in df["context"]]
        self.fitted = {
            "vocab": {w: i + 2 for i, w in enumerate(sorted(words))},
            "start": 2 * sum(math.log(n) for n in lengths) / len(lengths),
        }

    def ids(self, texts, length):
        vocab = self.fitted["vocab"]
        rows = [[vocab.get(w, 1) for w in text.split()][:length] for text in texts]
        return torch.tensor([row + [0] * (length - len(row)) for row in rows])

    def encode(self, rows):
        question, context = self.ids(rows["question"], QUESTION), self.ids(rows["context"], CONTEXT)
        batch = {"ids": torch.cat([question, context], 1)}
        if "span" in rows.columns:
            batch[LABEL] = torch.tensor(rows["span"].to_list())
        return batch

    def build_model(self):
        return SpanReader(len(self.fitted["vocab"]) + 2)

    def losses(self, output, batch):
        start, end = output.split(CONTEXT, dim=1)
        first = F.cross_entropy(start, batch[LABEL][:, 0], reduction="none")
        return first + F.cross_entropy(end, batch[LABEL][:, 1], reduction="none")

    def predict(self, output):
        start, end = output.split(CONTEXT, dim=1)
        return torch.stack([start.argmax(1), end.argmax(1)], 1).float()

    def statistic(self, output, batch):
        right = (self.predict(output).long() == batch[LABEL]).all(1)
        return torch.stack([right.double(), self.losses(output, batch).double()], 1)

    def score(self, predictions, labels):
        exact, nll = (predictions * labels[:, None]).sum(0) / labels.sum()
        return {"exact_match": float(exact), "nll": float(nll)}

    def expected_initial_loss(self):
        return self.fitted["start"]
