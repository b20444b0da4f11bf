"""Find points of pictures that augmentation mirrors without exchanging left and right."""

from itertools import combinations

import numpy as np
from torch import Tensor

from perennial.check_skeleton.checks.data.augmentation.mixing import augment_copy
from perennial.check_skeleton.subject import Floats, Subject, select_head
from perennial.engine.task import LABEL, inputs_of

ROWS = 512
FEWEST_POINTS, MOST_POINTS = 3, 8
# Of the rows: points with names lie the same way round, but for a few.
STEADY = 0.99
# Of the augmented rows; most mirror half of them.
TURNED = 0.2
# Of the picture's points' spread, squared: smaller triangles are lines.
LEAST_AREA = 1e-3


def describe_turned_points(subject: Subject) -> str:
    """Describe three points that lie the other way round once augmented; empty if none do.

    Left eye, right eye and mouth are clockwise in every face, also in one that is moved or turned.
    A mirrored face has them clockwise, too, if its eyes are exchanged.
    """
    batch = select_head(subject.train, ROWS)
    before = _read_points(batch[LABEL])
    if before is None or not any(each.ndim == 4 for each in inputs_of(batch).values()):
        return ""
    after = _read_points(augment_copy(subject.task, batch, subject.seed)[LABEL])
    if after is None or after.shape != before.shape:
        return ""
    for three in combinations(range(min(before.shape[1], MOST_POINTS)), 3):
        own, other = (_find_directions(each[:, three]) for each in (before, after))
        usual = 1 if own.mean() > 0 else -1
        turned = float((other == -usual).mean())
        if (own == usual).mean() >= STEADY and turned >= TURNED:
            names = ", ".join(str(place + 1) for place in three)
            return (
                f"points {names} of the label lie one way round in {(own == usual).mean():.0%} of "
                f"the rows, and the other way round in {turned:.0%} of the augmented ones"
            )
    return ""


def _read_points(label: Tensor) -> Floats | None:
    """Return labels [B, K, 2], or [B, 2 K] with x and y in turn, as points; None for others."""
    if not label.is_floating_point() or label.ndim not in (2, 3):
        return None
    if (label.shape[-1] != 2) if label.ndim == 3 else (label.shape[1] % 2):
        return None
    points: Floats = label.double().reshape(len(label), -1, 2).numpy()
    return points if points.shape[1] >= FEWEST_POINTS else None


def _find_directions(three: Floats) -> Floats:
    """Return 1 or -1 for triangles [N, 3, 2] of one way round or the other, 0 for lines."""
    (x, y), (u, v) = (three[:, place].T - three[:, 0].T for place in (1, 2))
    area = x * v - y * u
    spread = float(three.var(axis=0).mean() + three.mean(axis=0).var(axis=0).mean())
    return np.asarray(np.sign(area) * (np.abs(area) > LEAST_AREA * spread))
