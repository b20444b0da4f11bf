"""Labels that belong to the row before or after: joins by position, tables cut or shifted alone."""

from dataclasses import replace

from perennial.check_skeleton.baselines import compute_control_losses, z_score
from perennial.check_skeleton.subject import Subject, select_rows
from perennial.engine.task import LABEL

# Neighbours of the table are neighbours in the sample where most rows are in it.
LEAST_SAMPLED = 0.5
# Standard errors: two shifts are tried, and the own label shows nothing.
CLEAR = 6.0


def find_row_shift(subject: Subject) -> str:
    """Return whose label a linear model learns, of a task whose own labels it does not learn.

    Of windows in time, the next one may contain the label of this one: only the label of the row
    after is then tried. Empty if there is nothing to learn, or neighbours are not in the sample.
    """
    if subject.num_rows() < LEAST_SAMPLED * subject.train_split_rows:
        return ""
    has_time = bool(subject.data and subject.data.time)
    for steps, whose in ((1, "after"), (-1, "before")):
        if steps < 0 and has_time:
            continue
        shifted = {**subject.train, LABEL: subject.train[LABEL].roll(-steps, 0)}
        half, other = subject.num_rows() // 2, replace(subject)
        vars(other)["train"] = select_rows(shifted, slice(half))
        vars(other)["validation"] = select_rows(shifted, slice(half, -1))
        control = compute_control_losses(other)
        if control and z_score(control[1] - control[0]) >= CLEAR:
            return whose
    return ""
