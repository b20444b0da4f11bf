"""A small stream of made-up documents, pinned, and language models that learn it in seconds."""

from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl

from perennial.check_skeleton.config import SkeletonSection
from perennial.check_skeleton.subject import Subject
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import LABEL
from perennial.snapshot_data.manifest import take_snapshot
from perennial.tasks.language_modeling import TOKENS, CausalLanguageModel
from skeleton_tables import WITHOUT_TRIALS

WORDS = ("array", "axis", "mean", "of", "over", "returns", "shape", "sum", "the", "value")
SMALL = {"context_length": 24, "width": 32, "layers": 2, "heads": 2}
SETTINGS = SkeletonSection(
    sample_rows=128, batch_rows=16, overfit_rows=4, training_steps=60, learning_rates=(1e-2, 1e-3),
    severities=WITHOUT_TRIALS,
)  # fmt: skip


def documents(rows: int = 600, *, words: tuple[str, ...] = WORDS, seed: int = 3) -> pl.DataFrame:
    """Sentences of one to six words, each of which tends to be followed by its neighbour."""
    random = np.random.default_rng(seed)
    texts = []
    for row in range(rows):
        at = [int(random.integers(len(words)))]
        for _ in range(int(random.integers(6))):
            at.append((at[-1] + 1 + int(random.random() < 0.2)) % len(words))
        texts.append(f"{' '.join(words[index] for index in at)} {row % 7}")
    start = datetime(2025, 1, 1)
    # Two whole months, so that every split gets its share.
    times = [start + timedelta(days=59 * row / rows) for row in range(rows)]
    return pl.DataFrame({"id": np.arange(rows), "time": times, "text": texts})


# The defaults suit more documents.
TRAINING = {"steps": 400, "global_batch_size": 32}
TOPIC_SETTINGS = SETTINGS.model_copy(update={"sample_rows": 256, "overfit_rows": 8})


def write_topics(folder: Path, flipped: float = 0.0, **shape) -> Snapshot:
    """Documents and whether they speak of an axis, pinned; a share of the labels is wrong."""
    folder.mkdir(parents=True, exist_ok=True)
    is_wrong = pl.int_range(pl.len()).hash(seed=1) % 1000 < 1000 * flipped
    topic = (pl.col("text").str.contains("axis") ^ is_wrong).cast(pl.Int64).alias("topic")
    documents(**shape).with_columns(topic).write_parquet(folder / "part.parquet")
    data = DataSection(
        uri=str(folder), label="topic", features=("text",), text=("text",), time="time", ids=("id",)
    )
    return Snapshot.from_json(take_snapshot(data, SplitSection()).to_json())


def pinned(folder: Path, frame: pl.DataFrame) -> Snapshot:
    """The documents as a dataset of one file, and its snapshot."""
    folder.mkdir(parents=True, exist_ok=True)
    frame.write_parquet(folder / "part.parquet")
    data = DataSection(
        uri=str(folder), label="text", features=("text",), text=("text",), time="time", ids=("id",)
    )
    made = take_snapshot(data, SplitSection())
    # As every step sees it: read back from its file.
    return Snapshot.from_json(made.to_json())


def subject_of(task_type, snapshot: Snapshot, **options) -> Subject:
    """A language model's task, ready to be examined."""
    section = task_type.Options.model_validate(SMALL | options, strict=False)
    make_task = partial(task_type, section, snapshot.task_columns)
    return Subject.prepare(
        make_task, Dataset(snapshot), SETTINGS, TrainingSection(seed=1, **TRAINING)
    )


def small_task(snapshot: Snapshot, **options) -> CausalLanguageModel:
    """The reference task, not fitted."""
    section = CausalLanguageModel.Options.model_validate(SMALL | options, strict=False)
    return CausalLanguageModel(section, snapshot.task_columns)


class DocumentsCountAlike(CausalLanguageModel):
    """every document counts the same, however many tokens it has"""

    def encode(self, rows):
        batch = super().encode(rows)
        return {TOKENS: batch[TOKENS], LABEL: batch[LABEL]}
