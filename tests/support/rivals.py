"""Two models with errors that the rows of a day have in common, compared without a pipeline."""

from datetime import date, timedelta

import numpy as np
import polars as pl
import pytest

from perennial.contracts.data import DataSection, SplitSection, TaskColumns
from perennial.engine.evaluation.resampling import blocks_of
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.task import load_task
from perennial.gate.comparison import Contender, Match

BY_DAY = DataSection(uri="u", label="label", time="day")
BY_ROW = DataSection(uri="u", label="label")
DAYS, ROWS_PER_DAY = 20, 20


@pytest.fixture(scope="module")
def task():
    columns = TaskColumns(label="label", features={"x": "Float64"})
    made = load_task("perennial.tasks.tabular:TabularClassification", {}, columns)
    state = {"numeric": {}, "categories": {}, "classes": ["0", "1"], "class_shares": [0.5, 0.5]}
    made.load_state({**state, "target_mean": 0.0, "target_scale": 1.0, "rows": 1})
    return made


def contenders(
    task, random, errors=(1.0, 1.0), *,
    days=DAYS, day_noise=0.8, user_noise=0.0, rows_per_day=ROWS_PER_DAY,
):  # fmt: skip
    """Two models with independent errors, parts of which all rows of a day, or of a user, share.

    Each user has one row on every day.
    """
    rows = days * rows_per_day
    signal = random.normal(size=rows)
    labels = (random.random(rows) < 1 / (1 + np.exp(-2 * signal))).astype(float)
    day = np.repeat(np.arange(days), rows_per_day)
    user = np.tile(np.arange(rows_per_day), days)
    frame = pl.DataFrame(
        {
            "label": labels,
            "day": [date(2025, 1, 1) + timedelta(days=int(number)) for number in day],
            "user": user,
            "group": np.where(random.random(rows) < 0.5, "a", "b"),
        }
    )
    for error in errors:
        noise = 0.5 * random.normal(size=rows) + day_noise * random.normal(size=days)[day]
        if user_noise:
            noise += user_noise * random.normal(size=rows_per_day)[user]
        predictions = 1 / (1 + np.exp(-2 * (signal + error * noise)))
        losses = -np.log(np.where(labels == 1, predictions, 1 - predictions))
        yield Contender(task, Scored(losses, predictions, labels, np.ones(rows), frame))


def match_of(challenger, champion, data=BY_DAY, resamples=300):
    blocks = blocks_of(challenger.scored.rows, data, SplitSection())
    return Match(challenger, champion, blocks, blocks.draws(resamples), 0.95)
