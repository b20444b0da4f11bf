"""The tensors right before the model: are they the rows they come from, and fit to learn from?"""

import random
from collections.abc import Iterator

import numpy as np
import polars as pl
import torch
from torch import Tensor

from components.check_skeleton.checks.data.augmenting import NO_AUGMENTATION, augments
from components.check_skeleton.checks.data.picture_reading import misreading
from components.check_skeleton.subject import (
    Subject,
    distinct_examples,
    head_of,
    is_sequence,
    stirred_model,
)
from components.check_skeleton.verdict import Judge
from components.contracts.skeleton import CheckResult
from components.engine.task import LABEL, Batch, Task, inputs_of

PROBED_ROWS = 64
# Inputs are learned best around mean 0 and variance 1 (LeCun et al., Efficient BackProp, 1998);
# a factor of ten off is what raw pixels, amounts or timestamps show and standardised columns never.
LARGEST_SCALE = 10.0
AUGMENTED = 8


def encoding(subject: Subject) -> CheckResult:
    """Is each example made from its own row alone, the same every time?"""
    judge = Judge(
        "encoding",
        expected="equal tensors whenever, and beside whichever rows, a row is encoded",
        source="guides: fix seeds, wrong labels are the first silent failure",
    )
    rows = spread(subject.train_rows)
    before = _generator_states()
    whole = subject.task.encode(rows)
    if _generator_states() != before:
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
    changed = differences(whole, subject.task.encode(rows))
    if changed:
        return judge.failed(
            f"encoding the same rows twice differs in {', '.join(changed)}",
            hint="encode must be deterministic; look for random numbers, sets and clocks",
        )
    for index in range(0, rows.height, 8):
        alone = subject.task.encode(rows.slice(index, 1))
        changed = differences(
            {name: tensor[index : index + 1] for name, tensor in whole.items()}, alone
        )
        if changed:
            return judge.failed(
                f"row {index} encodes differently alone and among others: {', '.join(changed)}",
                hint="rows or labels are shifted or shuffled, or statistics come from the batch; "
                "fit them in fit(train)",
                row=index,
            )
    return _judged_pictures(judge, subject, rows, whole)


def _judged_pictures(
    judge: Judge, subject: Subject, rows: pl.DataFrame, batch: Batch
) -> CheckResult:
    found = misreading(subject, rows, batch)
    if found is None:
        return judge.passed(f"{rows.height} rows encode alike together, alone and again")
    if found.is_scrambled:
        return judge.failed(
            str(found),
            hint="use permute or transpose to move the channels: `view` and `reshape` keep the "
            "numbers where they are and give them other names",
        )
    return judge.warned(
        str(found),
        hint="look for a permute that is missing or doubled, a picture read upside down, or BGR "
        "for RGB: pretrained weights, augmentation and people expect pictures as they are",
    )


def serving_inputs(subject: Subject) -> CheckResult:
    """Do the inputs come from the feature columns alone?"""
    judge = Judge(
        "serving_inputs",
        expected="the same inputs without the label and every other column that is no feature",
        source="guides: the target used as an input; training-serving skew",
    )
    rows = spread(subject.train_rows)
    whole = inputs_of(subject.task.encode(rows))
    columns = subject.task.columns
    try:
        served = subject.task.encode(rows.select(list(columns.features)))
    except Exception as error:  # user code may raise anything when its column is not there
        return judge.failed(
            f"encode needs a column that is no feature: {type(error).__name__}: {error}",
            hint="use columns.features only; when serving, the label and the ids do not exist",
        )
    # Where the label is a feature itself, as in language modeling, it may well be encoded.
    is_own_label = columns.label in columns.features
    changed = differences(whole, inputs_of(served))
    changed += [LABEL] if LABEL in served and not is_own_label else []
    if changed:
        return judge.failed(
            f"inputs change when only the features are given: {', '.join(changed)}",
            hint="the label or an id leaks into the inputs, or `label` is made up without it",
        )
    if is_own_label and (leaked := _leaked_label(subject, rows, whole)):
        return judge.failed(
            f"without the label column, other values: {leaked}",
            hint="the label leaks into what is predicted from the other features: a picture's own "
            "caption must not reach the picture's inputs or its side of the model",
        )
    return judge.passed(f"{', '.join(whole)} depend on {len(columns.features)} features")


