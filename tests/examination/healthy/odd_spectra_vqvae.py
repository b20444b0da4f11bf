"""A VQ-VAE of Raman spectra: sixteen codes for each, straight-through gradients.

data: mineral_spectra

[data]
label = "counts"
features = ["counts"]
ids = ["row_id"]
meta = ["lab"]

[training]
steps = 500
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 3e-3, weight_decay = 0.0 }
schedule = { shape = "cosine" }
"""

import numpy as np
import torch
import torch.nn.functional as F
from torch import einsum, nn

from perennial.engine.task import LABEL, Task

BINS = 64


class VectorQuantize(nn.Module):
    def __init__(self, codes=64, dim=16):
        super().__init__()
        self.codebook = nn.Parameter(torch.randn(codes, dim) * 0.5)

    def forward(self, z):  # [b, n, d]
        distance = z.pow(2).sum(-1, keepdim=True) - 2 * einsum(
            "b n d, c d -> b n c", z, self.codebook
        )
        distance = distance + self.codebook.pow(2).sum(-1)
        q = self.codebook[distance.argmin(dim=-1)]
        codebook_loss = (q - z.detach()).pow(2).mean(dim=(1, 2))
        commitment = (z - q.detach()).pow(2).mean(dim=(1, 2))
        return z + (q - z).detach(), codebook_loss + 0.25 * commitment


class VQVAE(nn.Module):
    def __init__(self, dim=16, hidden=32):
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv1d(1, hidden, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(hidden, hidden, 5, stride=2, padding=2),
            nn.GELU(),
            nn.Conv1d(hidden, dim, 1),
        )
        self.vq = VectorQuantize(dim=dim)
        self.decoder = nn.Sequential(
            nn.Conv1d(dim, hidden, 3, padding=1),
            nn.GELU(),
            nn.ConvTranspose1d(hidden, hidden, 4, stride=2, padding=1),
            nn.GELU(),
            nn.ConvTranspose1d(hidden, 1, 4, stride=2, padding=1),
        )

    def forward(self, spectrum):
        z = self.encoder(spectrum[:, None]).transpose(1, 2)
        q, vq_loss = self.vq(z)
        again = self.decoder(q.transpose(1, 2)).squeeze(1)
        return torch.cat([again, vq_loss[:, None]], dim=1)  # the last column is the code's loss


class Spectra(Task):
    kind = "statistic"
    reconstructs_inputs = True

    def encode(self, rows):
        counts = np.array(rows["counts"].to_list(), dtype=np.float32).reshape(-1, BINS)
        counts = np.sqrt(np.clip(counts, 0, None))  # the noise of counts becomes even
        middle = counts.mean(axis=1, keepdims=True)
        spread = counts.std(axis=1, keepdims=True)
        spectrum = torch.from_numpy((counts - middle) / (spread + 1e-6))
        return {"spectrum": spectrum, LABEL: spectrum.clone()}

    def build_model(self):
        return VQVAE()

    def losses(self, output, batch):
        return F.mse_loss(output[:, :-1], batch[LABEL], reduction="none").mean(dim=1)

    def training_losses(self, output, batch):
        return self.losses(output, batch) + output[:, -1]
