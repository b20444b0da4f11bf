"""The samples that the checks look at."""

import random

import numpy as np
import pytest
import torch

from perennial.check_skeleton.subject import find_distinct_examples, sample_rows, seeded
from perennial.contracts.data import Split
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.engine.task import LABEL
from perennial.tasks.image_text import ImageTextContrastive
from perennial.tasks.tabular import TabularClassification
from skeleton_tables import SETTINGS, prepared
from workshop import Workshop


def test_sample_is_drawn_from_the_whole_split_once_per_row(datasets):
    dataset = datasets("binary")
    every = dataset.scan(Split.TRAIN).collect()["row"].to_list()
    sample = sample_rows(dataset, Split.TRAIN, 500, seed=1)["row"].to_list()
    assert len(sample) == len(set(sample)) == 500
    assert sample == [row for row in every if row in set(sample)]
    assert abs(np.mean(sample) - np.mean(every)) < 0.1 * max(every)
    assert sample == sample_rows(dataset, Split.TRAIN, 500, seed=1)["row"].to_list()
    assert sample != sample_rows(dataset, Split.TRAIN, 500, seed=2)["row"].to_list()
    assert sample_rows(dataset, Split.TRAIN, 10**6, seed=1)["row"].to_list() == every


def test_split_with_too_few_rows_is_rejected(datasets):
    with pytest.raises(BadDataError, match="need 16"):
        sample_rows(datasets("binary", rows=60), Split.VALIDATION, 500, seed=1)


class Endless(TabularClassification):
    def encode(self, rows):
        while rows.height:
            pass


def test_encoding_that_never_ends_is_stopped_and_its_line_is_named(datasets, monkeypatch):
    monkeypatch.setenv("PERENNIAL_ENCODE_SECONDS", "0.5")
    with pytest.raises(BadTaskError, match=r"encode of .* rows did not end within 0\.5 s") as found:
        prepared(Endless, datasets("binary"))
    assert "test_subject.py:" in str(found.value)


def test_labels_alternate_in_a_balanced_batch(datasets):
    subject = prepared(TabularClassification, datasets("binary", positive=0.04))
    assert subject.balanced(2)[LABEL].tolist() == [0, 1]
    assert subject.balanced(16)[LABEL].sum() == 8


def test_equal_inputs_count_once():
    inputs = {"a": torch.tensor([[1.0], [2.0], [1.0], [1.0]]), "b": torch.tensor([0, 0, 0, 1])}
    assert find_distinct_examples(inputs).tolist() == [0, 1, 3]


def test_seeded_restores_every_global_generator():
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    draws = []
    for _ in range(2):
        with seeded(3):
            draws.append((random.random(), np.random.random(), float(torch.rand(()))))
    assert draws[0] == draws[1]
    after = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    assert after == before


@pytest.mark.parametrize(
    "change",
    [
        lambda batch: {name: t for name, t in batch.items() if name != LABEL},
        lambda batch: {LABEL: batch[LABEL]},
        lambda batch: {**batch, "numbers": batch["numbers"][1:]},
    ],
    ids=["no label", "no inputs", "unequal lengths"],
)
def test_batch_without_inputs_or_labels_is_rejected(change, datasets):
    class Unpaired(TabularClassification):
        def encode(self, rows):
            return change(super().encode(rows))

    with pytest.raises(BadTaskError, match="one entry per example"):
        prepared(Unpaired, datasets("binary"))


@pytest.mark.parametrize("method", ["fit", "encode"])
def test_error_of_user_code_names_the_method(method, datasets):
    def broken(self, rows):
        raise ZeroDivisionError("scale")

    task_type = type("Broken", (TabularClassification,), {method: broken})
    with pytest.raises(BadTaskError, match=rf"{method}\(") as raised:
        prepared(task_type, datasets("binary"), settings=SETTINGS)
    assert "ZeroDivisionError: scale" in raised.value.evidence


def test_examples_that_are_compared_share_no_caption(tmp_path):
    workshop = Workshop(tmp_path)
    subject = workshop.subject(ImageTextContrastive, "captions", rows=1600)
    tokens = subject.balanced(32)["tokens"]
    assert len(tokens.unique(dim=0)) == len(tokens) == 32
