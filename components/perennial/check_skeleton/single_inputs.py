"""Single inputs: how well one number or code of the inputs predicts the label by itself."""

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from perennial.check_skeleton.subject import Subject, is_sequence
from perennial.engine.task import LABEL, Batch, inputs_of

MOST_COLUMNS = 2048
BINS = 64
MOST_CODES = 256

Floats = NDArray[np.float64]


def best_single_input(subject: Subject) -> tuple[str, float] | None:
    """Return the most predictive input, and the share of the best constant's loss that is left.

    By the label's mean or class shares within each of its values, or of its 64 quantiles. None
    where there are no labels to predict, or no second input.
    """
    if subject.task.kind == "statistic":
        return None
    train, validation = subject.train, subject.validation
    labels, others = (each[LABEL].double().numpy() for each in (train, validation))
    is_number = subject.task.kind == "regression"
    measure = _left_of_numbers if is_number else _left_of_classes
    pairs = list(zip(_columns(train, train), _columns(train, validation), strict=True))
    if len(pairs) < 2:
        return None
    shares = {}
    for (name, column), (_, other) in pairs:
        codes, others_codes = _binned(column, other)
        shares[name] = measure((codes, labels), (others_codes, others))
    best = min(shares, key=lambda name: shares[name])
    return best, shares[best]


def _columns(reference: Batch, batch: Batch) -> Iterator[tuple[str, Floats]]:
    """Yield columns of tables and pictures; for sequences, whether each frequent code occurs."""
    for name, tensor in inputs_of(batch).items():
        if is_sequence(name, reference):
            for code in _frequent(reference[name]):
                yield f"{name} contains {code}", (tensor == code).any(dim=1).double().numpy()
            continue
        flat = tensor.reshape(len(tensor), -1).double()
        step = max(1, flat.shape[1] // MOST_COLUMNS)
        for index in range(0, flat.shape[1], step):
            yield f"{name}[{index}]", flat[:, index].numpy()


def _frequent(tokens: Tensor) -> list[int]:
    codes, counts = torch.unique(tokens, return_counts=True)
    chosen = codes[counts.argsort(descending=True)[:MOST_CODES]]
    return [int(code) for code in chosen]


def _binned(column: Floats, other: Floats) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    edges = np.unique(column)
    if len(edges) > BINS:
        edges = np.unique(np.quantile(column, np.linspace(0, 1, BINS + 1)[1:-1]))
    first, second = (np.searchsorted(edges, each) for each in (column, other))
    return first.astype(np.int64), second.astype(np.int64)


def _left_of_numbers(
    train: tuple[NDArray[np.int64], Floats], test: tuple[NDArray[np.int64], Floats]
) -> float:
    (codes, labels), (others, truth) = train, test
    size = int(max(codes.max(), others.max())) + 1
    mean = labels.mean()
    sums, counts = np.bincount(codes, labels, size), np.bincount(codes, minlength=size)
    means = (sums + mean * 0.1) / (counts + 0.1)
    return float(np.mean((means[others] - truth) ** 2) / max(np.mean((mean - truth) ** 2), 1e-12))


def _left_of_classes(
    train: tuple[NDArray[np.int64], Floats], test: tuple[NDArray[np.int64], Floats]
) -> float:
    (codes, labels), (others, truth) = train, test
    size = int(max(codes.max(), others.max())) + 1
    classes = int(max(labels.max(), truth.max())) + 1
    counts = np.zeros((size, classes))
    np.add.at(counts, (codes, labels.astype(int)), 1)
    shares = (counts.sum(axis=0) + 0.1) / (len(labels) + 0.1 * classes)
    chances = (counts + 0.1 * shares) / (counts.sum(axis=1, keepdims=True) + 0.1)
    right = truth.astype(int)
    loss, most = -np.log(chances[others, right]).mean(), -np.log(shares[right]).mean()
    return float(loss / max(most, 1e-12))
