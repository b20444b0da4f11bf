"""A task that reads the time of the prediction: right where requests carry it."""

from datetime import datetime, timedelta

import polars as pl

from mixed_numbers import subject_of
from other_styles import Numbers, numbers_table, table_of
from perennial.check_skeleton.examination import run_checks
from perennial.engine.task import LABEL

X, SCORE = numbers_table(2000)
WIDTH = X.shape[1] + 1
START = datetime(2024, 1, 1)
TIMES = [START + timedelta(hours=number) for number in range(len(X))]
CHECKS = ("serving_inputs", "lost_values", "shuffled_labels", "telling_columns")


class Hourly(Numbers):
    """Reads the hour of `at` beside the numbers."""

    def fit(self, train):
        self.fitted = self.fit_label(train.collect()[self.columns.label]) | {"mean": [0.0] * WIDTH}

    def encode(self, rows):
        hour = ((rows["at"].dt.hour() - 11.5) / 7).alias("hour")
        numbers = rows.select(pl.col("^x[0-9]$"), hour)
        batch = {"x": numbers.to_torch().float()}
        if self.columns.label in rows.columns:
            batch[LABEL] = self.encode_label(rows[self.columns.label])
        return batch


def examine(folder, **data):
    label = SCORE + pl.Series(TIMES).dt.hour().to_numpy() / 12
    subject = subject_of(Hourly, table_of(X, label, at=TIMES), folder, time="at", **data)
    return {each.check: each for each in run_checks(subject, CHECKS)}


def test_where_requests_carry_it_nothing_is_wrong(tmp_path):
    found = examine(tmp_path, time_is_feature=True)
    assert {name for name, each in found.items() if each.outcome != "passed"} == set()


def test_where_they_do_not_the_option_is_named(tmp_path):
    result = examine(tmp_path)["serving_inputs"]
    assert result.outcome == "failed"
    assert "data.time_is_feature = true" in result.hint
