"""Check leakage: shuffled labels must not be predictable; validation must be other rows."""

from collections import Counter
from dataclasses import replace

import numpy as np
import polars as pl
import torch

from perennial.check_skeleton.checks.data.copies import (
    BEYOND_CHANCE,
    expected_by_chance,
    find_shared_entity,
)
from perennial.check_skeleton.checks.data.encoding import REBUILT
from perennial.check_skeleton.checks.data.repeats import copied_share, multiplied_share
from perennial.check_skeleton.checks.data.signals import is_free_text
from perennial.check_skeleton.checks.data.windows import (
    are_interleaved,
    find_known_targets,
    find_shared_windows,
)
from perennial.check_skeleton.checks.training.input_independence import POWER_MARGIN, z_score
from perennial.check_skeleton.free_outputs import best_constant, constant_losses, output_of, probe
from perennial.check_skeleton.made_up_inputs import made_up
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.short_training import shuffled_batches, simplified, updates
from perennial.check_skeleton.subject import Subject, example_keys, rows_of
from perennial.contracts.data import TaskColumns
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
# Validation labels that occur in training windows, which a random split of windows causes.
KNOWN_TARGETS = 0.3
# Copied rows, and the chance of agreement below which they are not a coincidence.
COPIED_ROWS = 0.05
NO_CHANCE = 1e-6


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
    settings = subject.settings
    limit = settings.significance + POWER_MARGIN
    columns = subject.task.columns
    if subject.task.reconstructs_inputs:
        return judge.skipped(REBUILT)
    if columns.label in columns.features and (
        len(columns.features) == 1 or subject.task.kind != "statistic"
    ):
        return judge.skipped("the label is a feature by design: shuffling moves both")
    fitted = _shuffled(subject)
    leads = _leads(fitted)
    shown = ", ".join(f"{lead:+.1f} on {name}" for name, lead in leads.items())
    shown = f"standard errors better than the constant: {shown}"
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
    expects=(
        "validation examples that repeat a training example no more often than training "
        "examples repeat each other"
    ),
    source="guides: validation on training rows measures memory",
    tolerance=f"{COPIED_SHARE:.0%}",
    needs_losses=False,
)
def check_split_overlap(subject: Subject, judge: Judge) -> CheckResult:
    """Check that validation examples are not copies of training examples."""
    train, validation = (Counter(example_keys(b)) for b in (subject.train, subject.validation))
    rows, held = subject.num_rows(), len(subject.validation[LABEL])
    # Tables of few values repeat by chance, within a split as often as across.
    chance = sum(count for count in train.values() if count > 1) / rows
    overlap = sum(count for key, count in validation.items() if key in train) / held
    pooled = (chance * rows + overlap * held) / (rows + held)
    error = float(np.sqrt(pooled * (1 - pooled) * (1 / rows + 1 / held)))
    excess = overlap - chance
    shown = f"{overlap:.1%} of validation examples are in the training sample too"
    shown += f", {chance:.1%} by chance" if chance else ""
    if excess >= SAME_DATA_SHARE:
        return judge.failed(
            shown,
            hint="validation rows are training rows: check how the data was made and split",
            overlap=overlap,
            chance=chance,
        )
    expected = expected_by_chance(subject) if overlap > COPIED_SHARE else 1.0
    if copied := _judge_copies(judge, subject, overlap, expected):
        return copied
    if excess > COPIED_SHARE and excess > CLEAR_ERRORS * error:
        return judge.warned(
            shown,
            hint="copies, or rows that differ only in their ids, are in both splits: deduplicate, "
            "or split by a group that keeps them together",
            overlap=overlap,
            chance=chance,
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
    return _judge_relations(judge, subject) or judge.passed(shown, overlap=overlap, chance=chance)


def _judge_copies(
    judge: Judge, subject: Subject, overlap: float, expected: float
) -> CheckResult | None:
    """Fail if rows were multiplied; natural repeats have another pattern."""
    if overlap < max(COPIED_ROWS, BEYOND_CHANCE * expected):
        return None
    is_clear = expected < NO_CHANCE or overlap >= SAME_DATA_SHARE
    copied = copied_share(subject) if is_clear else 0.0
    # Short texts may come in pairs for other reasons.
    is_text = any(map(is_free_text, subject.train_rows[list(subject.task.columns.features)]))
    multiplied = 0.0 if is_text and overlap < SAME_DATA_SHARE else multiplied_share(subject)
    if max(copied, multiplied) < COPIED_ROWS:
        return None
    trace = (
        "hardly any others agree in all columns but one"
        if copied >= COPIED_ROWS
        else "all rows have about the same number of copies, unlike random draws"
    )
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


def _judge_relations(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge rows that are not copies but reveal rows of the other split."""
    return _judge_windows(judge, subject) or _judge_entities(judge, subject)


def _judge_windows(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge overlapping windows of one series; validation may share values with the past."""
    is_random = are_interleaved(subject)
    column, known = find_known_targets(subject)
    if known > KNOWN_TARGETS:
        report = judge.failed if is_random else judge.warned
        return report(
            f"labels of {known:.0%} of the validation examples are in training windows of "
            f"{column}, right after the same values",
            hint="overlapping windows were split at random, so training has seen the validation "
            "labels: set data.time and split by it, or make windows that do not overlap"
            if is_random
            else "windows of the next period reach back into validation: choose a longer "
            "split.period, or shorter windows",
            known=known,
        )
    column, share = find_shared_windows(subject) if is_random else ("", 0.0)
    if share > SHARED_WINDOWS:
        return judge.warned(
            f"half of the window in {column} is in a training window for {share:.0%} of the "
            "validation examples",
            hint="overlapping windows are in both splits, so training has seen validation values: "
            "set data.time and split by it, with windows that do not overlap",
            windows=share,
        )
    return None


def _judge_entities(judge: Judge, subject: Subject) -> CheckResult | None:
    entity, explained, shared = find_shared_entity(subject)
    if entity:
        return judge.warned(
            f"{entity} explains {explained:.0%} of the label's variance, and {shared:.0%} of the "
            f"validation examples have a {entity} that training has",
            hint=f"rows of one {entity} have one label and are in both splits, so recognising it "
            f'is enough: set data.group = "{entity}" and split.method = "group"',
            group=entity,
            shared=shared,
        )
    return None


def _shuffled(subject: Subject) -> Subject:
    """Return the rows with labels shuffled within each split, and a task fitted on them."""
    train, validation = (
        _permuted(rows, subject.task.columns, subject.seed + number)
        for number, rows in enumerate((subject.train_rows, subject.validation_rows))
    )
    task = subject.make_task()
    with made_up("shuffled labels"):
        task.fit(train.lazy())
    return replace(subject, task=task, train_rows=train, validation_rows=validation)


def _permuted(rows: pl.DataFrame, columns: TaskColumns, seed: int) -> pl.DataFrame:
    """Permute the labels among rows, with the columns that belong to them, such as a censoring."""
    label = columns.label
    along = [name for name in rows.columns if name == label or name not in columns.features]
    order = np.random.default_rng(seed).permutation(rows.height)
    return rows.with_columns(rows.select(along)[order].get_columns())


def _leads(fitted: Subject) -> dict[str, float]:
    """Return by how many standard errors a short training beats the constant, by sample."""
    generator = torch.Generator().manual_seed(fitted.seed)
    order = torch.randperm(fitted.num_rows(), generator=generator)
    held = int(HELD_OUT_SHARE * len(order))
    steps = max(int(STEPS_SHARE * fitted.settings.training_steps), 1)
    batches = shuffled_batches(fitted, rows_of(fitted.train, order[held:]), steps)
    model = simplified(fitted.build_model())
    for _ in updates(fitted.task, model, batches, fitted.settings.learning_rates[0]):
        pass
    output = output_of(fitted, probe(fitted))
    leads = {}
    for name, batch in (
        ("validation rows", fitted.validation),
        ("training rows held out", rows_of(fitted.train, order[:held])),
    ):
        losses = score_in_parts(fitted.task, model, batch).losses
        # The held-out rows' own best constant: only information about single rows beats it, not
        # a drift of the label's mean or a good start.
        constant, _ = best_constant(fitted, output, batch)
        rival = constant_losses(fitted.task, constant, batch).double().numpy()
        leads[name] = round(z_score(_weights(batch) * (rival - losses)), 2)
    return leads


def _weights(batch: Batch) -> "np.ndarray[tuple[int, ...], np.dtype[np.float64]] | float":
    return batch[WEIGHT].double().numpy() if WEIGHT in batch else 1.0
