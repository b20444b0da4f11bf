"""Like finds like among spectra: supervised contrastive loss over a 1D CNN, noise and slope added while training.

data: minerals

[data]
label = "mineral"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 2e-3 }
strategy = "single"

[resources]
num_processes = 1
"""
import torch
import torch.nn.functional as F
from torch import nn

from perennial.engine.task import LABEL, Task

GALLERY = 64
TEMPERATURE = 0.1


class SpectrumEncoder(nn.Module):
    def __init__(self, out=16):
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(1, 16, 7, stride=2, padding=3), nn.ReLU(),
            nn.Conv1d(16, 32, 5, stride=2, padding=2), nn.ReLU(),
        )
        self.trunk = nn.Linear(32 * 18, 64)
        self.projection = nn.Linear(64, out)

    def forward(self, spectrum):
        h = self.features(spectrum.unsqueeze(1)).flatten(1)
        return F.normalize(self.projection(F.relu(self.trunk(h))), dim=1)


def supcon(z, y):
    """The mean over all of one's kind, in the log; alone: nothing to learn."""
    eye = torch.eye(len(z), dtype=torch.bool, device=z.device)
    sim = (z @ z.T / TEMPERATURE).masked_fill(eye, -1e9)
    logp = sim - sim.logsumexp(dim=1, keepdim=True)
    mates = (y[:, None] == y[None, :]) & ~eye
    return -(logp * mates).sum(1) / mates.sum(1).clamp(min=1)


class MineralSearch(Task):
    kind = "statistic"
    needs_whole_batch = True
    metrics = {"nearest_is_right": "maximize", "precision_at_3": "maximize"}
    scored_together = GALLERY
    scoring_rows = GALLERY * 16

    def fit(self, train):
        df = train.collect()
        x = torch.tensor(df["reflectance"].to_list())
        self.fitted = {"kinds": df["mineral"].unique().sort().to_list(), "scale": float(x.sub(x.mean(1, keepdim=True)).std())}

    def encode(self, rows):
        x = torch.tensor(rows["reflectance"].to_list(), dtype=torch.float32)
        x = (x - x.mean(dim=1, keepdim=True)) / self.fitted["scale"]
        batch = {"spectrum": x}
        if "mineral" in rows.columns:
            batch[LABEL] = torch.tensor([self.fitted["kinds"].index(m) for m in rows["mineral"]])
        return batch

    def augment(self, batch, generator):
        x = batch["spectrum"].cpu()
        slope = 0.3 * torch.randn(len(x), 1, generator=generator) * torch.linspace(-1, 1, x.shape[1])
        x = x + slope + 0.1 * torch.randn(x.shape, generator=generator)
        return {**batch, "spectrum": x.to(batch["spectrum"].device)}

    def build_model(self):
        return SpectrumEncoder()

    def training_losses(self, output, batch):
        return supcon(output, batch[LABEL])

    def losses(self, output, batch):
        return torch.cat([supcon(z, y) for z, y in zip(output.split(GALLERY), batch[LABEL].split(GALLERY))])

    def statistic(self, output, batch):
        """Right at once, right among three, and whether there is anything to find."""
        found = []
        for z, y in zip(output.split(GALLERY), batch[LABEL].split(GALLERY)):
            sim = z @ z.T
            sim.fill_diagonal_(-2)
            near = y[sim.topk(3, dim=1).indices] == y[:, None]
            has_mate = (y[:, None] == y[None]).sum(1) > 1
            found.append(torch.stack([near[:, 0] & has_mate, near.float().mean(1) * has_mate, has_mate], 1))
        return torch.cat(found).double()

    def score(self, predictions, labels):
        first, three, has_mate = (predictions * labels[:, None]).sum(0)
        return {"nearest_is_right": float(first / has_mate), "precision_at_3": float(three / has_mate)}
