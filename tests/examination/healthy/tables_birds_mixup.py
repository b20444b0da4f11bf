"""Four kinds of waders, 480 birds, gaps filled by the mean: tabular mixup, in a Keras-like model.

data: birds

[data]
label = "kind"
ids = ["row_id"]

[training]
steps = 400
global_batch_size = 32
micro_batch_size = 32
optimizer = { learning_rate = 3e-3, weight_decay = 0.05 }
"""
import torch
from torch import nn

from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Task

NUMERIC = ["bill_mm", "wing_mm", "mass_g", "tarsus_mm"]
CLASSES = ["dunlin", "knot", "ruff", "sanderling"]


class Dense(nn.Module):
    def __init__(self, units_in, units, activation=None):
        super().__init__()
        self.kernel = nn.Parameter(torch.empty(units_in, units))
        self.bias = nn.Parameter(torch.zeros(units))
        nn.init.xavier_uniform_(self.kernel)
        self.activation = activation or (lambda h: h)

    def forward(self, h):
        return self.activation(h @ self.kernel + self.bias)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            Dense(2 * len(NUMERIC) + 3, 24, activation=torch.tanh),
            nn.Dropout(0.1),
            Dense(24, 16, activation=torch.tanh),
            Dense(16, len(CLASSES)),
        )

    def forward(self, inputs):
        return self.layers(inputs)


class Waders(Task):
    kind = "multiclass"
    metrics = directions_of("accuracy", "macro_f1", "log_loss")
    alpha = 0.3

    def fit(self, train):
        df = train.select(NUMERIC).collect()
        self.fitted = {
            "mean": [df[c].mean() for c in NUMERIC],
            "std": [df[c].std() for c in NUMERIC],
        }

    def encode(self, rows):
        columns = []
        for name, mean, std in zip(NUMERIC, self.fitted["mean"], self.fitted["std"]):
            columns += [(rows[name].fill_null(mean) - mean) / std, rows[name].is_null().cast(float)]
        for sex in ("f", "m", "?"):
            columns.append((rows["sex"].fill_null("?") == sex).cast(float))
        batch = {"inputs": torch.stack([torch.tensor(c.to_numpy(), dtype=torch.float32) for c in columns], dim=1)}
        if "kind" in rows.columns:
            codes = torch.tensor([CLASSES.index(k) for k in rows["kind"]])
            batch[LABEL] = nn.functional.one_hot(codes, len(CLASSES)).float()
        return batch

    def augment(self, batch, generator):
        x, y = batch["inputs"], batch[LABEL]
        partner = torch.randperm(len(x), generator=generator)
        a, b = torch.rand(2, len(x), generator=generator) ** (1 / self.alpha)
        lam = torch.where(a + b > 0, a / (a + b).clamp(min=1e-12), 0.5)[:, None]  # Beta, after Johnk
        lam = torch.maximum(lam, 1 - lam)
        return batch | {"inputs": lam * x + (1 - lam) * x[partner], LABEL: lam * y + (1 - lam) * y[partner]}

    def build_model(self):
        return Model()

    def losses(self, output, batch):
        return -(batch[LABEL] * output.log_softmax(dim=1)).sum(dim=1)

    def predict(self, output):
        return output.softmax(dim=1)

    def score(self, predictions, labels):
        return super().score(predictions, labels.argmax(axis=1).astype(float))

    @property
    def prediction_names(self):
        return CLASSES
