"""Token classification: a tag for each word, on its first token, learned, counted and served."""

import math

import numpy as np
import polars as pl
import pytest
import torch

from own_tasks import sentences
from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadDataError, BadTaskError
from perennial.contracts.section import canonical_json
from perennial.engine.evaluation.scoring import score_batch
from perennial.engine.serving.pyfunc import ServedModel, predict_rows
from perennial.engine.serving.servable import input_columns
from perennial.engine.task import LABEL, WEIGHT, check_options, inputs_of
from perennial.tasks.columns.tokenization import IGNORED
from perennial.tasks.text_classification import LENGTH, TOKENS
from perennial.tasks.token_classification import TokenClassification

SMALL = {"context_length": 32, "width": 32, "layers": 1, "heads": 2, "dropout": 0.0}
ROWS = pl.DataFrame(
    {
        "text": ["Ann saw Zoë Lee", "in Rome", "a", "Rome  saw  Ann"],
        "tags": ["B-PER O B-PER I-PER", "O B-LOC", "O", "B-LOC  O B-PER"],
    }
)


def make(rows: pl.DataFrame = ROWS, **options) -> TokenClassification:
    columns = TaskColumns(label="tags", features={"text": str(rows["text"].dtype)})
    task = TokenClassification(check_options(TokenClassification, SMALL | options), columns)
    task.fit(rows.lazy())
    return task


def of(*texts: str | None) -> pl.DataFrame:
    return pl.DataFrame({"text": pl.Series(texts, dtype=pl.String)})


def labelled(task, rows):
    """For each row, the labelled places and their tags."""
    found = task.encode(rows)[LABEL].tolist()
    return [
        [(place, task.fitted.classes[code]) for place, code in enumerate(row) if code != IGNORED]
        for row in found
    ]


def test_the_first_byte_of_a_word_has_its_tag():
    task = make()
    assert task.fitted.classes == ("B-LOC", "B-PER", "I-PER", "O")
    assert task.fitted.class_shares == (0.2, 0.3, 0.1, 0.4)
    batch = task.encode(ROWS)
    first, second, third, fourth = labelled(task, ROWS)
    # Behind the boundary: A n n _ s a w _ Z o ë ë _ L
    assert first == [(1, "B-PER"), (5, "O"), (9, "B-PER"), (14, "I-PER")]
    assert [place for place, _ in second] == [1, 4]
    assert third == [(1, "O")]
    assert [place for place, _ in fourth] == [1, 7, 12]
    assert batch[WEIGHT].tolist() == [4, 2, 1, 3]
    assert LABEL not in task.encode(ROWS.drop("tags"))


def test_a_byte_pair_that_begins_with_the_space_has_the_tag():
    pytest.importorskip("tokenizers")
    rows = sentences(200)
    task = make(rows, vocab_size=300, context_length=64)
    batch = task.encode(rows)
    words = [len(text.split()) for text in rows["text"]]
    assert batch[WEIGHT].tolist() == words
    assert int(batch[LENGTH].sum()) < 0.7 * int(
        make(rows, context_length=64).encode(rows)[LENGTH].sum()
    )
    for row in range(20):
        pairs = [pair.rsplit("/", 1) for pair in task.describe(batch, row)["tags"].split()]
        assert " ".join(word for word, _ in pairs) == rows["text"][row]
        assert " ".join(tag for _, tag in pairs) == rows["tags"][row]


def test_words_that_are_cut_off_count_nowhere_and_the_report_shows_it():
    task = make(context_length=10)
    batch = task.encode(ROWS)
    assert batch[WEIGHT].tolist() == [3, 2, 1, 2]
    shown = task.describe(batch, 0)
    assert shown == {
        "text": "Ann saw Z", "tokens": "10 of 10, full", "tags": "Ann/B-PER saw/O Z/B-PER",
    }  # fmt: skip
    statistics = task.statistic(torch.randn(4, 10, 4), batch).numpy()
    assert task.exposure(statistics, batch[WEIGHT].numpy()).tolist() == [3, 2, 1, 2]


def test_an_empty_text_has_no_tag():
    task = make()
    batch = task.encode(pl.DataFrame({"text": ["", None, "Ann"], "tags": ["", "", "O"]}))
    assert batch[WEIGHT].tolist() == [0, 0, 1]
    statistics = task.statistic(torch.randn(3, 32, 4), batch)
    assert statistics[:2].tolist() == [[0] * 5] * 2


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ({"text": ["Ann saw"], "tags": ["O"]}, "a text has 2 words, and 1 tags in 'tags'"),
        ({"text": ["Ann"], "tags": ["B-ORG"]}, "values that the training split did not have"),
        ({"text": [None], "tags": ["O"]}, "a text has 0 words, and 1 tags"),
    ],
)
def test_tags_that_do_not_fit_are_refused(rows, problem):
    with pytest.raises(BadDataError, match=problem):
        make().encode(pl.DataFrame(rows, schema={"text": pl.String, "tags": pl.String}))


def test_lists_are_refused_with_the_line_that_makes_texts_of_them():
    lists = ROWS.with_columns(pl.col("text", "tags").str.split(" "))
    with pytest.raises(BadTaskError, match="reads one column of text") as refused:
        make(lists)
    assert 'list.join(" ")' in refused.value.action
    with pytest.raises(BadDataError, match=r"is List\(String\), not text") as refused:
        make(lists.with_columns(pl.col("text").list.join(" ")))
    assert 'list.join(" ")' in refused.value.action
    joined = lists.with_columns(pl.col("text", "tags").list.join(" "))
    assert make(joined).fitted == make().fitted


