"""Entities are counted as CoNLL's own evaluation counts them, in every scheme of tags."""

import itertools

import numpy as np
import pytest
import torch

from perennial.tasks.entities import Tags

SCHEMES = {
    "IOB2": ("O", "B-PER", "I-PER", "B-LOC", "I-LOC"),
    "IOBES": ("O", "B-PER", "I-PER", "E-PER", "S-PER", "B-LOC", "E-LOC"),
    "BILOU": ("O", "B-PER", "I-PER", "L-PER", "U-PER", "U-LOC"),
    "no kinds": ("O", "B", "I"),
    "no places": ("NOUN", "VERB", "O"),
}


def spans(tags):
    """Entities of one row as (kind, first, last): conlleval's rules, word by word."""
    found, start, before = [], None, ("O", "")
    for place, tag in enumerate([*tags, "O"]):
        prefix, _, kind = tag.partition("-")
        if tag == "O":
            prefix, kind = "O", ""
        elif not kind and prefix not in "BI":
            prefix, kind = "S", tag
        ends = before[0] != "O" and (prefix in "OBSU" or kind != before[1] or before[0] in "ELSU")
        if ends:
            found.append((before[1], start, place - 1))
        if prefix != "O" and (before[0] == "O" or ends):
            start = place
        before = (prefix, kind)
    return set(found)


def count(tags, predicted, true, is_word=None):
    codes = [torch.tensor([[tags.index(each) for each in row]]) for row in (predicted, true)]
    mask = torch.ones_like(codes[0], dtype=torch.bool) if is_word is None else is_word
    return Tags.read(tags).count(*codes, mask)[0].tolist()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_random_rows_are_counted_as_the_word_by_word_rules_count_them(scheme):
    tags, random = SCHEMES[scheme], np.random.default_rng(0)
    codes = torch.from_numpy(random.integers(0, len(tags), (2, 300, 7)))
    found = Tags.read(tags).count(*codes, torch.ones(300, 7, dtype=torch.bool))
    for row, counted in enumerate(found.tolist()):
        predicted, true = (spans([tags[code] for code in each[row].tolist()]) for each in codes)
        assert counted == [len(predicted & true), len(true), len(predicted)]


def test_an_entity_is_right_only_as_a_whole():
    tags, true = SCHEMES["IOB2"], ["B-PER", "I-PER", "O", "B-LOC"]
    assert count(tags, true, true) == [2, 2, 2]
    assert count(tags, ["B-PER", "O", "O", "B-LOC"], true) == [1, 2, 2]
    assert count(tags, ["B-LOC", "I-LOC", "O", "B-PER"], true) == [0, 2, 2]
    assert count(tags, ["O", "O", "O", "O"], true) == [0, 2, 0]
    # IOB1, the form of the first CoNLL files: an entity may begin with I.
    assert count(tags, ["I-PER", "I-PER", "O", "I-LOC"], true) == [2, 2, 2]
    assert count(tags, ["B-PER", "B-PER", "O", "B-LOC"], true) == [1, 2, 3]


def test_entities_reach_across_tokens_without_a_tag():
    tags = SCHEMES["IOB2"]
    words = torch.tensor([[False, True, False, False, True, True, False]])
    true = ["O", "B-PER", "B-LOC", "O", "I-PER", "O", "B-LOC"]
    predicted = ["B-LOC", "B-PER", "O", "B-LOC", "I-PER", "O", "O"]
    assert count(tags, predicted, true, words) == [1, 1, 1]


@pytest.mark.parametrize("tags", list(itertools.permutations(("O", "B-X", "I-X"))))
def test_the_order_of_the_codes_does_not_matter(tags):
    assert count(tags, ["B-X", "I-X", "O"], ["B-X", "I-X", "B-X"]) == [1, 2, 1]
