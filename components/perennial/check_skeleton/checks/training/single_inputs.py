"""The single input that predicts the label best, of the encoded inputs."""

from collections.abc import Iterator

import numpy as np
import torch

from perennial.check_skeleton.subject import Codes, Floats, Subject, is_sequence
from perennial.engine.task import LABEL, Batch, inputs_of

MOST_COLUMNS = 2048
BINS = 64
MOST_CODES = 256


def find_best_single_input(subject: Subject) -> tuple[str, float]:
    """Return the most predictive input, and the share of the best constant's loss that is left.

    By the label's mean or class shares within each of its values, or of its 64 quantiles. All is
    left where there is no second input.
    """
    columns = (_list_columns(subject.train, each) for each in (subject.train, subject.validation))
    pairs = list(zip(*columns, strict=True))
    if len(pairs) < 2:
        return "", 1.0
    shares = {}
    for (name, column), (_, other) in pairs:
        edges = np.unique(column)
        if len(edges) > BINS:
            edges = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]))
        codes, others = (np.searchsorted(edges, each) for each in (column, other))
        shares[name] = _measure_loss_left(subject, codes, others)
    best = min(shares, key=lambda name: shares[name])
    return best, shares[best]


def _list_columns(reference: Batch, batch: Batch) -> Iterator[tuple[str, Floats]]:
    """Yield columns of tables and pictures; for sequences, whether each frequent code occurs."""
    for name, tensor in inputs_of(batch).items():
        if is_sequence(name, reference):
            codes, counts = torch.unique(reference[name], return_counts=True)
            for code in codes[counts.argsort(descending=True)[:MOST_CODES]].tolist():
                yield f"{name} contains {code}", (tensor == code).any(dim=1).double().numpy()
            continue
        flat = tensor.reshape(len(tensor), -1).double()
        step = max(1, flat.shape[1] // MOST_COLUMNS)
        for index in range(0, flat.shape[1], step):
            yield f"{name}[{index}]", flat[:, index].numpy()


def _measure_loss_left(subject: Subject, codes: Codes, others: Codes) -> float:
    """Return the share of the constant's loss that is left by the mean label of each code.

    Squared error for numbers, log loss for classes, of the validation sample.
    """
    labels, truth = (each[LABEL].double().numpy() for each in (subject.train, subject.validation))
    is_number = subject.task.kind == "regression"
    classes = 1 if is_number else int(max(labels.max(), truth.max())) + 1
    targets = labels[:, None] if is_number else np.eye(classes)[labels.astype(int)]
    usual = targets.mean(axis=0)
    if not is_number:
        usual = (usual * len(labels) + 0.1) / (len(labels) + 0.1 * classes)
    size = int(max(codes.max(), others.max())) + 1
    sums, counts = np.zeros((size, classes)), np.bincount(codes, minlength=size)[:, None]
    np.add.at(sums, codes, targets)
    means = (sums + 0.1 * usual) / (counts + 0.1)
    if is_number:
        loss, most = (np.mean((each - truth) ** 2) for each in (means[others, 0], usual[0]))
    else:
        right = truth.astype(int)
        loss, most = -np.log(means[others, right]).mean(), -np.log(usual[right]).mean()
    return float(loss / max(most, 1e-12))
