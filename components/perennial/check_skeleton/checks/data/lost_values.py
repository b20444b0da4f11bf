"""Check `lost_values`: `encode` keeps what matters of columns, lists and pictures.

Levels of pictures: a model may divide integers, cast or clip first, which its inputs do not show.
Numbers between two levels are set to one value: if outputs stay the same, the model does not
distinguish them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.check_skeleton.checks.data.merged_values import describe_merged_values
from perennial.check_skeleton.checks.data.signals import (
    Numbers,
    Signal,
    group_values,
    is_plain,
    join_names,
    measure_signal,
    needs_column,
    probe_rows,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Subject,
    build_noisy_model,
    compute_example_keys,
    select_head,
)
from perennial.contracts.errors import BadDataError
from perennial.contracts.skeleton import CheckResult
from perennial.data.pictures import decode_picture
from perennial.engine.task import Batch, inputs_of

MOST_COLUMNS = 64
# Chance exceeds five standard errors once in three million; bins of a healthy task keep 90 %.
CLEAR_ERRORS = 5.0
LOST_SHARE = 0.25
WORTH_SHARE = 0.01
# More than 20 values of which 30 % became one, while most others kept their own.
FEWEST_VALUES = 20
STAND_IN_SHARE = 0.3
# Where types of few bits wrap around.
OVERFLOWS = (128, 256, 32_768, 65_536, 2**31, 2**32)
LIST_ROWS = 512
PICTURES = 64
FEWEST_NUMBERS = 8
# Share of a number's bits that must remain: a threshold at the median leaves a quarter of those of
# sixteen values, an integer division hardly any.
KEPT_BITS = 0.2
# Share of all numbers with one value: higher than a threshold makes it, as of a lost picture.
ALIKE = 0.9
LEVEL_ROWS = 8
BINS = 16
TOLD_BINS = 0.25


@dataclass(frozen=True)
class Column:
    """A feature, before and after `encode`.

    Attributes:
        name: Of the column.
        values: Different values that were tried.
        codes: Different inputs that they became.
        signal: How well the raw values predict the label.
        lost: How well they still predict it among rows of equal inputs.
        stand_in: Share of the different values that became the most frequent input.
        period: The interval after which a number wraps around; 0 if it does not.
        is_read: Whether `encode` needs the column.
    """

    name: str
    values: int
    codes: int
    signal: Signal
    lost: Signal
    stand_in: float
    period: float
    is_read: bool

    @property
    def is_loss(self) -> bool:
        """Whether the loss is significant, and a large part of the column's signal."""
        return (
            self.lost.errors > CLEAR_ERRORS
            and self.lost.share > max(WORTH_SHARE, LOST_SHARE * self.signal.share)
        )  # fmt: skip


@check(
    "lost_values",
    expects="different inputs for different values of a column, where these predict the label",
    source="each column's values are put into the same row and encoded: which become equal, "
    "and how much of the label that loses",
    tolerance=f"{LOST_SHARE:.0%} of the column's signal, {CLEAR_ERRORS:g} standard errors",
    needs_losses=False,
)
def check_lost_values(subject: Subject, judge: Judge) -> CheckResult:
    """Check that `encode` keeps the differences between the values of a column."""
    if lost := judge_lists(judge, subject) or judge_levels(judge, subject):
        return lost
    if subject.task.kind == "statistic":
        return judge.skipped("the task measures examples: there is no single label to predict")
    rows, labels = probe_rows(subject)
    names = [each for each in subject.task.columns.features if is_plain(rows[each])]
    if subject.task.columns.label in names or not names:
        return judge.skipped("no feature other than the label holds single values")
    found = [
        each
        for name in names[:MOST_COLUMNS]
        if (each := _encode_column(subject, rows, labels, name))
    ]
    evidence = {
        each.name: {"values": each.values, "inputs": each.codes, "lost": round(each.lost.share, 4)}
        for each in found
    }
    for name in names[:MOST_COLUMNS]:
        if merged := describe_merged_values(subject, rows, labels, name):
            return judge.failed(merged[0], hint=merged[1], **evidence)
    return _judge_loss(judge, found) or judge.passed(
        f"{len(found)} of {len(names)} columns keep the differences that predict the label",
        **evidence,
    )


