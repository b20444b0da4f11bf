"""Detect consequences of the label: columns that depend on the label and on no other column.

A legitimate predictor of an amount still depends on the other features, given the amount. A noisy
copy of the outcome depends on the outcome alone, while the other features still improve its
prediction of the outcome.
"""

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.signals import Numbers

MOST_VALUES = 20
FOLDS = 5
RIDGE = 3.0
TELLING = 0.95
# What the other columns explain together; above it, many columns predict the amount.
MOST_OF_OTHERS = 0.75
# Standard errors: a clear correlation, and what chance makes of none.
CLEAR, NOTHING, NOTHING_OF_MANY = 3.0, 1.2, 2.0
FEWEST_ROWS = 200


def follows_from_label(rows: pl.DataFrame, names: list[str], name: str, labels: Numbers) -> bool:
    """Whether the label, and no other column, explains a column that predicts it.

    Args:
        rows: Of the data.
        names: Columns to compare with.
        name: The column in question.
        labels: One number for each row.
    """
    column = rows[name]
    if not column.dtype.is_numeric() or column.null_count() or len(labels) < FEWEST_ROWS:
        return False
    others = [part for each in names if each != name for part in _numbers(rows[each])]
    values, truth = _standard(column.cast(pl.Float64).to_numpy()), _standard(labels)
    if not others or np.var(_residuals(truth, values)) > 1 - TELLING:
        return False
    features = np.stack(others, axis=1)
    predicted = _predict_out_of_fold(features, truth)
    if 1 - np.var(truth - predicted) > MOST_OF_OTHERS:
        return False
    of_label, of_column = _residuals(truth, values), _residuals(values, truth)
    adds = _correlation_errors(_residuals(predicted, values), of_label)
    lacks = _correlation_errors(_residuals(predicted, truth), of_column)
    biased = _correlation_errors(_predict_out_of_fold(features, of_column), of_column)
    return adds > CLEAR and abs(lacks) < NOTHING and biased < NOTHING_OF_MANY


def _numbers(column: pl.Series) -> list[Numbers]:
    if column.dtype.is_numeric() or column.dtype.is_temporal():
        numbers = column.to_physical().cast(pl.Float64).fill_nan(None)
        filled = _standard(numbers.fill_null(strategy="mean").fill_null(0.0).to_numpy())
        return [filled, filled**2]
    values = column.cast(pl.String).value_counts(sort=True)[column.name][:MOST_VALUES]
    return [_standard((column.cast(pl.String) == each).fill_null(value=False).to_numpy() * 1.0)
            for each in values]  # fmt: skip


def _standard(values: Numbers) -> Numbers:
    result: Numbers = (values - values.mean()) / max(float(values.std()), 1e-12)
    return result


def _residuals(values: Numbers, given: Numbers) -> Numbers:
    """Return the residuals of a polynomial of the third degree."""
    powers = np.vander(np.clip(given, -4, 4), 4)
    powers = np.column_stack([powers, given])
    result: Numbers = values - powers @ np.linalg.lstsq(powers, values, rcond=None)[0]
    return result


def _predict_out_of_fold(features: Numbers, values: Numbers) -> Numbers:
    """Predict each row's value by ridge regression on the rows of the other folds."""
    predicted = np.zeros_like(values)
    for fold in range(FOLDS):
        held = np.arange(len(values)) % FOLDS == fold
        fit, mean = features[~held], values[~held].mean()
        square = fit.T @ fit + RIDGE * np.eye(fit.shape[1])
        predicted[held] = mean + features[held] @ np.linalg.solve(
            square, fit.T @ (values[~held] - mean)
        )
    return predicted


def _correlation_errors(first: Numbers, second: Numbers) -> float:
    """Return a correlation in standard errors."""
    if min(first.std(), second.std()) < 1e-9:
        return 0.0
    correlation = float(np.corrcoef(first, second)[0, 1])
    return correlation * float(np.sqrt(len(first) / max(1 - correlation**2, 1e-9)))
