"""Merged values: integers that share an input by mistake.

Hashes, bins, limits and vocabularies merge values on purpose. It is a mistake to keep a vector for
each value but reach only a few of them, or to take a handful of values modulo a number when that
loses information about the label.
"""

from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from sklearn.ensemble import RandomForestRegressor
from torch import Tensor, nn

from perennial.check_skeleton.checks.data.signals import ROWS, Codes, Numbers, measure_signal
from perennial.check_skeleton.subject import Subject, compute_example_keys, evaluated, select_head
from perennial.engine.task import inputs_of

FEWEST_VALUES = 6
# More are hashed on purpose, and a sample does not show them all.
MOST_VALUES = 1000
# Days, hours, minutes and months wrap around by design.
CALENDAR = (7, 12, 24, 30, 31, 52, 53, 60, 365, 366)
# Shares of values and of rows; rare values may well share an input.
SHARED = 0.5
RESERVED = 0.9
UNKNOWN = 0.1
# A vocabulary of the most frequent values leaves out rarer ones.
FREQUENT = 0.9
FEWEST_UNKNOWN = 3
CLEAR_ERRORS = 5.0
WORTH_SHARE = 0.01
WIDEST = 256
PROBED_ROWS = 512
FAR = 1_000_003


@dataclass(frozen=True)
class Values:
    """The different values of a column of integers, ascending.

    Attributes:
        column: Its name.
        numbers: The values.
        codes: The input of each, as a number.
        shares: Of the rows that have each.
    """

    column: str
    numbers: Codes
    codes: Codes
    shares: Numbers

    @property
    def inputs(self) -> int:
        """Number of different inputs that the values became."""
        return len(np.unique(self.codes))


def describe_merged_values(
    subject: Subject, rows: pl.DataFrame, labels: Numbers, name: str
) -> tuple[str, str] | None:
    """Describe values merged by mistake, with a hint; None if it may be by design."""
    column = rows[name]
    if not column.dtype.is_integer() or column.null_count():
        return None
    if not FEWEST_VALUES <= column.n_unique() <= MOST_VALUES:
        return None
    base = rows[[0] * column.n_unique()]
    try:
        values = _encode_values(subject, base, column)
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


def _encode_values(subject: Subject, base: pl.DataFrame, column: pl.Series) -> Values:
    counts = column.value_counts().sort(column.name)
    encoded = inputs_of(subject.task.encode(base.with_columns(counts[column.name])))
    _, codes = np.unique(np.array(compute_example_keys(encoded), dtype=object), return_inverse=True)
    shares = counts["count"].to_numpy() / len(column)
    return Values(column.name, counts[column.name].cast(pl.Int64).to_numpy(), codes, shares)


def _find_unknown(subject: Subject, base: pl.DataFrame, values: Values) -> NDArray[np.bool_]:
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
    subject: Subject, rows: pl.DataFrame, labels: Numbers, values: Values, base: pl.DataFrame
) -> tuple[str, str] | None:
    """Describe a modulo, or one input for nearly all values, with a hint; None otherwise."""
    count, inputs = len(values.numbers), values.inputs
    shown = f"{count} values of {values.column} become {inputs} inputs"
    period = _find_modulus(values)
    common = np.bincount(values.codes).argmax()
    is_common = values.codes == common
    is_one = min(is_common.mean(), values.shares[is_common].sum()) >= SHARED
    if not (is_one or (period and not _is_calendar(period, values.numbers))):
        return None
    shown += (
        f": they wrap around after {period}"
        if period
        else f", {is_common.mean():.0%} of them the same"
    )
    hint = "look for a modulo or a limit meant for another column, or left over from an experiment"
    if _count_vectors(subject, base, values) >= RESERVED * count:
        return f"{shown}; the embedding has a vector for each", hint
    lost = _describe_loss(subject, rows, labels, values) if period else ""
    return (f"{shown}; {lost}", hint) if lost else None


def _is_calendar(period: int, numbers: Codes) -> bool:
    is_clock = period == 100 and bool((numbers % 100 < 60).all())  # as 1345 for a quarter to two
    return is_clock or any(period % each == 0 for each in CALENDAR)


def _find_modulus(values: Values) -> int:
    """Return the modulus by which exactly the congruent values share an input; 0 if none."""
    inputs = values.inputs
    for period in range(inputs, 4 * inputs):
        rest = values.numbers % period
        if (
            len(np.unique(rest))
            == inputs
            == len(np.unique(rest * len(values.numbers) + values.codes))
        ):
            return period
    return 0


def _describe_loss(subject: Subject, rows: pl.DataFrame, labels: Numbers, values: Values) -> str:
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

    def note(module: nn.Embedding, given: tuple[Tensor, ...]) -> None:
        seen.append((module.num_embeddings, given[0].reshape(len(given[0]), -1)))

    for module in model.modules():
        if isinstance(module, nn.Embedding):
            module.register_forward_pre_hook(note)
    column = pl.Series(values.column, values.numbers, dtype=base[values.column].dtype)
    varied = inputs_of(subject.task.encode(base.with_columns(column)))
    with torch.no_grad():
        model(**varied)
        calls = seen.copy()
        seen.clear()
        model(**inputs_of(select_head(subject.train, PROBED_ROWS)))
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
