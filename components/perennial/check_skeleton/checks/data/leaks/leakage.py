"""Check leakage: shuffled labels must not be predictable; validation must be other rows.

Copied rows: how often rows repeat each other does not show how often they agree by chance: a join
that doubles the table raises that, too. Nor does the product over single columns: a station
determines its latitude. The difference is in near copies: if rows repeat naturally, many more
agree in all columns but one.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import polars as pl
import torch

from perennial.check_skeleton.baselines import z_score
from perennial.check_skeleton.checks.data.encoding.encoding import (
    REBUILT,
    is_taught_by_steps_before,
)
from perennial.check_skeleton.checks.data.leaks.near_copies import (
    judge_near_copies,
    judge_repeated_signals,
)
from perennial.check_skeleton.checks.data.leaks.repeated_classes import judge_repeated_class
from perennial.check_skeleton.checks.data.leaks.swapped_pairs import judge_swapped_pairs
from perennial.check_skeleton.checks.data.signals import (
    find_cut_columns,
    group_values,
    is_free_text,
    is_plain,
    measure_signal,
    probe_rows,
    read_lists,
)
from perennial.check_skeleton.checks.training.learning import POWER_MARGIN
from perennial.check_skeleton.free_outputs import (
    compute_constant_losses,
    compute_output,
    find_best_constant,
    probe,
)
from perennial.check_skeleton.made_up_inputs import RefusedInputsError, made_up
from perennial.check_skeleton.models import shuffle_batches, simplify, train_model
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject, compute_example_keys, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import score_in_parts
from perennial.engine.task import LABEL, WEIGHT, Batch

# A label among the inputs is learned in a few dozen updates; half of the baseline's are enough.
STEPS_SHARE = 0.5
HELD_OUT_SHARE = 0.25
# validate_data tolerates one copied row in a hundred as well; half of them copied is one data set.
COPIED_SHARE = 0.01
SAME_DATA_SHARE = 0.5
# Chance exceeds five standard errors once in three million.
CLEAR_ERRORS = 5.0
# Windows of one series that was cut in time overlap at the cut, in few examples.
SHARED_WINDOWS = 0.1
# Where most windows overlap with one in training whose label is nearly theirs, what is measured is
# how well training labels are remembered.
MOSTLY_SHARED, MOSTLY_EXPLAINED = 0.5, 0.8
# Validation labels that occur in training windows, which a random split of windows causes.
KNOWN_TARGETS = 0.3
# Copied rows, and the chance of agreement below which they are not a coincidence.
COPIED_ROWS = 0.05
NO_CHANCE = 1e-6
# Columns depend on each other, so only half of their separate bits are counted.
BITS_COUNTED = 0.5
BEYOND_CHANCE = 10.0
FEWEST_GROUPS, MOST_GROUPS = 20, 0.75  # the latter of the rows
# Nearly all rows of a group have one label: a model that knows the group knows the label.
SAME_LABEL = 0.9
SHARED_SHARE = 0.5
FEWEST_COLUMNS = 3
MOST_COLUMNS = 64
FEWEST_COPIES = 20
# A stuck sensor repeats a few rows many times.
DIFFERENT_SHARE = 0.3
# Rows that agree in all columns but one, relative to those that agree in all.
NEARLY_SHARE = 0.1
# Variance of the rows' counts, relative to rows drawn at random from a pool.
EVEN = 0.7
FEWEST_REPEATED = 100
EVEN_ERRORS = 4.0
SHORTEST_WINDOW = 8
# Numbers at the end of a window that must occur in another one; longer ends are cut to it.
LONGEST_END = 16
FEWEST_PAIRS = 32
# Nearly all, as a series may have gaps.
AGREEING = 0.99
ROUNDING = 1e-4
# Relative to the changes from split to split of random rows; periods have few.
AS_AT_RANDOM = 0.5


@check(
    "shuffled_labels",
    expects=lambda subject: (
        "a model trained on shuffled labels is no better on held-out rows than their best "
        f"constant, within {subject.settings.significance + POWER_MARGIN:g} standard errors"
    ),
    source="guides: an input-independent control; a shuffled label is predictable only if it "
    "leaks into the inputs (randomisation test)",
)
def check_shuffled_labels(subject: Subject, judge: Judge) -> CheckResult:
    """Check that shuffled labels cannot be predicted on held-out rows."""
    limit, columns = subject.settings.significance + POWER_MARGIN, subject.task.columns
    if subject.task.reconstructs_inputs:
        return judge.skipped(REBUILT)
    # Steps of a label are predicted from its earlier ones, whatever other features are.
    is_of_steps = subject.train[LABEL].ndim == 2
    is_only = len(columns.features) == 1 or subject.task.kind != "statistic"
    is_by_design = columns.label in columns.features and (is_only or is_of_steps)
    if is_by_design or is_taught_by_steps_before(subject):
        return judge.skipped("the label is an input by design: shuffling moves both")
    fitted = _shuffle_labels(subject)
    leads = _measure_leads(fitted, fitted.train, fitted.validation)
    shown = ", ".join(f"{lead:+.1f} on {name}" for name, lead in leads.items())
    shown = f"standard errors better than the constant: {shown}"
    if max(leads.values()) >= limit:
        # Labels that are counted from their row's window depend on its inputs, shuffled or not:
        # the same labels must be harder to predict from inputs that never saw them.
        control = _measure_leads(
            subject,
            {**subject.train, LABEL: fitted.train[LABEL]},
            {**subject.validation, LABEL: fitted.validation[LABEL]},
        )
        shown += f"; {max(control.values()):+.1f} from inputs encoded with other labels"
        leads = {name: round(lead - max(control[name], 0.0), 2) for name, lead in leads.items()}
    validation, training = leads.values()
    if validation >= limit:
        return judge.failed(
            shown,
            hint="the label reaches the inputs: look in encode for its column, for columns made "
            "from it, and for the row's position",
            **leads,
        )
    if training >= limit:
        return judge.warned(
            shown,
            hint="fit puts each row's own label into its inputs (means of the label by category or "
            "id): leave the row out, or smooth over many rows",
            **leads,
        )
    return judge.passed(shown, **leads)


@check(
    "split_overlap",
    expects="validation examples that repeat a training example no more often than training "
    "examples repeat each other",
    source="guides: validation on training rows measures memory",
    tolerance=f"{COPIED_SHARE:.0%}",
    needs_losses=False,
)
def check_split_overlap(subject: Subject, judge: Judge) -> CheckResult:
    """Check that validation examples are not copies of training examples."""
    batches = (subject.train, subject.validation)
    train, validation = (Counter(compute_example_keys(each)) for each in batches)
    rows, held = subject.num_rows(), len(subject.validation[LABEL])
    # Tables of few values repeat by chance, within a split as often as across.
    chance = sum(count for count in train.values() if count > 1) / rows
    overlap = sum(count for key, count in validation.items() if key in train) / held
    pooled = (chance * rows + overlap * held) / (rows + held)
    error = float(np.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / held)))
    excess = overlap - chance
    shown = f"{overlap:.1%} of validation examples are in the training sample too"
    shown += f", {chance:.1%} by chance" if chance else ""
    evidence = {"overlap": overlap, "chance": chance}
    if excess >= SAME_DATA_SHARE:
        return judge.failed(
            shown,
            hint="validation rows are training rows: check how the data was made and split",
            **evidence,
        )
    expected = estimate_chance_share(subject) if overlap > COPIED_SHARE else 1.0
    copied = _judge_copies(judge, subject, overlap, expected)
    copied = copied or judge_repeated_signals(
        judge, subject, overlap, len(train.keys() & validation.keys())
    )
    copied = copied or judge_repeated_class(judge, subject)
    if copied := copied or judge_swapped_pairs(judge, subject):
        return copied
    if excess > COPIED_SHARE and excess > CLEAR_ERRORS * error:
        return judge.warned(
            shown,
            hint="copies, or rows that differ only in their ids, are in both splits: deduplicate, "
            "or split by a group that keeps them together",
            **evidence,
        )
    if overlap > max(COPIED_SHARE, BEYOND_CHANCE * expected):
        return judge.warned(
            f"{shown}; the columns' values would repeat by chance in {expected:.1g} of them",
            hint="whole examples are repeated, within splits and across them: rows multiplied by a "
            "join, by oversampling or by stored augmentation. Deduplicate before the "
            "split, or split by a group that keeps copies together",
            overlap=overlap,
            expected=expected,
        )
    # Rows that are not copies may still reveal rows of the other split.
    is_random = are_interleaved(subject)
    found = (
        _judge_windows(judge, subject, is_random=is_random)
        or judge_near_copies(judge, subject, is_random=is_random)
        or _judge_entities(judge, subject)
    )
    return found or judge.passed(shown, **evidence)


def _judge_copies(
    judge: Judge, subject: Subject, overlap: float, expected: float
) -> CheckResult | None:
    """Fail if rows were multiplied; natural repeats have another pattern."""
    if overlap < max(COPIED_ROWS, BEYOND_CHANCE * expected):
        return None
    is_clear = expected < NO_CHANCE or overlap >= SAME_DATA_SHARE
    copied = measure_copied_share(subject) if is_clear else 0.0
    # Short texts may come in pairs for other reasons.
    is_text = any(map(is_free_text, subject.train_rows[list(subject.task.columns.features)]))
    multiplied = 0.0 if is_text and overlap < SAME_DATA_SHARE else measure_multiplied_share(subject)
    if max(copied, multiplied) < COPIED_ROWS:
        return None
    trace = "all rows have about the same number of copies, unlike random draws"
    if copied >= COPIED_ROWS:
        trace = "hardly any others agree in all columns but one"
    return judge.failed(
        f"{max(copied, multiplied):.1%} of validation rows are copies of training rows, including "
        f"the label; {trace}",
        hint="rows were multiplied by a join, an export or oversampling before the split. "
        "Deduplicate first, oversample only in training, or split by a group that keeps "
        "copies together",
        copied=copied,
        multiplied=multiplied,
        expected=expected,
    )


def _judge_windows(judge: Judge, subject: Subject, *, is_random: bool) -> CheckResult | None:
    """Judge overlapping windows of one series; validation may share values with the past."""
    column, known = find_known_targets(subject)
    if known > KNOWN_TARGETS:
        return (judge.failed if is_random else judge.warned)(
            f"labels of {known:.0%} of the validation examples are in training windows of "
            f"{column}, right after the same values",
            hint="overlapping windows were split at random, so training has seen the validation "
            "labels: set data.time and split by it, or make windows that do not overlap"
            if is_random
            else "windows of the next period reach back into validation: choose a longer "
            "split.period, or shorter windows",
            known=known,
        )
    column, share, explained = find_shared_windows(subject) if is_random else ("", 0.0, 0.0)
    if share > SHARED_WINDOWS:
        is_explained = share > MOSTLY_SHARED and explained > MOSTLY_EXPLAINED
        labels = f", whose label explains {explained:.0%} of the variance of theirs"
        return (judge.failed if is_explained else judge.warned)(
            f"half of the window in {column} is in a training window for {share:.0%} of the "
            f"validation examples{labels if is_explained else ''}",
            hint="overlapping windows are in both splits, so training has seen validation values: "
            "set data.time and split by it, with windows that do not overlap",
            windows=share,
        )
    return None


def _judge_entities(judge: Judge, subject: Subject) -> CheckResult | None:
    entity, explained, shared = find_shared_entity(subject)
    if not entity:
        return None
    return judge.warned(
        f"{entity} explains {explained:.0%} of the label's variance, and {shared:.0%} of the "
        f"validation examples have a {entity} that training has",
        hint=f"rows of one {entity} have one label and are in both splits, so recognising it is "
        f'enough: set data.group = "{entity}" and split.method = "group"',
        group=entity,
        shared=shared,
    )


def _shuffle_labels(subject: Subject) -> Subject:
    """Return the rows with labels shuffled within each split, and a task fitted on them.

    Where the task rejects that, as tags of another sentence are too many or too few for its words,
    labels are shuffled among rows with labels of the same length.

    Raises:
        RefusedInputsError: the task rejects both.
    """
    kind = subject.train_rows[subject.task.columns.label].dtype
    try:
        return _exchange_labels(subject)
    except RefusedInputsError:
        label = pl.col(subject.task.columns.label)
        if isinstance(kind, pl.List):
            return _exchange_labels(subject, label.list.len())
        if kind == pl.String:
            return _exchange_labels(subject, label.str.count_matches(r"\S+"))
        raise


def _exchange_labels(subject: Subject, length: pl.Expr | None = None) -> Subject:
    """Exchange labels among all rows, or among those with the same `length`."""
    columns, data, shuffled = subject.task.columns, subject.data, []
    kept = {*columns.features, *((data.time, data.group, *data.ids) if data else ())}
    for number, rows in enumerate((subject.train_rows, subject.validation_rows)):
        # With the columns that belong to a label, such as a censoring. Time, group and ids belong
        # to the row: an hour that encode makes of the time stays with its inputs.
        along = [name for name in rows.columns if name == columns.label or name not in kept]
        order = np.random.default_rng(subject.seed + number).permutation(rows.height)
        if length is not None:
            lengths = rows.select(length.fill_null(0)).to_series().to_numpy()
            others, order = order[np.argsort(lengths[order], kind="stable")], np.empty_like(order)
            order[np.argsort(lengths, kind="stable")] = others
        shuffled.append(rows.with_columns(rows.select(along)[order].get_columns()))
    train, validation = shuffled
    task = subject.make_task()
    fitted = replace(subject, task=task, train_rows=train, validation_rows=validation)
    with made_up("shuffled labels"):
        task.fit(train.lazy())
        _ = fitted.train, fitted.validation
    return fitted


def _measure_leads(subject: Subject, train: Batch, validation: Batch) -> dict[str, float]:
    """Return by how many standard errors a short training beats the constant, by sample."""
    generator = torch.Generator().manual_seed(subject.seed)
    order = torch.randperm(subject.num_rows(), generator=generator)
    held = int(HELD_OUT_SHARE * len(order))
    steps = max(int(STEPS_SHARE * subject.settings.training_steps), 1)
    batches = shuffle_batches(subject, select_rows(train, order[held:]), steps)
    model = simplify(subject.build_model())
    train_model(subject, model, batches)
    output = compute_output(subject, probe(subject))
    leads = {}
    for name, batch in (
        ("validation rows", validation),
        ("training rows held out", select_rows(train, order[:held])),
    ):
        losses = score_in_parts(subject.task, model, batch).losses
        # The held-out rows' own best constant: only information about single rows beats it, not
        # a drift of the label's mean or a good start.
        constant, _ = find_best_constant(subject, output, batch)
        rival = compute_constant_losses(subject, constant, batch).double().numpy()
        weights = batch[WEIGHT].double().numpy() if WEIGHT in batch else 1.0
        leads[name] = round(z_score(weights * (rival - losses)), 2)
    return leads


def estimate_chance_share(subject: Subject) -> float:
    """Return the share of examples that repeat a training example by chance.

    From how often different rows agree in each column that no other column determines; for texts,
    in each word.
    """
    rows = subject.train_rows.select(list(subject.task.columns.features)).unique()
    plain = [each.name for each in rows if is_plain(each)][:MOST_COLUMNS]
    decided = set(plain) - set(find_independent_columns(rows, plain))
    rows = rows.drop(decided)
    bits = 0.0
    for column in rows:
        parts, times = column, 1.0
        if column.dtype == pl.String and (words := column.drop_nulls().str.split(" ")).len():
            parts, times = words.explode(), float(words.list.len().median() or 1.0)  # type: ignore[arg-type]
        bits -= times * math.log2(max(_measure_agreement(parts), 1e-12))
    return float(min(1.0, subject.num_rows() * 2.0 ** (-BITS_COUNTED * bits)))


def _measure_agreement(column: pl.Series) -> float:
    """Return how often two different entries of a column are equal."""
    counts = column.to_frame("value").group_by("value").len()["len"].to_numpy().astype(float)
    total = float(counts.sum())
    return float((counts * (counts - 1)).sum()) / max(total * (total - 1), 1.0)


def find_shared_entity(subject: Subject) -> tuple[str, float, float]:
    """Find a column whose values have one label each and occur in both splits.

    Returns:
        Its name, the share of the label it explains, and the share of validation rows it covers.
        Empty if the contract names a group, or no column is one.
    """
    data = subject.data
    if data is None or data.group is not None or subject.task.kind == "statistic":
        return "", 0.0, 0.0
    rows, labels = probe_rows(subject)
    for name in dict.fromkeys((*data.meta, *data.ids, *subject.task.columns.features)):
        kind = rows.schema.get(name, pl.Null)
        if not (kind.is_integer() or kind == pl.String):
            continue
        column, values = rows[name], rows[name].n_unique()
        if not FEWEST_GROUPS <= values <= MOST_GROUPS * rows.height:
            continue
        ranks = column.rank("dense").cast(pl.Int64).fill_null(0).to_numpy()
        # The share that as many random groups leave to explain.
        left = 1 - (values - 1) / (rows.height - 1)
        explained = measure_signal(ranks, labels).share / left
        # An amount that predicts the label does so in bins, too; an entity's name does not.
        in_order = measure_signal(group_values(column), labels).share if kind.is_integer() else 0.0
        held = subject.validation_rows[name]
        shared = float(held.is_in(column.unique().implode()).mean() or 0.0)  # type: ignore[arg-type]
        if explained > SAME_LABEL and in_order < SAME_LABEL / 2 and shared > SHARED_SHARE:
            return name, explained, shared
    return "", 0.0, 0.0


def measure_copied_share(subject: Subject) -> float:
    """Return the share of validation rows that copy training rows, including the label.

    0 if rows hold texts or lists, if few are copied, if a few rows make all copies, or if more
    rows agree in all columns but one.
    """
    columns = subject.task.columns
    names = list(dict.fromkeys((*columns.features, columns.label)))
    train, held = (rows.select(names) for rows in (subject.train_rows, subject.validation_rows))
    if not FEWEST_COLUMNS <= len(names) - 1 <= MOST_COLUMNS or not all(map(is_plain, train)):
        return 0.0

    def find_shared(names: list[str]) -> pl.DataFrame:
        known = train.select(names).unique()
        return held.join(known, on=names, how="semi", nulls_equal=True)

    copies = find_shared(names)
    found = copies.height
    if found < FEWEST_COPIES or copies.n_unique() < max(DIFFERENT_SHARE * found, FEWEST_COPIES):
        return 0.0
    basis = [*find_independent_columns(train, list(columns.features)), columns.label]
    for name in basis:
        others = [each for each in basis if each != name]
        if not others or find_shared(others).height > (1 + NEARLY_SHARE) * found:
            return 0.0
    return found / held.height


def measure_multiplied_share(subject: Subject) -> float:
    """Return the share of validation rows that copy training rows, if counts are too equal.

    Rows drawn at random from a pool occur once, twice or five times, as in a Poisson distribution,
    and with more variance if some are preferred. 0 if the counts vary as much.
    """
    columns = subject.task.columns
    names = list(dict.fromkeys((*columns.features, columns.label)))
    train, held = (
        rows.select(names).hash_rows() for rows in (subject.train_rows, subject.validation_rows)
    )
    counts = pl.concat([train, held]).value_counts()["count"].to_numpy().astype(np.float64)
    if (counts > 1).sum() < FEWEST_REPEATED:
        return 0.0
    mean = counts.mean()
    rate = mean
    for _ in range(100):  # of a Poisson distribution without its zeros that has this mean
        rate = mean * (1 - np.exp(-rate))
    unequal = counts.var() / max(mean * (1 + rate - mean), 1e-9)
    if unequal > min(EVEN, 1 - EVEN_ERRORS * np.sqrt(2 / len(counts))):
        return 0.0
    return float(held.is_in(train.unique().implode()).mean() or 0.0)  # type: ignore[arg-type]


def find_independent_columns(rows: pl.DataFrame, names: list[str]) -> list[str]:
    """Return columns without those that another determines, as a station its latitude."""
    different = rows.select(names).unique()
    values = {name: different[name].n_unique() for name in names}
    kept = list(names)
    for name in sorted(names, key=lambda each: values[each]):
        for other in kept:
            # Values that hardly ever repeat determine every column trivially.
            repeats = different.height - values[other]
            if other == name or values[other] < values[name] or repeats < FEWEST_COPIES:
                continue
            if different.select(name, other).n_unique() == values[other]:
                kept.remove(name)
                break
    return kept


def are_interleaved(subject: Subject) -> bool:
    """Whether rows of the splits alternate in time as at random, or have no known time."""
    time = subject.time
    splits = (subject.train_rows, subject.validation_rows)
    if time is None or any(time not in rows.columns for rows in splits):
        return True
    both = pl.concat(
        rows.select(at=pl.col(time), is_held=pl.lit(number == 1))
        for number, rows in enumerate(splits)
    ).sort("at")
    held = both["is_held"].to_numpy()
    changes, share = float(np.mean(held[1:] != held[:-1])), float(held.mean())
    return changes > AS_AT_RANDOM * 2 * share * (1 - share)


def find_shared_windows(subject: Subject) -> tuple[str, float, float]:
    """Return the list column whose windows overlap most across the splits, and their share.

    Also the share of the label's variance that the labels of the overlapping windows explain.
    Windows overlap where they are shifted; columns that repeat in their places are no series.
    """
    found = [("", 0.0, 0.0)]
    for name, train, held in _list_windows(subject):
        size = train.shape[1] // 2
        known: dict[int, int] = {}
        shifted = (each for each in range(train.shape[1] - size + 1) if each != size // 2)
        for start in shifted:
            known |= {key: row for row, key in _list_keys(train[:, start : start + size])}
        middle = _list_keys(held[:, size // 2 : size // 2 + size])
        pairs = [(known[key], row) for row, key in middle if key in known]
        found.append((name, len(pairs) / len(held), _measure_told(subject, pairs)))
    return max(found, key=lambda each: each[1])


def _measure_told(subject: Subject, pairs: Sequence[tuple[int, int]]) -> float:
    """Return the share of variance that labels of training rows explain of validation rows'."""
    labels = [each[LABEL].double() for each in (subject.train, subject.validation)]
    if len(pairs) < FEWEST_PAIRS or labels[0].ndim > 1 or subject.task.kind == "statistic":
        return 0.0
    one, other = (
        side[list(rows)] for side, rows in zip(labels, zip(*pairs, strict=True), strict=True)
    )
    if min(one.std(), other.std()) == 0:
        return 0.0
    return float(np.corrcoef(one.numpy(), other.numpy())[0, 1] ** 2)


