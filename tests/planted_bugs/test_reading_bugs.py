"""Texts whose telling part never reaches the inputs."""

import zlib
from collections import Counter

import polars as pl
import pytest
import torch
from torch import nn

from own_tasks import (
    BAD,
    GOOD,
    NEUTRAL,
    SETTINGS,
    TRAINING,
    Next,
    OwnTask,
    Praise,
    pinned,
    reviews,
)
from perennial.check_skeleton.checks.model.text_coverage import measure_words
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.tasks.language_modeling import CausalLanguageModel
from planted import Bug, require_caught
from planted import planted as planted_bug
from skeleton_tables import prepared
from workshop import Workshop, results_of

BUGS: list[Bug] = []


def planted(hint, outcome="warned"):
    return planted_bug(BUGS, "text_coverage", hint, material="reviews", outcome=outcome)


@planted("texts are cut", outcome="failed")
class FirstWords(Praise):
    """only the first five words are kept"""

    def kept(self, codes):
        return codes[:5]


@planted("beginning of texts is cut", outcome="failed")
class LastWords(Praise):
    """the beginning is cut away, in place of the end"""

    def kept(self, codes):
        return codes[-5:]


@planted("another spelling", "failed")
class OtherCase(Praise):
    """the vocabulary is in small letters, the texts in capitals"""

    def fit(self, train):
        super().fit(train)

    def split(self, text):
        return text.upper().split() if self.learned else text.lower().split()


class Coded(Praise):
    """Words by a code of its own."""

    def encode(self, rows):
        tokens = torch.zeros(rows.height, self.length, dtype=torch.long)
        for row, text in enumerate(rows["text"]):
            codes = self.kept([self.code(word) for word in self.split(text)])
            tokens[row, : len(codes)] = torch.tensor(codes, dtype=torch.long)
        return self.with_label(rows, {"tokens": tokens})

    def code(self, word):
        return self.known.get(word, 1)


@planted("by a part of them", "failed")
class FirstLetters(Coded):
    """words are looked up by their first letter"""

    def code(self, word):
        return self.known.get(word[:1], 1)


@planted("codes modulo", "failed")
class AmongTheSpecials(Coded):
    """codes begin again after two, so that words take the places of padding and unknown ones"""

    def code(self, word):
        return self.known.get(word, 1) % 2


@planted("a limit on codes", "failed")
class CutToThree(Coded):
    """codes above two are cut: the size of the vocabulary of a trial was left in"""

    def code(self, word):
        return min(self.known.get(word, 1), 2)


@planted("another spelling", "failed")
class WithItsPunctuation(Coded):
    """the vocabulary was made of words with a full stop"""

    def code(self, word):
        return self.known.get(f"{word}.", 1)


@planted("numbered from 0", "failed")
class FirstWordIsPadding(Coded):
    """the vocabulary is numbered from 0, which is padding"""

    def code(self, word):
        return max(self.known.get(word, 1) - 2, 0)


@planted("numbered from 0", "failed")
class MostFrequentWordIsPadding(Coded):
    """words are numbered by their frequency from 0, which is padding, behind a mark of the text"""

    def fit(self, train):
        counts = Counter(word for text in train.collect()["text"] for word in self.split(text))
        self.learned = {"words": [word for word, _ in counts.most_common()]}

    def code(self, word):
        code = self.known.get(word, 1) - 2
        return code + 1 if code > 0 else code

    def kept(self, codes):
        return [1, *codes][: self.length]


@planted("list of stop words", "failed")
class TellingStopWords(Coded):
    """most telling words are on the list of stop words"""

    def split(self, text):
        return [word for word in text.lower().split() if word not in (*GOOD, *BAD[:5])]


@planted("room in the vocabulary", "failed")
class MostCommonWords(Coded):
    """the vocabulary has room for the most common words alone, which tell nothing"""

    def fit(self, train):
        counts = Counter(word for text in train.collect()["text"] for word in self.split(text))
        self.learned = {"words": [word for word, _ in counts.most_common(30)]}


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_bug_is_caught(bug: Bug, workshop: Workshop):
    require_caught(bug, workshop)


class Longest(Praise):
    """Cut the ends off the longest texts."""

    def kept(self, codes):
        return codes[:18]


class Buckets(Coded):
    """Words in buckets of a hash, of which some hold several."""

    def code(self, word):
        return 1 + zlib.crc32(word.encode()) % 40


class Letters(Coded):
    """Letters are tokens, so that no word is unknown."""

    length = 160

    def split(self, text):
        return list(text.lower())


