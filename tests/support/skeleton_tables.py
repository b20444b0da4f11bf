"""Synthetic tables of each kind, pinned as snapshots, and the checks run on a task over them."""

from collections.abc import Callable
from functools import partial

import numpy as np
import polars as pl
import pytest

from perennial.check_skeleton.config import SkeletonSection
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.skeleton import CheckResult
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.snapshot_data.manifest import take_snapshot

ROWS = 4000
# Several seconds for each task; tests of their own ask for them.
WITHOUT_TRIALS = dict.fromkeys(
    ("rank_equivalence", "rank_data", "resume_trial", "fresh_encoding"), "off"
)
SETTINGS = SkeletonSection(sample_rows=1024, batch_rows=64, severities=WITHOUT_TRIALS)
# The defaults suit a table of about 100,000 rows.
TRAINING = {"steps": 400, "global_batch_size": 128}


def table(kind: str, *, width: int = 6, rows: int = ROWS, positive: float = 0.5) -> pl.DataFrame:
    """Floats of several scales, some nulls, a text column, an amount; a label with honest noise."""
    generator = np.random.default_rng(7)
    x = generator.normal(size=(rows, width))
    group = generator.integers(0, 5, rows)
    score = 1.2 * x[:, 0] - x[:, 1] * x[:, 2] + 0.5 * (group == 2) + generator.logistic(size=rows)
    label: np.ndarray
    if kind == "binary":
        label = (score > np.quantile(score, 1 - positive)).astype(np.int64)
    elif kind == "multiclass":
        label = np.digitize(score, np.quantile(score, [0.25, 0.5, 0.75]))
    elif kind == "noise":
        label = generator.integers(0, 2, rows)
    elif kind == "weak":
        label = (0.25 * score + 2 * generator.logistic(size=rows) > 0).astype(np.int64)
    elif kind == "zero-inflated":
        label = np.maximum(score - np.quantile(score, 0.7), 0.0)
    else:
        label = 50 + 10 * score
    columns = {f"x{i}": x[:, i] * 10 ** (i % 3) + i for i in range(width)}
    amounts = generator.poisson(3, rows)
    frame = pl.DataFrame({"row": np.arange(rows), **columns, "amount": amounts, "label": label})
    return frame.with_columns(
        group=pl.Series([f"g{value}" for value in group]),
        x1=pl.when(pl.col("row") % 50 == 0).then(None).otherwise(pl.col("x1")),
    )


def pinned(frame: pl.DataFrame, folder) -> Snapshot:
    frame.write_parquet(folder / "rows.parquet")
    data = DataSection(uri=str(folder), label="label", ids=("row",))
    return take_snapshot(data, SplitSection())


@pytest.fixture(scope="session")
def datasets(tmp_path_factory) -> Callable[..., Dataset]:
    """The dataset of a kind of table, written once."""
    written: dict[tuple, Dataset] = {}

    def dataset(kind: str, **options) -> Dataset:
        key = (kind, *sorted(options.items()))
        if key not in written:
            folder = tmp_path_factory.mktemp(kind)
            written[key] = Dataset(pinned(table(kind, **options), folder))
        return written[key]

    return dataset


def prepared(
    task_type, dataset: Dataset, *, options=None, settings=SETTINGS, seed=1, training=None
) -> Subject:
    """The subject of a task class on a dataset."""
    task_options = task_type.Options.model_validate(options or {}, strict=False)
    make_task = partial(task_type, task_options, dataset.snapshot.task_columns)
    section = training or TrainingSection(seed=seed, **TRAINING)
    return Subject.prepare(make_task, dataset, settings, section)


@pytest.fixture(scope="session")
def examine(datasets) -> Callable[..., dict[str, CheckResult]]:
    """Results by check: of all checks, or of one check and what it needs."""

    def results(task_type, kind: str, *, seed: int = 1, options=None, only="", **shape):
        subject = prepared(task_type, datasets(kind, **shape), options=options, seed=seed)
        names = (only,) if only else ()
        return {result.check: result for result in run_checks(subject, names)}

    return results
