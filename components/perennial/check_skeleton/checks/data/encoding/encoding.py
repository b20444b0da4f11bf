"""Check the tensors right before the model: `encoding`, `serving_inputs` and `labels`."""

from collections.abc import Sequence

import numpy as np
import polars as pl
import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.encoding.class_spellings import judge_spellings
from perennial.check_skeleton.checks.data.encoding.dropped_tags import describe_dropped_tags
from perennial.check_skeleton.checks.data.encoding.input_order import (
    VIEWED,
    describe_torn_input,
    find_misreading,
)
from perennial.check_skeleton.checks.data.encoding.label_positions import (
    describe_moved_positions,
    describe_moved_tags,
)
from perennial.check_skeleton.checks.data.encoding.label_steps import describe_moved_steps
from perennial.check_skeleton.checks.data.encoding.turned_series import describe_turned_series
from perennial.check_skeleton.checks.data.encoding.unread_label_parts import find_unread_parts
from perennial.check_skeleton.checks.data.signals import spread_rows
from perennial.check_skeleton.checks.data.values.placeholders import describe_placeholder
from perennial.check_skeleton.made_up_inputs import is_label_unread, made_up
from perennial.check_skeleton.models import build_noisy_model, run_model, run_up_to_difference
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import (
    ROUNDING,
    Floats,
    Subject,
    are_equal,
    find_differences,
    generator_states,
    once,
    select_rows,
)
from perennial.check_skeleton.trials.replay import find_changes, read_memory
from perennial.contracts.errors import join_names
from perennial.contracts.skeleton import CheckResult
from perennial.engine.evaluation.scoring import take_one_each
from perennial.engine.task import LABEL, Batch, inputs_of

REBUILT = "the labels are made from the inputs: the task sets reconstructs_inputs"
RECONSTRUCTS = "if the task is an autoencoder or denoiser, set reconstructs_inputs = True"
NUMBERS = "encode one finite number per row, shape [B]"
CODES = (
    "encode the class as one whole number per row, shape [B]; mixup and label smoothing, which "
    "need the share of each class [B, C], belong to augment and training_losses: PyTorch's "
    "cross_entropy takes both forms"
)
# Codes may be clipped, so that some do not follow.
FOLLOWING_SHARE = 0.9
# Of the different labels of a regression: a limit, or rounding by design, keeps more.
LEAST_KEPT = 0.25
RARE = 0.25  # share of the rows


@check(
    "encoding",
    expects="a row is encoded as the same tensors every time, whatever other rows are encoded",
    source="guides: fix seeds, wrong labels are the first silent failure",
    needs_losses=False,
)
def check_encoding(subject: Subject, judge: Judge) -> CheckResult:
    """Check that each example is made from its own row alone, the same every time."""
    rows = spread_rows(subject.train_rows)
    before = generator_states()
    memory = read_memory(subject.task)
    whole = subject.task.encode(rows)
    if generator_states() != before:
        return judge.failed(
            "encode draws from a global random generator",
            hint="encode must be deterministic; move random changes to augment(batch, generator)",
        )
    lengths = {name: len(tensor) for name, tensor in whole.items()}
    if set(lengths.values()) != {rows.height}:
        return judge.failed(
            f"{rows.height} rows became {lengths} examples",
            hint="return one example per row, in the rows' order",
        )
    if changed := find_differences(whole, subject.task.encode(rows)):
        return judge.failed(
            f"encoding the same rows twice gives different {', '.join(changed)}",
            hint=f"encode changes {remembered}, and its next result depends on it: learn it in "
            "fit(train) and keep it in state()"
            if (remembered := ", ".join(find_changes(memory, read_memory(subject.task))[:3]))
            else "encode must be deterministic; look for random numbers from a generator of its "
            "own, sets and clocks",
        )
    for index in range(0, rows.height, 8):
        with made_up("a single row"):
            alone = subject.task.encode(rows.slice(index, 1))
        if changed := find_differences(select_rows(whole, slice(index, index + 1)), alone):
            return judge.failed(
                f"row {index} encodes differently alone and among others: {', '.join(changed)}",
                hint="rows or labels are shifted or shuffled, or statistics come from the batch; "
                "fit them in fit(train)",
                row=index,
            )
    return _judge_pictures(judge, subject, rows, whole)


