"""Stored weights go where their names and keys say; what does not fit is refused by name."""

import polars as pl
import pytest
import torch
from torch import nn

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError, DamagedModelError
from perennial.contracts.initial_model import FOLDER, FormerTask
from perennial.engine.initial_weights import load_initial_weights
from perennial.engine.task import load_task
from perennial.tasks.token_classification import TokenClassification
from stored_weights import store_weights

TABULAR = "perennial.tasks.tabular:TabularClassification"
OPTIONS = {"hidden": [8], "min_category_rows": 1}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "cache"))


class Unkeyed:
    """A task whose parameters all have fixed places."""

    def parameter_keys(self):
        return {}

    def published_names(self, model, stored):
        return {}


def network(width=4):
    return nn.Sequential(nn.Linear(3, width), nn.ReLU(), nn.Linear(width, 2))


def fitted(features: dict, labels: list):
    """A tabular task that was fitted on these columns."""
    frame = pl.DataFrame({**features, "label": labels})
    dtypes = {name: str(dtype) for name, dtype in frame.schema.items() if name != "label"}
    task = load_task(TABULAR, OPTIONS, TaskColumns(label="label", features=dtypes))
    task.fit(frame.lazy())
    return task


def former_of(task) -> FormerTask:
    return FormerTask(task=TABULAR, options=OPTIONS, columns=task.columns, state=task.state())


def warm_started(tmp_path, before, after):
    """The model of a task that starts from the model of an earlier one; both, and the notes."""
    torch.manual_seed(1)
    old, new = before.build_model(), after.build_model()
    initial = store_weights(tmp_path, old.state_dict(), "champion", former=former_of(before))
    return old, new, load_initial_weights(new, after, initial)


def test_every_weight_is_taken_over_by_its_name(tmp_path):
    stored, model = network(), network()
    assert (
        load_initial_weights(model, Unkeyed(), store_weights(tmp_path, stored.state_dict())) == ()
    )
    for name, value in model.state_dict().items():
        assert torch.equal(value, stored.state_dict()[name])


def test_categories_and_classes_keep_their_rows_by_name_when_places_move(tmp_path):
    before = fitted(
        {"carrier": ["BB", "CC", "BB", "CC"], "x": [1.0, 2, 3, 4]}, ["n", "y", "z", "z"]
    )
    after = fitted({"carrier": ["AA", "BB", "BB", "DD"], "x": [1.0, 2, 3, 4]}, ["a", "n", "y", "z"])
    old, new, notes = warm_started(tmp_path, before, after)
    # Unknown, AA, BB, DD now; unknown, BB, CC then: BB moved from place 1 to 2.
    width = old.embeddings[0].weight.shape[1]
    assert torch.equal(new.embeddings[0].weight[2, :width], old.embeddings[0].weight[1])
    assert torch.equal(new.embeddings[0].weight[0, :width], old.embeddings[0].weight[0])
    assert torch.equal(new.output.weight[1:], old.output.weight)
    assert torch.equal(new.output.bias[1:], old.output.bias)
    assert "embedding of carrier: new AA, DD" in notes
    assert "embedding of carrier: left out CC" in notes
    assert "outputs: new a" in notes


def test_tags_keep_their_rows_and_a_new_tag_gets_one(tmp_path):
    def tagged(*tags):
        columns = TaskColumns(label="tags", features={"text": "String"})
        task = TokenClassification(TokenClassification.Options(width=32), columns)
        task.fit(pl.LazyFrame({"text": ["a b"] * len(tags), "tags": [f"O {tag}" for tag in tags]}))
        return task

    before, after = tagged("B-LOC", "B-PER"), tagged("B-LOC", "B-ORG", "B-PER")
    torch.manual_seed(1)
    old, new = before.build_model(), after.build_model()
    former = FormerTask(
        task="perennial.tasks.token_classification:TokenClassification", options={"width": 32},
        columns=before.columns, state=before.state(),
    )  # fmt: skip
    initial = store_weights(tmp_path, old.state_dict(), "champion", former=former)
    notes = load_initial_weights(new, after, initial)
    assert notes == ("outputs: new B-ORG", "output bias: new B-ORG")
    kept = [after.fitted.classes.index(tag) for tag in before.fitted.classes]
    assert torch.equal(new.head.weight[kept], old.head.weight)
    assert torch.equal(new.head.bias[kept], old.head.bias)
    assert torch.equal(new.embedding.tokens.weight, old.embedding.tokens.weight)


def test_a_new_column_moves_no_other_columns_inputs(tmp_path):
    label = ["n", "y", "n", "y"]
    before = fitted({"x": [1.0, 2, 3, 4], "z": [4.0, 3, 2, 1]}, label)
    after = fitted({"x": [1.0, 2, 3, 4], "y": [1.0, 1, 2, 2], "z": [4.0, 3, 2, 1]}, label)
    old, new, notes = warm_started(tmp_path, before, after)
    assert torch.equal(new.hidden[0].weight[:, [0, 2]], old.hidden[0].weight)
    assert notes == ("inputs: new ('y', 0)",)


