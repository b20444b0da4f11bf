"""Signs of texts, such as brackets of code, that no input reads although they tell of the label."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import hstack

from perennial.check_skeleton.checks.model.lost_words import (
    FEWEST_TEXTS,
    TEXTS,
    Differ,
    Gain,
    compare_readings,
    count_words,
    find_classes,
    fit_losses,
)
from perennial.check_skeleton.subject import Subject
from perennial.engine.task import LABEL

MOST_SIGNS = 40
LEAST_SHARE = 0.02  # of the texts
TRIED = 4  # texts of each sign


@dataclass(frozen=True)
class UnreadSigns:
    """Signs that change no input.

    Attributes:
        signs: The signs, the most frequent first.
        gain: Of words and signs together, over the words.
    """

    signs: str
    gain: Gain


def measure_unread_signs(subject: Subject, name: str, differ: Differ) -> UnreadSigns | None:
    """Measure what the signs of a text column that change no input would add to its words.

    `differ` says for pairs of texts whether their inputs differ.

    Returns: None where all signs are read, labels are no classes, or there are too few texts.
    """
    every = max(subject.num_rows() // TEXTS, 1)
    texts = [text or "" for text in subject.train_rows[name].gather_every(every)]
    classes = find_classes(subject.train[LABEL][::every].numpy())
    if classes is None or (classes >= 0).sum() < FEWEST_TEXTS:
        return None
    texts = [text for text, code in zip(texts, classes, strict=True) if code >= 0]
    classes = classes[classes >= 0]
    signs = _find_unread(texts, differ)
    if not signs:
        return None
    counts = np.log1p([[text.count(sign) for sign in signs] for text in texts])
    words = count_words(1).fit_transform([_split(text) for text in texts])
    own, both = (fit_losses(each, classes) for each in (words, hstack([words, counts]).tocsr()))
    return UnreadSigns("".join(signs), compare_readings(classes, own, both))


def _find_unread(texts: Sequence[str], differ: Differ) -> list[str]:
    """Return the signs that change no input where they are left out, or where they are blanks."""
    held = Counter(sign for text in texts for sign in set(text) if _is_sign(sign))
    common = [
        sign for sign, count in held.most_common(MOST_SIGNS) if count >= LEAST_SHARE * len(texts)
    ]
    unread = []
    for sign in common:
        holding = sorted((text for text in texts if sign in text), key=len)
        some = holding[:: max(len(holding) // TRIED, 1)][:TRIED]
        if any(not any(differ([(t, t.replace(sign, each)) for t in some])) for each in ("", " ")):
            unread.append(sign)
    return unread


def _is_sign(character: str) -> bool:
    return not character.isalnum() and not character.isspace()


def _split(text: str) -> list[str]:
    return "".join(each if not _is_sign(each) else " " for each in text.lower()).split()