def find_known_targets(subject: Subject) -> tuple[str, float]:
    """Return the column whose training windows hold validation labels, and the share of rows.

    A validation window's end is searched in training windows; the number after it there must be
    the label, or determine the class, in nearly every row where the end was found.
    """
    found = [("", 0.0)]
    labels = subject.validation[LABEL].double().numpy()
    for name, train, held in _list_windows(subject):
        size = min(train.shape[1] // 2, LONGEST_END)
        places: dict[int, tuple[int, int]] = {}
        for start in range(train.shape[1] - size):
            for row, key in _list_keys(train[:, start : start + size]):
                places.setdefault(key, (row, start + size))
        ends = [(row, *places[key]) for row, key in _list_keys(held[:, -size:]) if key in places]
        for ahead in range(train.shape[1] - size):
            pairs = [
                (value, held[row, -1], labels[row].flat[0])
                for row, window, place in ends
                if place + ahead < train.shape[1]
                and np.isfinite(value := train[window, place + ahead])
            ]
            share = len(pairs) / max(len(held), 1)
            if len(pairs) < FEWEST_PAIRS or share <= max(each[1] for each in found):
                break
            if _is_following(*np.array(pairs).T, is_number=subject.task.kind == "regression"):
                found.append((name, share))
                break
    return max(found, key=lambda each: each[1])


def _list_keys(parts: Floats) -> Iterator[tuple[int, int]]:
    """Yield rows and keys of series; those with a gap, and constant ones, repeat by chance."""
    usable = np.isfinite(parts).all(axis=1) & (parts[:, 0] != parts[:, -1])
    for row in np.flatnonzero(usable):
        yield int(row), hash(parts[row].tobytes())


def _is_following(values: Floats, last: Floats, labels: Floats, *, is_number: bool) -> bool:
    """Whether labels are the values in another unit, or classes of their change."""
    if not is_number:
        return bool(find_cut_columns((values - last)[:, None], labels).any())
    if min(values.std(), labels.std()) == 0:
        return False
    slope, base = np.polyfit(values, labels, 1)
    left = np.abs(slope * values + base - labels) / labels.std()
    return bool(np.mean(left < ROUNDING) >= AGREEING)


def _list_windows(subject: Subject) -> Iterator[tuple[str, Floats, Floats]]:
    """Yield lists of numbers, and tables of eight or more columns, of both splits, [N, L]."""
    splits = (subject.train_rows, subject.validation_rows)
    single = []
    for name in subject.task.columns.features:
        kind = splits[0][name].dtype
        if kind.is_float() and not any(rows[name].null_count() for rows in splits):
            single.append(name)
        if not isinstance(kind, pl.List | pl.Array) or not kind.inner.is_float():
            continue
        train, held = (read_lists(rows[name], with_gaps=True) for rows in splits)
        if train is None or held is None:
            continue
        if train.shape[1] == held.shape[1] >= SHORTEST_WINDOW:
            yield name, train, held
    if len(single) >= SHORTEST_WINDOW:
        lags = [rows.select(single).to_numpy().astype(np.float64) for rows in splits]
        yield f"{single[0]} … {single[-1]}", lags[0], lags[1]
        backwards = [np.ascontiguousarray(each[:, ::-1]) for each in lags]
        yield f"{single[-1]} … {single[0]}", backwards[0], backwards[1]