def _judge_loss(judge: Judge, found: list[Column]) -> CheckResult | None:
    if wrapped := [each for each in found if each.period in OVERFLOWS]:
        return judge.failed(
            f"values wrap around after {wrapped[0].period:.10g}: "
            f"{join_names([each.name for each in wrapped])}",
            hint="numbers overflow a type of too few bits: cast to float32 first",
        )
    if dull := [each for each in found if each.codes == 1 and each.is_loss and each.is_read]:
        return judge.failed(
            f"all {dull[0].values} values of {join_names([each.name for each in dull])} become the "
            f"same input, although they explain {dull[0].signal.share:.1%} of the label's variance",
            hint="every value is unknown to encode (its case, spaces, type or spelling differ from "
            "the vocabulary's), cast to a whole number, clipped to one value, or overwritten",
        )
    if lossy := [each for each in found if each.is_loss]:
        worst = max(lossy, key=lambda each: each.lost.share)
        return judge.warned(
            f"{worst.values} values of {worst.name} become {worst.codes} inputs; "
            f"{_format_lost_part(worst)} of "
            f"its signal for the label is lost ({worst.lost.errors:.0f} standard errors)"
            + (
                f"; also {join_names([e.name for e in lossy if e is not worst])}"
                if lossy[1:]
                else ""
            ),
            hint=_explain_loss(worst),
        )
    if broken := [each for each in found if each.period]:
        return judge.warned(
            f"values wrap around after {broken[0].period:.6g}: "
            f"{join_names([each.name for each in broken])}",
            hint=_explain_loss(broken[0]),
        )
    if replaced := [each for each in found if each.stand_in > STAND_IN_SHARE]:
        worst = max(replaced, key=lambda each: each.stand_in)
        return judge.warned(
            f"{worst.stand_in:.0%} of the {worst.values} values of {worst.name} become the same "
            "input, the others keep their own",
            hint="values that cannot be parsed (dates of another format?), a limit that clips many "
            "values, logarithms of non-positive numbers, a vocabulary that ends too early",
        )
    return None


def _format_lost_part(column: Column) -> str:
    return f"{min(column.lost.share / max(column.signal.share, 1e-9), 1.0):.0%}"


def _explain_loss(column: Column) -> str:
    if column.codes == 1:
        return (
            "encode does not use the column: is it forgotten, overwritten by another one, or "
            "should it not be a feature?"
        )
    if column.period:
        return (
            f"the input wraps around after {column.period:.6g}: a modulo, a part of a date or a "
            "type of too few bits gives distant values the same input"
        )
    return (
        "different values share an input: hashes that collide, a vocabulary that ends early, "
        "truncated names, a limit that clips many values, coarse rounding"
    )


def _encode_column(
    subject: Subject, rows: pl.DataFrame, labels: Numbers, name: str
) -> Column | None:
    """Encode a column's values, each in the same row; None if `encode` does not accept them."""
    column = rows[name]
    if column.n_unique() < 2:
        return None
    known = column.drop_nulls()
    base = rows[[int(column.is_not_null().arg_max() or 0)] * rows.height]
    groups, different = group_values(column), known.n_unique()
    try:
        encoded = inputs_of(subject.task.encode(base.with_columns(column)))
        keys = compute_example_keys(encoded)
    except Exception:  # values of one row in another may contradict its other columns
        return None
    _, codes = np.unique(keys, return_inverse=True)
    signal = measure_signal(groups, labels)
    lost = measure_signal(groups, labels, codes)
    values = pl.DataFrame({"value": column, "code": codes}).drop_nulls().unique()
    counts = values["code"].value_counts()["count"]
    stand_in = float(counts.max()) / values.height  # type: ignore[arg-type]
    others = (len(counts) - 1) / max(values.height * (1 - stand_in), 1)
    is_stand_in = different > FEWEST_VALUES and others > 0.5 and _is_ordered(column)
    return Column(
        name, different, len(set(codes)), signal, lost, stand_in if is_stand_in else 0.0,
        _find_period(column, encoded),
        is_read=len(set(codes.tolist())) == 1 and _is_read(subject, base, column),
    )  # fmt: skip


def _is_ordered(column: pl.Series) -> bool:
    """Whether values are amounts or times; rare names may well share one input."""
    if column.dtype.is_numeric() or column.dtype.is_temporal():
        return True
    return bool(column.drop_nulls().str.contains(r"^\d{2,4}[-/.]\d{1,2}[-/.]\d{1,4}").all())