def _leaked_label(subject: Subject, rows: pl.DataFrame, whole: Batch) -> str:
    """What changes without a label that is a feature among others; empty where nothing does."""
    if len(subject.task.columns.features) == 1:
        return ""
    model = stirred_model(subject)
    try:
        alone = inputs_of(subject.task.encode(rows.drop(subject.task.columns.label)))
        with torch.no_grad():
            outputs = [subject.task.predict(model(**each)) for each in (alone, whole)]
    except Exception:  # a task may need its label wherever it is served: then nothing leaks
        return ""
    both = alone.keys() & whole.keys()
    changed = differences({n: alone[n] for n in both}, {n: whole[n] for n in both})
    return ", ".join(changed + ([] if _agree(*outputs) else ["predictions"]))


def labels(subject: Subject) -> CheckResult:
    """Does the encoded label say what the label column says?"""
    judge = Judge(
        "labels",
        expected="one finite code for each value of the label column, as the task's kind needs",
        source="guides: wrong labels; facts/data: off-by-one pairing",
    )
    raw, encoded = subject.train_rows[subject.task.columns.label], subject.train[LABEL]
    is_measured = subject.task.kind == "statistic"
    if is_measured and encoded.ndim > 1:
        return _judged_sequences(judge, raw, encoded)
    if encoded.ndim != 1 or not bool(torch.isfinite(encoded.double()).all()):
        return judge.failed(
            f"labels have shape {list(encoded.shape)} or are not finite",
            hint="encode one finite number per row, shape [B]",
        )
    pairs = pl.DataFrame({"raw": raw, "code": encoded.double().numpy()}).unique()
    twofold = pairs.group_by("raw").len().filter(pl.col("len") > 1)
    if twofold.height:
        value = twofold["raw"][0]
        some = sorted(pairs.filter(pl.col("raw") == value)["code"])[:5]
        return judge.failed(
            f"{twofold.height} label values have several codes: {value!r} became {some}",
            hint="the labels are shuffled, shifted or drawn at random against the rows",
        )
    return _judged_codes(judge, subject, pairs)


def _judged_codes(judge: Judge, subject: Subject, pairs: pl.DataFrame) -> CheckResult:
    """One code for each value: are there enough, of the kind's form, each for its own class?"""
    codes = np.unique(pairs["code"].to_numpy())
    if len(codes) < 2:
        return judge.failed(
            f"every sampled label is {codes.tolist()}",
            hint="check the label's definition and its encoding; there is nothing to learn. Are "
            "other labels so rare that the sample has none? Then raise skeleton.sample_rows",
        )
    classes = {"binary": "0, 1", "multiclass": "0, 1, 2, …"}.get(subject.task.kind)
    is_whole = bool((codes == np.round(codes)).all()) and codes.min() >= 0
    if classes and (not is_whole or (subject.task.kind == "binary" and codes.max() > 1)):
        return judge.failed(
            f"class codes are {codes.tolist()[:8]}", hint=f"encode the classes as {classes}"
        )
    if subject.task.kind != "regression" and (exchanged := _exchanged(pairs)):
        say = judge.failed if subject.task.kind == "binary" else judge.warned
        return say(
            f"{len(exchanged)} of {pairs.height} classes have the code of another class: "
            f"{exchanged}",
            hint="off by one, or counted in another order: is the code that of another class in "
            "predict, in the classes' names, and for whoever reads the answers?",
        )
    if subject.task.kind == "multiclass" and (merged := _merged(pairs)):
        return judge.warned(
            f"{pairs.height} label values have {len(codes)} codes: {merged} are one class",
            hint="are these classes merged on purpose? Otherwise look at the codes in encode",
        )
    shown = f"{pairs.height} values, codes {codes.min():.4g} to {codes.max():.4g}"
    return judge.passed(f"{shown}, mean {subject.train[LABEL].double().mean():.4g}")


