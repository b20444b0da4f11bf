"""Reference tests: textbook paired tests of two classifiers, reported beside the bootstrap.

They assume independent rows. Where errors within a day correlate they are overconfident, so they
are reported but do not decide.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr
from scipy.stats import binomtest, rankdata

from perennial.contracts.gate import ReferenceTest
from perennial.engine.evaluation.scoring import Scored
from perennial.engine.metrics.arrays import array_of, parts_of
from perennial.engine.metrics.classification import answers_of
from perennial.engine.metrics.metric import EXACT_ROWS
from perennial.engine.task import Task

ALIKE = 1e-9  # relative to a standard error of 1: two rankings that never differ


def reference_test(
    task: Task, metric: str, challenger: Scored, champion: Scored, confidence: float
) -> ReferenceTest | None:
    """Run McNemar's test for accuracy or DeLong's for a two-class ROC area; None otherwise.

    DeLong's sorts all rows, so it is left out for more than `EXACT_ROWS`.
    """
    labels = challenger.labels
    if metric == "roc_auc" and task.kind == "binary" and len(labels) <= EXACT_ROWS:
        test: Literal["DeLong", "McNemar"] = "DeLong"
        probability = delong(challenger.predictions, champion.predictions, labels == 1)
    elif metric == "accuracy" and task.kind in {"binary", "multiclass"}:
        test = "McNemar"
        ours, theirs = (
            array_of(answers_of(each.predictions[p]) == labels[p] for p in parts_of(labels))
            for each in (challenger, champion)
        )
        probability = mcnemar(ours, theirs)
    else:
        return None
    return ReferenceTest(
        test=test, p_value=probability, is_better=bool(probability < 1.0 - confidence)
    )


def mcnemar(ours: NDArray[np.bool_], theirs: NDArray[np.bool_]) -> float:
    """Return the p-value of the rows that only the challenger predicts correctly.

    Exact and one-sided (McNemar, 1947): rows that both predict correctly, or both wrongly, carry no
    information.

    Args:
        ours: Which rows the challenger predicts correctly, shape [N].
        theirs: The champion's, shape [N].
    """
    won, lost = int((ours & ~theirs).sum()), int((theirs & ~ours).sum())
    if won + lost == 0:
        return 1.0
    return float(binomtest(won, won + lost, alternative="greater").pvalue)


def delong(
    ours: NDArray[np.float64], theirs: NDArray[np.float64], positive: NDArray[np.bool_]
) -> float:
    """Return the one-sided p-value of the improvement of the ROC area.

    DeLong, DeLong and Clarke-Pearson (1988): an area is the mean over positives of the share of
    negatives below, and over negatives of the share of positives above; the variances of both add.

    Args:
        ours: The challenger's scores, shape [N].
        theirs: The champion's scores, shape [N].
        positive: Shape [N]; at least two of each kind.
    """
    num_positive, num_negative = int(positive.sum()), int((~positive).sum())
    if min(num_positive, num_negative) < 2:
        return 1.0
    of_positives, of_negatives = (
        mine - other
        for mine, other in zip(
            _placements(ours, positive), _placements(theirs, positive), strict=True
        )
    )
    difference = float(of_positives.mean())
    variance = of_positives.var(ddof=1) / num_positive + of_negatives.var(ddof=1) / num_negative
    error = float(np.sqrt(variance))
    if error < ALIKE:
        return 0.0 if difference > ALIKE else 1.0
    return float(ndtr(-difference / error))


def _placements(
    scores: NDArray[np.float64], positive: NDArray[np.bool_]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the share of negatives below each positive, and of positives above each negative."""
    overall = rankdata(scores)
    among_positives, among_negatives = rankdata(scores[positive]), rankdata(scores[~positive])
    num_positive, num_negative = len(among_positives), len(among_negatives)
    below = (overall[positive] - among_positives) / num_negative
    above = 1.0 - (overall[~positive] - among_negatives) / num_positive
    return below, above
