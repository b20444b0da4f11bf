"""Documents become ids and come back; pairs are learned from what they are given alone."""

import pytest

from perennial.contracts.errors import BadTaskError
from perennial.tasks.columns import tokenization
from perennial.tasks.columns.tokenization import BOUNDARY, Tokenizer

TEXTS = ["", "the mean of the array", "größe: 3 µm 😀", "\n\t tabs  and  spaces "]


@pytest.fixture
def learned():
    pytest.importorskip("tokenizers")
    return Tokenizer.learn(["the mean of the array over the axis"] * 20, 300)


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_come_back_as_the_text(text):
    (ids,) = Tokenizer().encode([text])
    assert ids.tolist() == list(text.encode())
    assert Tokenizer().decode(ids) == text


def test_the_boundary_has_no_bytes():
    assert Tokenizer().pieces[BOUNDARY] == b""
    assert Tokenizer().decode([BOUNDARY, 104, 105, BOUNDARY]) == "hi"


@pytest.mark.parametrize("text", TEXTS)
def test_pairs_come_back_as_the_text_and_cover_its_bytes(learned, text):
    (ids,) = learned.encode([text])
    assert learned.decode(ids) == text
    assert BOUNDARY not in ids
    assert b"".join(learned.pieces[index] for index in ids) == text.encode()


def test_tokens_that_lose_bytes_of_the_text_are_refused(learned, monkeypatch):
    """As another version of the package might cut words: without the spaces between them."""
    package = tokenization.importlib.import_module("tokenizers")
    monkeypatch.setattr(tokenization, "_words", lambda _: package.pre_tokenizers.Whitespace())
    lossy = Tokenizer(learned.merges)
    with pytest.raises(BadTaskError, match=r"do not encode its bytes(.|\n)*21 bytes .* of 17"):
        lossy.encode(["the mean of the array"])


def test_pairs_make_frequent_text_shorter(learned):
    (ids,) = learned.encode(["the mean of the array"])
    assert len(ids) == 5
    assert 257 < len(learned.pieces) <= 300


def test_learning_is_deterministic_and_survives_json(learned):
    again = Tokenizer.learn(["the mean of the array over the axis"] * 20, 300)
    assert again == learned
    assert Tokenizer.from_json(learned.to_json()) == learned


def test_a_piece_that_two_pairs_spell_has_one_id():
    two_ways = Tokenizer(((97, 98), (98, 99), (257, 99), (97, 258)))
    assert two_ways.pieces[257:] == (b"ab", b"bc", b"abc")


def test_pairs_without_the_package_are_refused(monkeypatch):
    monkeypatch.setitem(tokenization.importlib.sys.modules, "tokenizers", None)
    with pytest.raises(BadTaskError, match="perennial\\[text\\]"):
        Tokenizer.learn(["text"], 1000)
    assert Tokenizer.learn(["text"], 257) == Tokenizer()
