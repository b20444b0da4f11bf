"""Compare the odds that predictions give to classes with those that the loss implies."""

import math

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.free_outputs import (
    compute_output,
    find_best_constant,
    minimise,
    probe,
)
from perennial.check_skeleton.made_up_inputs import RefusedInputsError
from perennial.check_skeleton.minimum import INSIDE
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL, Task

CLEAR_ODDS = (0.1, 0.9)
FEWEST_PROBES = 20
# In logits: the shift of the best constant that a weight of 1.35 causes.
LEAST_SHIFT = 0.3
SAME_SHIFT = 0.1
# A weight of 3; a first metric of probabilities then measures the weight more than the model.
CLEAR_SHIFT = 1.1
OF_PROBABILITIES = frozenset(
    {"log_loss", "brier", "expected_calibration_error", "calibration_error_equal_mass"}
)


def measure_odds_ratio(given: Tensor, balanced: Tensor) -> float | None:
    """Return the slope between log odds of pairs of classes; None if too few are clear.

    Parameters
    ----------
    given, balanced
        Probabilities [n, C] that `predict` gives, and those at which the loss's gradients balance.
    """
    classes = torch.arange(balanced.shape[1])
    neighbours = [pair.expand(len(balanced), 2) for pair in classes.unfold(0, 2, 1)]
    # Where outputs are scaled up, only a row's two likeliest classes are near each other.
    for pairs in (neighbours, [balanced.topk(2, dim=1).indices.sort(dim=1).values]):
        found = [_center_clear_odds(given, balanced, pair) for pair in pairs]
        clear = [odds for odds in found if odds is not None]
        if clear:
            x, y = torch.cat(clear, dim=1)
            slope = float((x * y).sum() / x.square().sum().clamp_min(1e-12))
            return slope if math.isfinite(slope) else None
    return None


def _center_clear_odds(given: Tensor, balanced: Tensor, classes: Tensor) -> Tensor | None:
    """Return log odds [2, n] of each row's two classes, balanced and given; None if few are clear.

    A constant moves the odds of a pair where classes are weighted: the pair's mean is taken off.
    """
    two, predicted = balanced.gather(1, classes), given.gather(1, classes)
    share = two[:, 1] / two.sum(dim=1)
    is_inner = (share > CLEAR_ODDS[0]) & (share < CLEAR_ODDS[1])
    # Below INSIDE, the solution for the probabilities that balance the gradients is rounded.
    is_clear = is_inner & (two > INSIDE).all(dim=1) & (predicted > 0).all(dim=1)
    kept, pair = np.unique(classes[is_clear].numpy(), axis=0, return_inverse=True)
    if int(is_clear.sum()) - len(kept) < FEWEST_PROBES - 1:
        return None
    odds = torch.stack([(each[:, 1] / each[:, 0])[is_clear].log() for each in (two, predicted)])
    for each in range(len(kept)):
        of_pair = torch.from_numpy(pair.ravel() == each)
        odds[:, of_pair] -= odds[:, of_pair].mean(dim=1, keepdim=True)
    return odds


def describe_weighted_odds(subject: Subject) -> tuple[str, str]:
    """Describe predictions at other odds than the labels', and why; both empty if there are none.

    The best constant of the weighted loss differs from that of the plain loss. Predictions either
    undo that shift or keep it; if they double it, the sign of the correction is wrong. Keeping it
    is fine for metrics of ranks and thresholds, and wrong for a first metric of probabilities,
    which selects checkpoints and decides at the gate.
    """
    task, batch = subject.task, probe(subject)
    output = compute_output(subject, batch)
    is_weighted = type(task).training_losses is not Task.training_losses
    share = float(batch[LABEL].double().mean())
    if task.kind != "binary" or not is_weighted or output.ndim > 2 or not 0 < share < 1:
        return "", ""
    start = torch.zeros_like(output[:1])
    try:
        plain, _ = find_best_constant(subject, output, batch)
        weighted, _ = minimise(subject, task.training_losses, (start,), batch)
        found = [
            float(task.predict(each.expand_as(output)).double().mean())
            for each in (plain, weighted)
        ]
    except RefusedInputsError:
        return "", ""
    if not all(0 < each < 1 for each in found):
        return "", ""
    at_plain, at_weighted, right = (math.log(each / (1 - each)) for each in (*found, share))
    shift = at_weighted - at_plain
    shown = (
        f"the training loss's best constant is predicted as {found[1]:.2g}, the plain loss's as "
        f"{found[0]:.2g}, but {share:.2g} of the labels are 1"
    )
    if abs(shift) >= LEAST_SHIFT and abs(at_plain - right - shift) < SAME_SHIFT * abs(shift):
        return shown, (
            "predict corrects for the weight of a class in the wrong direction: subtract its "
            "logarithm from the logit if class 1 has the weight"
        )
    is_kept = abs(at_plain - right) < SAME_SHIFT * abs(shift)
    if abs(shift) >= CLEAR_SHIFT and is_kept and next(iter(task.metrics)) in OF_PROBABILITIES:
        return shown, (
            f"{next(iter(task.metrics))} judges probabilities, and those of a loss with class "
            "weights are of other classes' shares: subtract the weight's logarithm from the logit "
            "in predict, or name a metric of ranks first"
        )
    return "", ""
