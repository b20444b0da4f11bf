"""Multi-label task: any number of labels per row of a table, one logit and cross-entropy for each.

Use it by name in a contract: `task = "perennial.tasks.multi_label:TabularMultiLabel"`. The label is
a column of text, such as `red,round`, that is also named under `data.text`.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Literal, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor
from torch.nn import functional

from perennial.contracts.errors import BadDataError
from perennial.contracts.training import Direction
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Batch
from perennial.tasks.tabular import TabularOptions, TabularTask

MOST_LABELS = 1000
LEAST_SHARE = 1e-4  # of a label that every or no training row has: keeps its first logit finite


class MultiLabelOptions(TabularOptions):
    """Options of multi-label classification on tables."""

    separator: Annotated[str, Field(min_length=1)] = ","
    """What divides the labels of a row; spaces around a label are removed, an empty text has none.
    """


class TabularMultiLabel(TabularTask):
    """Each label of the training split by itself: is it among those of the row?"""

    Options: ClassVar[type[TabularOptions]] = MultiLabelOptions
    kind: Literal["statistic"] = "statistic"
    metrics: Mapping[str, Direction] = directions_of("mean_loss", "micro_f1", "exact_match")
    statistics: ClassVar[tuple[str, ...]] = ("loss", "hits", "labelled", "predicted", "exact")
    serves_predictions = True

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Mean binary cross-entropy over the labels, shape [B]."""
        return functional.binary_cross_entropy_with_logits(
            output, batch[LABEL], reduction="none"
        ).mean(dim=1)

    def predict(self, output: Tensor) -> Tensor:
        """Return the probability of each label, shape [B, K]."""
        return output.sigmoid()

    def statistic(self, output: Tensor, batch: Batch) -> Tensor:
        """Loss, counts of labels, and whether all are right, of each row: float64 [B, 5]."""
        chosen, true = output > 0, batch[LABEL] > 0
        counts = [(chosen & true).sum(1), true.sum(1), chosen.sum(1), (chosen == true).all(1)]
        return torch.stack([self.losses(output, batch), *counts], dim=1).double()

    def expected_initial_loss(self) -> float:
        """Return the mean entropy of the labels, where the last bias starts."""
        pairs = [(p, 1.0 - p) for p in self.fitted.class_shares]
        return -sum(p * math.log(p) + q * math.log(q) for p, q in pairs) / len(pairs)

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return one name per label."""
        return self.fitted.probability_names

    def _label_state(self, train: pl.LazyFrame) -> dict[str, object]:
        lists = self._split(train.select(self.columns.label).drop_nulls().collect().to_series())
        # `value_counts` has no order, and a label's place must not depend on one.
        counts = lists.explode().drop_nulls().alias("value").value_counts().sort("value")
        if not 0 < counts.height <= MOST_LABELS:
            raise BadDataError(
                f"the column {self.columns.label!r} has {counts.height:,} labels to learn",
                evidence=f"1 to {MOST_LABELS:,} are possible; rows are divided at "
                f"{cast('MultiLabelOptions', self.tabular).separator!r}",
                action="correct model.options.separator, or the column",
            )
        shares = (counts["count"] / len(lists)).clip(LEAST_SHARE, 1.0 - LEAST_SHARE)
        return {
            "classes": tuple(counts["value"]),
            "class_shares": tuple(shares),
            "rows": len(lists),
        }

    def _encode_label(self, labels: pl.Series) -> NDArray[np.float32]:
        lists, classes = self._split(labels), self.fitted.classes
        strange = set(lists.explode().drop_nulls()) - set(classes)
        if strange:
            raise BadDataError(
                f"the label {labels.name!r} has values that the training split did not have",
                evidence=f"{sorted(strange)[:5]} are not among {list(classes)[:20]}",
                action="train on data that has every label, or drop these",
            )
        found = [lists.list.contains(name).fill_null(value=False).to_numpy() for name in classes]
        return np.stack(found, axis=1).astype(np.float32)

    def _split(self, labels: pl.Series) -> pl.Series:
        if labels.dtype not in (pl.String, pl.Categorical):
            raise BadDataError(
                f"the label {labels.name!r} is {labels.dtype}, not text",
                action="write the labels of a row as one text, such as 'red,round'",
            )
        parts = labels.cast(pl.String).str.split(cast("MultiLabelOptions", self.tabular).separator)
        cleaned = parts.list.eval(pl.element().str.strip_chars())
        return cleaned.list.eval(pl.element().filter(pl.element() != "").unique())

    def _initial_output(self) -> Tensor:
        return torch.tensor(self.fitted.class_shares).logit()

    def _describe_label(self, value: Tensor) -> str:
        return ", ".join(self.fitted.classes[place] for place in value.nonzero()[:, 0].tolist())
