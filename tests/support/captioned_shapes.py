"""Drawn shapes with captions: a small set of pairs in which every picture has its own caption."""

import os
import signal
from pathlib import Path

import numpy as np
import polars as pl
import torch

from perennial.contracts.data import DataSection, ModelSection, SplitSection
from perennial.contracts.snapshot import Snapshot
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.snapshot_data.manifest import take_snapshot
from perennial.tasks.image_text import ImageTextContrastive, ImageTextOptions

SIZE = 8
TASK = "perennial.tasks.image_text:ImageTextContrastive"
OPTIONS = {
    "shape": [SIZE, SIZE],
    "text": {"length": 32, "layers": 1, "width": 32, "heads": 2},
    "embedding": 16,
    "candidates": 16,
}


class Ungathered(ImageTextContrastive):
    """Compares the rows that it is given: the engine gathers those of all processes."""

    gathers_batch = False

    def training_losses(self, output, batch):
        products = output[:, 0] @ output[:, 1].T
        right = torch.arange(len(output))
        both = [
            torch.nn.functional.cross_entropy(each, right, reduction="none")
            for each in (products, products.T)
        ]
        return torch.stack(both).mean(dim=0)


class PassesApart(ImageTextContrastive):
    """Lets several passes make up an update, though they do not see each other's captions."""

    needs_whole_batch = False


def draw(kind: str, row: int, column: int, bright: bool, random) -> np.ndarray:
    """A square, a cross or a bar somewhere on a dark ground."""
    picture = random.normal(20, 5, (SIZE, SIZE))
    light = 220 if bright else 120
    if kind == "square":
        picture[row : row + 3, column : column + 3] = light
    elif kind == "cross":
        picture[row + 1, column : column + 3] = light
        picture[row : row + 3, column + 1] = light
    else:
        picture[row, column : column + 3] = light
    return picture.clip(0, 255).astype(np.uint8)


def captioned_shapes(rows: int, *, seed: int = 0) -> pl.DataFrame:
    """Pictures as lists of pixels, with captions that name shape, brightness and place."""
    random = np.random.default_rng(seed)
    pictures, captions = [], []
    for _ in range(rows):
        kind = str(random.choice(["square", "cross", "bar"]))
        row, column = (int(value) for value in random.integers(0, SIZE - 2, 2))
        bright = bool(random.integers(2))
        pictures.append(draw(kind, row, column, bright, random).ravel().tolist())
        shade = "bright" if bright else "pale"
        captions.append(f"a {shade} {kind} at {row} {column}")
    return pl.DataFrame(
        {
            "id": np.arange(rows),
            "picture": pl.Series(pictures, dtype=pl.List(pl.UInt8)),
            "caption": captions,
        }
    )


def write_shapes(folder: Path, rows: int = 400) -> Snapshot:
    """A data set of one file, and its snapshot in the folder `snapshot`."""
    folder.mkdir(parents=True, exist_ok=True)
    captioned_shapes(rows).write_parquet(folder / "part.parquet")
    data = DataSection(
        uri=str(folder),
        label="caption",
        ids=("id",),
        features=("picture", "caption"),
        text=("caption",),
    )
    snapshot = take_snapshot(data, SplitSection())
    snapshot.write(folder / "snapshot")
    return Snapshot.read(folder / "snapshot")


def shapes_job(
    root: Path, name: str, *, processes: int = 1, task: str = TASK, **training
) -> TrainingJob:
    """A training over the snapshot made by `write_shapes(root)`."""
    values = {
        "steps": 10, "global_batch_size": 32, "micro_batch_size": 32, "evaluate_every_steps": 5,
        "log_every_steps": 1, "evaluation_rows": None, "clipping": {"method": "none"},
        "optimizer": {"name": "sgd", "learning_rate": 0.05},
    }  # fmt: skip
    folder = root / f"job-{name}"
    folder.mkdir()
    return TrainingJob(
        fingerprint=name,
        snapshot=str(root / "snapshot"),
        model=ModelSection(name="shapes", task=task, options=OPTIONS),
        training=TrainingSection.model_validate(values | training, strict=False),
        num_processes=processes,
        folder=str(folder),
    )


class StoppingOptions(ImageTextOptions):
    stop_call: int = -1
    """The training pass, counted from 0, that asks the process to stop."""


class StoppingPairs(ImageTextContrastive):
    """The same in a training that a signal stops."""

    Options = StoppingOptions

    def __init__(self, options, columns):
        super().__init__(options, columns)
        self.calls = 0

    def training_losses(self, output, batch):
        if torch.is_grad_enabled() and not output.is_meta:  # such passes only count FLOPs
            if self.calls == self.options.stop_call:
                os.kill(os.getpid(), signal.SIGTERM)
            self.calls += 1
        return super().training_losses(output, batch)
