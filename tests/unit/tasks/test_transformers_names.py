"""Published weights are found by the names of their files, whatever the package calls its modules."""

import polars as pl
import pytest
import torch

from perennial.contracts.data import TaskColumns
from perennial.contracts.errors import BadTaskError
from perennial.engine.initial_weights import load_initial_weights
from perennial.tasks.transformers_models import TransformersTextClassification
from stored_weights import store_weights

SIZES = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64,
    "max_position_embeddings": 16,
}  # fmt: skip


@pytest.fixture
def task(tmp_path, monkeypatch):
    """A BERT of two classes."""
    pytest.importorskip("transformers")
    monkeypatch.setenv("PERENNIAL_CACHE", str(tmp_path / "cache"))
    options = TransformersTextClassification.Options(context_length=16, config=SIZES)
    columns = TaskColumns(label="topic", features={"text": "String"})
    task = TransformersTextClassification(options, columns)
    task.fit(pl.LazyFrame({"text": ["a", "b"] * 4, "topic": ["x", "y"] * 4}))
    return task


def old_names(state):
    """The first BERTs call the parameters of layer normalisation gamma and beta."""
    return {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("Norm.bias", "Norm.beta"): value
        for name, value in state.items()
    }


def test_names_of_an_older_release_are_found(tmp_path, task):
    published, model = task.build_model().state_dict(), task.build_model()
    stored = old_names(published)
    assert set(stored) != set(published)
    load_initial_weights(model, task, store_weights(tmp_path, stored))
    for name, value in model.state_dict().items():
        assert torch.equal(value, published[name]), name


def test_names_that_nothing_knows_are_still_refused(tmp_path, task):
    stored = old_names(task.build_model().state_dict())
    stored["model.bert.pooler.other"] = torch.ones(2)
    with pytest.raises(BadTaskError, match=r"the model lacks model\.bert\.pooler\.other"):
        load_initial_weights(task.build_model(), task, store_weights(tmp_path, stored))


def test_a_tensor_under_both_names_is_refused(tmp_path, task):
    stored = task.build_model().state_dict()
    name = "model.bert.embeddings.LayerNorm"
    stored[f"{name}.gamma"] = torch.ones(32)
    with pytest.raises(BadTaskError, match=rf"the model lacks {name}\.gamma"):
        load_initial_weights(task.build_model(), task, store_weights(tmp_path, stored))
