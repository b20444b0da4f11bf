"""Tabular tasks: embedded categories and encoded numbers into a multi-layer perceptron.

Use one by name in a contract: `task = "perennial.tasks.tabular:TabularClassification"`.
"""

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, Self, cast

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field, JsonValue, model_validator
from torch import Tensor, nn
from torch.nn import functional

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError
from perennial.contracts.section import Section
from perennial.contracts.training import Direction
from perennial.engine.metrics.catalogue import directions_of
from perennial.engine.task import LABEL, Batch, MeasuredOptions, ParameterKeys, Task
from perennial.tasks.columns.class_labels import (
    ClassLabels,
    encode_classes,
    fit_classes,
    require_plain,
)
from perennial.tasks.columns.tabular_numbers import (
    NumericState,
    WindowState,
    column_values,
    describe_numbers,
    encode_numbers,
    encode_windows,
    fit_numbers,
    fit_windows,
    is_window,
    num_inputs,
    number_keys,
)

MOST_ROUNDING = 0.05
"""Largest step between 32-bit labels, in standard deviations: evenly spread, its errors add 0.02%
to the variance."""
UNKNOWN = 0  # category code of nulls and of values that the training split did not have


class TabularMLP(nn.Module):
    """Embeddings and numbers, concatenated, through hidden layers of linear, ReLU, dropout.

    Shapes: B examples, N numbers, K categorical columns, O outputs.
    """

    def __init__(
        self,
        num_numbers: int,
        category_sizes: Sequence[int],
        initial_output: Tensor,
        *,
        hidden: Sequence[int],
        dropout: float,
        embedding_size: int,
    ) -> None:
        super().__init__()
        widths = [embedding_width(size, embedding_size) for size in category_sizes]
        self.embeddings = nn.ModuleList(
            nn.Embedding(size, width) for size, width in zip(category_sizes, widths, strict=True)
        )
        width = num_numbers + sum(widths)
        layers: list[nn.Module] = []
        for next_width in hidden:
            layers += [nn.Linear(width, next_width), nn.ReLU(), nn.Dropout(dropout)]
            width = next_width
        self.hidden = nn.Sequential(*layers)
        self.output = nn.Linear(width, len(initial_output))
        for embedding in self.embeddings:
            nn.init.normal_(cast("Tensor", embedding.weight), std=0.1)
        with torch.no_grad():
            # Small weights keep the first outputs near the bias, whose loss the sanity checks
            # expect.
            self.output.weight.mul_(0.1)
            self.output.bias.copy_(initial_output)

    def forward(self, numbers: Tensor, categories: Tensor, last: Tensor | None = None) -> Tensor:
        """Numbers [B, N] and category codes [B, K] → outputs [B, O], added to `last` [B, O]."""
        vectors = [embed(categories[:, column]) for column, embed in enumerate(self.embeddings)]
        output = cast("Tensor", self.output(self.hidden(torch.cat([numbers, *vectors], dim=1))))
        return output if last is None else output + last


