"""Check `class_weights`: the gradient of each class, compared with its frequency."""

import numpy as np
import torch

from perennial.check_skeleton.free_outputs import output_of, probe
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, WEIGHT

# Label smoothing and margins affect all classes alike; weights by the inverse frequency of classes
# at 60 and 40 % differ by half.
EQUAL_PULL = 1.2
UNEQUAL_SHARES = 1.5
# Weights by inverse frequency balance the classes; beyond that, rare ones dominate.
MOST_OVERDONE = 3.0
FEWEST_CLASSES = 4
MOST_CLASSES = 64


@check(
    "class_weights",
    expects=(
        "at outputs of zero, the same gradient for each class, or a larger one for rarer classes"
    ),
    source="weights that are inverted, in another order, or applied twice raise no error and "
    "harm the classes that they are meant for",
    tolerance=f"{EQUAL_PULL:g} times, and {MOST_OVERDONE:g} times beyond inverse frequency",
    needs_labels=True,
)
def check_class_weights(subject: Subject, judge: Judge) -> CheckResult:
    """Check that class weights fit the classes' frequencies."""
    task = subject.task
    if task.kind not in ("binary", "multiclass"):
        return judge.skipped("the labels are not classes")
    codes, counts = np.unique(subject.train[LABEL].long().numpy(), return_counts=True)
    if len(codes) < 2 or len(codes) > MOST_CLASSES:
        return judge.skipped(
            f"the sample has {len(codes)} classes, 2 to {MOST_CLASSES} can be compared"
        )
    try:
        pulls = np.array([_pull(subject, int(code)) for code in codes])
    except Exception as error:  # a loss may reject outputs of zero, as one of probabilities
        return judge.skipped(f"the loss rejects outputs of zero: {type(error).__name__}: {error}")
    if not np.isfinite(pulls).all() or pulls.min() <= 0:
        return judge.skipped("at outputs of zero, the loss is not finite or has no gradient")
    shares = counts / counts.sum()
    found = {
        "share": dict(zip(map(str, codes), np.round(shares, 4).tolist(), strict=True)),
        "pull": dict(zip(map(str, codes), np.round(pulls / pulls.min(), 4).tolist(), strict=True)),
    }
    if pulls.max() <= EQUAL_PULL * pulls.min():
        return judge.passed("all classes have the same weight", **found)
    return _judge_weights(judge, codes, shares, pulls, found)


def _judge_weights(
    judge: Judge,
    codes: "np.ndarray[tuple[int, ...], np.dtype[np.int64]]",
    shares: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    pulls: "np.ndarray[tuple[int, ...], np.dtype[np.float64]]",
    found: dict[str, dict[str, float]],
) -> CheckResult:
    rare, common = int(shares.argmin()), int(shares.argmax())
    ratio, spread = pulls[rare] / pulls[common], shares[common] / shares[rare]
    shown = (
        f"class {codes[rare]} ({shares[rare]:.1%} of the labels) weighs {ratio:.3g} times as much "
        f"as class {codes[common]} ({shares[common]:.1%})"
    )
    if spread < UNEQUAL_SHARES:
        heavy, light = int(pulls.argmax()), int(pulls.argmin())
        return judge.warned(
            f"class {codes[heavy]} weighs {pulls[heavy] / pulls[light]:.3g} times as much as class "
            f"{codes[light]}, but occurs about as often",
            hint="weights are for classes of unequal frequency: are they from other data, or in "
            "another order? Correct if mistakes differ in cost",
            **found,
        )
    along = float(np.corrcoef(np.log(shares), np.log(pulls))[0, 1])
    if ratio < 1 / EQUAL_PULL and along > 0:
        return judge.failed(
            shown,
            hint="the weights are inverted: rare classes need the larger ones. pos_weight is "
            "negatives over positives; a list of weights is in the order of the class codes",
            **found,
        )
    likeness = float(np.corrcoef(np.sort(np.log(1 / shares)), np.sort(np.log(pulls)))[0, 1])
    if len(codes) >= FEWEST_CLASSES and likeness > 0.9 and along > -0.3:
        return judge.warned(
            f"{shown}; weights and frequencies correlate by {along:.2g}",
            hint="the weights look like inverse frequencies, but in another order than the class "
            "codes: are class names sorted in one place and counted in another?",
            **found,
        )
    if ratio > MOST_OVERDONE * spread:
        return judge.warned(
            f"{shown}, {ratio / spread:.3g} times the weight that balances its frequency",
            hint="rare classes are weighted twice: by `weight` and by the loss, or by a squared "
            "frequency",
            **found,
        )
    return judge.passed(shown, **found)


def _pull(subject: Subject, code: int) -> float:
    """Return the gradient's norm at outputs of zero for a label, times its mean weight."""
    task, batch = subject.task, probe(subject)
    free = torch.zeros_like(output_of(subject, batch)).requires_grad_()
    labelled = {**batch, LABEL: torch.full_like(batch[LABEL], code)}
    losses = task.training_losses(free, labelled)
    (gradient,) = torch.autograd.grad(losses.sum(), free)
    pull = float(gradient.reshape(len(gradient), -1).norm(dim=1).mean())
    if WEIGHT in subject.train:
        pull *= float(subject.train[WEIGHT][subject.train[LABEL] == code].double().mean())
    return pull
