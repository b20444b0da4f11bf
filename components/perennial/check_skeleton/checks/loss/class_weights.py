"""Check class weights: the gradient that each class or tag gets, against its frequency."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.signals import has_tags
from perennial.check_skeleton.checks.loss.likelihoods import is_likelihood
from perennial.check_skeleton.free_outputs import compute_output, probe
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Codes, Floats, Subject
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, WEIGHT

# Label smoothing and margins affect all classes alike; weights by the inverse frequency of classes
# at 60 and 40 % differ by half.
EQUAL_PULL = 1.2
UNEQUAL_SHARES = 1.5
# Weights by inverse frequency balance the classes; beyond that, rare ones dominate.
MOST_OVERDONE = 3.0
FEWEST_CLASSES = 4
# Of three classes or more: two ratios that a formula gives to a fiftieth are no coincidence. Shares
# of the effective number (Cui et al., 2019) that are in use.
EXACT, CLEARLY_OTHER = 0.02, 5.0
EFFECTIVE_SHARES = (0.9, 0.99, 0.999, 0.9999)
# Correlation of log weights with log odds: weights of a constant size have none.
FOLLOWED = 0.8
MOST_CLASSES = 64
INVERTED = (
    "the weights are inverted: rare classes need the larger ones. pos_weight is negatives over "
    "positives; a list of weights is in the order of the class codes"
)
NO_GRADIENT = "at outputs of zero, the loss raises, is not finite or has no gradient"


@check(
    "class_weights",
    expects="at outputs of zero, the same gradient for each class or tag, or a larger one for "
    "rarer ones",
    source="weights that are inverted, in another order, or applied twice raise no error and "
    "harm the classes that they are meant for",
    tolerance=f"{EQUAL_PULL:g} times, and {MOST_OVERDONE:g} times beyond inverse frequency",
    needs_labels=True,
)
def check_class_weights(subject: Subject, judge: Judge) -> CheckResult:
    """Check that class weights fit the classes' frequencies."""
    task = subject.task
    if has_tags(subject):
        return _judge_tag_weights(judge, subject)
    if task.kind not in ("binary", "multiclass"):
        return _judge_weights_of_positions(judge, subject)
    codes, counts = np.unique(subject.train[LABEL].long().numpy(), return_counts=True)
    if len(codes) < 2 or len(codes) > MOST_CLASSES:
        return judge.skipped(f"of {len(codes)} classes, 2 to {MOST_CLASSES} can be compared")
    pulls = _measure_or_none(partial(_measure_pulls, subject, codes))
    if pulls is None:
        return judge.skipped(NO_GRADIENT)
    if pulls.max() > EQUAL_PULL * pulls.min() and is_likelihood(subject, task.training_losses):
        # Zero outputs of other links than the logit, as log-log, are not even odds.
        pulls = np.array([_measure_mean_weight(subject, int(code)) for code in codes])
    shares, names = counts / counts.sum(), list(map(str, codes))
    found = {
        key: dict(zip(names, np.round(values, 4).tolist(), strict=True))
        for key, values in (("share", shares), ("pull", pulls / pulls.min()))
    }
    if pulls.max() <= EQUAL_PULL * pulls.min():
        return judge.passed("all classes have the same weight", **found)
    return _judge_weights(judge, subject, (codes, shares, pulls), found)


def _judge_tag_weights(judge: Judge, subject: Subject) -> CheckResult:
    """Judge how much a tag that holds weighs against one that does not, by its frequency."""
    labels, output = subject.train[LABEL], compute_output(subject, probe(subject))
    if output.shape[1:] != labels.shape[1:]:
        return judge.skipped("the outputs are not one per tag")
    shares = labels.double().mean(dim=0).numpy()
    ratios = _measure_or_none(lambda: _measure_tag_pulls(subject, output))
    if ratios is None:
        return judge.skipped(NO_GRADIENT)
    rare, common = int(shares.argmin()), int(shares.argmax())
    shown = (
        f"where it holds, tag {rare} ({shares[rare]:.1%} of the rows) weighs {ratios[rare]:.3g} "
        f"times as much as where it does not; tag {common} ({shares[common]:.1%}) "
        f"{ratios[common]:.3g} times"
    )
    odds = np.log(shares / (1 - shares))
    along = float(np.corrcoef(odds, np.log(ratios))[0, 1]) if ratios.std() > 0 else 0.0
    is_inverted = ratios[rare] < 1 / EQUAL_PULL and along > FOLLOWED
    if not is_inverted or shares[common] < UNEQUAL_SHARES * shares[rare]:
        return judge.passed(shown)
    return judge.failed(
        f"{shown}; weights and frequencies correlate by {along:.2g}",
        hint="the weights are inverted: rare tags need the larger ones. pos_weight is negatives "
        "over positives",
    )


def _measure_tag_pulls(subject: Subject, output: Tensor) -> Floats:
    """Return, per tag, its gradient at outputs of zero where it holds over where it does not."""
    batch, pulls = probe(subject), []
    for value in (1, 0):
        free = torch.zeros_like(output).requires_grad_()
        labelled = {**batch, LABEL: torch.full_like(batch[LABEL], value)}
        losses = subject.task.training_losses(free, labelled)
        (gradient,) = torch.autograd.grad(losses.sum(), free)
        pulls.append(gradient.double().abs().mean(dim=0).numpy())
    return np.asarray(pulls[0] / np.maximum(pulls[1], 1e-30))


