"""Rare labels that a linear model ranks first, and the model does not."""

import math

import numpy as np
from sklearn.metrics import roc_auc_score

from perennial.check_skeleton.baselines import fit_linear_model
from perennial.check_skeleton.subject import Floats, Subject
from perennial.engine.task import LABEL

# In standard errors of ranks without a signal. Where 18 of 1,168 chips fail, a linear model
# reaches 7, a small network 4.6 after 160 updates, and one whose inputs are not scaled -0.2.
SEEN = 5.0
UNSEEN = 2.0
MISSED = (
    "the inputs carry signal that the model does not learn: look at input_scale, initialisation "
    "and labels"
)


def describe_ranks(subject: Subject, predictions: Floats) -> str:
    """Return by how much a linear model ranks binary labels better than chance; empty if it is not.

    Losses of few rare labels vary too much to show what their ranks show.
    """
    linear = fit_linear_model(subject)
    if subject.task.kind != "binary" or isinstance(linear, str):
        return ""
    labels = subject.validation[LABEL].double().numpy()
    seen, own = (_rank_z_score(labels, each) for each in (linear(subject.validation), predictions))
    if seen < SEEN or own >= UNSEEN:
        return ""
    return f"; it ranks labels {own:+.1f} standard errors from chance, a linear model {seen:+.1f}"


def _rank_z_score(labels: Floats, scores: Floats) -> float:
    """Return the area under the ROC curve less a half over its standard error without a signal."""
    positive = int((labels == 1).sum())
    negative = len(labels) - positive
    if not positive or not negative or not np.isfinite(scores).all():
        return 0.0
    error = math.sqrt((len(labels) + 1) / (12 * positive * negative))
    return float((roc_auc_score(labels == 1, scores) - 0.5) / error)
