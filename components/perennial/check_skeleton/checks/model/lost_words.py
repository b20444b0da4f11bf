"""How much of what a column's words tell of the label is lost before the inputs.

The same linear model of words and pairs of words learns the label from whole texts, and from what
`encode` keeps of them. Words are lost that change no input where they are left out or exchanged for
an unknown one (stop words, small vocabularies, wrong look-ups), and those at places where no word
changes an input (texts that are cut).
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.sparse import csr_matrix
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

from perennial.check_skeleton.baselines import z_score
from perennial.check_skeleton.checks.data.signals import MOST_CLASSES
from perennial.check_skeleton.subject import Codes, Floats, Subject
from perennial.engine.task import LABEL

TEXTS = 1500
MOST_WORDS = 2000
MOST_PLACES = 512
LONG_TEXTS = 8
FOLDS = 5
FEWEST_IN_CLASS = 2 * FOLDS
FEWEST_TEXTS = 64
# Share of the frequent words that a list made by hand may hold.
FEW = 0.1


@dataclass(frozen=True)
class Gain:
    """What a better reading of texts or lists would tell of the label.

    Attributes:
        signal: By how much the better reading lowers the log loss of a constant (nats).
        share: Share of this that what is read does not tell.
        errors: The same in standard errors.
    """

    signal: float
    share: float
    errors: float


Differ = Callable[[Sequence[tuple[str, str]]], list[bool]]


@dataclass(frozen=True)
class LostWords:
    """What a column's lost words would have predicted of the label.

    Attributes:
        share: Share of all words that are lost.
        signal: By how much all words lower the log loss of a constant (nats).
        signal_errors: The same in standard errors.
        lost: Share of this that the kept words do not tell.
        lost_errors: Standard errors by which whole texts are better than what is kept of them.
        words: The words left out that tell most.
        cut: Which part of texts is cut off, "beginning" or "end"; empty if neither.
        gain: Share of the signal that as many words would tell more if that part were kept instead.
        gain_errors: The same in standard errors.
        is_chosen: Whether the words that are read look like a short list made by hand.
    """

    share: float
    signal: float = 0.0
    signal_errors: float = 0.0
    lost: float = 0.0
    lost_errors: float = 0.0
    words: tuple[str, ...] = ()
    cut: str = ""
    gain: float = 0.0
    gain_errors: float = 0.0
    is_chosen: bool = False


def measure_lost_words(
    subject: Subject, name: str, differ: Differ, most_texts: int
) -> LostWords | None:
    """Measure the words of a text column that are lost, and what they would have predicted.

    Args:
        subject: The task.
        name: A column of texts.
        differ: Whether the inputs of two texts differ, for pairs of texts.
        most_texts: Number of texts that may be encoded.

    Returns: None where labels are no classes, or there are too few texts.
    """
    every = max(subject.num_rows() // TEXTS, 1)
    texts = [(text or "").split() for text in subject.train_rows[name].gather_every(every)]
    classes = find_classes(subject.train[LABEL][::every].numpy())
    if classes is None or (classes >= 0).sum() < FEWEST_TEXTS:
        return None
    texts = [words for words, code in zip(texts, classes, strict=True) if code >= 0]
    counts = Counter(word for words in texts for word in set(words))
    most = min(MOST_WORDS, most_texts // 4)
    frequent = [word for word, count in counts.most_common(most) if count > 1]
    unread = _find_unread_words(texts, frequent, differ)
    read = [word for word in frequent if word not in unread]
    is_place_read, cut = _find_read_places(texts, read, differ, most_texts // 4)
    kept = [
        [
            word
            for place, word in enumerate(words)
            if word not in unread and is_place_read(place, len(words))
        ]
        for words in texts
    ]
    count = sum(map(len, texts))
    share = 1 - sum(map(len, kept)) / max(count, 1)
    found = LostWords(share, cut=cut, is_chosen=_are_chosen(read, frequent))
    return _compare(texts, kept, classes[classes >= 0], unread, found)


def _compare(
    texts: Sequence[Sequence[str]],
    kept: Sequence[Sequence[str]],
    classes: Codes,
    unread: set[str],
    found: LostWords,
) -> LostWords:
    if not found.share:
        return found
    constant = compute_prior_losses(classes)
    whole = compute_losses(texts, classes, constant)
    left = compute_losses(kept, classes, constant)
    signal = float((constant - whole).mean())
    if found.cut and signal > 0:
        known = [[word for word in words if word not in unread] for words in texts]
        other = [
            words[-len(some) or len(words) :] if found.cut == "end" else words[: len(some)]
            for words, some in zip(known, kept, strict=True)
        ]
        gains = left - compute_losses(other, classes, constant)
        found = replace(found, gain=float(gains.mean()) / signal, gain_errors=z_score(gains))
    return replace(
        found,
        signal=signal,
        signal_errors=z_score(constant - whole),
        lost=float((left - whole).mean()) / signal if signal > 0 else 0.0,
        lost_errors=z_score(left - whole),
        words=_find_telling(texts, classes, unread),
    )


def find_classes(labels: Codes | Floats, least_share: float = 0.5) -> Codes | None:
    """Return the class of each row, -1 for a rare one; of several tags, the one nearest a half.

    None where the classes that are common enough hold a smaller share of the rows.
    """
    if labels.ndim == 2 and np.isin(labels, (0, 1)).all():
        labels = labels[:, np.abs(labels.mean(axis=0) - 0.5).argmin()]
    if labels.ndim != 1 or not np.array_equal(labels, labels.round()):
        return None
    values, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
    ranks = np.full(len(values), -1)
    common = np.argsort(-counts, kind="stable")[:MOST_CLASSES]
    common = common[counts[common] >= FEWEST_IN_CLASS]
    ranks[common] = np.arange(len(common))
    # Counts and amounts have more values than classes have.
    is_class = len(common) >= 2 and counts[common].sum() >= least_share * len(labels)
    return np.asarray(ranks[codes]) if is_class else None


def _find_unread_words(
    texts: Sequence[Sequence[str]], words: Sequence[str], differ: Differ
) -> set[str]:
    """Return the words that change no input in any of three texts.

    These are the shortest that holds the word, and those where it stands first and last.
    """
    tried = words
    holding = defaultdict[str, list[Sequence[str]]](list)
    for text in texts:
        for word in set(text):
            holding[word].append(text)
    for choose in (
        lambda text, word: len(text),
        lambda text, word: text.index(word),
        lambda text, word: text[::-1].index(word),
    ):
        pairs = []
        for word in tried:
            text = min(holding[word], key=lambda each: choose(each, word))
            whole = " ".join(text)
            pairs.append((whole, " ".join(each for each in text if each != word)))
            # No vocabulary holds the stand-in, which is made of the same letters.
            other = f"{word[::-1]}{word}q"
            pairs.append((whole, " ".join(other if each == word else each for each in text)))
        differs = differ(pairs)
        is_read = [one and other for one, other in zip(differs[::2], differs[1::2], strict=True)]
        tried = [word for word, read in zip(tried, is_read, strict=True) if not read]
    return set(tried)


def _are_chosen(read: Sequence[str], frequent: Sequence[str]) -> bool:
    """Whether few words are read, and they are not the most frequent, as in a vocabulary."""
    first = set(frequent[: 2 * len(read)])
    is_few = len(read) <= FEW * len(frequent)
    return is_few and sum(word in first for word in read) < len(read) / 2


def _find_read_places(
    texts: Sequence[Sequence[str]], read: Sequence[str], differ: Differ, most: int
) -> tuple[Callable[[int, int], bool], str]:
    """Return whether a place in a text of so many words is read, and which part is cut off.

    In the longest texts each word that is read elsewhere is exchanged for another. Places are
    counted from the side from which the answers agree.
    """
    known = set(read)
    # Of several lengths, or both sides would agree.
    long = sorted(texts, key=len, reverse=True)[: len(texts) // 4 : len(texts) // 4 // LONG_TEXTS]
    places = [
        (words, place)
        for words in long
        for place in range(min(len(words), MOST_PLACES, most // LONG_TEXTS))
        if words[place] in known
    ]
    pairs = []
    for words, place in places:
        other = next((word for word in read if word not in words), "")
        changed = [*words[:place], other, *words[place + 1 :]]
        pairs.append((" ".join(words), " ".join(changed)))
    sides: list[dict[int, list[bool]]] = [defaultdict(list), defaultdict(list)]
    for (words, place), differs in zip(places, differ(pairs), strict=True):
        sides[0][place].append(differs)
        sides[1][len(words) - 1 - place].append(differs)
    disagreements = [
        sum(min(sum(found), len(found) - sum(found)) for found in side.values()) for side in sides
    ]
    is_from_end = disagreements[1] < disagreements[0]
    unread_places = {place for place, found in sides[is_from_end].items() if not any(found)}

    def is_read(place: int, length: int) -> bool:
        return (length - 1 - place if is_from_end else place) not in unread_places

    return is_read, (("beginning" if is_from_end else "end") if unread_places else "")


def compute_prior_losses(classes: Codes) -> Floats:
    """Return the log loss (nats) of each row under the classes' shares."""
    return np.asarray(-np.log(np.bincount(classes) / len(classes))[classes])


