"""Questions about pictures: the question's GRU sets scale and shift of every feature map (FiLM),
coordinates are appended, a softmax over the frequent answers.

data: shelf_questions

[data]
label = "answer"
features = ["photo", "question"]
text = ["question"]
group = "scene"
ids = ["row_id"]

[split]
method = "group"

[training]
steps = 700
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 1e-5 }
"""
import re

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

MAX_Q = 8


def tokenize(question):
    return re.findall(r"[a-z]+", question.lower())[:MAX_Q]


class FiLMedResBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.input_proj = nn.Conv2d(dim + 2, dim, 1)
        self.conv = nn.Conv2d(dim, dim, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(dim, affine=False)  # FiLM brings scale and shift itself

    def forward(self, x, film, coords):
        dgamma, beta = film.chunk(2, dim=1)
        x = F.relu(self.input_proj(torch.cat([x, coords.expand(len(x), -1, -1, -1)], 1)))
        out = self.bn(self.conv(x))
        out = (1 + dgamma)[..., None, None] * out + beta[..., None, None]
        return x + F.relu(out)


class FiLMedNet(nn.Module):
    def __init__(self, n_words, n_answers, dim=32, blocks=2):
        super().__init__()
        self.embed = nn.Embedding(n_words, 24, padding_idx=0)
        self.rnn = nn.GRU(24, 48, batch_first=True)
        self.film = nn.Linear(48, blocks * 2 * dim)
        self.stem = nn.Sequential(
            nn.Conv2d(3, dim, 3, padding=1, bias=False), nn.BatchNorm2d(dim), nn.ReLU(),
            nn.Conv2d(dim, dim, 4, stride=4, bias=False), nn.BatchNorm2d(dim), nn.ReLU(),
        )
        self.blocks = nn.ModuleList(FiLMedResBlock(dim) for _ in range(blocks))
        line = torch.linspace(-1, 1, 7)
        self.register_buffer("coords", torch.stack(torch.meshgrid(line, line, indexing="ij"))[None])
        self.classifier = nn.Sequential(
            nn.Linear(2 * dim + 48, 64), nn.ReLU(), nn.Linear(64, n_answers)
        )

    def forward(self, photo, question, length):
        states, _ = self.rnn(self.embed(question))
        q = states[torch.arange(len(states)), length - 1]
        x = self.stem(photo)
        for block, film in zip(self.blocks, self.film(q).chunk(len(self.blocks), dim=1)):
            x = block(x, film, self.coords)
        pooled = [x.amax((2, 3)), x.mean((2, 3))]
        return self.classifier(torch.cat([*pooled, q], dim=1))


class ShelfQA(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def fit(self, train):
        df = train.select("question", "answer").collect()
        words = sorted({w for q in df["question"] for w in tokenize(q)})
        answers = df["answer"].value_counts().sort("count", "answer", descending=True)["answer"]
        self.fitted = {"words": words, "answers": answers.to_list()}

    def encode(self, rows):
        pixels = np.frombuffer(b"".join(rows["photo"].to_list()), dtype=np.uint8)
        photo = torch.from_numpy(pixels.reshape(-1, 3, 28, 28) / np.float32(255))
        photo = (photo - 0.5) / 0.25
        ids = {w: i for i, w in enumerate(self.fitted["words"], start=2)}
        asked = [[ids.get(w, 1) for w in tokenize(q)] or [1] for q in rows["question"]]
        question = torch.zeros(len(asked), MAX_Q, dtype=torch.long)
        for i, each in enumerate(asked):
            question[i, : len(each)] = torch.tensor(each)
        batch = {
            "photo": photo,
            "question": question,
            "length": torch.tensor([len(each) for each in asked]),
        }
        if "answer" in rows.columns:
            classes = self.fitted["answers"]
            batch[LABEL] = torch.tensor([classes.index(a) for a in rows["answer"]])
        return batch

    def build_model(self):
        return FiLMedNet(len(self.fitted["words"]) + 2, len(self.fitted["answers"]))

    def losses(self, output, batch):
        return F.cross_entropy(output, batch[LABEL], reduction="none")

    def picture(self, batch, index):
        photo = batch["photo"][index].permute(1, 2, 0) * 0.25 + 0.5
        return (photo * 255).round().clamp(0, 255).byte().numpy()
