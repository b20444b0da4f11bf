"""A diagonal state space model (S4D) writes docstrings letter by letter: complex poles, a long convolution by FFT, gated.

data: corpus

[data]
label = "text"
features = ["text"]
text = ["text"]
ids = ["row_id"]

[skeleton]
sample_rows = 256
batch_rows = 32
training_steps = 60

[training]
steps = 250
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 4e-3 }
"""
import math

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from perennial.engine.task import LABEL, WEIGHT, Task

ALPHABET = " abcdefghijklmnopqrstuvwxyz0123456789.,:;()[]_`'\"=-+*/\n"
PAD, START = len(ALPHABET) + 1, 0  # what is not in the alphabet shares 0 with the start
V = len(ALPHABET) + 2
L = 72


class S4D(nn.Module):
    def __init__(self, d, n=8):
        super().__init__()
        self.log_dt = nn.Parameter(torch.rand(d) * (math.log(0.5) - math.log(0.01)) + math.log(0.01))
        self.log_re = nn.Parameter(torch.full((d, n), math.log(0.5)))
        self.im = nn.Parameter(math.pi * torch.arange(n).float().expand(d, n).clone())
        self.C = nn.Parameter(torch.view_as_real(torch.randn(d, n, dtype=torch.cfloat)))
        self.D = nn.Parameter(torch.randn(d))

    def kernel(self, length):
        dt = self.log_dt.exp()[:, None]
        A = -self.log_re.exp() + 1j * self.im
        C = torch.view_as_complex(self.C) * (torch.exp(dt * A) - 1) / A
        powers = (dt * A)[..., None] * torch.arange(length, device=A.device)
        return 2 * torch.einsum("dn,dnl->dl", C, powers.exp()).real

    def forward(self, u):  # (B, d, L)
        length = u.shape[-1]
        k = torch.fft.rfft(self.kernel(length), n=2 * length)
        y = torch.fft.irfft(torch.fft.rfft(u, n=2 * length) * k, n=2 * length)[..., :length]
        return y + self.D[:, None] * u


class Block(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.norm, self.ssm = nn.LayerNorm(d), S4D(d)
        self.mix = nn.Linear(d, 2 * d)

    def forward(self, x):
        y = F.gelu(self.ssm(self.norm(x).transpose(1, 2)).transpose(1, 2))
        return x + F.glu(self.mix(y), dim=-1)


class StateSpaceLM(nn.Module):
    def __init__(self, d=48, depth=2):
        super().__init__()
        self.embed = nn.Embedding(V, d)
        nn.init.normal_(self.embed.weight, std=d**-0.5)
        self.blocks = nn.Sequential(*[Block(d) for _ in range(depth)])
        self.norm = nn.LayerNorm(d)

    def forward(self, chars):
        return F.linear(self.norm(self.blocks(self.embed(chars))), self.embed.weight)


class Docstrings(Task):
    kind = "statistic"
    metrics = {"bits_per_char": "minimize"}

    def encode(self, rows):
        code = {c: i + 1 for i, c in enumerate(ALPHABET)}
        ids = np.full((len(rows), L + 1), PAD)
        ids[:, 0] = START
        for i, text in enumerate(rows["text"]):
            line = [code.get(c, START) for c in text.lower()[:L]]
            ids[i, 1 : 1 + len(line)] = line
        ids = torch.from_numpy(ids)
        real = (ids[:, 1:] != PAD).sum(dim=1)
        return {"chars": ids[:, :-1], LABEL: ids[:, 1:], WEIGHT: real.float()}

    def build_model(self):
        return StateSpaceLM()

    def losses(self, output, batch):
        y = batch[LABEL]
        ce = F.cross_entropy(output.transpose(1, 2), y, reduction="none")
        real = (y != PAD).float()
        return (ce * real).sum(1) / real.sum(1)

    def statistic(self, output, batch):
        return self.losses(output, batch) / math.log(2)

    def score(self, predictions, labels):
        return {"bits_per_char": float(np.average(predictions.ravel(), weights=labels))}