class Dropped(Coded):
    """The most frequent words are dropped, as lists of stop words do."""

    def split(self, text):
        return [word for word in text.lower().split() if word not in ("word1", "great", "word7")]


class FilledBefore(Praise):
    """Padding stands before the words."""

    def encode(self, rows):
        batch = super().encode(rows)
        count = (batch["tokens"] != 0).sum(dim=1, keepdim=True)
        places = (torch.arange(self.length) - (self.length - count)) % self.length
        return {**batch, "tokens": batch["tokens"].gather(1, places)}


HEALTHY = [
    (Dropped, "reviews"), (FilledBefore, "reviews"),
    (Praise, "reviews"), (Longest, "reviews"), (Next, "series"), (Buckets, "reviews"),
    (Letters, "reviews"), (CausalLanguageModel, "documents"),
]  # fmt: skip


@pytest.mark.parametrize(("task_type", "material"), HEALTHY)
def test_healthy_tasks_have_no_findings(task_type, material, workshop):
    result = results_of(workshop.subject(task_type, material), "text_coverage")["text_coverage"]
    assert result.outcome in ("passed", "skipped"), (result.measured, result.hint)


class ChosenWords(Coded):
    """Reads four listed words, and leaves all others to chance."""

    chosen = ("great", "lovely", "awful", "broken")

    def code(self, word):
        return 2 + self.chosen.index(word) if word in self.chosen else 1


def test_chosen_words_only_warn(workshop):
    result = results_of(workshop.subject(ChosenWords, "reviews"), "text_coverage")["text_coverage"]
    assert result.outcome == "warned"


class Measured(OwnTask):
    """Texts by their length, their first letter and how often they praise."""

    def fit(self, train):
        self.learned = {}

    def encode(self, rows):
        texts = rows["text"].to_list()
        known = torch.tensor(
            [[len(text) / 80, (ord(text[0]) - 97) / 26, text.count("great")] for text in texts]
        )
        return self.with_label(rows, {"known": known.float()})

    def build_model(self):
        return Weighed()


class Weighed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, known):
        return self.layer(known).squeeze(1)


def test_features_made_of_a_text_do_not_block(workshop):
    result = results_of(workshop.subject(Measured, "reviews"), "text_coverage")["text_coverage"]
    assert result.outcome != "failed", result.measured


def with_greetings():
    """Reviews of which every third comes to its point after twelve words of greeting."""
    rows = reviews(words=(4, 14))
    greeting = " ".join(NEUTRAL[:12])
    is_long = pl.col("row") % 3 == 0
    text = pl.when(is_long).then(greeting + " " + pl.col("text")).otherwise("text")
    return rows.with_columns(text.alias("text"))


class FirstFourteen(Praise):
    """Keep the beginning, as a tokenizer does unless asked."""

    def kept(self, codes):
        return codes[:14]


class LastFourteen(Praise):
    """Keep the end, where a text comes to its point."""

    def kept(self, codes):
        return codes[-14:]


@pytest.mark.parametrize(
    ("task_type", "outcome"), [(FirstFourteen, "failed"), (LastFourteen, "passed")]
)
def test_the_end_of_a_text_that_tells_more_is_kept(task_type, outcome, tmp_path):
    subject = subject_of(task_type, with_greetings(), tmp_path)
    result = results_of(subject, "text_coverage")["text_coverage"]
    assert result.outcome == outcome, result.measured
    if outcome == "failed":
        assert "keep the end" in result.hint


def subject_of(task_type, rows, folder):
    snapshot = pinned(rows, folder, "praises")
    training = TrainingSection.model_validate(TRAINING, strict=False)
    return prepared(task_type, Dataset(snapshot), settings=SETTINGS, training=training)


class Titled(OwnTask):
    """A category whose names are several words."""

    def fit(self, train):
        self.learned = {"titles": sorted(train.collect()["title"].unique().to_list())}

    def encode(self, rows):
        known = {title: code for code, title in enumerate(self.learned["titles"], start=1)}
        codes = torch.tensor([known.get(title, 0) for title in rows["title"]])
        return self.with_label(rows, {"title": codes})

    def build_model(self):
        return nn.Sequential(nn.Embedding(1 + len(self.learned["titles"]), 1), nn.Flatten(0))


def test_names_of_several_words_are_not_texts(tmp_path):
    titles = [f"{good} film about {bad} people" for good in GOOD for bad in BAD]
    rows = reviews(rows=720).with_columns(title=pl.Series(titles * 20)).drop("text")
    subject = subject_of(Titled, rows, tmp_path)
    assert measure_words(subject) == []