def _is_read(subject: Subject, base: pl.DataFrame, column: pl.Series) -> bool:
    """Whether `encode` needs the column, or other values of it change the inputs."""
    if needs_column(subject, base.head(1), column.name):
        return True
    variants = (
        [column.cast(pl.Float64) * by for by in (1e3, 1e6, -1.0)]
        if (column.dtype.is_numeric())
        else [
            getattr(column.str, how)() for how in ("to_uppercase", "to_lowercase", "to_titlecase")
        ]
    )

    def inputs(values: pl.Series) -> set[bytes]:
        changed = base.with_columns(values.cast(column.dtype, strict=False).alias(column.name))
        return set(compute_example_keys(inputs_of(subject.task.encode(changed))))

    try:
        before = inputs(column)
        return any(inputs(each) - before for each in variants)
    except Exception:  # only a column that is read can be refused
        return True


def _find_period(column: pl.Series, encoded: Batch) -> float:
    """Return the interval after which an input wraps around; 0 if none does."""
    if not column.dtype.is_numeric():
        return 0.0
    values, first = np.unique(
        column.fill_null(np.nan).cast(pl.Float64).to_numpy(), return_index=True
    )
    first = first[np.isfinite(values)]
    values = values[np.isfinite(values)]
    if len(values) < FEWEST_VALUES:
        return 0.0
    found = [0.0]
    for tensor in encoded.values():
        for each in tensor[first].reshape(len(first), -1).double().numpy().T[:MOST_COLUMNS]:
            if (np.diff(each) > 0).all() or (np.diff(each) < 0).all():
                return 0.0  # another input keeps the order, as hours do beside minutes
            found.append(find_sawtooth_period(values, each))
    return max(found)


@dataclass(frozen=True)
class NumberMap:
    """The mapping from the numbers of a list column to an input of as many numbers.

    Attributes:
        column: Its name.
        values: The different numbers of the column, rising.
        inputs: What each becomes.
        kept: Share of a number's bits that remain.
        common: Share of the most frequent input.
    """

    column: str
    values: Numbers
    inputs: Numbers
    kept: float
    common: float


def judge_lists(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge what becomes of numbers in lists; None if they keep their information."""
    for found in _map_lists(subject):
        shown = (
            f"{len(found.values)} different numbers in {found.column} become "
            f"{len(np.unique(found.inputs))}, {found.kept:.0%} of their bits"
        )
        if period := find_sawtooth_period(found.values, found.inputs):
            return judge.failed(
                f"the numbers in {found.column} wrap around after {period:.6g}",
                hint="they overflow a type of too few bits (bytes, for example): cast to float32 "
                "first",
            )
        if found.kept < KEPT_BITS:
            return (judge.failed if found.common > ALIKE else judge.warned)(
                shown,
                hint="an integer division, a cast before the scaling, or a limit makes nearly all "
                "of them equal: cast to float32 first",
            )
    return None


def _map_lists(subject: Subject) -> Iterator[NumberMap]:
    """Yield a map for each list column of which each number becomes one input number."""
    columns = subject.task.columns
    rows = subject.train_rows.head(LIST_ROWS)
    tensors = inputs_of(select_head(subject.train, LIST_ROWS)).values()
    encoded = [each.reshape(len(each), -1).double().numpy() for each in tensors]
    for name in columns.features:
        for raw in (_read_matrix(rows[name]), *_read_pictures(rows[name])):
            if raw is not None:
                yield from _map_numbers(name, raw, encoded)


def _map_numbers(name: str, raw: Numbers, encoded: Sequence[Numbers]) -> Iterator[NumberMap]:
    """Yield the mapping into each input that has one number for each of the column's."""
    values, places = np.unique(raw, return_inverse=True)
    if len(values) < FEWEST_NUMBERS:
        return
    for whole in encoded:
        each = whole[: len(raw)]
        if each.shape != raw.shape:
            continue
        first = np.zeros(len(values))
        first[places.reshape(-1)] = each.reshape(-1)
        if np.allclose(first[places].reshape(raw.shape), each, rtol=1e-4, atol=1e-6):
            kept = count_bits(each) / max(count_bits(raw), 1e-9)
            yield NumberMap(name, values, first, kept, measure_most_common(each))


def _read_pictures(column: pl.Series) -> Iterator[Numbers]:
    """Yield pictures of one size as rows of numbers, channels last and channels first."""
    if column.dtype != pl.Binary or column.null_count():
        return
    try:
        found = [decode_picture(file) for file in column.head(PICTURES)]
    except BadDataError:  # files of something else
        return
    if len({each.shape for each in found}) == 1:
        pixels = np.stack(found).astype(np.float64)
        yield pixels.reshape(len(pixels), -1)
        if pixels.ndim == 4:
            yield np.moveaxis(pixels, 3, 1).reshape(len(pixels), -1)


def _read_matrix(column: pl.Series) -> Numbers | None:
    """Return lists of one length as rows of numbers, [N, L]; None for anything else."""
    kind = column.dtype
    if not isinstance(kind, pl.List | pl.Array) or column.null_count() or not len(column):
        return None
    inner = column.explode()
    if not inner.dtype.is_numeric() or inner.null_count() or len(inner) % len(column):
        return None
    lengths = column.list.len() if isinstance(kind, pl.List) else column.arr.len()
    if lengths.n_unique() != 1:
        return None
    return inner.cast(pl.Float64).to_numpy().reshape(len(column), -1)


def count_bits(numbers: Numbers) -> float:
    """Return the entropy of the different numbers, in bits."""
    _, counts = np.unique(np.round(numbers, 9), return_counts=True)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares)).sum())