def compare_readings(classes: Codes, read: Floats, better: Floats) -> Gain:
    """Compare the losses of what is read with those of a better reading."""
    signal, gains = float((compute_prior_losses(classes) - better).mean()), read - better
    return Gain(signal, float(gains.mean()) / signal if signal > 0 else 0.0, z_score(gains))


def compute_losses(
    texts: Sequence[Sequence[str]],
    classes: Codes,
    constant: Floats,
    *,
    longest: int = 2,
    penalty: float = 1.0,
) -> Floats:
    """Return the log loss (nats) of each text under a model that was fitted to other texts.

    `longest` is the number of neighbouring words that the model reads as one.
    """
    try:
        features = count_words(longest).fit_transform(texts)
    except ValueError:  # no word is left
        return constant
    return fit_losses(features, classes, penalty)


def fit_losses(features: csr_matrix, classes: Codes, penalty: float = 1.0) -> Floats:
    """Return the log loss (nats) of each row under a model that was fitted to other rows."""
    model = LogisticRegression(C=1 / penalty, max_iter=200)
    probabilities = cross_val_predict(model, features, classes, cv=FOLDS, method="predict_proba")
    return np.asarray(-np.log(probabilities[np.arange(len(classes)), classes] + 1e-12))


def count_words(longest: int) -> CountVectorizer:
    """Return what finds the words of a text, and runs of up to so many, that another text has."""
    return CountVectorizer(
        analyzer=lambda words: [
            " ".join(words[start : start + size])
            for size in range(1, longest + 1)
            for start in range(len(words) - size + 1)
        ],
        min_df=2,
        binary=True,
    )


def _find_telling(
    texts: Sequence[Sequence[str]], classes: Codes, unread: set[str]
) -> tuple[str, ...]:
    """Return the three of these words with the largest weights in a model of all words."""
    counter = count_words(longest=1)
    model = LogisticRegression(max_iter=200).fit(counter.fit_transform(texts), classes)
    weights = np.abs(model.coef_).max(axis=0)
    names = counter.get_feature_names_out()
    return tuple([str(each) for each in names[np.argsort(-weights)] if each in unread][:3])