def test_two_classes_that_became_three_start_their_layer_again(tmp_path):
    before = fitted({"x": [1.0, 2, 3]}, ["n", "y", "n"])
    after = fitted({"x": [1.0, 2, 3]}, ["n", "y", "z"])
    fresh = after.build_model().output.bias.clone()
    old, new, _ = warm_started(tmp_path, before, after)
    assert torch.equal(new.output.bias, fresh)
    assert torch.equal(new.hidden[0].weight, old.hidden[0].weight)


def test_a_task_knows_the_names_that_weights_were_published_under(tmp_path):
    class Published(Unkeyed):
        def published_names(self, model, stored):
            return {f"layers.{name}": name for name in model.state_dict()}

    stored, model = network(), network()
    tensors = {f"layers.{name}": value for name, value in stored.state_dict().items()}
    load_initial_weights(model, Published(), store_weights(tmp_path, tensors))
    for name, value in model.state_dict().items():
        assert torch.equal(value, stored.state_dict()[name])


def test_a_tied_weight_that_is_stored_once_is_not_missing(tmp_path):
    model = nn.ModuleDict({"tokens": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    model["head"].weight = model["tokens"].weight
    stored = torch.randn(5, 4)
    load_initial_weights(model, Unkeyed(), store_weights(tmp_path, {"tokens.weight": stored}))
    assert torch.equal(model["head"].weight, stored)


def test_names_are_renamed_by_their_longest_beginning(tmp_path):
    stored = {
        "0.weight": torch.ones(4, 3),
        "0.bias": torch.ones(4),
        "last.weight": torch.ones(2, 4),
    }
    model = nn.ModuleDict({"body": network()})
    rename = {"": "body.", "last.": "body.2."}
    initial = store_weights(tmp_path, stored, rename=rename, new=("body.2.bias",))
    load_initial_weights(model, Unkeyed(), initial)
    assert all(
        bool((value == 1).all()) for n, value in model.state_dict().items() if n[-6:] != "2.bias"
    )


def test_a_head_that_is_new_starts_at_random_whatever_its_stored_shape(tmp_path):
    stored, model = network(), network()
    tensors = stored.state_dict() | {"2.weight": torch.ones(7, 4), "2.bias": torch.ones(7)}
    before = model[2].weight.clone()
    load_initial_weights(model, Unkeyed(), store_weights(tmp_path, tensors, new=("2.*",)))
    assert torch.equal(model[2].weight, before)
    assert torch.equal(model[0].weight, stored[0].weight)


@pytest.mark.parametrize(
    ("tensors", "fields", "error"),
    [
        ({}, {}, r"the stored weights lack 0.bias, 0.weight, 2.bias, 2.weight"),
        ({"extra": torch.ones(1)}, {}, r"the model lacks extra"),
        ({"0.weight": torch.ones(5, 3)}, {}, r"stored \[5, 3\], in the model \[4, 3\]"),
        ({"0.weight": torch.ones(12)}, {}, r"stored \[12\], in the model \[4, 3\]"),
        ({"0.weight": torch.ones(4, 3)}, {"new": ("heads.*",)}, r"model.initial.new: 'heads.\*'"),
        ({"0.weight": torch.ones(4, 3)}, {"unused": ("x",)}, "model.initial.unused: 'x'"),
        (
            {"a.0.weight": torch.ones(4, 3), "0.weight": torch.ones(4, 3)},
            {"rename": {"a.": ""}},
            "two stored weights the name '0.weight'",
        ),
    ],
)  # fmt: skip
def test_weights_that_do_not_fit_are_refused_by_name(tmp_path, tensors, fields, error):
    whole = network().state_dict() if tensors else {"other": torch.ones(1)}
    initial = store_weights(tmp_path, {**whole, **tensors}, **fields)
    with pytest.raises(BadTaskError, match=error):
        load_initial_weights(network(), Unkeyed(), initial)


def test_weights_that_are_not_finite_are_refused(tmp_path):
    tensors = network().state_dict() | {"0.bias": torch.full((4,), float("nan"))}
    with pytest.raises(DamagedModelError, match=r"0.bias(.|\n)*not finite"):
        load_initial_weights(network(), Unkeyed(), store_weights(tmp_path, tensors))


def test_a_stored_file_that_was_replaced_is_refused(tmp_path):
    initial = store_weights(tmp_path, network().state_dict())
    (file,) = (tmp_path / FOLDER).iterdir()
    file.write_bytes(file.read_bytes()[:-1] + b"\1")
    with pytest.raises(DamagedModelError, match="is not the file that was pinned"):
        load_initial_weights(network(), Unkeyed(), initial)
