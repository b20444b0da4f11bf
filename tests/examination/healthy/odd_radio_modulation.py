"""Modulation of a radio signal from I and Q, after O'Shea's networks for RadioML.

data: radio_captures

[data]
label = "modulation"
features = ["iq"]
group = "capture"
ids = ["row_id"]
meta = ["snr_db"]

[split]
method = "group"

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3 }
schedule = { shape = "cosine" }
"""

import math

import numpy as np
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

N = 96
MODS = ("bpsk", "gfsk", "pam4", "qam16", "qpsk")


def block(c_in, c_out, k):
    return nn.Sequential(
        nn.Conv1d(c_in, c_out, k, padding=k // 2, bias=False),
        nn.BatchNorm1d(c_out),
        nn.ReLU(inplace=True),
    )


class ModNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            block(4, 24, 9), nn.MaxPool1d(2), block(24, 32, 5), nn.MaxPool1d(2), block(32, 48, 5)
        )
        self.head = nn.Sequential(nn.Linear(96, 48), nn.ReLU(), nn.Dropout(0.2), nn.Linear(48, 5))

    def forward(self, iq):
        z = torch.complex(iq[:, 0], iq[:, 1])
        turn = z[:, 1:] * z[:, :-1].conj()  # how far the phase moves from sample to sample
        turn = torch.nn.functional.pad(torch.stack([turn.real, turn.imag], 1), (1, 0))
        h = self.body(torch.cat([iq, turn], dim=1))
        return self.head(torch.cat([h.mean(-1), h.std(-1)], dim=1)).log_softmax(dim=1)


class RadioModulation(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "log_loss")

    def encode(self, rows):
        iq = np.array(rows["iq"].to_list(), dtype=np.float32).reshape(-1, N, 2)
        iq = iq.transpose(0, 2, 1)  # I and Q become channels
        power = np.square(iq).sum(axis=1).mean(axis=1)  # receivers differ in gain
        iq = iq / np.sqrt(power + 1e-12)[:, None, None]
        batch = {"iq": torch.from_numpy(np.ascontiguousarray(iq))}
        if "modulation" in rows.columns:
            batch[LABEL] = torch.tensor([MODS.index(m) for m in rows["modulation"]])
        return batch

    def augment(self, batch, generator):
        """A receiver's phase is arbitrary: turn the plane."""
        iq = batch["iq"]
        angle = 2 * math.pi * torch.rand(len(iq), 1, generator=generator)
        i, q = iq[:, 0], iq[:, 1]
        turned = [i * angle.cos() - q * angle.sin(), i * angle.sin() + q * angle.cos()]
        return {**batch, "iq": torch.stack(turned, dim=1)}

    def build_model(self):
        return ModNet()

    def losses(self, output, batch):
        return -output.gather(1, batch[LABEL][:, None]).squeeze(1)

    def predict(self, output):
        return output.exp()