def _exchanged(pairs: pl.DataFrame) -> dict[str, int]:
    """Value → code, where the values are 0, 1, 2, … and the codes are the same in another order."""
    if not (pairs["raw"].dtype.is_integer() or pairs["raw"].dtype == pl.Boolean):
        return {}
    raw = pairs["raw"].cast(pl.Int64).to_list()
    codes = [int(code) for code in pairs["code"]]
    if sorted(raw) != list(range(len(raw))) or sorted(codes) != sorted(raw):
        return {}
    both = sorted(zip(raw, codes, strict=True))
    return {str(value): code for value, code in both if value != code}


def _merged(pairs: pl.DataFrame) -> list[object]:
    """Values that share a code though others lie between them; text has no order to be cut by."""
    is_number = pairs["raw"].dtype.is_numeric()
    for (code,), group in pairs.group_by("code", maintain_order=True):
        values = group["raw"].sort()
        others = pairs.filter(pl.col("code") != code)
        between = others.filter(pl.col("raw").is_between(values[0], values[-1]))
        if len(values) > 1 and (not is_number or between.height):
            return list(values[:5])
    return []


def _judged_sequences(judge: Judge, raw: pl.Series, encoded: Tensor) -> CheckResult:
    """Labels of many codes: one sequence for each value, not the same for all."""
    sequences = [codes.tobytes() for codes in encoded.numpy()]
    pairs = pl.DataFrame({"raw": raw, "code": pl.Series(sequences, dtype=pl.Binary)}).unique()
    twofold = pairs["raw"].len() - pairs["raw"].n_unique()
    if twofold:
        return judge.failed(
            f"{twofold} label values have several sequences of codes",
            hint="the labels are shuffled, shifted or drawn at random against the rows",
        )
    if pairs["code"].n_unique() < 2:
        return judge.failed(
            "every sampled label is the same sequence",
            hint="check the label's definition and its encoding; there is nothing to learn",
        )
    used = len(np.unique(encoded.numpy()))
    return judge.passed(f"{pairs.height} sequences of up to {encoded.shape[1]}, {used} codes")


