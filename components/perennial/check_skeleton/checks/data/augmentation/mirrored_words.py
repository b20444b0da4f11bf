"""Find pictures that augmentation mirrors while their texts still tell left from right."""

from itertools import product

import polars as pl
import torch

from perennial.check_skeleton.checks.data.augmentation.mixing import augment_copy
from perennial.check_skeleton.checks.data.signals import is_read
from perennial.check_skeleton.subject import Subject, select_rows
from perennial.engine.task import Batch, inputs_of

ROWS = 64
SHORTEST_SIDE = 4
SIDES = (
    ("left", "right"),
    ("links", "rechts"),
    ("gauche", "droite"),
    ("izquierda", "derecha"),
    ("sinistra", "destra"),
    ("esquerda", "direita"),
)
# Of all rows, that have either word: a few such captions among many do little harm, but of classes
# that are named so, each picture is mirrored into the other.
SOME, FEWEST = 0.1, 0.02
# Of the rows with one: each word, as "right" alone often means correct.
EACH_WORD = 0.1
# Of the augmented rows; most mirror half of them.
MIRRORED = 0.1


def describe_mirrored_words(subject: Subject) -> str:
    """Describe texts of mirrored pictures that speak of sides; empty if they follow, or none do.

    A picture whose left half is bright takes the place of all pictures.
    """
    pictures = [
        name
        for name, tensor in inputs_of(subject.train).items()
        if tensor.ndim == 4 and tensor.is_floating_point() and tensor.shape[3] >= SHORTEST_SIDE
    ]
    texts = [each for each in subject.train_rows.iter_columns() if each.dtype == pl.String]
    label = subject.task.columns.label
    for column, words in product(texts if pictures else (), SIDES):
        has_word = _find_rows(column, words, FEWEST if column.name == label else SOME)
        if has_word is None or not (column.name == label or _is_caption(subject, column, words)):
            continue
        rows = torch.tensor(has_word.to_list()).nonzero().flatten()[:ROWS]
        mirrored = _count_mirrored(subject, select_rows(subject.train, rows), pictures)
        if mirrored > MIRRORED * len(rows):
            return (
                f"augment mirrors {mirrored} of {len(rows)} pictures, and {column.name} still "
                f"says {' or '.join(words)}, as it does in {has_word.sum() / len(has_word):.0%} of "
                "the rows"
            )
    return ""


def _find_rows(column: pl.Series, words: tuple[str, str], fewest: float) -> pl.Series | None:
    """Return which texts have one of two words; None if they are few, or all have the same."""
    one, other = (
        column.str.to_lowercase().str.contains(rf"\b{word}\b").fill_null(value=False)
        for word in words
    )
    either = one | other
    of_one, of_other, of_either = (int(each.sum()) for each in (one, other, either))
    if of_either < max(fewest * len(column), 1) or min(of_one, of_other) < EACH_WORD * of_either:
        return None
    return either


def _is_caption(subject: Subject, column: pl.Series, words: tuple[str, str]) -> bool:
    """Whether a column that is read says more than a side, as "left" of an eye does not."""
    is_side = column.str.to_lowercase().is_in(words)
    return is_side.sum() < len(column) / 2 and is_read(subject, column.name)


def _count_mirrored(subject: Subject, batch: Batch, pictures: list[str]) -> int:
    """Return the number of examples whose pictures are mirrored and whose other tensors stay."""
    marked = dict(batch)
    for name in pictures:
        low, high = batch[name].amin(), batch[name].amax()
        marked[name] = low.expand(batch[name].shape).clone()
        marked[name][..., : batch[name].shape[3] // 2] = high
    try:
        after = augment_copy(subject.task, marked, subject.seed)
    except Exception:  # a task may accept no other pictures
        return 0
    if any(after[name].shape != batch[name].shape for name in batch):
        return 0
    is_mirrored = torch.zeros(len(batch[pictures[0]]), dtype=torch.bool)
    for name in pictures:
        left, right = after[name].double().tensor_split(2, dim=3)
        is_mirrored |= left.flatten(1).mean(dim=1) < right.flatten(1).mean(dim=1)
    for name in batch.keys() - set(pictures):
        is_mirrored &= (after[name] == marked[name]).reshape(len(is_mirrored), -1).all(dim=1)
    return int(is_mirrored.sum())
