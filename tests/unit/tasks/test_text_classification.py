"""Text classification: texts of any length and alphabet, of two or more classes."""

import json
import math

import numpy as np
import polars as pl
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.contracts.section import canonical_json
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.task import LABEL, check_options, inputs_of
from perennial.tasks.columns.tokenization import BOUNDARY
from perennial.tasks.text_classification import LENGTH, TOKENS, TextClassification

SMALL = {"context_length": 32, "width": 32, "layers": 1, "heads": 2, "dropout": 0.0}
TOPICS = {"sport": ("goal", "match", "team"), "trade": ("price", "stock"), "arts": ("paint",)}


def messages(rows: int = 240) -> pl.DataFrame:
    """Texts with one telling word each, somewhere between words that every topic has."""
    random = np.random.default_rng(0)
    texts, labels = [], []
    for row in range(rows):
        topic = list(TOPICS)[row % 3]
        words = list(random.choice(["and", "the", "of", "it"], 3))
        words.insert(int(random.integers(4)), str(random.choice(TOPICS[topic])))
        texts.append(" ".join(words))
        labels.append(topic)
    return pl.DataFrame({"text": texts, "topic": labels})


def make(rows: pl.DataFrame | None = None, **options) -> TextClassification:
    rows = messages() if rows is None else rows
    features = {name: str(dtype) for name, dtype in rows.schema.items() if name != "topic"}
    section = check_options(TextClassification, SMALL | options)
    task = TextClassification(section, TaskColumns(label="topic", features=features))
    task.fit(rows.lazy())
    return task


def of(*texts: str | None) -> pl.DataFrame:
    return pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)})


def noisy(task: TextClassification) -> nn.Module:
    """A model of which every part moves the output."""
    torch.manual_seed(0)
    model = task.build_model().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def compute(task: TextClassification, model: nn.Module, rows: pl.DataFrame) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs_of(task.encode(rows)))


@pytest.mark.parametrize(
    "options",
    [{}, {"vocab_size": 280}, {"vocab_size": 400, "layers": 0}],
    ids=["bytes", "byte pairs", "bag of byte pairs"],
)
def test_topics_are_learned_from_one_telling_word(options):
    train, other = messages(240), messages(300).tail(60)
    task = make(train, **options)
    torch.manual_seed(0)
    model, batch = task.build_model(), task.encode(train)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        task.training_losses(model(**inputs_of(batch)), batch).mean().backward()
        optimizer.step()
    scored = score_batch(task, model, task.encode(other))
    metrics = task.score(scored.predictions, scored.labels)
    assert metrics["accuracy"] > 0.95
    assert set(metrics) == {"log_loss", "accuracy", "macro_f1"}


def test_a_batch_holds_the_bytes_behind_a_boundary_and_their_number():
    task = make()
    batch = task.encode(of("ab", "ü", "", None, "x" * 100))
    tokens, lengths = batch[TOKENS], batch[LENGTH].tolist()
    assert lengths == [3, 3, 1, 1, 32]
    assert tokens[0].tolist() == [BOUNDARY, 97, 98] + [BOUNDARY] * 29
    assert tokens[1, 1:3].tolist() == list("ü".encode())
    assert tokens[4].tolist() == [BOUNDARY] + [120] * 31
    assert LABEL not in batch


def test_a_byte_pair_is_one_token():
    task = make(vocab_size=280)
    assert task.fitted.merges
    lengths = task.encode(messages(30))[LENGTH]
    assert float((make().encode(messages(30))[LENGTH] / lengths).mean()) > 1.5


@pytest.mark.parametrize("vocab_size", [257, 280])
def test_characters_that_training_never_saw_are_bytes_too(vocab_size):
    task = make(vocab_size=vocab_size)
    unseen = of("Ωμέγα", "日本", "🙂")
    assert task.describe(task.encode(unseen), 1)["text"].endswith("日本")
    outputs = compute(task, noisy(task), unseen)
    assert outputs.isfinite().all()
    assert not torch.allclose(outputs[0], outputs[1])


def test_empty_and_missing_texts_get_an_answer():
    task = make()
    outputs = compute(task, noisy(task), of("", None, "goal"))
    assert outputs.isfinite().all()
    torch.testing.assert_close(outputs[0], outputs[1])


def test_what_is_cut_off_does_not_count_and_the_report_shows_a_full_sequence():
    task = make()
    rows = of("y" * 31, "y" * 31 + " goal", "goal")
    outputs = compute(task, noisy(task), rows)
    torch.testing.assert_close(outputs[0], outputs[1])
    batch = task.encode(rows)
    assert [task.describe(batch, row)[TOKENS] for row in (1, 2)] == ["32 of 32, full", "5 of 32"]


def test_one_row_is_answered_as_in_a_batch_and_with_less_padding():
    task = make()
    model, rows = noisy(task), messages(12)
    whole = compute(task, model, rows)
    for row in range(12):
        torch.testing.assert_close(compute(task, model, rows[row])[0], whole[row])
    batch = inputs_of(task.encode(rows[:1]))
    short = {TOKENS: batch[TOKENS][:, : int(batch[LENGTH])], LENGTH: batch[LENGTH]}
    torch.testing.assert_close(model(**short)[0], whole[0])
    filled = batch[TOKENS].clone()
    filled[:, int(batch[LENGTH]) :] = 7
    torch.testing.assert_close(model(filled, batch[LENGTH])[0], whole[0])


def test_the_order_of_words_and_what_follows_a_word_count():
    task = make()
    outputs = compute(task, noisy(task), of("not good", "good not", "nog todo"))
    assert not torch.allclose(outputs[0], outputs[1], atol=1e-3)
    assert not torch.allclose(outputs[0], outputs[2], atol=1e-3)


