"""Columns whose signal a short training leaves where it was, while it learns that of others."""

import numpy as np

from perennial.check_skeleton.baselines import fit_linear_model
from perennial.check_skeleton.subject import Floats, Subject, is_sequence
from perennial.contracts.errors import join_names
from perennial.engine.task import LABEL, inputs_of

MOST_COLUMNS = 256
# Correlations of weaker columns are mostly noise, or another column's.
CLEAR_ERRORS = 5.0
LEAST_OF_STRONGEST = 0.3
# Of the correlation of a column that is learned, the errors have 0 to 0.5 left after the short
# training, on healthy tables. Of one that the model may not use they have all, or more.
LEARNED, UNLEARNED = 0.45, 0.1
FEWEST_LEARNED = 2


def describe_unlearned_columns(subject: Subject, predictions: Floats) -> str:
    """Describe columns that still predict the errors of predictions; empty if there are none.

    Only columns that a linear model learns from the same training rows: where the validation rows
    are of later days, a column may tell more, or other things, than it did in training.
    """
    task, batch = subject.task, subject.validation
    if task.kind not in ("binary", "regression") or predictions.shape != batch[LABEL].shape:
        return ""
    linear = fit_linear_model(subject)
    if isinstance(linear, str):
        return ""
    labels = batch[LABEL].double().numpy()
    learned, unlearned = list[str](), list[str]()
    columns = {
        f"{name}[{place}]": values
        for name, tensor in inputs_of(batch).items()
        if tensor.is_floating_point() and tensor.ndim == 2 and not is_sequence(name, batch)
        for place, values in enumerate(tensor.double().numpy().T)
    }
    if not FEWEST_LEARNED < len(columns) <= MOST_COLUMNS:
        return ""
    # Straight lines only: an error of another shape is not the column's.
    signals = {name: _correlate(values, labels) for name, values in columns.items()}
    strongest = max(map(abs, signals.values()))
    errors, linear_errors = labels - predictions, labels - linear(batch)
    for name, signal in signals.items():
        clear = CLEAR_ERRORS / np.sqrt(len(labels))
        if abs(signal) < max(clear, LEAST_OF_STRONGEST * strongest):
            continue
        # In units of the label: errors are smaller than labels.
        share, linear_share = (
            1 - _correlate(columns[name], each) * each.std() / labels.std() / signal
            for each in (errors, linear_errors)
        )
        if share > LEARNED:
            learned.append(name)
        elif share < UNLEARNED and linear_share > LEARNED:
            unlearned.append(name)
    if not unlearned or len(learned) < FEWEST_LEARNED:
        return ""
    return (
        f"what {join_names(unlearned)} tells of the label is left in the errors, while "
        f"{join_names(learned)} is learned"
    )


def _correlate(one: Floats, other: Floats) -> float:
    """Return the correlation; 0 where one of them is constant."""
    if min(one.std(), other.std()) < 1e-12:
        return 0.0
    return float(np.corrcoef(one, other)[0, 1])