def _judge_pictures(
    judge: Judge, subject: Subject, rows: pl.DataFrame, batch: Batch
) -> CheckResult:
    hint = (
        "use permute or transpose to move axes: `view` and `reshape` change the shape but keep the "
        "order of the numbers"
    )
    if torn := describe_torn_input(subject):
        return judge.failed(torn, hint=hint)
    if turned := describe_turned_series(subject):
        return judge.failed(
            turned, hint="what happened at one time does not meet: turn both or none"
        )
    found = find_misreading(subject, rows, batch)
    if found is None:
        return judge.passed(f"{rows.height} rows are encoded the same together, alone and again")
    order, shown = found
    if order == VIEWED:  # neighbours are apart, which is worse than a mirror image
        return judge.failed(shown, hint=hint)
    return judge.warned(
        shown,
        hint="look for a permute that is missing or doubled, a picture read upside down, or BGR "
        "for RGB: pretrained weights and augmentation expect the original orientation",
    )


@check(
    "serving_inputs",
    expects="the same inputs without the label and every other column that is not a feature",
    source="guides: the target used as an input; training-serving skew",
    needs_losses=False,
)
def check_serving_inputs(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the inputs come from the feature columns alone."""
    rows = spread_rows(subject.train_rows)
    whole = inputs_of(subject.task.encode(rows))
    columns = subject.task.columns
    # Where the label is a feature itself, as in language modeling, it may well be encoded; the
    # other columns may not.
    is_taught = columns.label not in columns.features and is_taught_by_steps_before(subject)
    given = [*columns.features, *([columns.label] if is_taught else [])]
    try:
        served = subject.task.encode(rows.select(given))
    except Exception as error:  # user code may raise anything when its column is not there
        return judge.failed(
            f"encode needs a column that is not a feature: {type(error).__name__}: {error}",
            hint="use columns.features only; when serving, the label, the ids, and the columns of "
            "data.time and data.group do not exist. If requests carry the time of the prediction, "
            "set data.time_is_feature = true",
        )
    is_own_label = columns.label in given or subject.task.reconstructs_inputs
    changed = find_differences(whole, inputs_of(served))
    changed += [LABEL] if LABEL in served and not is_own_label else []
    # The other of a pair that a loss compares: served without it, or it is a leak.
    is_counterpart = served.keys().isdisjoint(changed) and is_label_unread(subject)
    if changed and not is_counterpart:
        return judge.failed(
            f"inputs change if only the features are given: {', '.join(changed)}",
            hint="the label or an id leaks into the inputs, or encode returns a `label` without "
            f"the label column; {RECONSTRUCTS}",
        )
    if leaked := _describe_leaked_label(subject, rows, whole, is_counterpart=is_counterpart):
        return judge.failed(
            f"these change without the label column: {leaked}",
            hint="the label leaks into the prediction from the other features: a picture's own "
            "caption must not reach the picture's inputs or its side of the model",
        )
    return judge.passed(f"{', '.join(whole)} depend on {len(columns.features)} features")


def _describe_leaked_label(
    subject: Subject, rows: pl.DataFrame, whole: Batch, *, is_counterpart: bool
) -> str:
    """Name what changes without a label that is among the inputs; empty if nothing does."""
    columns = subject.task.columns
    is_feature = columns.label in columns.features and len(columns.features) > 1
    if not (is_feature or is_counterpart) or subject.task.reconstructs_inputs:
        return ""
    model = build_noisy_model(subject)
    try:
        alone = inputs_of(subject.task.encode(rows.drop(columns.label)))
        outputs = [subject.task.predict(run_model(model, each)) for each in (alone, whole)]
    except Exception:  # a task may need its label when it is served: then nothing leaks
        return ""
    both = alone.keys() & whole.keys()
    changed = find_differences({n: alone[n] for n in both}, {n: whole[n] for n in both})
    if not changed and is_taught_by_steps_before(subject):
        return ""
    return ", ".join(changed + find_differences(*({"predictions": each} for each in outputs)))


@once
def is_taught_by_steps_before(subject: Subject) -> bool:
    """Whether each step of the output depends on the label's earlier steps alone.

    So a decoder learns that is given the right words before (teacher forcing) and, when it is
    served, reads those that it has predicted. Each row gets another row's label: the inputs must
    change, and the output must stay up to the first step that differs.
    """
    if subject.train[LABEL].ndim != 2:
        return False
    rows, label = spread_rows(subject.train_rows), subject.task.columns.label
    exchanged = rows.with_columns(rows[label].gather(np.roll(np.arange(rows.height), 1)))
    try:
        one, other = map(subject.task.encode, (rows, exchanged))
        if not find_differences(inputs_of(one), inputs_of(other)):
            return False
        pairs = run_up_to_difference(build_noisy_model(subject), one, other)
    except Exception:  # a task may reject the label of another row
        return False
    return any(are_equal(own, after, ROUNDING) for own, after in pairs)


@check(
    "labels",
    expects="one finite code for each value of the label column, as the task's kind needs",
    source="guides: wrong labels; facts/data: off-by-one pairing",
    needs_losses=False,
    needs_labels=True,
)
def check_labels(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the encoded label matches the label column."""
    if subject.task.reconstructs_inputs:
        return judge.skipped(REBUILT)
    return judge_spellings(judge, subject) or _judge_labels(judge, subject)


def _judge_labels(judge: Judge, subject: Subject) -> CheckResult:
    raw, encoded = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    if subject.task.kind == "statistic" and encoded.ndim > 1:
        if unread := find_unread_parts(subject):
            return judge.failed(
                f"the numbers at {join_names(unread)} of each label are read by neither "
                "losses nor statistic",
                hint="such a number may name the action, the class or the cause that the output "
                "belongs to: use it, or leave it out of the label",
            )
        return _judge_sequences(judge, subject, raw, encoded)
    encoded = take_one_each(encoded)
    if encoded.ndim != 1 or not bool(torch.isfinite(encoded.double()).all()):
        return judge.failed(
            f"labels have shape {list(encoded.shape)} or are not finite",
            hint=CODES if subject.task.kind == "multiclass" else NUMBERS,
        )
    pairs = pl.DataFrame({"raw": raw, "code": encoded.double().numpy()}).unique()
    twofold = pairs.group_by("raw").len().filter(pl.col("len") > 1)
    may_be_relative = bool(twofold.height) and subject.task.kind != "multiclass"
    is_relative = may_be_relative and are_relative(subject, spread_rows(subject.train_rows))
    is_relative |= bool(twofold.height) and are_places(subject)
    if twofold.height and not is_relative:
        value = twofold["raw"][0]
        some = sorted(pairs.filter(pl.col("raw") == value)["code"])[:5]
        return judge.failed(
            f"{twofold.height} label values have several codes: {value!r} became {some}",
            hint="the labels are shuffled, shifted or drawn at random relative to the rows",
        )
    return _judge_codes(judge, subject, pairs, is_relative=is_relative)


def _judge_codes(
    judge: Judge, subject: Subject, pairs: pl.DataFrame, *, is_relative: bool
) -> CheckResult:
    """Judge the codes: enough of them, in the form of the task's kind, one for each class."""
    codes = np.unique(pairs["code"].to_numpy())
    if len(codes) < 2:
        return judge.failed(
            f"every sampled label is {codes.tolist()}",
            hint="check the label's definition and its encoding; there is nothing to learn. Are "
            "other labels so rare that the sample has none? Then raise skeleton.sample_rows. "
            "If the loss needs no label (triplets, for example), set kind = 'statistic' and pass "
            "the label column as an input",
        )
    classes = {"binary": "0, 1", "multiclass": "0, 1, 2, …"}.get(subject.task.kind)
    is_whole = bool((codes == np.round(codes)).all()) and codes.min() >= 0
    if classes and (not is_whole or (subject.task.kind == "binary" and codes.max() > 1)):
        return judge.failed(
            f"class codes are {codes.tolist()[:8]}", hint=f"encode the classes as {classes}"
        )
    if is_relative:
        return judge.passed(
            f"{pairs['raw'].n_unique()} values, each relative to its own row; codes "
            f"{codes.min():.4g} to {codes.max():.4g}"
        )
    if subject.task.kind != "regression" and (exchanged := _find_exchanged(pairs)):
        # A rare "no", as of eggs that do not hatch, may be what is looked for.
        is_meant = float(subject.train[LABEL].double().mean()) < RARE
        is_wrong = subject.task.kind == "binary" and not is_meant
        return (judge.failed if is_wrong else judge.warned)(
            f"{len(exchanged)} of {pairs.height} classes have the code of another class: "
            f"{exchanged}",
            hint="off by one, or counted in another order: do predict, the classes' names and the "
            "users of the predictions use the same codes?",
        )
    if subject.task.kind == "multiclass" and (merged := _find_merged(pairs)):
        return judge.warned(
            f"{pairs.height} label values have {len(codes)} codes: {merged} share one",
            hint="if these classes are not merged on purpose, check the codes in encode",
        )
    shown = f"{pairs.height} values, codes {codes.min():.4g} to {codes.max():.4g}"
    doubtful = subject.task.kind == "regression" and (
        _judge_rounding(judge, pairs["raw"], codes) or _judge_placeholder(judge, subject)
    )
    return doubtful or judge.passed(f"{shown}, mean {subject.train[LABEL].double().mean():.4g}")


def _judge_rounding(judge: Judge, values: pl.Series, codes: Floats) -> CheckResult | None:
    """Judge numbers of which many different ones have one code; None if few have."""
    if not values.dtype.is_numeric() or len(codes) >= LEAST_KEPT * len(values):
        return None
    return judge.warned(
        f"{len(values)} label values became {len(codes)} numbers",
        hint="the loss and all metrics are of rounded labels: a cast to whole numbers, a limit, or "
        "large values that differ little, of which 32 bits keep too few digits; then subtract a "
        "constant",
    )


def _judge_placeholder(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge one repeated number far outside all others; None if there is none."""
    if not (shown := describe_placeholder(subject)):
        return None
    return judge.warned(
        shown,
        hint="does it stand for a missing value, as a filled-in 0, -1 or 999? Then remove these "
        "rows, or give them weight 0: predictions are pulled towards a number that was never "
        "measured",
    )


def _find_exchanged(pairs: pl.DataFrame) -> dict[str, int]:
    """Return value → code if values and codes are both 0, 1, 2, … but in different orders."""
    if not (pairs["raw"].dtype.is_integer() or pairs["raw"].dtype == pl.Boolean):
        return {}
    raw = pairs["raw"].cast(pl.Int64).to_list()
    codes = [int(code) for code in pairs["code"]]
    if sorted(raw) != list(range(len(raw))) or sorted(codes) != sorted(raw):
        return {}
    both = sorted(zip(raw, codes, strict=True))
    if [code for _, code in both] == [sorted(map(str, raw)).index(str(value)) for value, _ in both]:
        return {}  # encoders of text sort 10 before 9
    return {str(value): code for value, code in both if value != code}


def _find_merged(pairs: pl.DataFrame) -> list[object]:
    """Return values that share a code although others lie between them; text has no order.

    Lists are not classes: many may end in the same value.
    """
    if pairs["raw"].dtype.is_nested():
        return []
    is_number = pairs["raw"].dtype.is_numeric()
    for (code,), group in pairs.group_by("code", maintain_order=True):
        if len(group) < 2:
            continue
        values = group["raw"].sort() if is_number else group["raw"].cast(pl.String).sort()
        if not is_number:
            return list(values[:5])
        others = pairs.filter(pl.col("code") != code)["raw"]
        if others.is_between(values[0], values[-1]).any():
            return list(values[:5])
    return []


def _judge_sequences(
    judge: Judge, subject: Subject, raw: pl.Series, encoded: Tensor
) -> CheckResult:
    """Judge labels that are sequences of codes: one for each value, not the same for all."""
    sequences = [codes.tobytes() for codes in encoded.numpy()]
    pairs = pl.DataFrame({"raw": raw, "code": pl.Series(sequences, dtype=pl.Binary)}).unique()
    twofold = pairs["raw"].len() - pairs["raw"].n_unique()
    few = spread_rows(subject.train_rows)
    if twofold and not (_is_following_one(raw, encoded) or are_relative(subject, few)):
        return judge.failed(
            f"{twofold} label values have several sequences of codes",
            hint="the labels are shuffled, shifted or drawn at random relative to the rows; "
            f"{RECONSTRUCTS}",
        )
    if pairs["code"].n_unique() < 2:
        return judge.failed(
            "every sampled label is the same sequence",
            hint="check the label's definition and its encoding; there is nothing to learn",
        )
    if found := _judge_places(judge, subject, raw, encoded):
        return found
    used = len(np.unique(encoded.numpy()))
    return judge.passed(f"{pairs.height} sequences of up to {encoded.shape[1]}, {used} codes")


def _judge_places(
    judge: Judge, subject: Subject, raw: pl.Series, encoded: Tensor
) -> CheckResult | None:
    """Judge labels whose parts are elsewhere than the inputs show them, or missing."""
    if moved := describe_moved_steps(raw, encoded):
        return judge.failed(
            moved,
            hint="encode the numbers in the order of the list: reversed or shifted by one, each "
            "forecast is that of another step",
        )
    if moved := describe_moved_positions(subject):
        return judge.failed(
            moved,
            hint="read labels and pictures in one order of height and width (PIL's size is width "
            "first), and turn, mirror or cut both or neither",
        )
    if dropped := describe_dropped_tags(raw, encoded):
        return judge.failed(
            dropped, hint="read all tags of a row: an index or a comparison takes the first alone"
        )
    if moved := describe_moved_tags(subject):
        return judge.failed(
            moved,
            hint="each tag is given to the word after its own, or before it: look for a mark at "
            "the beginning that only the tags or only the tokens have, and for a shift of labels "
            "that is meant for language models",
        )
    return None


def _is_following_one(raw: pl.Series, encoded: Tensor) -> bool:
    """Whether the label column determines some of the labels; others may use more columns."""
    for codes in encoded.reshape(len(encoded), -1).double().T.numpy():
        pairs = pl.DataFrame({"raw": raw, "code": codes}).unique()
        if pairs["raw"].n_unique() == pairs.height and pairs["code"].n_unique() > 1:
            return True
    return False


def are_relative(subject: Subject, rows: pl.DataFrame) -> bool:
    """Whether each code is made from its own row alone, and changes with the label's value there.

    The label's values are raised and lowered, in all rows and in every other row: codes that are
    shuffled, shifted, random or another column's do not change, or change with other rows.
    """
    values = rows[subject.task.columns.label]
    if not getattr(values.dtype, "inner", values.dtype).is_numeric():
        return False
    reach = _measure_range(values)
    ids = [name for name in (subject.data.ids if subject.data else ()) if name in rows.columns]
    try:
        own, high, low, half = (
            _encode_labels(subject, rows, _move_values(values, *move))
            for move in ((0.0,), (reach,), (-reach,), (reach, 2))
        )
        other_ids = rows.with_columns(rows[name].reverse() for name in ids)
        unnamed = _encode_labels(subject, other_ids, values)
    except Exception:  # user code may refuse values that the data does not hold
        return False
    if not low.isfinite().all():  # a logarithm, for example
        low = own
    pairs = ((own, unnamed), (half[::2], high[::2]), (half[1::2], own[1::2]))
    if not all(torch.allclose(*pair, ROUNDING, ROUNDING, equal_nan=True) for pair in pairs):
        return False
    # Higher values have higher codes in nearly every row, or lower codes in all.
    change = (high - low).flatten(1)
    change[change.abs() <= ROUNDING * (1 + low.flatten(1).abs())] = 0.0
    is_one_way = bool((change >= 0).all() or (change <= 0).all())
    return is_one_way and float((change != 0).any(dim=1).double().mean()) >= FOLLOWING_SHARE


def are_places(subject: Subject) -> bool:
    """Whether each code is the place of the label's value among its own row's choices.

    The choices are the elements of a list, or the values of several columns.
    """
    columns, rows = subject.task.columns, subject.train_rows
    codes, chosen = subject.train[LABEL].tolist(), rows[columns.label].to_list()
    kind = rows[columns.label].dtype
    others = [name for name in columns.features if name != columns.label]
    lists = [rows[name] for name in others if getattr(rows[name].dtype, "inner", None) == kind]
    shown = [each.to_list() for each in lists]
    if alike := [name for name in others if rows[name].dtype == kind]:
        shown.append(rows.select(alike).rows())
    return any(_are_in_place(chosen, choices, codes) for choices in shown)


def _are_in_place(
    chosen: Sequence[object], choices: Sequence[Sequence[object] | None], codes: Sequence[float]
) -> bool:
    """Whether each code has a place of its own, at which its rows have what was chosen."""
    possible = dict[float, set[int]]()
    for code, own, row in zip(codes, chosen, choices, strict=True):
        places = {place for place, each in enumerate(row or ()) if each == own}
        possible[code] = possible.get(code, places) & places
    return all(possible.values()) and len(set.union(*possible.values())) >= len(possible)


def _encode_labels(subject: Subject, rows: pl.DataFrame, values: pl.Series) -> Tensor:
    codes = subject.task.encode(rows.with_columns(values))[LABEL].double()
    return codes.unsqueeze(1) if codes.ndim == 1 else codes


def _measure_range(values: pl.Series) -> float:
    """Return the range of the values, at least 1."""
    numbers = values.explode() if values.dtype.is_nested() else values
    numbers = numbers.drop_nulls().cast(pl.Float64)
    numbers = numbers.filter(numbers.is_finite())
    return max(float(numbers.max() - numbers.min()), 1.0) if len(numbers) else 1.0  # type: ignore[operator,arg-type]


def _move_values(values: pl.Series, distance: float, every: int = 1) -> pl.Series:
    """Move the value of every `every`-th row by a distance; keep the type.

    If the type cannot hold the moved values, all stay unchanged.
    """

    def moved(value: object) -> object:
        if isinstance(value, list):
            return [moved(each) for each in value]
        return type(value)(value + distance) if isinstance(value, int | float) else value

    listed = values.to_list()
    changed = [moved(each) if row % every == 0 else each for row, each in enumerate(listed)]
    found = pl.Series(values.name, changed, dtype=values.dtype, strict=False)
    return values if found.null_count() > values.null_count() else found
