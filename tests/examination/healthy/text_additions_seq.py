"""The Keras addition example, as a GRU encoder whose state writes three digits.

data: additions

[data]
label = "answer"
features = ["question"]
ids = ["row_id"]

[training]
steps = 800
global_batch_size = 128
micro_batch_size = 64
optimizer = { learning_rate = 5e-3 }
"""
import math

import numpy as np
import torch
from torch import nn

from perennial.engine.task import LABEL, Task

CHARS = "0123456789+ "


class Adder(nn.Module):
    def __init__(self, hidden=96):
        super().__init__()
        self.encoder = nn.GRU(len(CHARS), hidden, batch_first=True)
        self.decoder = nn.GRU(hidden, hidden, batch_first=True)
        self.dense = nn.Linear(hidden, len(CHARS))

    def forward(self, question):
        _, h = self.encoder(question)
        repeated = h[0].unsqueeze(1).repeat(1, 3, 1)
        out, _ = self.decoder(repeated)
        return self.dense(out)


class Additions(Task):
    kind = "statistic"
    metrics = {"digit_accuracy": "maximize"}

    def fit(self, train): pass

    def state(self): return {}

    def load_state(self, state): pass

    def encode(self, rows):
        x = np.zeros((len(rows), 5, len(CHARS)), dtype=np.float32)
        for i, q in enumerate(rows["question"]):
            for t, c in enumerate(q.ljust(5)[::-1]):
                x[i, t, CHARS.index(c)] = 1
        batch = {"question": torch.from_numpy(x)}
        if "answer" in rows.columns:
            batch[LABEL] = torch.tensor([[CHARS.index(c) for c in a.ljust(3)] for a in rows["answer"]])
        return batch

    def build_model(self):
        return Adder()

    def losses(self, output, batch):
        return nn.functional.cross_entropy(output.permute(0, 2, 1), batch[LABEL], reduction="none").mean(1)

    def predict(self, output):
        return output.argmax(-1)

    def statistic(self, output, batch):
        return (output.argmax(-1) == batch[LABEL]).float().mean(1)

    def score(self, predictions, labels):
        return {"digit_accuracy": float(np.average(predictions.reshape(-1), weights=labels))}

    def expected_initial_loss(self):
        return math.log(len(CHARS))
