"""Check `input_scale`: inputs are finite, varied, and normalised with their own statistics.

Statistics of another unit: one number of a row is changed and its change located in the inputs.
The mapping x → (x - m) / s gives the mean and deviation used, wherever the number ends up: padded,
cropped, moved.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.values.placeholders import find_unreplaced_feature
from perennial.check_skeleton.models import build_noisy_model
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Floats,
    Subject,
    find_distinct_examples,
    is_sequence,
    select_rows,
)
from perennial.contracts.errors import BadDataError, join_names
from perennial.contracts.skeleton import CheckResult
from perennial.data.pictures import decode_picture, encode_png
from perennial.engine.task import LABEL, Batch, inputs_of

PROBED_ROWS = 64
# Training works best with mean 0 and variance 1 (LeCun et al., Efficient BackProp, 1998). Raw
# pixels, amounts and timestamps are off by a factor of ten, standardised columns never.
LARGEST_SCALE = 10.0
ROWS, FEWEST_ROWS = 32, 8
MOST_COLUMNS = 32
PICTURES = 256
# Relative difference of equal ratios; ratio beyond which statistics are of another unit.
SAME, OTHER_UNIT = 0.05, 8.0
BEYOND_DEVIATIONS = 20.0
# What rounding of the inputs leaves between the same statistics, found in two columns.
SAME_STATISTICS = 0.01
EXACT, OWN, NEAR = 0.05, 0.3, 0.15


@check(
    "input_scale",
    expects="finite inputs that vary, float columns with mean and deviation below "
    f"{LARGEST_SCALE:g}",
    source="Efficient BackProp §4.3; guides: look at tensors right before the model",
    needs_losses=False,
)
def check_input_scale(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the inputs are finite, informative and of a scale that trains well."""
    inputs = inputs_of(subject.train)
    distinct = len(find_distinct_examples(inputs))
    if found := _judge_broken(judge, subject) or _judge_constants(judge, subject, distinct):
        return found
    if found := _judge_statistics(judge, subject):
        return found
    names = [name for name, tensor in inputs.items() if not _is_additive_mask(tensor)]
    columns = [column for name in names for column in _list_columns(name, subject.train)]
    constant = [name for name, values in columns if bool((values == values[0]).all())]
    if large := {
        name: [round(float(values.mean()), 4), round(float(values.std()), 4)]
        for name, values in columns
        if values.is_floating_point() and max(abs(values.mean()), values.std()) > LARGEST_SCALE
    }:
        worst = max(large, key=lambda name: max(map(abs, large[name])))
        return judge.warned(
            f"{len(large)} of {len(columns)} columns are not normalised; "
            f"{worst} has mean {large[worst][0]:.4g} and deviation {large[worst][1]:.4g}",
            hint="standardise in encode with statistics from fit(train)",
            mean_and_deviation=large,
        )
    # A rare indicator may be constant in a sample; many constants mean lost columns.
    if len(constant) > max(1, len(columns) // 4):
        return judge.warned(
            f"{len(constant)} of {len(columns)} columns are constant: {', '.join(constant[:8])}",
            hint="columns are lost in encode, every category is unknown to it, or texts are padded "
            "to a length that no text needs",
            constant=constant,
        )
    return judge.passed(
        f"{len(columns)} columns, {distinct} of {subject.num_rows()} rows differ", constant=constant
    )


def _judge_statistics(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge the means and deviations of columns, and placeholders that spoil them."""
    scalings = _find_scalings(subject)
    if other := _describe_other_unit(subject, scalings):
        return judge.failed(other[0], hint=other[1])
    if shared := _describe_shared_scale(scalings):
        return judge.warned(
            shared,
            hint="is an axis missing in `mean` and `std`? Use axis=0, so that each column has its "
            "own; correct for columns of one unit whose differences in spread mean something",
        )
    if placeholder := find_unreplaced_feature(subject):
        return (judge.failed if placeholder.is_certain else judge.warned)(
            placeholder.description,
            hint="does it stand for a missing value, as -99 or 999? Then fill it, and say so in a "
            "flag of its own: the other values are normalised to nearly one number beside it",
        )
    return None


def _judge_constants(judge: Judge, subject: Subject, distinct: int) -> CheckResult | None:
    """Judge rows that are all equal; None if they differ."""
    inputs = inputs_of(subject.train)
    if distinct == 1:
        return judge.failed(
            f"all {subject.num_rows()} sampled rows have the same inputs",
            hint="encode returns constants; compare the preview with the rows",
        )
    # A table without numbers may have an empty tensor for them.
    floats = {name: t for name, t in inputs.items() if t.is_floating_point() and t.numel()}
    if frozen := [name for name, t in floats.items() if bool((t == t[:1]).all())]:
        return judge.warned(
            f"all {subject.num_rows()} sampled rows have the same {', '.join(frozen)}",
            hint="encode returns constants; compare the preview with the rows. Correct for a mask "
            "that no row needs",
        )
    return None


def _judge_broken(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge NaN and infinite values; None if there are none."""
    inputs = inputs_of(subject.train)
    broken = {
        name: int((~torch.isfinite(t.double())).sum())
        for name, t in inputs.items()
        if not _is_additive_mask(t)
    }
    if not any(broken.values()):
        return None
    return (judge.warned if _are_accepted(subject) else judge.failed)(
        f"NaN or infinite values: {broken}",
        hint="fill missing values in encode and guard divisions by a zero scale. Correct only if "
        "the model itself replaces them",
    )


def _is_additive_mask(tensor: Tensor) -> bool:
    """Whether the tensor is an additive attention mask: zeros and minus infinity."""
    return tensor.is_floating_point() and bool(((tensor == 0) | (tensor == -torch.inf)).all())


def _are_accepted(subject: Subject) -> bool:
    """Whether loss and gradients are finite for rows with missing values."""
    inputs = inputs_of(subject.train)
    flat = [each.double().reshape(len(each), -1) for each in inputs.values()]
    missing = [(~torch.isfinite(each)).any(dim=1) for each in flat]
    index = torch.stack(missing).any(dim=0).nonzero().flatten()[:PROBED_ROWS]
    batch, model = select_rows(subject.train, index), build_noisy_model(subject)
    loss = subject.task.losses(model(**inputs_of(batch)), batch).sum()
    if not bool(torch.isfinite(loss)) or not loss.requires_grad:
        return False
    named = [each for each in model.parameters() if each.requires_grad]
    gradients = torch.autograd.grad(loss, named, allow_unused=True)
    return all(each is None or bool(torch.isfinite(each).all()) for each in gradients)


def _list_columns(name: str, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """Yield the columns of a table; anything else, such as images or tokens, is one column."""
    tensor = batch[name]
    if tensor.ndim == 2 and not is_sequence(name, batch):
        for index in range(tensor.shape[1]):
            yield f"{name}[{index}]", tensor[:, index]
    else:
        yield name, tensor.flatten()


@dataclass(frozen=True)
class Scaling:
    """The normalisation of a column's numbers."""

    column: str
    is_list: bool  # whether each row has many numbers
    numbers: Floats  # the raw numbers of all rows
    centre: float  # what is subtracted; NaN if not normalised
    scale: float  # the divisor

    @cached_property
    def mean(self) -> float:
        """Mean of the raw numbers."""
        return float(self.numbers.mean())

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the raw numbers."""
        return float(self.numbers.std())

    def has_statistics_of(self, other: "Scaling") -> bool:
        """Whether the same mean and deviation are used, and were measured."""
        return (
            self.scale > 0
            and self.centre != 0
            and abs(self.centre - other.centre) < SAME_STATISTICS * abs(other.centre)
            and abs(self.scale - other.scale) < SAME_STATISTICS * other.scale
            and not (_is_round(other.centre) and _is_round(other.scale))
        )

    @property
    def used(self) -> str:
        """Description of the statistics, own and used."""
        return (
            f"{self.column} has mean {self.mean:.4g} and deviation {self.deviation:.4g}, but is "
            f"normalised with {self.centre:.4g} and {self.scale:.4g}"
        )


def _is_round(number: float) -> bool:
    return abs(float(f"{number:.2g}") - number) < SAME_STATISTICS / 10 * abs(number)


def _find_scalings(subject: Subject) -> list[Scaling]:
    columns = subject.task.columns
    names = [name for name in columns.features if name != columns.label][:MOST_COLUMNS]
    return [each for name in names if (each := _find_scaling(subject, name)) is not None]


def _describe_shared_scale(found: list[Scaling]) -> str:
    """Describe columns of several units that are normalised with the statistics of all; or empty.

    Round numbers are chosen, as for percentages. Columns named alike but for a number, as pixels
    or lags are, are of one unit.
    """
    for first in found:
        alike = [each for each in found if each.has_statistics_of(first)]
        stems = {re.sub(r"\d+", "", each.column) for each in alike}
        alike.sort(key=lambda each: each.deviation)
        if len(stems) > 1 and first.scale > OTHER_UNIT * alike[0].deviation:
            return (
                f"{join_names([each.column for each in alike])} are all normalised with "
                f"{first.centre:.4g} and {first.scale:.4g}, which leaves {alike[0].column} a "
                f"deviation of {alike[0].deviation / first.scale:.2g}"
            )
    return ""


def _describe_other_unit(subject: Subject, found: list[Scaling]) -> tuple[str, str] | None:
    """Describe a column normalised with another unit's or column's statistics, with a hint."""
    for each in found:
        if problem := _describe_unit(each):
            return f"{each.used}: {problem}", (
                "the statistics are of numbers in another unit (0 to 255 and 0 to 1, cents and "
                "euros): scale numbers the same way in `fit` and in `encode`"
            )
    label = _find_label_scaling(subject)
    for other in found:
        if label and _is_taken_from(label, other) and _has_own(label, other, found):
            return f"{label.used}, the statistics of {other.column}", (
                "the label is normalised with the statistics of another column: check their order "
                "and indices, also where predictions are scaled back"
            )
    return None


def _describe_unit(each: Scaling) -> str:
    if not np.isfinite(each.centre) or each.centre == 0 or each.scale <= 0:
        return ""
    by_mean, by_deviation = each.mean / each.centre, each.deviation / each.scale
    is_other = max(by_mean, 1 / by_mean) > OTHER_UNIT if by_mean > 0 else False
    # x / c - 1, scaled between its ends, or around the median.
    low, middle, high = np.quantile(each.numbers, (0, 0.5, 1))
    is_chosen = abs(each.centre / each.scale - 1) < SAME or any(
        abs(each.centre - end) < SAME * each.scale for end in (low, middle, high)
    )
    if is_other and not is_chosen and abs(by_mean / by_deviation - 1) < SAME:
        much = "small" if by_mean > 1 else "large"
        return f"both are {max(by_mean, 1 / by_mean):.3g} times too {much}"
    beyond = (each.centre - each.mean) / each.deviation
    is_beyond = low >= 0 and each.centre > 2 * high
    if each.is_list and is_beyond and beyond > BEYOND_DEVIATIONS:
        return f"the mean is {beyond:.0f} deviations off, above every number"
    return ""


def _is_taken_from(label: Scaling, other: Scaling) -> bool:
    """Whether the label is normalised with exactly this column's statistics, and not its own."""

    def is_near(column: Scaling, most: float) -> bool:
        is_centre = abs(label.centre - column.mean) < most * column.deviation
        return is_centre and abs(label.scale / column.deviation - 1) < most

    return label.centre != 0 and is_near(other, EXACT) and not is_near(label, OWN)


def _has_own(label: Scaling, other: Scaling, found: list[Scaling]) -> bool:
    """Whether a column resembles the label, but is normalised with other statistics."""
    return any(
        abs(each.mean - label.mean) < NEAR * label.deviation
        and abs(each.deviation / label.deviation - 1) < NEAR
        and np.isfinite(each.centre)
        and abs(each.centre - label.centre) > EXACT * other.deviation
        for each in found
        if each is not other
    )


def _find_label_scaling(subject: Subject) -> Scaling | None:
    """Return the label's normalisation; None if it is not a number, or not normalised."""
    raw, encoded = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    if subject.task.kind != "regression" or not raw.dtype.is_numeric() or raw.null_count():
        return None
    x, y = raw.cast(pl.Float64).to_numpy(), encoded.double().numpy()
    if y.shape != x.shape or not np.isfinite(y).all() or x.std() < 1e-12 or y.std() < 1e-12:
        return None
    slope, start = np.polyfit(x, y, 1)
    if slope <= 0 or np.abs(slope * x + start - y).max() > 1e-3 * y.std():
        return None
    return Scaling(raw.name, is_list=False, numbers=x, centre=-start / slope, scale=1 / slope)


def _find_scaling(subject: Subject, name: str) -> Scaling | None:
    column = subject.train_rows[name]
    if column.null_count():
        return None
    raw = _read_numbers(column)
    if raw is None:
        return None
    numbers = np.concatenate([each.reshape(-1) for each in raw])
    deviation = float(numbers.std())
    if deviation < 1e-12 or not np.isfinite(deviation):
        return None
    try:
        centre, scale = _find_statistics(subject, column, raw[:ROWS])
    except Exception:  # a task may refuse values of other rows
        centre, scale = np.nan, np.nan
    is_list = column.dtype.is_nested() or column.dtype == pl.Binary
    return Scaling(name, is_list, numbers, centre, scale)


def _read_numbers(column: pl.Series) -> list[Floats] | None:
    """Return the numbers of each row; None if the column has none."""
    kind = column.dtype
    if kind == pl.Binary:
        try:
            return [decode_picture(each).astype(np.float64) for each in column.head(PICTURES)]
        except BadDataError:  # files of something else
            return None
    if isinstance(kind, pl.List | pl.Array) and kind.inner.is_numeric():
        return [np.asarray(each, dtype=np.float64) for each in column.to_list()]
    if not kind.is_numeric():
        return None
    return [np.asarray([each], dtype=np.float64) for each in column.to_list()]


def _find_statistics(subject: Subject, column: pl.Series, raw: list[Floats]) -> tuple[float, float]:
    """Return the mean and deviation used to normalise numbers; NaN if they are not."""
    rows, places = subject.train_rows.head(len(raw)), np.random.default_rng(0)
    changed, steps = [], []
    for each, other in zip(raw, [*raw[1:], raw[0]], strict=True):
        place, whole = int(places.integers(each.size)), each.copy()
        old = each.reshape(-1)[place]
        new = other.reshape(-1)[np.abs(other.reshape(-1) - old).argmax()]
        whole.reshape(-1)[place] = new
        changed.append(whole)
        steps.append((old, new))
    before, after = (
        inputs_of(subject.task.encode(rows.with_columns(_make_column(column, each))))
        for each in (raw, changed)
    )
    for name, tensor in before.items():
        if tensor.is_floating_point():
            pair = [each[name].reshape(len(raw), -1).double().numpy() for each in (before, after)]
            if found := _fit_line(np.array(steps), *pair):
                return found
    return np.nan, np.nan


def _fit_line(steps: Floats, before: Floats, after: Floats) -> tuple[float, float] | None:
    """Return the mean and deviation that explain how one number changed in each row."""
    moved = before != after
    is_single = (moved.sum(axis=1) == 1) & (steps[:, 0] != steps[:, 1])
    if is_single.sum() < FEWEST_ROWS:
        return None
    at = moved[is_single].argmax(axis=1)[:, None]
    old, new = steps[is_single].T
    first, second = (np.take_along_axis(each[is_single], at, 1)[:, 0] for each in (before, after))
    slopes = (second - first) / (new - old)
    starts = first - slopes * old
    slope, start = float(np.median(slopes)), float(np.median(starts))
    size = max(abs(start), abs(slope) * float(np.abs(old).max()), 1e-9)
    if not np.allclose(slopes, slope, rtol=1e-2) or np.abs(starts - start).max() > 1e-2 * size:
        return None
    # Rounding leaves a small value where nothing is subtracted.
    return (-start / slope if abs(start) > 1e-4 * size else 0.0), 1 / slope


def _make_column(column: pl.Series, raw: list[Floats]) -> pl.Series:
    """Return the numbers of each row in the column's own type."""
    if column.dtype == pl.Binary:
        files = [encode_png(each.astype(np.uint8)) for each in raw]
        return pl.Series(column.name, files, dtype=pl.Binary)
    if column.dtype.is_nested():
        lists = pl.Series(column.name, [each.tolist() for each in raw])
        return lists.cast(column.dtype)
    return pl.Series(column.name, np.concatenate(raw)).cast(column.dtype)