def test_a_text_in_the_place_of_tags_is_refused():
    texts = [f"word{number} other{number}" for number in range(600)]
    with pytest.raises(BadDataError, match="has 1,200 tags to learn"):
        make(pl.DataFrame({"text": texts, "tags": texts}))


def test_the_first_loss_is_the_entropy_of_the_tags():
    task = make()
    torch.manual_seed(0)
    model = task.build_model()
    torch.nn.init.zeros_(model.head.weight)
    scored = score_batch(task, model, task.encode(ROWS))
    assert scored.mean_loss() == pytest.approx(task.expected_initial_loss(), rel=1e-5)
    assert task.expected_initial_loss() == pytest.approx(
        -sum(share * math.log(share) for share in (0.2, 0.3, 0.1, 0.4))
    )


def test_tags_are_learned_and_measured_over_all_words():
    rows = sentences(400)
    task = make(rows, context_length=64)
    train, other = task.encode(rows.head(320)), task.encode(rows.tail(80))
    torch.manual_seed(0)
    model = task.build_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(60):
        optimizer.zero_grad()
        losses = task.training_losses(model(**inputs_of(train)), train)
        (losses @ train[WEIGHT] / train[WEIGHT].sum()).backward()
        optimizer.step()
    scored = score_batch(task, model, other)
    found = scored.metrics(task)
    assert set(found) == {"mean_loss", "entity_f1", "token_accuracy", "loss"}
    assert found["token_accuracy"] > 0.9
    assert found["entity_f1"] > 0.7
    predicted = model.eval()(**inputs_of(other)).argmax(-1)
    hits = (predicted == other[LABEL])[other[LABEL] != IGNORED]
    assert found["token_accuracy"] == pytest.approx(float(hits.double().mean()))
    hit, true, answered = scored.predictions[:, 2:].sum(axis=0)
    assert found["entity_f1"] == pytest.approx(2 * hit / (true + answered))
    assert found["mean_loss"] == pytest.approx(found["loss"])


def test_smoothing_leaves_tokens_without_a_tag_out():
    task = make(label_smoothing=0.1)
    batch, output = task.encode(ROWS), torch.randn(4, 32, 4)
    other = torch.where((batch[LABEL] == IGNORED)[:, :, None], 5 * output, output)
    smoothed = task.training_losses(output, batch)
    assert torch.allclose(smoothed, task.training_losses(other, batch))
    assert not torch.allclose(smoothed, task.losses(output, batch))


def test_a_served_model_answers_a_tag_for_each_word():
    task = make(context_length=16)
    torch.manual_seed(0)
    model = task.build_model().eval()
    assert input_columns(task) == ["text"]
    rows = of("Ann saw Zoë Lee", "in Rome", "", None, "Ann  in", "a " * 12)
    served = ServedModel(task, model, rows.schema).predict(rows.to_pandas())
    assert list(served.columns) == ["tags"]
    answers = served["tags"].tolist()
    assert [len(answer.split()) for answer in answers] == [4, 2, 0, 0, 2, 12]
    assert answers[5].split()[8:] == ["_"] * 4
    assert set(" ".join(answers[:5]).split()) <= set(task.fitted.classes)
    codes = predict_rows(task, model, rows)
    assert answers[0].split()[1] == task.fitted.classes[int(codes[0, 5])]
    alone = ServedModel(task, model, rows.schema).predict(rows[:1].to_pandas())
    assert alone["tags"].tolist() == answers[:1]


def test_the_state_round_trip_keeps_tags_and_byte_pairs():
    pytest.importorskip("tokenizers")
    task = make(sentences(100), vocab_size=280)
    restored = TokenClassification(task.options, task.columns)
    restored.load_state(task.state())
    assert canonical_json(restored.state()) == canonical_json(task.state())
    batch, again = (each.encode(sentences(20)) for each in (task, restored))
    assert all(torch.equal(batch[name], again[name]) for name in batch)


def test_parameters_of_tags_have_the_tags_as_keys():
    task = make()
    shapes = {name: value.shape for name, value in task.build_model().named_parameters()}
    keys = task.parameter_keys()
    assert set(keys) == {"embedding.tokens.weight", "head.weight", "head.bias"}
    for name, each in keys.items():
        assert len(each.keys[0]) == shapes[name][0], name
    assert keys["head.bias"].keys[0] == task.fitted.classes


def test_padding_and_hidden_tokens():
    task = make(token_dropout=0.5)
    batch = task.encode(ROWS)
    changed = task.augment(batch, torch.Generator().manual_seed(0))
    assert torch.equal(changed[LABEL], batch[LABEL])
    assert not torch.equal(changed[TOKENS], batch[TOKENS])
    torch.manual_seed(0)
    model = task.build_model().eval()
    filled = batch[TOKENS].clone()
    filled[1, int(batch[LENGTH][1]) :] = 7
    outputs = [
        model(each, batch[LENGTH])[1, : int(batch[LENGTH][1])] for each in (batch[TOKENS], filled)
    ]
    assert torch.allclose(*outputs, atol=1e-6)


def test_many_tags_are_scored_in_smaller_batches():
    assert make().scoring_rows == 4096
    rows = pl.DataFrame(
        {"text": [f"a{n}" for n in range(900)], "tags": [f"T{n}" for n in range(900)]}
    )
    assert make(rows, context_length=512).scoring_rows == 2**25 // (512 * 900)


def test_classes_in_the_order_of_the_training_split_do_not_depend_on_parts():
    shuffled = ROWS.sample(fraction=1.0, shuffle=True, seed=1)
    assert make(shuffled).fitted == make().fitted
    assert np.isclose(sum(make().fitted.class_shares), 1.0)