def test_without_layers_a_text_is_a_bag_of_its_tokens():
    task = make(layers=0)
    outputs = compute(task, noisy(task), of("not good", "good not", "not bad"))
    torch.testing.assert_close(outputs[0], outputs[1])
    assert not torch.allclose(outputs[0], outputs[2], atol=1e-3)
    assert task.build_model().embedding.positions is None


def test_the_first_loss_is_the_label_entropy():
    rows = pl.concat([messages(60), messages(60).filter(pl.col("topic") == "arts")])
    task = make(rows)
    shares = np.array([0.5, 0.25, 0.25])
    assert task.expected_initial_loss() == pytest.approx(-(shares * np.log(shares)).sum())
    losses = score_batch(task, task.build_model(), task.encode(rows)).losses
    assert losses.mean() == pytest.approx(task.expected_initial_loss(), rel=0.05)


def test_labels_are_smoothed_in_training_alone():
    task, plain = make(label_smoothing=0.2), make()
    batch, output = task.encode(messages(12)), torch.randn(12, 3)
    expected = 0.8 * plain.losses(output, batch) - 0.2 * output.log_softmax(1).mean(1)
    torch.testing.assert_close(task.training_losses(output, batch), expected)
    assert torch.equal(task.losses(output, batch), plain.losses(output, batch))


@pytest.mark.parametrize("vocab_size", [257, 280])
def test_state_goes_through_json(vocab_size):
    task, rows = make(vocab_size=vocab_size), messages(12)
    restored = TextClassification(task.options, task.columns)
    restored.load_state(json.loads(canonical_json(task.state())))
    for name, tensor in task.encode(rows).items():
        assert torch.equal(restored.encode(rows)[name], tensor)
    restored.build_model().load_state_dict(task.build_model().state_dict())
    assert restored.prediction_names == (
        "probability_arts", "probability_sport", "probability_trade",
    )  # fmt: skip


@pytest.mark.parametrize("labels", [[0, 1], [False, True]])
def test_two_classes_are_classes_of_their_own_names(labels):
    task = make(messages(60).with_columns(topic=pl.Series(labels * 30)))
    assert compute(task, task.build_model(), of("goal")).shape == (1, 2)
    assert task.prediction_names == tuple(f"probability_{str(each).lower()}" for each in labels)


def test_parameter_keys_name_tokens_and_classes():
    task = make(vocab_size=280)
    keys, shapes = task.parameter_keys(), dict(task.build_model().named_parameters())
    for name, each in keys.items():
        lengths = [len(size) for size in each.keys if size is not None]
        assert lengths[0] == shapes[name].shape[0], name
        assert len(set(each.keys[0])) == lengths[0], name
    assert keys["head.bias"].keys == (("arts", "sport", "trade"),)


def test_token_dropout_hides_tokens_of_the_text_alone_and_is_off_by_default():
    rows = messages(60)
    task = make(rows, token_dropout=0.3)
    batch = task.encode(rows)
    first = task.augment(batch, torch.Generator().manual_seed(1))
    again = task.augment(batch, torch.Generator().manual_seed(1))
    changed = first[TOKENS] != batch[TOKENS]
    is_text = torch.arange(32) < batch[LENGTH][:, None]
    assert torch.equal(first[TOKENS], again[TOKENS])
    assert not (changed & ~is_text).any()
    assert not changed[:, 0].any()
    assert float(changed.sum() / (is_text.sum() - 60)) == pytest.approx(0.3, abs=0.05)
    assert (first[TOKENS][changed] == task.hidden_token).all()
    assert make(rows).augment(batch, torch.Generator()) is batch


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": 3}, "heads = 3 does not divide width = 32"),
        ({"vocab_size": 100}, "vocab_size"),
        ({"context_length": 1}, "context_length"),
        ({"token_dropout": 1.0}, "token_dropout"),
        ({"windows": 2}, "windows"),
        ({"metrics": ["bits_per_byte"]}, "bits_per_byte"),
    ],
)
def test_options_that_do_not_fit_are_refused(options, message):
    with pytest.raises((BadTaskError, ValidationError), match=message):
        check_options(TextClassification, SMALL | options)


def test_more_metrics_are_measured_by_name():
    task = make(metrics=["expected_calibration_error"])
    scored = score_batch(task, task.build_model(), task.encode(messages(30)))
    assert "expected_calibration_error" in task.score(scored.predictions, scored.labels)


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        (messages(30).with_columns(other=pl.lit("x")), "text is String, other is String|other is"),
        (messages(30).with_columns(text=pl.lit(1)), "text is Int32"),
    ],
    ids=["two columns", "numbers"],
)
def test_anything_but_one_column_of_text_is_refused(rows, found):
    with pytest.raises(BadTaskError, match="reads one column of text") as refused:
        make(rows)
    assert any(each in refused.value.evidence for each in found.split("|"))
    assert "features = " in refused.value.action


def test_one_class_and_unknown_classes_are_refused():
    with pytest.raises(BadDataError, match="1 classes to train on"):
        make(messages(30).with_columns(topic=pl.lit("arts")))
    with pytest.raises(BadDataError, match="the training split did not have"):
        make().encode(of("goal").with_columns(topic=pl.lit("weather")))


def test_the_blocks_are_sharded_one_by_one():
    task = make(layers=3)
    assert len(task.blocks(task.build_model())) == 3
    assert math.isclose(make(layers=1).build_model().embedding.dropout.p, 0.0)
