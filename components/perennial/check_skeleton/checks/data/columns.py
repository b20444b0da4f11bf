"""Check `lost_values`: `encode` keeps what matters of the raw columns."""

from dataclasses import dataclass

import numpy as np
import polars as pl

from perennial.check_skeleton.checks.data.levels import judge_levels
from perennial.check_skeleton.checks.data.lists import judge_lists
from perennial.check_skeleton.checks.data.merged import describe_merged_values
from perennial.check_skeleton.checks.data.signals import (
    Numbers,
    Signal,
    groups_of,
    is_plain,
    join_names,
    probed_rows,
    signal_of,
)
from perennial.check_skeleton.checks.data.teeth import sawtooth
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, example_keys
from perennial.contracts.skeleton import CheckResult
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
    rows, labels = probed_rows(subject)
    names = [each for each in subject.task.columns.features if is_plain(rows[each])]
    if subject.task.columns.label in names or not names:
        return judge.skipped("no feature other than the label holds single values")
    found = [
        each for name in names[:MOST_COLUMNS] if (each := _column(subject, rows, labels, name))
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
            f"{worst.values} values of {worst.name} become {worst.codes} inputs; {_part(worst)} of "
            f"its signal for the label is lost ({worst.lost.errors:.0f} standard errors)"
            + (
                f"; also {join_names([e.name for e in lossy if e is not worst])}"
                if lossy[1:]
                else ""
            ),
            hint=_cause(worst),
        )
    if broken := [each for each in found if each.period]:
        return judge.warned(
            f"values wrap around after {broken[0].period:.6g}: "
            f"{join_names([each.name for each in broken])}",
            hint=_cause(broken[0]),
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


def _part(column: Column) -> str:
    return f"{min(column.lost.share / max(column.signal.share, 1e-9), 1.0):.0%}"


def _cause(column: Column) -> str:
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


def _column(subject: Subject, rows: pl.DataFrame, labels: Numbers, name: str) -> Column | None:
    """Encode a column's values, each in the same row; None if `encode` does not accept them."""
    column = rows[name]
    if column.n_unique() < 2:
        return None
    known = column.drop_nulls()
    base = rows[[int(column.is_not_null().arg_max() or 0)] * rows.height]
    groups, different = groups_of(column), known.n_unique()
    try:
        encoded = inputs_of(subject.task.encode(base.with_columns(column)))
        keys = example_keys(encoded)
    except Exception:  # values of one row in another may contradict its other columns
        return None
    _, codes = np.unique(keys, return_inverse=True)
    signal = signal_of(groups, labels)
    lost = signal_of(groups, labels, codes)
    values = pl.DataFrame({"value": column, "code": codes}).drop_nulls().unique()
    counts = values["code"].value_counts()["count"]
    stand_in = float(counts.max()) / values.height  # type: ignore[arg-type]
    others = (len(counts) - 1) / max(values.height * (1 - stand_in), 1)
    is_stand_in = different > FEWEST_VALUES and others > 0.5 and _is_ordered(column)
    return Column(
        name, different, len(set(codes)), signal, lost, stand_in if is_stand_in else 0.0,
        _period(column, encoded),
        is_read=len(set(codes.tolist())) == 1 and _is_read(subject, base, column),
    )  # fmt: skip


def _is_ordered(column: pl.Series) -> bool:
    """Whether values are amounts or times; rare names may well share one input."""
    if column.dtype.is_numeric() or column.dtype.is_temporal():
        return True
    return bool(column.drop_nulls().str.contains(r"^\d{2,4}[-/.]\d{1,2}[-/.]\d{1,4}").all())


def _is_read(subject: Subject, base: pl.DataFrame, column: pl.Series) -> bool:
    """Whether `encode` needs the column, or other values of it change the inputs."""
    try:
        subject.task.encode(base.drop(column.name))
    except Exception:  # only a column that is read can be missed
        return True
    variants = (
        [column.cast(pl.Float64) * by for by in (1e3, 1e6, -1.0)]
        if (column.dtype.is_numeric())
        else [
            getattr(column.str, how)() for how in ("to_uppercase", "to_lowercase", "to_titlecase")
        ]
    )
    try:
        before = set(example_keys(inputs_of(subject.task.encode(base.with_columns(column)))))
        for each in variants:
            variant = each.cast(column.dtype, strict=False).alias(column.name)
            if (
                set(example_keys(inputs_of(subject.task.encode(base.with_columns(variant)))))
                - before
            ):
                return True
    except Exception:  # only a column that is read can be refused
        return True
    return False


def _period(column: pl.Series, encoded: Batch) -> float:
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
            found.append(sawtooth(values, each))
    return max(found)