def embedding_width(size: int, most: int) -> int:
    """Return the features of the embedding of a column with so many codes."""
    return min(most, (size + 1) // 2)


class TabularOptions(MeasuredOptions):
    """Options of the tabular tasks."""

    hidden: tuple[Annotated[int, Field(ge=1)], ...] = (256, 128)
    """Width of each hidden layer; raise it only when the training loss stays high."""
    dropout: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.1
    """Dropout. Raise it when the validation loss rises while the training loss falls."""
    embedding_size: Annotated[int, Field(ge=1)] = 16
    """Largest embedding width of a category; columns with few categories get less."""
    min_category_rows: Annotated[int, Field(ge=1)] | None = None
    """Rows that a category needs for its own embedding; rarer ones share one. Raise it when rare
    categories overfit. None: 20, or of fewer than 4,000 rows one in 200, at least 3."""
    numeric_bins: Annotated[int, Field(ge=0, le=64)] = 0
    """Bins that each number is spread over, by quantiles; 0 standardises instead. Bins keep the
    inputs bounded for values outside the training range, and let a small model be nonlinear: on a
    year of flights, 8 raised the next month's mean AUC from 0.699 to 0.7065."""
    categorical: tuple[str, ...] = ()
    """Integer columns that are codes, not amounts; text columns are always categories."""


class ClassificationOptions(TabularOptions):
    """Options of classification on tables."""

    label_smoothing: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    """Share of each label spread over all classes, in the training loss only; 0.05 to 0.1 where
    labels are noisy. Probabilities move towards the middle."""


class RegressionOptions(TabularOptions):
    """Options of regression on tables."""

    loss: Literal["squared", "huber", "absolute", "quantile"] = "squared"
    """Loss of the standardised label, which also decides what is predicted: the mean (`squared`),
    the median (`absolute`), a quantile, or with `huber` a mean that outliers hardly move."""
    delta: Annotated[float, Field(gt=0.0)] | None = None
    """Error from which `huber` is linear, in standard deviations of the label; 1 by default."""
    quantile: Annotated[float, Field(gt=0.0, lt=1.0)] | None = None
    """The predicted quantile, such as 0.9 for a value that nine of ten labels stay below."""
    relative_to: str = ""
    """Feature to whose value, or last value of its window, the model adds its output. Name the
    series' history to forecast a series that wanders: the model starts as the naive forecast."""

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        if self.delta is not None and self.loss != "huber":
            raise ValueError(f"delta is for loss = 'huber', not {self.loss!r}: remove it")
        if (self.quantile is None) == (self.loss == "quantile"):
            raise ValueError(f"loss = {self.loss!r} with quantile = {self.quantile}: name both")
        return self

    @property
    def metric(self) -> str:
        """Return the metric whose best constant is also the loss's."""
        named = {"squared": "rmse", "quantile": f"pinball_{100 * (self.quantile or 0):g}"}
        return named.get(self.loss, "mae")

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Return the loss of each standardised label, shape [B]."""
        if self.loss == "huber":
            delta = self.delta or 1.0
            return functional.huber_loss(output, target, reduction="none", delta=delta)
        error = output - target
        if self.loss == "squared":
            return error.square()
        if self.quantile is None:
            return error.abs()
        return torch.maximum((1.0 - self.quantile) * error, -self.quantile * error)


class TabularState(ClassLabels):
    """What the tabular tasks learn from the training split; classes are empty for regression."""

    numeric: dict[str, NumericState]
    categories: dict[str, tuple[str, ...]]
    windows: dict[str, WindowState] = Field(default_factory=dict)
    target_mean: float = 0.0
    target_scale: float = 1.0
    target_start: float = 0.0
    """First output of a regression: about the best constant, in standard deviations."""
    initial_loss: float = 1.0
    """Mean loss of a regression at `target_start`."""


class TabularTask(Task):
    """Base of classification and regression on tables."""

    Options = TabularOptions
    fitted: TabularState

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        self.tabular = cast("TabularOptions", options)
        unknown = sorted(set(self.tabular.categorical) - set(columns.features))
        if unknown:
            raise BadDataError(
                f"model.options.categorical names {unknown}, which are not feature columns",
                evidence=f"features: {', '.join(columns.features)}",
            )
        self.fitted = TabularState(numeric={}, categories={})

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn means, scales, categories and the label's distribution."""
        # Sorted, because JSON objects are: a column must keep its place when the state is loaded.
        schema = train.select(sorted(self.columns.features)).collect_schema()
        coded = set(self.tabular.categorical)
        text = [
            n
            for n, d in schema.items()
            if n in coded or d in (pl.String, pl.Categorical, pl.Boolean)
        ]
        numbers = [n for n, d in schema.items() if d.is_numeric() and n not in coded]
        windows = [n for n, d in schema.items() if is_window(d)]
        left = sorted(set(schema) - set(text) - set(numbers) - set(windows))
        if left:
            raise BadDataError(
                f"the tabular tasks cannot use the columns {left}",
                evidence=", ".join(f"{name} is {schema[name]}" for name in left),
                action="list them under data.meta, or write numbers or text instead",
            )
        state = type(self.fitted)(
            numeric=fit_numbers(train, numbers, self.tabular.numeric_bins),
            categories={name: self._categories(train, name) for name in text},
            windows=fit_windows(train, windows),
        )
        self.fitted = state.model_copy(update=self._label_state(train))

    def encode(self, rows: pl.DataFrame) -> Batch:
        """`numbers` float32 [B, N], `categories` int64 [B, K] and, if present, `label`."""
        numbers = encode_numbers(self.fitted.numeric, rows)
        windows = encode_windows(self.fitted.windows, rows)
        batch = {
            "numbers": torch.from_numpy(np.concatenate([numbers, windows], axis=1)),
            "categories": torch.from_numpy(self._encode_categories(rows)),
        }
        if self.columns.label in rows.columns:
            batch[LABEL] = torch.from_numpy(self._encode_label(rows[self.columns.label]))
        return batch

    def build_model(self) -> nn.Module:
        """Build the MLP; its last layer starts at the label's prior, so the first loss is known."""
        sizes = [len(values) + 1 for values in self.fitted.categories.values()]
        options = self.tabular
        return TabularMLP(
            num_inputs(self.fitted.numeric)
            + sum(window.length for window in self.fitted.windows.values()),
            sizes,
            self._initial_output(),
            hidden=options.hidden,
            dropout=options.dropout,
            embedding_size=options.embedding_size,
        )

    def parameter_keys(self) -> Mapping[str, ParameterKeys]:
        """Return keys of embeddings (categories), first layer (inputs) and last layer (classes)."""
        fitted, found = self.fitted, dict[str, ParameterKeys]()
        inputs: list[Hashable] = list(number_keys(fitted.numeric))
        for name, window in fitted.windows.items():
            # Counted from the end, the present: a longer window keeps what it knew of each lag.
            inputs += [(name, place) for place in range(-window.length, 0)]
        for place, (name, values) in enumerate(fitted.categories.items()):
            codes = (None, *values)
            width = range(embedding_width(len(codes), self.tabular.embedding_size))
            found[f"embeddings.{place}.weight"] = ParameterKeys(
                f"embedding of {name}", (codes, width)
            )
            inputs += [(name, feature) for feature in width]
        outputs, is_deep = self._output_keys(), bool(self.tabular.hidden)
        if is_deep:
            found["hidden.0.weight"] = ParameterKeys("inputs", (None, inputs))
        last = ParameterKeys("outputs", (outputs, None if is_deep else inputs))
        bias = ParameterKeys("output bias", (outputs,))
        return found | {"output.weight": last, "output.bias": bias}

    def describe(self, batch: Batch, index: int) -> dict[str, str]:
        """Return numbers scaled back, missing ones named, and the names of categories."""
        numbers = batch["numbers"][index].tolist()
        shown = dict(describe_numbers(self.fitted.numeric, numbers))
        place = num_inputs(self.fitted.numeric)
        for name, window in self.fitted.windows.items():
            ends = numbers[place], numbers[place + window.length - 1]
            first, last = (window.mean + window.scale * value for value in ends)
            shown[name] = f"{first:.4g} … {last:.4g}, {window.length} values"
            place += window.length
        codes = batch["categories"][index].tolist()
        for (name, values), code in zip(self.fitted.categories.items(), codes, strict=True):
            shown[name] = "(unknown)" if code == UNKNOWN else values[code - 1]
        if LABEL in batch:
            shown[self.columns.label] = self._describe_label(batch[LABEL][index])
        return shown

    def _categories(self, train: pl.LazyFrame, name: str) -> tuple[str, ...]:
        needed = pl.lit(self.tabular.min_category_rows)
        if self.tabular.min_category_rows is None:
            # With twenty, a small table loses its states or countries, of a dozen rows each.
            needed = (pl.col("len").sum() // 200).clip(3, 20)
        counts = (
            train.select(pl.col(name).cast(pl.String).alias("value"))
            .drop_nulls()
            .group_by("value")
            .len()
            .filter(pl.col("len") >= needed)
            # Groups come in any order, on which the codes must not depend.
            .sort("value")
            .collect()
        )
        return tuple(counts["value"].to_list())

    def _encode_categories(self, rows: pl.DataFrame) -> NDArray[np.int64]:
        columns = [
            pl.col(name)
            .cast(pl.String)
            .replace_strict(
                list(values),
                list(range(1, len(values) + 1)),
                default=UNKNOWN,
                return_dtype=pl.Int64,
            )
            for name, values in self.fitted.categories.items()
        ]
        if not columns:
            return np.zeros((rows.height, 0), dtype=np.int64)
        return rows.select(columns).to_numpy(writable=True)

    def _label_state(self, train: pl.LazyFrame) -> dict[str, object]:
        raise NotImplementedError

    def _encode_label(self, labels: pl.Series) -> NDArray[np.float32] | NDArray[np.int64]:
        raise NotImplementedError

    def _initial_output(self) -> Tensor:
        raise NotImplementedError

    def _output_keys(self) -> Sequence[Hashable]:
        return self.fitted.classes or [self.columns.label]

    def _describe_label(self, value: Tensor) -> str:
        raise NotImplementedError


class TabularClassification(TabularTask):
    """Two classes: one logit and binary cross-entropy; more: softmax cross-entropy."""

    Options: ClassVar[type[TabularOptions]] = ClassificationOptions
    kind: Literal["binary", "multiclass", "regression"] = "binary"
    """`binary` until the label shows more classes."""
    metrics: Mapping[str, Direction] = directions_of("roc_auc", "log_loss")

    def fit(self, train: pl.LazyFrame) -> None:
        """Learn the columns' statistics and the class shares."""
        super().fit(train)
        self._take_kind()

    def load_state(self, state: Mapping[str, JsonValue]) -> None:
        """Take over fitted statistics."""
        super().load_state(state)
        self._take_kind()

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the cross-entropy of each example, shape [B]."""
        if self.kind == "binary":
            return functional.binary_cross_entropy_with_logits(
                output.squeeze(-1), batch[LABEL].to(output.dtype), reduction="none"
            )
        return functional.cross_entropy(output, batch[LABEL].long(), reduction="none")

    def training_losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the loss against smoothed labels."""
        options = self.tabular
        smoothing = options.label_smoothing if isinstance(options, ClassificationOptions) else 0.0
        if not smoothing:
            return self.losses(output, batch)
        if self.kind == "binary":
            soft = batch[LABEL] * (1.0 - smoothing) + 0.5 * smoothing
            return self.losses(output, {**batch, LABEL: soft})
        return functional.cross_entropy(
            output, batch[LABEL].long(), reduction="none", label_smoothing=smoothing
        )

    def expected_initial_loss(self) -> float:
        """Return the label's entropy: the last layer starts at the class prior."""
        return self.fitted.entropy

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return the name of the second of two classes, or of every class."""
        names = self.fitted.probability_names
        return names[1:] if self.kind == "binary" else names

    def _take_kind(self) -> None:
        self.kind = "binary" if len(self.fitted.classes) == 2 else "multiclass"

    def _label_state(self, train: pl.LazyFrame) -> dict[str, object]:
        return dict(fit_classes(train, self.columns.label))

    def _encode_label(self, labels: pl.Series) -> NDArray[np.int64]:
        return encode_classes(labels, self.fitted.classes)

    def _initial_output(self) -> Tensor:
        shares = torch.tensor(self.fitted.class_shares)
        if self.kind == "binary":
            return torch.log(shares[1:] / shares[:1])
        return torch.log(shares)

    def _output_keys(self) -> Sequence[Hashable]:
        classes = self.fitted.classes
        return [classes] if self.kind == "binary" else classes

    def _describe_label(self, value: Tensor) -> str:
        return self.fitted.classes[int(value)]


class NumberTask(TabularTask):
    """Base of forecasts: the options' loss, and outputs that are added to the last value."""

    Options: ClassVar[type[TabularOptions]] = RegressionOptions

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        # A derived task may bring options of its own.
        self.regression = options if isinstance(options, RegressionOptions) else RegressionOptions()
        base = self.regression.relative_to
        if base and base not in columns.features:
            raise BadDataError(
                f"model.options.relative_to names {base!r}, which is not a feature column",
                evidence=f"features: {', '.join(columns.features)}",
            )

    def encode(self, rows: pl.DataFrame) -> Batch:
        """Encode a table; with `relative_to` also `last` [B, 1], standardised as the label is."""
        batch, state = super().encode(rows), self.fitted
        if self.regression.relative_to:
            last = (self._last_values(rows) - state.target_mean) / state.target_scale
            batch["last"] = torch.from_numpy(np.nan_to_num(last).astype(np.float32))[:, None]
        return batch

    def expected_initial_loss(self) -> float:
        """Return the loss of a constant on the training labels; 1 for squared error."""
        return self.fitted.initial_loss

    def _last_values(self, rows: pl.DataFrame) -> NDArray[np.float64]:
        column = rows[self.regression.relative_to]
        if is_window(column.dtype):
            last = column.cast(pl.List(pl.Float64)).list.last()
            return last.fill_null(math.nan).to_numpy()
        return column.cast(pl.Float64).fill_null(math.nan).to_numpy()

    def _fit_target(
        self, train: pl.LazyFrame, values: NDArray[np.float64]
    ) -> tuple[dict[str, object], NDArray[np.float64]]:
        """Return the state of labels [N, H], and the first output of each of the H steps.

        Rows without a label are NaN.

        Raises:
            BadDataError: the labels are constant or missing, or 32 bits hardly distinguish them.
        """
        is_labelled = ~np.isnan(values).all(axis=1)
        values = values[is_labelled]
        rows = len(values)
        scale = float(values.std()) if rows and values.min() < values.max() else 0.0
        if not scale:
            raise BadDataError(
                f"the label {self.columns.label!r} is constant or missing in the training split",
                evidence=f"{rows} values with standard deviation {scale}",
                action="check the label's definition and the split; there is nothing to learn",
            )
        step = float(np.spacing(np.abs(values).max().astype(np.float32)))
        if step > MOST_ROUNDING * scale:
            raise BadDataError(
                f"the label {self.columns.label!r} would be rounded to multiples of {step:g}",
                evidence=f"32-bit numbers of the size of {np.abs(values).max():.6g}, whose "
                f"standard deviation is {scale:.4g}",
                action="subtract a constant from the label, such as the begin of a time",
            )
        mean, options = float(values.mean()), self.regression
        standard = torch.from_numpy((values - mean) / scale)
        last = torch.zeros_like(standard)
        if options.relative_to:
            base = self._last_values(train.select(options.relative_to).collect())[is_labelled]
            last += torch.from_numpy(np.nan_to_num((base - mean) / scale))[:, None]
        left = (standard - last).numpy()
        share = 0.5 if options.quantile is None else options.quantile
        if options.loss == "squared":
            is_centred = not options.relative_to and values.shape[1] == 1
            # The mean of standardised labels is 0; computed, it would be a rounding error.
            starts = np.zeros(1) if is_centred else left.mean(axis=0)
        else:
            starts = np.quantile(left, share, axis=0)
        losses = options.losses(last + torch.from_numpy(starts), standard).numpy()
        state = {"target_mean": mean, "target_scale": scale, "rows": rows}
        return {**state, "initial_loss": float(losses.mean())}, starts


class TabularRegression(NumberTask):
    """One number: its mean, median or quantile, as `loss` says."""

    kind: Literal["regression"] = "regression"
    metrics: Mapping[str, Direction] = directions_of("rmse", "mae", "r2")

    def __init__(self, options: Section, columns: TaskColumns) -> None:
        super().__init__(options, columns)
        # Metrics of a derived task are those that its own `score` returns.
        if type(self).score is TabularRegression.score:
            self.metrics = {**directions_of(self.regression.metric), **self.metrics}

    def losses(self, output: Tensor, batch: Batch) -> Tensor:
        """Return the chosen loss of the standardised label, shape [B]."""
        target = (batch[LABEL] - self.fitted.target_mean) / self.fitted.target_scale
        return self.regression.losses(output.squeeze(-1), target)

    def predict(self, output: Tensor) -> Tensor:
        """Return values in the label's own unit, shape [B]."""
        return output.squeeze(-1) * self.fitted.target_scale + self.fitted.target_mean

    @property
    def prediction_names(self) -> Sequence[str]:
        """Return the label's name."""
        return (self.columns.label,)

    def _label_state(self, train: pl.LazyFrame) -> dict[str, object]:
        require_plain(train, self.columns.label, "one number")
        values = column_values(train, self.columns.label)
        state, starts = self._fit_target(train, values[:, None])
        return {**state, "target_start": float(starts[0])}

    def _encode_label(self, labels: pl.Series) -> NDArray[np.float32]:
        return labels.cast(pl.Float32).to_numpy(writable=True)

    def _initial_output(self) -> Tensor:
        return torch.tensor([self.fitted.target_start])

    def _describe_label(self, value: Tensor) -> str:
        return f"{value.item():.4g}"
