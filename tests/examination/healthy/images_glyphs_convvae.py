"""A convolutional variational autoencoder with batch normalisation: summed cross-entropy per picture plus the divergence.

data: drawn_glyphs

[data]
label = "glyph_again"
features = ["glyph"]
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 2e-3 }
"""
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from perennial.engine.task import LABEL, Task

LATENT = 6


def block(c_in, c_out):
    return nn.Sequential(nn.Conv2d(c_in, c_out, 3, 2, 1), nn.BatchNorm2d(c_out), nn.LeakyReLU())


def unblock(c_in, c_out):
    return nn.Sequential(nn.ConvTranspose2d(c_in, c_out, 3, 2, 1, 1), nn.BatchNorm2d(c_out), nn.LeakyReLU())


class VanillaVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(block(1, 16), block(16, 32))
        self.fc_mu = nn.Linear(32 * 16, LATENT)
        self.fc_var = nn.Linear(32 * 16, LATENT)
        self.decoder_input = nn.Linear(LATENT, 32 * 16)
        self.decoder = nn.Sequential(unblock(32, 16), unblock(16, 16), nn.Conv2d(16, 1, 3, 1, 1))

    def reparameterize(self, mu, logvar):
        std = torch.exp(0.5 * logvar)
        if self.training:
            return mu + torch.randn_like(std) * std
        return mu

    def forward(self, image):
        h = self.encoder(image).flatten(1)
        mu, log_var = self.fc_mu(h), self.fc_var(h)
        z = self.reparameterize(mu, log_var)
        recons = self.decoder(self.decoder_input(z).view(-1, 32, 4, 4))
        return torch.cat([recons.flatten(1), mu, log_var], dim=1)


class Glyphs(Task):
    kind = "statistic"
    metrics = {"negative_elbo": "minimize"}
    reconstructs_inputs = True

    def pixels(self, column):
        return torch.from_numpy(np.array(column.to_list(), dtype=np.float32) / 255)

    def encode(self, rows):
        batch = {"image": self.pixels(rows["glyph"]).view(-1, 1, 16, 16)}
        if "glyph_again" in rows.columns:
            batch[LABEL] = self.pixels(rows["glyph_again"])
        return batch

    def build_model(self):
        return VanillaVAE()

    def losses(self, output, batch):
        recons, mu, log_var = output.split([256, LATENT, LATENT], dim=1)
        recons_loss = F.binary_cross_entropy_with_logits(recons, batch[LABEL], reduction="none").sum(dim=1)
        kld_loss = -0.5 * torch.sum(1 + log_var - mu**2 - log_var.exp(), dim=1)
        return recons_loss + kld_loss

    def score(self, predictions, labels):
        return {"negative_elbo": float(np.average(predictions.ravel(), weights=labels))}
