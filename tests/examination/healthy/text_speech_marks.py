"""Commas, full stops and question marks put back into what a recogniser heard: iterated dilated convolutions over words, rare marks weigh more.

data: spoken_minutes

[data]
label = "marks"
group = "talk"
features = ["words"]
ids = ["row_id"]

[training]
steps = 240
global_batch_size = 48
micro_batch_size = 48
optimizer = { learning_rate = 3e-3, weight_decay = 0.01 }
schedule = { shape = "wsd" }
"""
from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, WEIGHT, Task

MARKS = ("", "COMMA", "PERIOD", "QUESTION")
MARK_WEIGHTS = (0.6, 1.6, 1.2, 1.8)
PAD_ID, UNK_ID, IGNORE_ID = 0, 1, -1


@dataclass(frozen=True)
class ModelConfig:
    max_words: int = 40
    width: int = 48
    dilations: tuple[int, ...] = (1, 2, 4)
    iterations: int = 2
    dropout: float = 0.15


CONFIG = ModelConfig()


class DilatedLayer(nn.Module):
    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.dilation = dilation
        self.conv = nn.Conv1d(width, width, kernel_size=3, dilation=dilation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.conv(F.pad(x, (self.dilation, self.dilation))))


class IteratedDilatedCNN(nn.Module):
    """The same block is applied again and again (Strubell et al., 2017)."""

    def __init__(self, vocab_size: int, config: ModelConfig = CONFIG) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocab_size, config.width, padding_idx=PAD_ID)
        self.enter = nn.Conv1d(config.width, config.width, kernel_size=3, padding=1)
        self.block = nn.Sequential(*(DilatedLayer(config.width, d) for d in config.dilations))
        self.norm = nn.LayerNorm(config.width)
        self.dropout = nn.Dropout(config.dropout)
        self.classify = nn.Linear(config.width, len(MARKS))
        self.iterations = config.iterations

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = (words != PAD_ID).unsqueeze(-1)
        x = self.enter(self.dropout(self.embed(words)).transpose(1, 2)).transpose(1, 2)
        for _ in range(self.iterations):
            x = x * mask
            x = self.norm(x + self.block(x.transpose(1, 2)).transpose(1, 2))
        return self.classify(self.dropout(x))


class SpeechMarks(Task):
    kind = "statistic"
    metrics = {"mark_f1": "maximize", "accuracy": "maximize"}
    tokens = "words"
    serves_predictions = True

    def fit(self, train):
        counts = Counter(train.select("words").collect()["words"].explode().to_list())
        self.fitted = {"words": ["<pad>", "<unk>", *sorted(w for w, n in counts.items() if n > 2)]}

    def encode(self, rows):
        index = {word: i for i, word in enumerate(self.fitted["words"])}
        words = np.full((rows.height, CONFIG.max_words), PAD_ID)
        for i, row in enumerate(rows["words"].to_list()):
            words[i, : len(row)] = [index.get(word, UNK_ID) for word in row]
        batch = {"words": torch.from_numpy(words)}
        if "marks" in rows.columns:
            marks = np.full((rows.height, CONFIG.max_words), IGNORE_ID)
            for i, row in enumerate(rows["marks"].to_list()):
                marks[i, : len(row)] = [MARKS.index(mark) for mark in row]
            batch[LABEL] = torch.from_numpy(marks)
            batch[WEIGHT] = (batch[LABEL] != IGNORE_ID).sum(dim=1).float()
        return batch

    def build_model(self):
        return IteratedDilatedCNN(len(self.fitted["words"]))

    def token_losses(self, output, batch, weight=None):
        target = batch[LABEL]
        loss = F.cross_entropy(
            output.transpose(1, 2), target, weight=weight, ignore_index=IGNORE_ID, reduction="none"
        )
        return loss.sum(dim=1) / (target != IGNORE_ID).sum(dim=1).clamp(min=1)

    def losses(self, output, batch):
        return self.token_losses(output, batch)

    def training_losses(self, output, batch):
        return self.token_losses(output, batch, torch.tensor(MARK_WEIGHTS, device=output.device))

    def predict(self, output):
        return output.argmax(dim=-1)

    def statistic(self, output, batch):
        """Per passage and mark: hits, said, true; as means over its words, since passages are weighted by these."""
        said, true = output.argmax(dim=-1), batch[LABEL]
        real = true != IGNORE_ID
        marks = torch.arange(len(MARKS), device=true.device).view(1, -1, 1)
        says, is_true = (said[:, None] == marks) & real[:, None], true[:, None] == marks
        counts = torch.stack([says & is_true, says, is_true]).sum(dim=-1).permute(1, 2, 0)
        return (counts / real.sum(dim=1).clamp(min=1)[:, None, None]).flatten(1)

    def score(self, predictions, labels):
        totals = (predictions * labels[:, None]).sum(axis=0).reshape(len(MARKS), 3)
        hits, said, true = totals.T
        f1 = 2 * hits / np.maximum(said + true, 1e-9)
        return {"mark_f1": float(f1[1:].mean()), "accuracy": float(hits.sum() / true.sum())}

    def answer_texts(self, predictions, rows):
        signs = {"": "", "COMMA": ",", "PERIOD": ".", "QUESTION": "?"}
        return {
            "text": [
                " ".join(word + signs[MARKS[int(p)]] for word, p in zip(words, marks))
                for words, marks in zip(rows["words"].to_list(), predictions)
            ]
        }