def _judge_weights_of_positions(judge: Judge, subject: Subject) -> CheckResult:
    """Judge the weights of classes of which each position of a label names one, as in masks."""
    labels = subject.train[LABEL]
    if labels.ndim < 2 or labels.is_floating_point():
        return judge.skipped("the labels are not classes")
    shape = compute_output(subject, probe(subject)).shape[1:]
    # Without one of its dimensions, that of the classes.
    if labels.shape[1:] not in [shape[:each] + shape[each + 1 :] for each in range(len(shape))]:
        return judge.skipped("the output has no scores for each position of a label")
    codes, counts = np.unique(labels.long().numpy(), return_counts=True)
    if len(codes) < 2 or len(codes) > MOST_CLASSES:
        return judge.skipped(f"of {len(codes)} codes, 2 to {MOST_CLASSES} can be compared")
    found = {code: _measure_or_none(partial(_measure_pulls, subject, [code])) for code in codes}
    # Positions without a class, such as padding, count for nothing, or raise.
    is_class = np.array([found[code] is not None for code in codes])
    if is_class.sum() < 2:
        return judge.skipped(NO_GRADIENT)
    codes, shares = codes[is_class], counts[is_class] / counts[is_class].sum()
    pulls = np.concatenate([each for each in found.values() if each is not None])
    rare, common = int(shares.argmin()), int(shares.argmax())
    ratio = pulls[rare] / pulls[common]
    shown = (
        f"class {codes[rare]} ({shares[rare]:.1%} of the positions) weighs {ratio:.3g} times as "
        f"much as class {codes[common]} ({shares[common]:.1%})"
    )
    along = float(np.corrcoef(np.log(shares), np.log(pulls))[0, 1]) if pulls.std() > 0 else 0.0
    is_unequal = shares[common] >= UNEQUAL_SHARES * shares[rare]
    if is_unequal and ratio < 1 / EQUAL_PULL and along > FOLLOWED:
        return judge.failed(shown, hint=INVERTED)
    return judge.passed(shown)


def _judge_weights(
    judge: Judge,
    subject: Subject,
    measured: tuple[Codes, Floats, Floats],
    found: dict[str, dict[str, float]],
) -> CheckResult:
    """Judge the classes' pulls by their shares; `measured` has codes, shares and pulls, [C]."""
    codes, shares, pulls = measured
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
            hint=INVERTED,
            **found,
        )
    if formula := _find_disordered_formula(subject, shares, pulls):
        return judge.failed(
            f"{shown}; sorted, the weights are {formula} of the classes' rows, but they belong to "
            "other classes",
            hint="a list of weights is in the order of the class codes: are class names sorted in "
            "one place and counted in another?",
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


def _find_disordered_formula(subject: Subject, shares: Floats, pulls: Floats) -> str:
    """Name the formula whose weights [C] are those of the classes, in another order; else empty."""
    if len(shares) < 3:
        return ""
    rows = shares * subject.train_split_rows
    unsampled = 1 - subject.num_rows() / subject.train_split_rows
    # Counts of a sample deviate from those that the weights were made of.
    tolerance = EXACT + float(np.sqrt(unsampled / (shares.min() * subject.num_rows())))
    formulas = {"the inverse": 1 / rows, "the inverse root": rows**-0.5}
    for share in EFFECTIVE_SHARES:
        formulas[f"the inverse effective number ({share:g})"] = 1 / (1 - share**rows)
    for name, weights in formulas.items():
        ordered, own = (
            np.log(left) - np.log(right)
            for left, right in ((np.sort(pulls), np.sort(weights)), (pulls, weights))
        )
        if np.ptp(ordered) < tolerance and np.ptp(own) > CLEARLY_OTHER * tolerance:
            return name
    return ""


def _measure_or_none(measure: Callable[[], Sequence[float] | Floats]) -> Floats | None:
    """Return what is measured at outputs of zero; None if that raises or has no gradient.

    A loss of probabilities rejects them.
    """
    try:
        found = np.asarray(measure(), dtype=np.float64)
    except Exception:  # user code may raise anything
        return None
    return found if np.isfinite(found).all() and found.min() > 0 else None


def _measure_pulls(subject: Subject, codes: Iterable[int]) -> list[float]:
    return [_measure_pull(subject, int(code)) for code in codes]


def _measure_pull(subject: Subject, code: int) -> float:
    """Return the gradient's norm at outputs of zero for a label, times its mean weight."""
    task, batch = subject.task, probe(subject)
    free = torch.zeros_like(compute_output(subject, batch)).requires_grad_()
    labelled = {**batch, LABEL: torch.full_like(batch[LABEL], code)}
    losses = task.training_losses(free, labelled)
    (gradient,) = torch.autograd.grad(losses.sum(), free)
    pull = float(gradient.reshape(len(gradient), -1).norm(dim=1).mean())
    return pull * _measure_mean_weight(subject, code)


def _measure_mean_weight(subject: Subject, code: int) -> float:
    """Return the mean weight of the rows with a label; 1 where rows have no weight."""
    if WEIGHT not in subject.train or subject.train[LABEL].ndim > 1:
        return 1.0
    return float(subject.train[WEIGHT][subject.train[LABEL] == code].double().mean())
