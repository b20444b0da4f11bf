"""Find columns that are means of a key's labels over the whole table, the row's own among them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import is_name, is_plain, is_read
from perennial.check_skeleton.registry import Judge
from perennial.check_skeleton.subject import Flags, Floats, Subject
from perennial.contracts.skeleton import CheckResult

FEWEST_KEYS, MOST_OF_ROWS, MOST_LABELS = 40, 0.8, 10
# Two different labels have one mean; keys of more rows are seldom all in the sample.
LEAST_IN_KEY, MOST_IN_KEY = 3, 8
FEWEST_VALUES, MOST_DECIMALS = 8, 8
DRAWN, MOST_WEIGHT = 400, 1000.0
# Two rounded values give a rough mean, which those that it fits roughly make exact.
ROUGHLY, REFINED = 20.0, 12
# Of the keys with several labels: those that fit exactly. Means over other rows, as of the year
# before, fit a tenth by chance, and more if each key has as many rows in both years; then values of
# other keys with as many rows fit nearly as often.
LEAST_FITTING, FEWEST_FITTING, TIMES_MORE, ERRORS, DRAWS = 0.2, 20, 1.6, 5.0, 20


@dataclass(frozen=True)
class _Keys:
    """The rows of each key: their count, the sum of their labels, and the column's value."""

    count: Floats
    total: Floats
    value: Floats
    error: float  # of the values, by their rounding

    def fit(self, weight: Floats, start: Floats, values: Floats, errors: float = 2.0) -> Flags:
        """Return which values are (total + start) / (count + weight), [draws, keys]."""
        whole = self.count + weight[:, None]
        off = values * whole - (self.total + start[:, None])
        return np.asarray(np.abs(off) <= errors * self.error * np.maximum(whole, 1.0))


def judge_whole_table_mean(judge: Judge, subject: Subject) -> CheckResult | None:
    """Fail on a column that is the mean label of all rows of a key; None if there is none."""
    if not (found := describe_whole_table_mean(subject)):
        return None
    return judge.failed(
        found,
        hint="a target encoding over the whole table counts the row's own label and later ones, "
        "which are unknown when the prediction is made: count earlier rows only, or leave the "
        "row's own fold out",
    )


def describe_whole_table_mean(subject: Subject) -> str:
    """Describe a feature that is a smoothed mean of a key's labels; empty if there is none.

    As of a reader's share of late loans: (late + a p) / (loans + a). The sample lacks test rows,
    so that it fits keys alone whose rows are all there.
    """
    columns = subject.task.columns
    rows = pl.concat([subject.train_rows, subject.validation_rows])
    numbers = [
        name
        for name in columns.features
        if name != columns.label
        and rows[name].dtype.is_float()
        and rows[name].n_unique() >= FEWEST_VALUES
    ]
    label = rows[columns.label]
    if not numbers or not is_plain(label) or label.null_count():
        return ""
    for key in rows.drop(columns.label):
        if not is_name(key) or not FEWEST_KEYS <= key.n_unique() <= MOST_OF_ROWS * len(key):
            continue
        for name in numbers:
            if name == key.name or not _is_constant(rows, key.name, name):
                continue
            for shown, labels in _list_labels(label):
                found = _find_mean(_gather(rows, key.name, name, labels))
                if found and is_read(subject, name):
                    return f"{name} is {shown} over the rows of a {key.name}, {found}"
    return ""


def _is_constant(rows: pl.DataFrame, key: str, name: str) -> bool:
    known = rows.select(key, name).drop_nulls()
    return known.n_unique() == known[key].n_unique() < 0.9 * known.height


def _list_labels(label: pl.Series) -> Iterator[tuple[str, Floats]]:
    """Yield what labels a mean may be of: amounts, or whether they are a class."""
    if label.dtype.is_numeric():
        yield f"the mean of {label.name}", label.cast(pl.Float64).to_numpy()
    classes = label.unique().sort()
    if len(classes) <= MOST_LABELS:
        for each in classes:
            yield f"the share of {label.name} {each}", (label == each).cast(pl.Float64).to_numpy()