def measure_most_common(numbers: Numbers) -> float:
    """Return the share of the most frequent number."""
    _, counts = np.unique(np.round(numbers, 9), return_counts=True)
    return float(counts.max() / counts.sum())


def judge_levels(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge pictures of whose numbers the model distinguishes only a few; None for others."""
    batch = inputs_of(subject.balanced(LEVEL_ROWS))
    for name, tensor in batch.items():
        if tensor.ndim < 3 or tensor.dtype == torch.bool:
            continue
        values = np.unique(tensor.double().numpy())
        if len(values) < BINS or not np.isfinite(values).all():
            continue
        levels = _find_levels(build_noisy_model(subject), batch, name, values)
        if levels is None:
            continue
        numbers = tensor.double().numpy()
        read = np.searchsorted(levels, numbers, side="right").astype(np.float64)
        kept = count_bits(read) / max(count_bits(numbers), 1e-9)
        if kept < KEPT_BITS and len(levels) > 1:
            return (judge.failed if measure_most_common(read) > ALIKE else judge.warned)(
                f"the model distinguishes {len(levels)} of {len(values)} different numbers in "
                f"{name}, {kept:.0%} of their bits; {measure_most_common(read):.0%} of them look "
                "the same to "
                "it",
                hint="an integer division, a cast or a limit before the first layer: divide with "
                "`/`, after `float()`",
            )
    return None


def _find_levels(model: nn.Module, batch: Batch, name: str, values: Numbers) -> list[float] | None:
    """Return the lowest number of each group of indistinguishable ones; None if many groups."""
    with torch.no_grad():
        before = model(**batch)

    def are_one(low: float, high: float) -> bool:
        tensor = batch[name]
        alike = torch.where((tensor >= low) & (tensor <= high), tensor.new_tensor(low), tensor)
        with torch.no_grad():
            return torch.equal(before, model(**{**batch, name: alike}))

    parts = np.array_split(values, BINS)
    apart = [not are_one(part[0], part[-1]) for part in parts]
    if sum(apart) > BINS * TOLD_BINS:
        return None
    # Only the few parts with distinguishable numbers are searched more closely.
    steps = [
        step
        for part, is_apart in zip(parts, apart, strict=True)
        for step in (np.array_split(part, min(BINS, len(part))) if is_apart else [part])
    ]
    groups = [float(values[0])]
    for step in steps:
        if not are_one(groups[-1], step[-1]):
            groups.append(float(step[0]))
    return groups


def find_sawtooth_period(values: Numbers, inputs: Numbers) -> float:
    """Return the period of numbers that rise evenly and fall back; 0 for others."""
    steps, rises = np.diff(values), np.diff(inputs)
    slopes = rises / steps
    slope = float(np.median(slopes))
    falls = slopes * np.sign(slope) < 0
    if slope == 0 or not falls.any() or falls.mean() > 0.2:
        return 0.0
    even = np.isclose(slopes[~falls], slope, rtol=1e-2)
    if even.mean() < 0.9:
        return 0.0
    back = steps[falls] - rises[falls] / slope
    period = float(np.round(back.min()))
    is_regular = period > 1 and np.allclose(back / period, np.round(back / period), atol=0.05)
    return period if is_regular else 0.0
