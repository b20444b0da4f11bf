"""Metrics that cut the fraction of a prediction off where they should round it."""

from collections.abc import Mapping

import numpy as np

from perennial.check_skeleton.subject import Floats, Subject

FEWEST_LABELS = 2
# Below and above a whole number, rounded to it.
PARTS = 0.3, 0.45


def describe_cut_fraction(subject: Subject, labels: Floats) -> str:
    """Describe a metric of whole numbers that reads 2.9 as 2, or 2.1 as 3; empty if none does.

    Rounding keeps the labels for predictions slightly above and below them. Cutting keeps them on
    one side, and makes them those of the next number on the other, up to the whole number itself. A
    metric that counts what is above, say, knows no next number: two farther is as bad as one.
    """
    if subject.task.kind != "regression" or labels.ndim > 1 or (labels != labels.round()).any():
        return ""
    for towards in (-1, 1):
        within = labels >= labels.min() + 2 if towards < 0 else labels <= labels.max() - 2
        chosen = labels[within]
        if len(np.unique(chosen)) < FEWEST_LABELS:
            continue
        try:
            steps = {each: subject.task.score(chosen + each, chosen) for each in _shifts(towards)}
        except Exception:  # a metric may need other rows, as all of a group
            return ""
        for name in subject.task.metrics:
            if _is_cut(name, steps, towards):
                sides = ("above", "below") if towards < 0 else ("below", "above")
                return (
                    f"{name} is {steps[0.0][name]:.4g} for predictions {PARTS[1]:g} {sides[0]} the "
                    f"labels, but {steps[towards * PARTS[0]][name]:.4g} for those {PARTS[0]:g} "
                    f"{sides[1]}"
                )
    return ""


def _shifts(towards: int) -> list[float]:
    parts = [side * part for part in PARTS for side in (-1, 1)]
    return [0.0, *parts, towards, 2 * towards]


def _is_cut(name: str, steps: Mapping[float, Mapping[str, float]], towards: int) -> bool:
    value = {shift: found.get(name, np.nan) for shift, found in steps.items()}

    def are_same(*shifts: float) -> bool:
        return bool(np.allclose([value[each] for each in shifts], value[shifts[0]], rtol=1e-9))

    kept = (0.0, *(-towards * part for part in PARTS))
    moved = (towards, *(towards * part for part in PARTS))
    return (
        are_same(*kept)
        and are_same(*moved)
        and not are_same(0.0, towards)
        and not are_same(towards, 2 * towards)
    )
