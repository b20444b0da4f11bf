"""Compare claims with the data: corrections for class weights, byte counts, accuracy alone."""

import math

import numpy as np
import polars as pl
import torch

from perennial.check_skeleton.free_outputs import best_constant, minimised, output_of, probe
from perennial.check_skeleton.made_up_inputs import RefusedInputsError
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, WEIGHT, Task

# In logits: the shift of the best constant that a weight of 1.35 causes.
LEAST_SHIFT = 0.3
SAME_SHIFT = 0.1
COUNTED_ROWS = 32
FEWEST_CHARACTERS = 8
# Escapes and other normal forms sometimes turn one byte into two.
MOST_BYTES = 1.5
RARE = 0.05
BLIND = frozenset({"accuracy", "top_1_accuracy", "error_rate"})


def describe_doubled_correction(subject: Subject) -> str:
    """Describe a correction for class weights in the wrong direction; empty if there is none.

    The best constant of the weighted loss differs from that of the plain loss. Predictions either
    undo that shift or keep it; if they double it, the sign of the correction is wrong.
    """
    task, batch = subject.task, probe(subject)
    output = output_of(subject, batch)
    is_weighted = type(task).training_losses is not Task.training_losses
    share = float(batch[LABEL].double().mean())
    if task.kind != "binary" or not is_weighted or output.ndim > 2 or not 0 < share < 1:
        return ""
    start = torch.zeros_like(output[:1])
    try:
        plain, _ = best_constant(subject, output, batch)
        weighted, _ = minimised(subject, task.training_losses, (start,), batch)
        found = [float(task.predict(each.expand_as(output)).double().mean())
                 for each in (plain, weighted)]  # fmt: skip
    except RefusedInputsError:
        return ""
    if not all(0 < each < 1 for each in found):
        return ""
    at_plain, at_weighted, right = (math.log(each / (1 - each)) for each in (*found, share))
    shift = at_weighted - at_plain
    is_doubled = abs(at_plain - right - shift) < SAME_SHIFT * abs(shift)
    if abs(shift) < LEAST_SHIFT or not is_doubled:
        return ""
    return (
        f"the training loss's best constant is predicted as {found[1]:.2g}, the plain loss's as "
        f"{found[0]:.2g}, but {share:.2g} of the labels are 1"
    )


def describe_miscounted_bytes(subject: Subject) -> str:
    """Describe texts counted with more bytes than they have; empty if there are none."""
    task, text = subject.task, subject.task.columns.label
    if "bytes" not in task.statistics or subject.validation_rows[text].dtype != pl.String:
        return ""
    rows = subject.validation_rows.filter(pl.col(text).str.len_chars() >= 2 * FEWEST_CHARACTERS)
    rows = rows.head(min(COUNTED_ROWS, task.scoring_rows))
    if rows.height < FEWEST_CHARACTERS:
        return ""
    # Shorter than a context, and of different lengths: a constant added to all has no slope.
    cut = [each[: FEWEST_CHARACTERS + place % FEWEST_CHARACTERS]
           for place, each in enumerate(rows[text])]  # fmt: skip
    texts = pl.Series(text, cut, dtype=pl.String)
    try:
        batch = task.encode(rows.with_columns(texts))
        found = task.statistic(output_of(subject, batch), batch).double()
    except Exception:  # a task may reject shorter texts
        return ""
    column = found.reshape(rows.height, -1)[:, list(task.statistics).index("bytes")]
    weights = batch.get(WEIGHT, torch.ones(rows.height)).double()
    counted, have = (column * weights).numpy(), texts.str.len_bytes().to_numpy().astype(float)
    slope = float(np.polyfit(have, counted, 1)[0])
    if slope <= MOST_BYTES:
        return ""
    return f"for {rows.height} texts, {slope:.2g} bytes are counted for each actual byte"


def describe_imbalance(subject: Subject) -> str:
    """Describe imbalanced classes that only accuracy-like metrics judge; empty if balanced."""
    task = subject.task
    if task.kind not in ("binary", "multiclass") or not set(task.metrics) <= BLIND:
        return ""
    _, counts = np.unique(subject.train[LABEL].numpy(), return_counts=True)
    most = float(counts.max() / counts.sum())
    if 1 - most >= RARE:
        return ""
    return f"always predicting the most common class is {most:.1%} accurate"
