"""Class labels: the values of a column of classes, their codes and how often each occurs."""

import math
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section


class ClassLabels(Section):
    """What a classification learns from the training split's labels."""

    classes: tuple[str, ...] = ()
    """Label values as text; a class's code is its place."""
    class_shares: tuple[float, ...] = ()
    """How often each occurs."""
    rows: int = 0
    """Labelled rows of the training split."""

    @property
    def probability_names(self) -> tuple[str, ...]:
        """Names of the columns of class probabilities."""
        return tuple(f"probability_{name}" for name in self.classes)

    @property
    def entropy(self) -> float:
        """Return the loss of a model that knows the shares and nothing else, in nats."""
        return -sum(share * math.log(share) for share in self.class_shares)


def require_plain(train: pl.LazyFrame, label: str, wanted: str) -> None:
    """Check that a label is not a list.

    Raises:
        BadDataError: it is.
    """
    dtype = train.collect_schema()[label]
    if dtype.is_nested():
        raise BadDataError(
            f"the label {label!r} is {dtype}, and the task learns {wanted} per row",
            action="write one value per row; forecasts of several steps are learned by "
            "perennial.tasks.forecasting:TabularForecast",
        )


def fit_classes(train: pl.LazyFrame, label: str) -> ClassLabels:
    """Return the classes of a label in their own order.

    Raises:
        BadDataError: there are fewer than two, or the label is a list.
    """
    require_plain(train, label, "one class")
    counts = train.select(pl.col(label).alias("value")).drop_nulls().group_by("value").len()
    # As text only after sorting: 10 comes after 9, and `encode` compares polars' own text.
    table = counts.collect().sort("value").with_columns(pl.col("value").cast(pl.String))
    if table.height < 2:
        raise BadDataError(
            f"the label {label!r} has {table.height} classes to train on",
            evidence=f"values: {table['value'].to_list()}",
            action="check the label's definition and the split; there is nothing to learn",
        )
    rows = int(table["len"].sum())
    return ClassLabels(
        classes=tuple(table["value"]),
        class_shares=tuple(count / rows for count in table["len"]),
        rows=rows,
    )


def encode_classes(labels: pl.Series, classes: Sequence[str]) -> NDArray[np.int64]:
    """Return the code of each label, shape [B].

    Raises:
        BadDataError: a label is none of the classes.
    """
    codes = {value: code for code, value in enumerate(classes)}
    encoded = labels.cast(pl.String).replace_strict(codes, default=None, return_dtype=pl.Int64)
    if encoded.null_count():
        strange = labels.filter(encoded.is_null()).unique().to_list()
        raise BadDataError(
            f"the label {labels.name!r} has values that the training split did not have",
            evidence=f"{strange[:5]} are not among {list(classes)}",
            action="train on data that has every class, or drop these rows",
        )
    return encoded.to_numpy(writable=True)
