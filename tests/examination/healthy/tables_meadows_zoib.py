"""Cover of grasses: a zero-one-inflated beta regression, splines of altitude for each species.

data: meadow_cover

[data]
label = "cover_pct"
group = "plot"
ids = ["row_id"]

[training]
steps = 700
global_batch_size = 128
micro_batch_size = 128
optimizer = { learning_rate = 8e-3, weight_decay = 0.05 }
"""
# cover ~ zoib; zi ~ eta0, oi ~ eta1, mu ~ eta2, phi ~ 1
# eta ~ (1 + s(altitude, k = 7) + ph + ph_unknown + southness + use | species) + year + observer
import numpy as np
import polars as pl
import torch
from scipy.interpolate import BSpline
from torch import nn
from torch.nn.functional import logsigmoid, softplus

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

USES = ["mown", "grazed", "both", "none"]
K = 7
EDGE = 1e-3


def bspline(x, knots):
    """Cubic B-splines at x, which is held within the outer knots."""
    t = np.r_[[knots[0]] * 3, knots, [knots[-1]] * 3]
    inside = np.clip(x, knots[0], np.nextafter(knots[-1], -np.inf))
    return BSpline.design_matrix(inside, t, 3).toarray()


class Zoib(nn.Module):
    def __init__(self, n_fixed, n_varying, n_species, rank=8):
        super().__init__()
        self.fixed = nn.Linear(n_fixed, 3)
        self.shared = nn.Linear(n_varying, 3, bias=False)
        # each species' own slopes, of low rank: traits times responses
        self.traits = nn.Embedding(n_species + 1, rank, padding_idx=0)
        self.responses = nn.Parameter(0.1 * torch.randn(rank, n_varying, 3))
        self.level = nn.Embedding(n_species + 1, 3, padding_idx=0)
        self.log_phi = nn.Parameter(torch.tensor(1.0))
        nn.init.normal_(self.traits.weight[1:], std=0.5)
        nn.init.zeros_(self.level.weight)

    def forward(self, fixed, varying, species):
        own = torch.einsum("br,rvk,bv->bk", self.traits(species), self.responses, varying)
        eta = self.fixed(fixed) + self.shared(varying) + self.level(species) + own
        return torch.cat([eta, self.log_phi.expand(len(eta), 1)], dim=1)


class Meadows(Task):
    kind = "regression"
    metrics = directions_of("mae", "rmse", "r2")

    def fit(self, train):
        df = train.collect()
        heights = df["altitude"].to_numpy()
        self.fitted = {
            "knots": np.quantile(heights, np.linspace(0, 1, K - 2)).tolist(),
            "ph": df["ph"].mean(),
            "species": df["species"].unique().sort().to_list(),
            "observers": df["observer"].unique().sort().to_list(),
        }

    def encode(self, rows):
        f = self.fitted
        spline = bspline(rows["altitude"].to_numpy().astype(float), f["knots"])
        unknown = rows["ph"].is_null().to_numpy()
        ph = rows["ph"].fill_null(f["ph"]).to_numpy() - f["ph"]
        steep = np.sin(np.deg2rad(rows["slope"].to_numpy()))
        facing = rows["aspect"].cast(pl.Float64).fill_null(90.0).to_numpy()  # flat: neither way
        south = -np.cos(np.deg2rad(facing)) * steep
        use = rows["use"].to_numpy()[:, None] == np.array(USES[1:])
        who = rows["observer"].to_numpy()[:, None] == np.array(f["observers"])
        year = (rows["year"].to_numpy()[:, None] - 2018) / 5
        code = {name: k for k, name in enumerate(f["species"], start=1)}
        varying = np.column_stack([spline, ph, unknown, south, use])
        batch = {
            "fixed": torch.as_tensor(np.column_stack([year, who]), dtype=torch.float32),
            "varying": torch.as_tensor(varying, dtype=torch.float32),
            "species": torch.tensor([code.get(s, 0) for s in rows["species"]]),
        }
        if "cover_pct" in rows.columns:
            cover = rows["cover_pct"].to_numpy(writable=True)
            batch[LABEL] = torch.as_tensor(cover, dtype=torch.float32)
        return batch

    def build_model(self):
        n_varying = K + 3 + len(USES) - 1
        return Zoib(1 + len(self.fitted["observers"]), n_varying, len(self.fitted["species"]))

    def losses(self, output, batch):
        zero, one, mid, log_phi = output.unbind(1)
        y = batch[LABEL] / 100
        none, full = y <= 0, y >= 1
        phi = log_phi.exp() + EDGE
        mu = mid.sigmoid() * (1 - 2 * EDGE) + EDGE
        a, b = mu * phi, (1 - mu) * phi
        inner = y.clamp(EDGE, 1 - EDGE)  # so that the branch not taken has a gradient of zero
        beta = torch.lgamma(a + b) - torch.lgamma(a) - torch.lgamma(b)
        beta = beta + (a - 1) * inner.log() + (b - 1) * torch.log1p(-inner)
        some = softplus(zero)  # -log P(not none)
        return torch.where(
            none,
            -logsigmoid(zero),
            some + torch.where(full, -logsigmoid(one), softplus(one) - beta),
        )

    def predict(self, output):
        zero, one, mid, _ = output.unbind(1)
        full = one.sigmoid()
        return 100 * (-zero).sigmoid() * (full + (1 - full) * mid.sigmoid())
