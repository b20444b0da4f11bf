"""Texts and lists that hold the name of their class, and those that may."""

from typing import ClassVar

import numpy as np
import polars as pl
import pytest
import torch

from other_styles import Classes, dataset_of
from perennial.engine.task import LABEL
from skeleton_tables import prepared
from workshop import results_of

ROWS = 600
RANDOM = np.random.default_rng(5)
VERBS = ["get", "set", "parse", "close"]
VERB = RANDOM.choice(VERBS, ROWS)
WORDS = ["self", "value", "return", "index", "name", "list", "open", "size"]
BODIES = [RANDOM.choice(WORDS, 8).tolist() for _ in range(ROWS)]


class Verbs(Classes):
    """Counts the words of a column; nothing is learned from them here."""

    texts: ClassVar = BODIES
    labels: ClassVar = VERB.tolist()

    @classmethod
    def table(cls):
        return pl.DataFrame({"row": range(ROWS), "body": cls.texts, "label": cls.labels})

    def fit(self, train):
        self.fitted = {"mean": [0.0], **self.fit_label(train.collect()["label"])}

    def encode(self, rows):
        batch = {"x": torch.tensor([[float(len(each))] for each in rows["body"]])}
        if "label" in rows.columns:
            batch[LABEL] = self.encode_label(rows["label"])
        return batch


class Sentences(Verbs):
    """A third of the texts name their class."""

    texts: ClassVar = [
        " ".join(body + [verb] * (number % 3 == 0))
        for number, (body, verb) in enumerate(zip(BODIES, VERB, strict=True))
    ]


class Candidates(Verbs):
    """One of three candidates is right."""

    texts: ClassVar = [[str(v), *(each for each in VERBS if each != v)][:3] for v in VERB]


class Answers(Verbs):
    """Classes have numbers, which texts hold too."""

    texts: ClassVar = [f"{' '.join(body)} {verb}" for body, verb in zip(BODIES, VERB, strict=True)]
    labels: ClassVar = [VERBS.index(verb) for verb in VERB]


class OwnName(Verbs):
    """The function's own name is a leaf of its tree."""

    texts: ClassVar = [[f"{v},def^(,self", *body] for body, v in zip(BODIES, VERB, strict=True)]


class Keyword(Verbs):
    """Labels were made by a search for the word."""

    texts: ClassVar = [f"{' '.join(body)} {verb}." for body, verb in zip(BODIES, VERB, strict=True)]


class Numbered(Verbs):
    """Steps keep their number in the manual, of which the label is made."""

    texts: ClassVar = [
        f"{VERBS.index(verb)} {' '.join(body)}" for body, verb in zip(BODIES, VERB, strict=True)
    ]


class Starred(Verbs):
    """Stars behind each text are its rating."""

    texts: ClassVar = [
        f"{' '.join(body)} {'*' * VERBS.index(verb)}-"
        for body, verb in zip(BODIES, VERB, strict=True)
    ]


class Flats(Verbs):
    """Texts begin with a number that tells a little."""

    texts: ClassVar = [
        f"{VERBS.index(verb) + RANDOM.integers(3)} {' '.join(body)}"
        for body, verb in zip(BODIES, VERB, strict=True)
    ]


def examined(task_type, folder):
    subject = prepared(task_type, dataset_of(task_type.table(), folder))
    return results_of(subject, "telling_columns")["telling_columns"]


@pytest.mark.parametrize("task_type", [Verbs, Sentences, Candidates, Answers, Flats])
def test_texts_may_name_classes(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome in ("passed", "skipped"), (found.measured, found.hint)


@pytest.mark.parametrize("task_type", [OwnName, Keyword])
def test_texts_that_name_their_own_class_fail(task_type, tmp_path):
    found = examined(task_type, tmp_path)
    assert (found.outcome, "name of its own class" in found.measured) == ("failed", True)


@pytest.mark.parametrize(("task_type", "which"), [(Numbered, "first"), (Starred, "last")])
def test_texts_with_a_mark_of_their_class_fail(task_type, which, tmp_path):
    found = examined(task_type, tmp_path)
    assert found.outcome == "failed", found.measured
    assert f"the {which} word of body" in found.measured
