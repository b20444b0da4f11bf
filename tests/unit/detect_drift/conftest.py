"""Builders of blocks: from raw columns to the sketches that validate_data hands over."""

from collections import Counter
from datetime import datetime, timedelta

import numpy as np
import pytest

from perennial.contracts.validation import BlockSketch, CategoricalSketch, NumericSketch

FIRST = datetime(2024, 1, 4)
WEEK = timedelta(days=7)


def sketch_block(index, columns, label_mean=None, rows=None):
    numeric, categorical = {}, {}
    for name, values in columns.items():
        if all(value is None or isinstance(value, str) for value in values):
            known = [value for value in values if value is not None]
            categorical[name] = CategoricalSketch(
                counts=dict(Counter(known)), nulls=len(values) - len(known)
            )
        else:
            array = np.asarray(values, dtype=np.float64)
            known = array[np.isfinite(array)]
            quantiles = np.quantile(known, np.linspace(0, 1, 101)) if len(known) else ()
            numeric[name] = NumericSketch(
                quantiles=tuple(float(q) for q in quantiles), nulls=len(array) - len(known)
            )
    start = FIRST + index * WEEK
    return BlockSketch(
        start=start,
        end=start + WEEK,
        rows=rows if rows is not None else len(next(iter(columns.values()))),
        label_mean=label_mean,
        numeric=numeric,
        categorical=categorical,
    )


def stream_blocks(seed, num_blocks, *, rows=300, persistence=0.0, wander=0.0, change=None):
    """Blocks of three numeric columns, a text one and a sparse one.

    `wander` moves each block's means by that many standard deviations, `persistence` of it stays
    from block to block; `change(index, columns)` plants what a test is about.
    """
    random = np.random.default_rng(seed)
    levels = np.zeros(4)
    blocks = []
    for index in range(num_blocks):
        noise = random.normal(size=4) * np.sqrt(1 - persistence**2)
        levels = persistence * levels + noise if index else random.normal(size=4)
        shifts = wander * levels
        shares = np.exp(0.3 * shifts[3] * np.arange(4)) * np.array([4, 3, 2, 1])
        sparse = random.normal(size=rows)
        sparse[random.random(rows) < 0.1] = np.nan
        columns = {
            "normal": random.normal(size=rows) + shifts[0],
            "skewed": random.exponential(size=rows) + shifts[1],
            "count": random.poisson(np.exp(0.5 + 0.5 * shifts[2]), size=rows).astype(float),
            "text": list(random.choice(list("abcd"), size=rows, p=shares / shares.sum())),
            "sparse": sparse,
        }
        if change is not None:
            change(index, columns)
        columns["text"] = [None if value is None else str(value) for value in columns["text"]]
        blocks.append(sketch_block(index, columns, label_mean=float(random.normal(0.3, 0.02))))
    return blocks


@pytest.fixture(scope="session")
def block():
    return sketch_block


@pytest.fixture(scope="session")
def stream():
    return stream_blocks