def _gather(rows: pl.DataFrame, key: str, name: str, labels: Floats) -> _Keys:
    """Return the keys of a few rows each, in which labels differ."""
    found = (
        rows.select(pl.col(key).alias("key"), pl.col(name).cast(pl.Float64).alias("value"))
        .with_columns(label=pl.Series(labels))
        .drop_nulls()
        .group_by("key", maintain_order=True)
        .agg(
            pl.col("value").first(),
            pl.len().alias("count"),
            pl.col("label").sum().alias("total"),
            pl.col("label").n_unique().alias("different"),
        )
        .filter(pl.col("different") > 1, pl.col("count").is_between(LEAST_IN_KEY, MOST_IN_KEY))
    )
    values = found["value"].to_numpy()
    decimals = next((d for d in range(MOST_DECIMALS) if _are_rounded(values, d)), MOST_DECIMALS)
    error = 0.51 * 10.0**-decimals + 1e-7 * float(np.abs(values).max(initial=0.0))
    return _Keys(found["count"].to_numpy().astype(float), found["total"].to_numpy(), values, error)


def _are_rounded(values: Floats, decimals: int) -> bool:
    return bool(np.allclose(values, values.round(decimals), rtol=0, atol=1e-9))


def _find_mean(keys: _Keys) -> str:
    """Return in how many keys the values are the mean of their labels; empty if in few."""
    size = len(keys.value)
    if size < FEWEST_FITTING or len(np.unique(keys.value)) < FEWEST_VALUES:
        return ""
    random = np.random.default_rng(0)
    weight, start = _refine(keys, *_draw_means(keys, random))
    fitting = keys.fit(weight, start, keys.value).sum(axis=1)
    best = int(fitting.argmax())
    chosen = weight[best : best + 1], start[best : best + 1]
    others = [
        int(keys.fit(*chosen, _exchange_within(keys.count, keys.value, random)).sum())
        for _ in range(DRAWS)
    ]
    chance = max(TIMES_MORE * np.mean(others), np.mean(others) + ERRORS * np.std(others))
    if fitting[best] < max(LEAST_FITTING * size, FEWEST_FITTING, chance):
        return ""
    added = f", with {chosen[0][0]:.2g} rows added to each" if abs(chosen[0][0]) > 0.01 else ""
    return f"exactly in {fitting[best]} of {size} with several labels{added}"


def _draw_means(keys: _Keys, random: np.random.Generator) -> tuple[Floats, Floats]:
    """Return weights and starts of means, each by two keys, and the plain mean.

    weight * value - start = total - count * value, in each key.
    """
    one, other = random.integers(0, len(keys.value), (2, DRAWN))
    rest, apart = keys.total - keys.count * keys.value, keys.value[one] - keys.value[other]
    with np.errstate(divide="ignore", invalid="ignore"):
        weight = (rest[one] - rest[other]) / apart
    is_usable = np.isfinite(weight) & (weight > -0.5) & (weight < MOST_WEIGHT)
    weight = weight[is_usable]
    start = weight * keys.value[one[is_usable]] - rest[one[is_usable]]
    return np.append(weight, 0.0), np.append(start, 0.0)


def _refine(keys: _Keys, weight: Floats, start: Floats) -> tuple[Floats, Floats]:
    """Return the means that fit most keys roughly, by least squares over these keys."""
    rough = keys.fit(weight, start, keys.value, ROUGHLY)
    found = [(0.0, 0.0)]
    for best in np.argsort(-rough.sum(axis=1), kind="stable")[:REFINED]:
        value, rest = keys.value[rough[best]], (keys.total - keys.count * keys.value)[rough[best]]
        table = np.column_stack([value, -np.ones_like(value)])
        found.append(tuple(np.linalg.lstsq(table, rest, rcond=None)[0]))
    weights, starts = np.array(found).T
    return weights, starts


def _exchange_within(counts: Floats, values: Floats, random: np.random.Generator) -> Floats:
    """Return the values in another order among keys of as many rows."""
    exchanged = np.empty_like(values)
    order = np.argsort(counts, kind="stable")
    exchanged[order] = values[np.lexsort((random.random(len(values)), counts))]
    return exchanged
