"""Counts of genes in single cells in the manner of scVI (Lopez et al., 2018): a variational
autoencoder with a negative binomial likelihood, observed library sizes and laboratories as batches.

data: cell_counts

[data]
label = "umi_again"
features = ["umi", "lab"]
ids = ["row_id"]
meta = ["donor"]

[training]
steps = 600
global_batch_size = 64
micro_batch_size = 64
optimizer = { learning_rate = 5e-3, weight_decay = 1e-6 }
"""

import torch
from torch import nn
from torch.distributions import Normal, kl_divergence
from torch.nn import functional as F

from perennial.engine.task import LABEL, Task

N_GENES, N_LATENT, N_HIDDEN = 60, 6, 48


def log_nb_positive(x, mu, theta, eps=1e-8):
    """Log-likelihood of a negative binomial with mean mu and inverse dispersion theta."""
    log_theta_mu_eps = torch.log(theta + mu + eps)
    return (
        theta * (torch.log(theta + eps) - log_theta_mu_eps)
        + x * (torch.log(mu + eps) - log_theta_mu_eps)
        + torch.lgamma(x + theta)
        - torch.lgamma(theta)
        - torch.lgamma(x + 1)
    )


class Encoder(nn.Module):
    def __init__(self, n_batch):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(N_GENES + n_batch, N_HIDDEN), nn.LayerNorm(N_HIDDEN), nn.ReLU()
        )
        self.mean = nn.Linear(N_HIDDEN, N_LATENT)
        self.log_var = nn.Linear(N_HIDDEN, N_LATENT)

    def forward(self, x, batch):
        h = self.layers(torch.cat([torch.log1p(x), batch], dim=-1))
        return self.mean(h), self.log_var(h).clamp(-8, 4)


class VAE(nn.Module):
    def __init__(self, n_batch):
        super().__init__()
        self.n_batch = n_batch
        self.z_encoder = Encoder(n_batch)
        self.decoder = nn.Sequential(
            nn.Linear(N_LATENT + n_batch, N_HIDDEN), nn.ReLU(), nn.Linear(N_HIDDEN, N_GENES)
        )
        self.px_r = nn.Parameter(torch.randn(N_GENES) * 0.1)

    def forward(self, umi, lab):
        batch = F.one_hot(lab, self.n_batch).float()
        library = torch.log(umi.sum(dim=1, keepdim=True).clamp(min=1))
        qz_m, qz_lv = self.z_encoder(umi, batch)
        z = qz_m
        if self.training:  # the mean stands for the posterior when it is measured or served
            z = qz_m + torch.exp(0.5 * qz_lv) * torch.randn_like(qz_m)
        px_scale = self.decoder(torch.cat([z, batch], dim=-1)).softmax(dim=-1)
        px_rate = torch.exp(library) * px_scale
        theta = torch.exp(self.px_r).expand_as(px_rate)
        return torch.cat([px_rate, theta, qz_m, qz_lv], dim=-1)


class Cells(Task):
    kind = "statistic"
    metrics = {"nats_per_gene": "minimize"}
    reconstructs_inputs = True
    serves_predictions = True

    @property
    def prediction_names(self):
        return [f"z_{k}" for k in range(N_LATENT)]

    def fit(self, train):
        labs = train.select("lab").unique().collect()["lab"]
        self.fitted = {"labs": sorted(labs)}

    def encode(self, rows):
        index = {lab: k for k, lab in enumerate(self.fitted["labs"], start=1)}  # 0: another one
        batch = {
            "umi": torch.tensor(rows["umi"].to_list(), dtype=torch.float32),
            "lab": torch.tensor([index.get(lab, 0) for lab in rows["lab"]]),
        }
        if "umi_again" in rows.columns:
            batch[LABEL] = torch.tensor(rows["umi_again"].to_list(), dtype=torch.float32)
        return batch

    def build_model(self):
        return VAE(len(self.fitted["labs"]) + 1)

    def parts(self, output):
        return output.split([N_GENES, N_GENES, N_LATENT, N_LATENT], dim=-1)

    def reconstruction(self, output, x):
        px_rate, theta, _, _ = self.parts(output)
        return -log_nb_positive(x, px_rate, theta).sum(dim=-1)

    def losses(self, output, batch):
        _, _, qz_m, qz_lv = self.parts(output)
        prior = Normal(torch.zeros_like(qz_m), torch.ones_like(qz_m))
        kl = kl_divergence(Normal(qz_m, torch.exp(0.5 * qz_lv)), prior).sum(dim=1)
        return (self.reconstruction(output, batch[LABEL]) + kl) / N_GENES

    def predict(self, output):
        return self.parts(output)[2]

    def statistic(self, output, batch):
        return self.reconstruction(output, batch[LABEL]) / N_GENES

    def score(self, predictions, labels):
        return {"nats_per_gene": float((predictions.ravel() * labels).sum() / labels.sum())}
