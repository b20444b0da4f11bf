"""A small stream of rows with a contract: what the whole job is tested on."""

from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

CONTRACT = """
[model]
name = "clicks"
task = "perennial.tasks.tabular:TabularClassification"
options = { hidden = [16], dropout = 0.0, embedding_size = 4 }

[data]
uri = "data"
label = "clicked"
time = "shown_at"
ids = ["click_id"]

[split]
train_days = 31
test_days = 31

[training]
steps = 60
optimizer = { learning_rate = 1e-2 }
micro_batch_size = 64
global_batch_size = 128
evaluate_every_steps = 20
log_every_steps = 10

[gate]
resamples = 200
min_test_blocks = 5
min_effective_days = 2.0 # eight test days of a stream whose days are made independently
min_rare_rows = 30
min_rare_blocks = 5

[skeleton.severities] # ten seconds for each run; the examples and `test_sanity` make them
rank_equivalence = "off"
rank_data = "off"
resume_trial = "off"
import_side_effects = "off"
"""


def clicks(
    start: datetime, days: int, *, rows_per_day: int = 60, shift: float = 0.0, seed: int = 0
):
    """Rows whose label depends on `price` and `place`; `shift` moves price and turns its effect."""
    generator = np.random.default_rng([seed, start.toordinal()])
    count = days * rows_per_day
    offsets = np.sort(generator.uniform(0, days * 86400, count)).astype(int)
    price = generator.normal(shift, 1.0, count)
    place = generator.choice(["home", "search", "mail"], count)
    logit = (1.5 - shift) * price + np.select([place == "home", place == "mail"], [1.0, -1.0], 0.0)
    label = (generator.uniform(size=count) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    times = [start + timedelta(seconds=int(offset)) for offset in offsets]
    return pl.DataFrame(
        {
            "click_id": [f"{start:%Y%m%d}-{index}" for index in range(count)],
            "shown_at": pl.Series(times, dtype=pl.Datetime("us")),
            "price": price,
            "place": place,
            "noise": generator.normal(size=count),
            "clicked": label,
        }
    )


MONTHS = [datetime(2024, month, 1) for month in range(1, 13)]


def add_month(folder: Path, index: int, **options) -> Path:
    start, end = MONTHS[index], MONTHS[index + 1]
    target = folder / f"month={start:%Y-%m}" / "clicks.parquet"
    target.parent.mkdir(parents=True, exist_ok=True)
    clicks(start, (end - start).days, **options).write_parquet(target)
    return target


@pytest.fixture
def write_month():
    """Adds one month of clicks to a dataset."""
    return add_month


def write_project(folder: Path) -> Path:
    """Write a contract and three months of data."""
    (folder / "contract.toml").write_text(CONTRACT)
    for index in range(3):
        add_month(folder / "data", index)
    return folder


@pytest.fixture
def project(tmp_path):
    """A folder with a contract and three months of data."""
    return write_project(tmp_path)
