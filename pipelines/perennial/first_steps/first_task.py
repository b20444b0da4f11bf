"""First task: the text of the task that `perennial init custom` writes, for classes or a number."""

FIRST_TASK = '''"""A task of one's own: numbers and categories of a table through a small network.

Change anything; `perennial sanity contract.toml` then checks it in seconds.
"""

import math

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.api import LABEL, Task


class FirstTask(Task):
    kind = $kind
    def fit(self, train):  # sees the training split only
        """Learn scales of numbers and values of categories."""
        features = train.select(sorted(self.columns.features)).collect()
        numbers, categories = {}, {}
        for name in features.columns:
            column = features[name]
            if column.dtype.is_numeric():
                values = column.cast(pl.Float64).drop_nulls().drop_nans().to_numpy()
                mean = float(values.mean()) if len(values) else 0.0
                # Asked of the range: the deviation of equal values is not exactly zero.
                differ = len(values) and values.min() < values.max()
                scale = float(values.std()) if differ else 1.0
                numbers[name] = [mean, scale, len(values) < len(column)]
            else:
                texts = column.cast(pl.String).fill_null("(missing)")
                counts = texts.alias("text").value_counts().sort("text")
                categories[name] = counts.filter(pl.col("count") >= 20)["text"].to_list()
        label = train.select(self.columns.label).drop_nulls().collect().to_series()
        # JSON, stored with the weights.
        self.fitted = {"numbers": numbers, "categories": categories, **self.fit_label(label)}
$fit_label
    def encode(self, rows):  # the same for training, evaluation and serving
        """Each number standardised, with a mark if it may be missing; each category as 0 or 1."""
        inputs = []
        for name, (mean, scale, may_miss) in sorted(self.fitted["numbers"].items()):
            values = rows[name].cast(pl.Float64).fill_null(math.nan).to_numpy()
            is_missing = np.isnan(values)
            inputs += [np.where(is_missing, 0.0, (values - mean) / scale)]
            inputs += [is_missing] if may_miss else []
        for name, known in sorted(self.fitted["categories"].items()):
            texts = rows[name].cast(pl.String).fill_null("(missing)")
            inputs += [(texts == value).to_numpy() for value in known]
        batch = {"inputs": torch.from_numpy(np.stack(inputs, axis=1).astype(np.float32))}
        if self.columns.label in rows.columns:  # not when serving
            batch[LABEL] = self.encode_label(rows[self.columns.label])
        return batch
$encode_label
    def build_model(self):
        width = sum(2 if may_miss else 1 for _, _, may_miss in self.fitted["numbers"].values())
        width += sum(len(known) for known in self.fitted["categories"].values())
        return Network(width, torch.tensor($first_output))
$rest

class Network(nn.Module):
    def __init__(self, width, first_output):
        super().__init__()
        self.hidden = nn.Sequential(nn.Linear(width, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU())
        self.output = nn.Linear(64, len(first_output))
        with torch.no_grad():  # the first outputs are near the best constant
            self.output.weight.mul_(0.1)
            self.output.bias.copy_(first_output)

    def forward(self, inputs):  # [B, width] → [B, outputs]
        return self.output(self.hidden(inputs))
'''
CLASSIFICATION = {
    "kind": '"multiclass"  # measured by log_loss and accuracy',
    "first_output": 'self.fitted["shares"]).log(',
    "fit_label": """
    def fit_label(self, label):
        counts = label.alias("value").value_counts().sort("value")
        classes = counts["value"].cast(pl.String).to_list()
        return {"classes": classes, "shares": [n / len(label) for n in counts["count"]]}
""",
    "encode_label": """
    def encode_label(self, label):
        codes = {name: code for code, name in enumerate(self.fitted["classes"])}
        return torch.tensor([codes[name] for name in label.cast(pl.String)])
""",
    "rest": """
    def losses(self, output, batch):  # one per example, shape [B]: the engine averages
        return nn.functional.cross_entropy(output, batch[LABEL], reduction="none")

    @property
    def prediction_names(self):
        return [f"probability_{name}" for name in self.fitted["classes"]]
""",
}
"""Parts of the template for a label of classes."""
REGRESSION = {
    "kind": '"regression"  # measured by rmse, mae and r2',
    "first_output": "[0.0]",
    "fit_label": """
    def fit_label(self, label):
        values = label.to_numpy().astype(np.float64)
        return {"mean": float(values.mean()), "scale": float(values.std())}
""",
    "encode_label": """
    def encode_label(self, label):
        return torch.from_numpy(label.cast(pl.Float32).to_numpy(writable=True))
""",
    "rest": """
    def losses(self, output, batch):  # one per example, shape [B]: the engine averages
        target = (batch[LABEL] - self.fitted["mean"]) / self.fitted["scale"]
        return (output.squeeze(-1) - target).square()

    def predict(self, output):  # in the unit of the label
        return output.squeeze(-1) * self.fitted["scale"] + self.fitted["mean"]

    @property
    def prediction_names(self):
        return [self.columns.label]
""",
}
"""Parts of the template for a label that is a number."""