def input_scale(subject: Subject) -> CheckResult:
    """Are the inputs finite, informative and of a scale that trains well?"""
    judge = Judge(
        "input_scale",
        expected="finite inputs that vary, float columns with mean and deviation below "
        f"{LARGEST_SCALE:g}",
        source="Efficient BackProp §4.3; guides: look at tensors right before the model",
    )
    inputs = inputs_of(subject.train)
    broken = {name: int((~torch.isfinite(t.double())).sum()) for name, t in inputs.items()}
    if any(broken.values()):
        return judge.failed(
            f"NaN or infinite values: {broken}",
            hint="fill missing values in encode and guard divisions by a zero scale",
        )
    distinct = len(distinct_examples(inputs))
    if distinct == 1:
        return judge.failed(
            f"all {subject.num_rows()} sampled rows have the same inputs",
            hint="encode returns constants; compare the preview with the rows",
        )
    frozen = [
        name
        for name, tensor in inputs.items()
        # A table without numbers may have an empty tensor for them.
        if tensor.is_floating_point() and tensor.numel() and bool((tensor == tensor[:1]).all())
    ]
    if frozen:
        return judge.warned(
            f"all {subject.num_rows()} sampled rows have the same {', '.join(frozen)}",
            hint="encode returns constants; compare the preview with the rows. Right for a mask "
            "that no row needs",
        )
    columns = [column for name in inputs for column in _columns(name, subject.train)]
    constant = [name for name, values in columns if bool((values == values[0]).all())]
    large = {
        name: [round(float(values.mean()), 4), round(float(values.std()), 4)]
        for name, values in columns
        if values.is_floating_point() and max(abs(values.mean()), values.std()) > LARGEST_SCALE
    }
    if large:
        worst = max(large, key=lambda name: max(map(abs, large[name])))
        return judge.warned(
            f"{len(large)} of {len(columns)} columns are not normalised; "
            f"{worst} has mean {large[worst][0]:.4g} and deviation {large[worst][1]:.4g}",
            hint="standardise in encode with statistics from fit(train)",
            mean_and_deviation=large,
        )
    # One rare indicator may be constant in a sample; many constants mean lost columns.
    if len(constant) > max(1, len(columns) // 4):
        return judge.warned(
            f"{len(constant)} of {len(columns)} columns are constant: {', '.join(constant[:8])}",
            hint="columns are lost in encode, every category is unknown to it, or texts are padded "
            "to a length that none needs",
            constant=constant,
        )
    return judge.passed(
        f"{len(columns)} columns, {distinct} of {subject.num_rows()} rows differ", constant=constant
    )


def augmentation(subject: Subject) -> CheckResult:
    """Does augmentation follow its generator and leave labels' shape and the original alone?"""
    judge = Judge(
        "augmentation",
        expected="the same changes from the same generator, shapes kept, the given batch untouched",
        source="guides: labels flipped by augmentation; resuming needs the generator",
    )
    task = subject.task
    if not augments(task):
        return judge.skipped(NO_AUGMENTATION)
    original = head_of(subject.train, PROBED_ROWS)
    batch = {name: tensor.clone() for name, tensor in original.items()}
    before = _generator_states()
    first = task.augment(batch, torch.Generator().manual_seed(subject.seed))
    if changed := differences(original, batch):
        return judge.failed(
            f"augment changes its input in place: {', '.join(changed)}",
            hint="clone before writing; the batch may be used again",
        )
    again = task.augment(batch, torch.Generator().manual_seed(subject.seed))
    if _generator_states() != before or differences(first, again):
        return judge.failed(
            "augment gives other results under the same generator, or uses a global one",
            hint="draw every random number with generator=generator",
        )
    if {n: (t.shape, t.dtype) for n, t in first.items()} != {
        n: (t.shape, t.dtype) for n, t in batch.items()
    }:
        return judge.failed("augment changed names, shapes or types", hint="keep the batch's form")
    if not all(bool(torch.isfinite(tensor.double()).all()) for tensor in first.values()):
        return judge.failed("augment made values that are not finite", hint="guard its arithmetic")
    return _judged_changes(judge, task, batch)


def _judged_changes(judge: Judge, task: Task, batch: Batch) -> CheckResult:
    """Whether augmentation that is well behaved also does something."""
    changed, has_drawn = [], False
    for seed in range(AUGMENTED):
        generator = torch.Generator().manual_seed(seed)
        before = generator.get_state()
        changed += differences(batch, task.augment(batch, generator))
        has_drawn |= not torch.equal(before, generator.get_state())
    if has_drawn and not changed:
        return judge.warned(
            f"augment drew random numbers and changed nothing, {AUGMENTED} times",
            hint="what it makes is not returned, or its strength or probability is 0",
        )
    return judge.passed(f"changes {', '.join(dict.fromkeys(changed)) or 'nothing'}")


def spread(rows: pl.DataFrame) -> pl.DataFrame:
    """Few rows from all of the sample: neighbours in time are too much alike."""
    return rows.gather_every(max(rows.height // PROBED_ROWS, 1)).head(PROBED_ROWS)


def differences(first: Batch, second: Batch) -> list[str]:
    """Names of the tensors that are not equal, NaN being equal to NaN."""
    names = sorted({*first, *second})
    return [
        name
        for name in names
        if name not in first or name not in second or not _agree(first[name], second[name])
    ]


def _agree(first: Tensor, second: Tensor) -> bool:
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if not first.is_floating_point():
        return torch.equal(first, second)
    # Vectorised and single arithmetic may round differently.
    return torch.allclose(first, second, rtol=1e-5, atol=1e-6, equal_nan=True)


def _columns(name: str, batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """The columns of a table; anything else, such as images or tokens, counts as one column."""
    tensor = batch[name]
    if tensor.ndim == 2 and not is_sequence(name, batch):
        for index in range(tensor.shape[1]):
            yield f"{name}[{index}]", tensor[:, index]
    else:
        yield name, tensor.flatten()


def _generator_states() -> tuple[object, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)
    return (
        random.getstate(),
        kind,
        np.asarray(keys).tobytes(),
        *rest,
        torch.get_rng_state().numpy().tobytes(),
    )
