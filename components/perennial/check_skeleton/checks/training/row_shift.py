"""Labels that belong to the row before or after: joins by position, tables cut or shifted alone."""

import numpy as np

from perennial.check_skeleton.baselines import compute_control_losses, z_score
from perennial.check_skeleton.subject import Floats, Subject, select_rows
from perennial.engine.task import LABEL, inputs_of

# Neighbours of the table are neighbours in the sample where most rows are in it.
LEAST_SAMPLED = 0.5
# Standard errors: two shifts are tried.
CLEAR = 6.0
# Times what is learned of the own label: neighbours' labels may be alike, and one of them easier.
FAR_BETTER = 2.0


def find_row_shift(subject: Subject) -> str:
    """Return whose label a linear model learns far better than the row's own.

    Features may hold the label of the row before, as lags and windows do: its label is only tried
    with pictures, or where the own label cannot be learned at all and rows have no time. Empty if
    there is nothing to learn, or neighbours are not in the sample.
    """
    if subject.num_rows() < LEAST_SAMPLED * subject.train_split_rows:
        return ""
    own = _compute_errors(subject, 0)
    if own is None:
        return ""
    lead = own[1] - own[0]
    has_time = bool(subject.data and subject.data.time)
    is_learned = z_score(lead) >= CLEAR
    for steps, whose in ((1, "after"), (-1, "before")):
        if steps < 0 and (has_time or is_learned) and not _are_pictures(subject):
            continue
        shifted = _compute_errors(subject, steps)
        if shifted is None:
            continue
        more = shifted[1] - shifted[0] - FAR_BETTER * lead
        if z_score(shifted[1] - shifted[0]) >= CLEAR and z_score(more) >= CLEAR:
            return whose
    return ""


def _compute_errors(subject: Subject, steps: int) -> tuple[Floats, Floats] | None:
    """Return errors of a linear model and of a constant, with labels of rows further down.

    Squared errors, or of classes what their probability lacks: where a part of the neighbours is
    missing in the sample, log losses are those of the few labels that are not of a neighbour.
    """
    shifted = {**subject.train, LABEL: subject.train[LABEL].roll(-steps, 0)}
    half = subject.num_rows() // 2
    parts = (select_rows(shifted, rows) for rows in (slice(half), slice(half, -1)))
    losses = compute_control_losses(subject, *parts)
    if losses is None or subject.task.kind == "regression":
        return losses
    linear, constant = (1 - np.exp(-each) for each in losses)
    return linear, constant


def _are_pictures(subject: Subject) -> bool:
    return all(tensor.ndim == 4 for tensor in inputs_of(subject.train).values())
