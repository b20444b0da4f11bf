"""Captcha OCR after the Keras example: convolutions, a two-way GRU over columns, CTC over them.

data: digit_strips

[data]
label = "number"
features = ["strip"]
ids = ["row_id"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

BLANK, CLASSES, COLUMNS = 0, 11, 20


class CRNN(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.cnn = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(),
        )
        self.rnn = nn.GRU(32 * 4, hidden, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * hidden, CLASSES)

    def forward(self, strip):
        x = self.cnn(strip)
        x = x.permute(0, 3, 1, 2).flatten(2)  # columns are time
        return self.fc(self.rnn(x)[0])


def ctc(logits, targets):
    n = len(logits)
    lengths = torch.full((n,), COLUMNS, dtype=torch.long)
    spelt = (targets != BLANK).sum(1)
    log_probs = logits.log_softmax(2).transpose(0, 1)
    return F.ctc_loss(log_probs, targets, lengths, spelt, blank=BLANK, reduction="none", zero_infinity=True)


def codes(numbers):
    return torch.tensor([([int(c) + 1 for c in text] + [BLANK] * 4)[:4] for text in numbers])


class StripReader(Task):
    kind = "statistic"
    metrics = {"exact": "maximize"}

    def fit(self, train):
        targets = codes(train.select("number").collect()["number"])
        self.undecided = float(ctc(torch.zeros(len(targets), COLUMNS, CLASSES), targets).mean())

    def state(self):
        return {"undecided": self.undecided}

    def load_state(self, state):
        self.undecided = state["undecided"]

    def encode(self, rows):
        strip = np.asarray(rows["strip"].to_list(), dtype=np.float32) / 16
        batch = {"strip": torch.from_numpy(strip).reshape(-1, 1, 8, 40)}
        if "number" in rows.columns:
            batch[LABEL] = codes(rows["number"])
        return batch

    def build_model(self):
        return CRNN()

    def losses(self, output, batch):
        return ctc(output, batch[LABEL])

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        best = output.argmax(-1)
        new = torch.ones_like(best, dtype=torch.bool)
        new[:, 1:] = best[:, 1:] != best[:, :-1]
        read = [row[keep & (row != BLANK)].tolist() for row, keep in zip(best, new)]
        true = [row[row != BLANK].tolist() for row in batch[LABEL]]
        return torch.tensor([float(a == b) for a, b in zip(read, true)], dtype=torch.float64, device=output.device)

    def score(self, predictions, labels):
        return {"exact": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return self.undecided
