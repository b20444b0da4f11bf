"""Check `lost_values`: `encode` keeps what matters of columns, lists and pictures.

Hashes, bins, limits and vocabularies merge values on purpose. It is a mistake to keep a vector for
each value but reach only a few of them, or to take a handful of values modulo a number when that
loses information about the label.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from sklearn.ensemble import RandomForestRegressor
from torch import Tensor, nn

from perennial.check_skeleton.checks.data.signals import (
    ROWS,
    Signal,
    find_tensors_of,
    find_unread_features,
    group_values,
    is_input_changed,
    is_ordered,
    is_plain,
    measure_signal,
    probe_rows,
    read_labels,
)
from perennial.check_skeleton.checks.data.values.angles import judge_angles
from perennial.check_skeleton.checks.data.values.cut_numbers import judge_cut_numbers
from perennial.check_skeleton.checks.data.values.levels import (
    CALENDAR,
    find_sawtooth_period,
    judge_levels,
    judge_lists,
)
from perennial.check_skeleton.checks.data.values.lost_colours import judge_lost_colours
from perennial.check_skeleton.checks.data.values.lost_numbers import judge_lost_numbers
from perennial.check_skeleton.checks.data.values.unknown_texts import judge_unknown_texts
from perennial.check_skeleton.models import evaluated, run_model, watch_modules
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    Codes,
    Flags,
    Floats,
    Subject,
    compute_example_keys,
    select_head,
)
from perennial.contracts.errors import join_names
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
DATE = r"^\d{2,4}[-/.]\d{1,2}[-/.]\d{1,4}"
# Where types of few bits wrap around.
OVERFLOWS = (128, 256, 32_768, 65_536, 2**31, 2**32)
# A read column that loses this much of a clear signal was given another column's codes, or none.
NEARLY_ALL, SURE_ERRORS = 0.9, 10.0
FEWEST_MERGED = 6
# More are hashed on purpose, and a sample does not show them all.
MOST_MERGED = 1000
# Shares of values and of rows; rare values may well share an input.
SHARED = 0.5
RESERVED = 0.9
UNKNOWN = 0.1
# A vocabulary of the most frequent values leaves out rarer ones.
FREQUENT = 0.9
FEWEST_UNKNOWN = 3
WIDEST = 256
PROBED_ROWS = 512
FAR = 1_000_003


@dataclass(frozen=True)
class Column:
    """A feature, before and after `encode`."""

    name: str  # of the column
    values: int  # different values that were tried
    codes: int  # different inputs that they became
    signal: Signal  # how well the raw values predict the label
    lost: Signal  # how well they still predict it among rows of equal inputs
    stand_in: float  # share of the different values that became the most frequent input
    period: float  # the interval after which a number wraps around; 0 if it does not
    is_read: bool  # whether `encode` needs the column

    @property
    def is_loss(self) -> bool:
        """Whether the loss is significant, and a large part of the column's signal."""
        least = max(WORTH_SHARE, LOST_SHARE * self.signal.share)
        return self.lost.errors > CLEAR_ERRORS and self.lost.share > least


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
    judged = (
        judge_lists,
        judge_cut_numbers,
        judge_lost_colours,
        judge_levels,
        judge_angles,
        judge_unknown_texts,
        judge_lost_numbers,
    )
    if lost := next(filter(None, (each(judge, subject) for each in judged)), None):
        return lost
    if unread := find_unread_features(subject):
        return judge.failed(
            f"no tensor changes with {join_names(unread)}, which data.features names",
            hint="encode reads another column in its place, or forgets it: read it, or remove it "
            "from data.features",
        )
    if not read_labels(subject):
        return judge.skipped("there is no single label to predict")
    rows, labels = probe_rows(subject)
    # Of the prediction's time the hour or the weekday is enough.
    names = [n for n in subject.task.columns.features if is_plain(rows[n]) and n != subject.time]
    if subject.task.columns.label in names or not names:
        return judge.skipped("no feature other than the label holds single values")
    few = (_encode_column(subject, rows, labels, name) for name in names[:MOST_COLUMNS])
    found = [each for each in few if each]
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
        names = join_names([each.name for each in wrapped])
        return judge.failed(
            f"values wrap around after {wrapped[0].period:.10g}: {names}",
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
        part = min(worst.lost.share / max(worst.signal.share, 1e-9), 1.0)
        others = join_names([each.name for each in lossy if each is not worst])
        # A limit or a bin may cost most of a signal; a column that is read keeps some of it.
        is_nearly_all = part > NEARLY_ALL and worst.lost.errors > SURE_ERRORS and worst.codes > 1
        return (judge.failed if is_nearly_all else judge.warned)(
            f"{worst.values} values of {worst.name} become {worst.codes} inputs; {part:.0%} of its "
            f"signal for the label is lost ({worst.lost.errors:.0f} standard errors)"
            + (f"; also {others}" if others else ""),
            hint=_explain_loss(worst),
        )
    if broken := [each for each in found if each.period]:
        names = join_names([each.name for each in broken])
        return judge.warned(
            f"values wrap around after {broken[0].period:.6g}: {names}",
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
    subject: Subject, rows: pl.DataFrame, labels: Floats, name: str
) -> Column | None:
    """Encode a column's values, each in the same row; None if `encode` does not accept them."""
    column = rows[name]
    if column.n_unique() < 2:
        return None
    known = column.drop_nulls()
    base = rows[[int(column.is_not_null().arg_max() or 0)] * rows.height]
    groups, different = group_values(column), known.n_unique()
    try:
        encoded, codes = _encode_values(subject, rows, column)
    except Exception:  # values of one row in another may contradict its other columns
        return None
    inputs = len(set(codes))
    if inputs == 1 and find_tensors_of(subject, name):
        return None  # it weighs rows, or counts beside other values of other columns
    signal = measure_signal(groups, labels)
    lost = measure_signal(groups, labels, codes)
    values = pl.DataFrame({"value": column, "code": codes}).drop_nulls().unique()
    counts = values["code"].value_counts()["count"]
    stand_in = float(counts.max()) / values.height  # type: ignore[arg-type]
    others = (len(counts) - 1) / max(values.height * (1 - stand_in), 1)
    # Rare names may well share one input, amounts and times may not.
    is_date = column.dtype == pl.String and bool(known.str.contains(DATE).all())
    is_amount = is_ordered(column) or is_date
    is_stand_in = different > FEWEST_VALUES and others > 0.5 and is_amount
    return Column(
        name,
        different,
        inputs,
        signal,
        lost,
        stand_in if is_stand_in else 0.0,
        _find_period(column, encoded),
        is_read=inputs == 1 and _is_read(subject, base, column),
    )


def _encode_values(subject: Subject, rows: pl.DataFrame, column: pl.Series) -> tuple[Batch, Codes]:
    """Encode a column's values, each in the same row; return the inputs, and a number for each.

    Of amounts, the row is the one among three in which most stay apart: trees for each acre may
    all be too many where acres are few.
    """
    known = column.is_not_null().arg_true().to_list()
    places = [known[0]]
    if is_ordered(column):
        ascending = column[known].arg_sort()
        places += [known[ascending[len(known) // 2]], known[ascending[-1]]]
    found: list[tuple[Batch, Codes]] = []
    for place in places:
        encoded = inputs_of(subject.task.encode(rows[[place] * len(rows)].with_columns(column)))
        _, codes = np.unique(compute_example_keys(encoded), return_inverse=True)
        found.append((encoded, codes))
        if codes.max() + 1 >= column.n_unique():
            break
    return max(found, key=lambda each: int(each[1].max()))


def _is_read(subject: Subject, base: pl.DataFrame, column: pl.Series) -> bool:
    """Whether `encode` needs the column, or other values of it change the inputs."""
    if is_input_changed(subject, base.head(1), base.head(1).drop(column.name)):
        return True
    variants: list[pl.Series] = []
    if column.dtype.is_numeric():
        variants = [column.cast(pl.Float64) * by for by in (1e3, 1e6, -1.0)]
    elif column.dtype == pl.String:
        variants = [column.str.to_uppercase(), column.str.to_lowercase(), column.str.to_titlecase()]
    elif column.dtype == pl.Boolean:
        variants = [~column]
    own = base.with_columns(column)
    others = (each.cast(column.dtype, strict=False).alias(column.name) for each in variants)
    return any(is_input_changed(subject, own, base.with_columns(each)) for each in others)


def _find_period(column: pl.Series, encoded: Batch) -> float:
    """Return the interval after which an input wraps around; 0 if none does."""
    if not column.dtype.is_numeric():
        return 0.0
    numbers = column.cast(pl.Float64).fill_null(np.nan).to_numpy()
    values, first = np.unique(numbers, return_index=True)
    first, values = first[np.isfinite(values)], values[np.isfinite(values)]
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
class Values:
    """The different values of a column of integers, ascending."""

    column: str  # its name
    numbers: Codes  # the values
    codes: Codes  # the input of each, as a number
    shares: Floats  # of the rows that have each

    @property
    def inputs(self) -> int:
        """Number of different inputs that the values became."""
        return len(np.unique(self.codes))


def describe_merged_values(
    subject: Subject, rows: pl.DataFrame, labels: Floats, name: str
) -> tuple[str, str] | None:
    """Describe values merged by mistake, with a hint; None if it may be by design."""
    column = rows[name]
    if not column.dtype.is_integer() or column.null_count():
        return None
    if not FEWEST_MERGED <= column.n_unique() <= MOST_MERGED:
        return None
    base = rows[[0] * column.n_unique()]
    try:
        counts = column.alias("value").value_counts().sort("value")
        encoded = inputs_of(subject.task.encode(base.with_columns(counts["value"].alias(name))))
        keys = np.array(compute_example_keys(encoded), dtype=object)
        _, codes = np.unique(keys, return_inverse=True)
        numbers, shares = counts["value"].cast(pl.Int64).to_numpy(), counts["count"] / len(column)
        values = Values(name, numbers, codes, shares.to_numpy())
        unknown = _find_unknown(subject, base, values)
    except Exception:  # values of one row in another may contradict its other columns
        return None
    if 1 < values.inputs <= len(values.numbers) / 2:
        return _describe_reduced(subject, rows, labels, values, base)
    if unknown.any() and (lost := _describe_loss(subject, rows, labels, values)):
        first, last = values.numbers[unknown][[0, -1]]
        return (
            f"{name} from {first} to {last}, {values.shares[unknown].sum():.0%} of the rows, has "
            f"the input of a value that never occurs; {lost}",
            "the range or list of known values ends too early: take the values from fit(train)",
        )
    return None


def _find_unknown(subject: Subject, base: pl.DataFrame, values: Values) -> Flags:
    """Return frequent values at one end with the same input as values that never occur."""
    kind, none = base[values.column].dtype, np.zeros(len(values.numbers), dtype=bool)
    low, high = values.numbers[0], values.numbers[-1]
    lowest, highest = (
        base[values.column].head(0).to_frame().select(bound).item()
        for bound in (pl.all().lower_bound(), pl.all().upper_bound())
    )
    below, above = max(low - FAR, lowest), min(high + FAR, highest)
    if not below < low <= high < above:
        return none
    tried = pl.Series(values.column, [low, below, above, *values.numbers[1:]], dtype=kind)
    with_them = base[[0] * len(tried)].with_columns(tried)
    keys = compute_example_keys(inputs_of(subject.task.encode(with_them)))
    if keys[1] != keys[2]:
        return none
    found = np.array([key == keys[1] for key in (keys[0], *keys[3:])])
    is_at_end = int(np.abs(np.diff(found.astype(int))).sum()) == 1
    others = len(np.unique(values.codes[~found])) == int((~found).sum())
    if not is_at_end or not others or found.sum() < FEWEST_UNKNOWN:
        return none
    is_frequent = values.shares[found].max() > FREQUENT * np.median(values.shares[~found])
    return found if is_frequent and values.shares[found].sum() >= UNKNOWN else none


def _describe_reduced(
    subject: Subject, rows: pl.DataFrame, labels: Floats, values: Values, base: pl.DataFrame
) -> tuple[str, str] | None:
    """Describe a modulo, or one input for nearly all values, with a hint; None otherwise."""
    count, inputs = len(values.numbers), values.inputs
    shown = f"{count} values of {values.column} become {inputs} inputs"
    period = _find_modulus(values)
    is_common = values.codes == np.bincount(values.codes).argmax()
    is_one = min(is_common.mean(), values.shares[is_common].sum()) >= SHARED
    # As 1345 for a quarter to two.
    is_clock = period == 100 and bool((values.numbers % 100 < 60).all())
    is_calendar = is_clock or any(period % each == 0 for each in CALENDAR)
    if not is_one and (not period or is_calendar):
        return None
    same = f", {is_common.mean():.0%} of them the same"
    shown += f": they wrap around after {period}" if period else same
    hint = "look for a modulo or a limit meant for another column, or left over from an experiment"
    if _count_vectors(subject, base, values) >= RESERVED * count:
        return f"{shown}; the embedding has a vector for each", hint
    lost = _describe_loss(subject, rows, labels, values) if period else ""
    return (f"{shown}; {lost}", hint) if lost else None


def _find_modulus(values: Values) -> int:
    """Return the modulus by which exactly the congruent values share an input; 0 if none."""
    inputs = values.inputs
    for period in range(inputs, 4 * inputs):
        rest = values.numbers % period
        pairs = np.unique(rest * len(values.numbers) + values.codes)
        if len(np.unique(rest)) == inputs == len(pairs):
            return period
    return 0


def _describe_loss(subject: Subject, rows: pl.DataFrame, labels: Floats, values: Values) -> str:
    """Describe the label's variance that the values explain beyond all inputs; empty if none."""
    every = max(subject.num_rows() // ROWS, 1)
    tensors = [each[::every][:ROWS] for each in inputs_of(subject.train).values()]
    wide = torch.cat([each.reshape(len(each), -1).double() for each in tensors], dim=1)
    forest = RandomForestRegressor(
        30, min_samples_leaf=4, max_features=0.5, oob_score=True, random_state=0
    ).fit(wide[:, :WIDEST].numpy(), labels[:, 0] if labels.shape[1] == 1 else labels)
    predicted = forest.oob_prediction_.reshape(labels.shape)
    places = np.searchsorted(values.numbers, rows[values.column].cast(pl.Int64).to_numpy())
    lost = measure_signal(places, labels - predicted, values.codes[places])
    if lost.errors < CLEAR_ERRORS or lost.share < WORTH_SHARE:
        return ""
    return (
        f"the lost difference explains {lost.share:.1%} of the label's variance that the inputs "
        f"leave ({lost.errors:.0f} standard errors)"
    )


def _count_vectors(subject: Subject, base: pl.DataFrame, values: Values) -> int:
    """Count an embedding's vectors for the column; 0 if no embedding looks it up."""
    model, seen = evaluated(subject.build_model()), list[tuple[int, Tensor]]()

    def note(_: str, module: nn.Embedding, given: tuple[Tensor, ...]) -> None:
        seen.append((module.num_embeddings, given[0].reshape(len(given[0]), -1)))

    column = pl.Series(values.column, values.numbers, dtype=base[values.column].dtype)
    varied = inputs_of(subject.task.encode(base.with_columns(column)))
    with watch_modules(model, note, kinds=nn.Embedding, is_before=True):
        run_model(model, varied)
        calls = seen.copy()
        seen.clear()
        run_model(model, select_head(subject.train, PROBED_ROWS))
    found = [0]
    for (vectors, codes), (_, usual) in zip(calls, seen, strict=False):
        if len(codes) != len(values.numbers):
            continue
        # Fields that share a table each have a range of it.
        starts = usual.amin(dim=0).tolist()
        for place in (codes != codes[:1]).any(dim=0).nonzero().flatten().tolist():
            end = min([vectors, *(each for each in starts if each > starts[place])])
            used = len(np.unique(codes[:, place].numpy()))
            found.append(end - starts[place] if used == values.inputs else 0)
    return max(found)
