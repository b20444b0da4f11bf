"""Find texts whose words are spelt otherwise than in the vocabulary: with marks, or capitals."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from perennial.check_skeleton.checks.model.lost_words import Differ

MARKS = '.,;:!?"()'
TEXTS = 1500
# Texts that hold a word; rarer ones are left out of many vocabularies.
FREQUENT_TEXTS = 5
MOST_WORDS, FEWEST_WORDS = 64, 12
# Of words with a mark whose bare form is known: with one tokenizer, frequent ones are known, too.
NEARLY_ALL = 0.95
# Of bare words that are as rare: else the vocabulary has no room for words with a mark.
KNOWN_AS_RARE = 0.5
# Of all words of the texts.
LEAST_SHARE = 0.05


@dataclass(frozen=True)
class Spelling:
    """A difference between words of texts and of a vocabulary."""

    bare: Callable[[str], str]  # the word in the vocabulary
    difference: str
    remedy: str


SPELLINGS = (
    Spelling(
        lambda word: word.strip(MARKS),
        "the mark that touches them",
        "texts are split at blanks, the vocabulary is of bare words: use one tokenizer for both",
    ),
    Spelling(
        str.lower,
        "their capital letters",
        "the vocabulary is in lower case, texts are not: use one tokenizer for both",
    ),
)


@dataclass(frozen=True)
class UnknownSpelling:
    """Words that are unknown as they are spelt, and known in the other spelling."""

    spelling: Spelling
    words: tuple[str, ...]  # most frequent first
    share: float  # of all words of the texts

    def __str__(self) -> str:
        examples = ", ".join(map(repr, self.words[:3]))
        return (
            f"{self.share:.0%} of the words are unknown because of {self.spelling.difference}, "
            f"such as {examples}; without it, they are known"
        )


def find_unknown_spelling(texts: Sequence[str], differ: Differ) -> UnknownSpelling | None:
    """Return the words of which `encode` knows another spelling alone; None where it knows both.

    `differ` tells for pairs of texts whether their inputs differ.
    """
    parts = [text.split() for text in texts[:TEXTS]]
    found = (_find_unknown(parts, differ, spelling) for spelling in SPELLINGS)
    return next(filter(None, found), None)


def _find_unknown(
    parts: Sequence[Sequence[str]], differ: Differ, spelling: Spelling
) -> UnknownSpelling | None:
    """Return the words that one difference of spelling makes unknown, if it does so to all."""
    counts = Counter(word for words in parts for word in set(words))
    frequent = [word for word, count in counts.most_common() if count >= FREQUENT_TEXTS]
    marked = [word for word in frequent if spelling.bare(word) not in ("", word)][:MOST_WORDS]
    if len(marked) < FEWEST_WORDS:
        return None
    usual = median(counts[word] for word in marked)
    bare = [word for word in frequent if word == spelling.bare(word) and counts[word] <= usual]
    shortest: dict[str, Sequence[str]] = {}
    for words in sorted(parts, key=len, reverse=True):
        shortest.update(dict.fromkeys(words, words))

    def find_known(words: Sequence[str], become: Callable[[str], str]) -> set[str]:
        """Return the words that, as what they become, differ from a word of no vocabulary."""
        pairs = []
        for word in words:
            bare = spelling.bare(word)
            own, other = become(word), f"{bare[::-1]}{bare}q"
            held = [
                [new if each == word else each for each in shortest[word]] for new in (own, other)
            ]
            pairs.append((" ".join(held[0]), " ".join(held[1])))
        return {word for word, differs in zip(words, differ(pairs), strict=True) if differs}

    known = find_known(marked, spelling.bare)
    lost = known - find_known(marked, str)
    known_as_rare = find_known(bare[:MOST_WORDS], str)
    is_rare = len(known_as_rare) < KNOWN_AS_RARE * len(bare[:MOST_WORDS])
    if len(known) < FEWEST_WORDS or len(lost) < NEARLY_ALL * len(known) or is_rare:
        return None
    every = Counter(word for words in parts for word in words)
    share = sum(every[word] for word in lost) / every.total()
    found = UnknownSpelling(spelling, tuple(word for word in marked if word in lost), share)
    return found if share >= LEAST_SHARE else None
