"""A family of `transformers` named in the contract is a task like the reference one."""

import sys
from functools import partial

import polars as pl
import pytest
import torch
from torch import nn

from documents import SETTINGS, documents, pinned
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.contracts.errors import BadTaskError
from perennial.data.dataset import Dataset
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import inputs_of
from perennial.tasks.transformers_models import TransformersCausalLM

FAMILIES = {
    "gpt2": {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 24},
    "llama": {
        "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1,
    },
}  # fmt: skip
NAMES = (
    "per_example_losses", "example_weights", "initial_loss", "future_independence",
    "example_independence", "parameter_gradients", "state_round_trip",
)  # fmt: skip


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory):
    return pinned(tmp_path_factory.mktemp("documents"), documents())


def task_of(snapshot, **options):
    section = TransformersCausalLM.Options.model_validate({"context_length": 24} | options)
    return TransformersCausalLM(section, snapshot.task_columns)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_passes_the_checks(snapshot, family):
    pytest.importorskip("transformers")
    make_task = partial(task_of, snapshot, model_type=family, config=FAMILIES[family])
    subject = Subject.prepare(make_task, Dataset(snapshot), SETTINGS, TrainingSection(seed=1))
    results = run_checks(subject, NAMES)
    assert {result.check: result.measured for result in results if result.outcome != "passed"} == {}


@pytest.mark.parametrize("family", FAMILIES)
def test_the_layers_are_its_blocks_and_windows_are_seen_alone(snapshot, family):
    pytest.importorskip("transformers")
    options = {"model_type": family, "config": FAMILIES[family], "windows": 2}
    task = task_of(snapshot, **options)
    model = task.build_model().eval()
    assert len(task.blocks(model)) == 2
    batch = task.encode(pl.DataFrame({"text": ["a text beyond the first window of tokens"]}))
    with torch.no_grad():
        whole = model(**inputs_of(batch))
        model.windows = 1
        second = model(batch["tokens"][:, 24:])
    assert whole.shape == (1, 48, 257)
    assert torch.allclose(whole[:, 24:], second, atol=1e-5)


class ManyExperts(nn.Module):
    """Two layers of eight experts each."""

    def __init__(self):
        super().__init__()
        experts = [nn.ModuleList(nn.Linear(4, 4) for _ in range(8)) for _ in range(2)]
        self.layers = nn.ModuleList(nn.ModuleDict({"experts": each}) for each in experts)


def test_the_blocks_are_the_layers_not_the_experts_of_one(snapshot):
    model = ManyExperts()
    assert task_of(snapshot).blocks(model) == list(model.layers)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"model_type": "no-such-family"}, "no-such-family"),
        ({"model_type": "gpt2", "config": {"hiden_size": 32}}, "hiden_size"),
        ({"model_type": "gpt2", "config": {"n_embd": 30, "n_head": 4}}, "gpt2"),
    ],
)
def test_what_the_family_does_not_know_is_refused(snapshot, options, named):
    pytest.importorskip("transformers")
    with pytest.raises(BadTaskError, match=named):
        task_of(snapshot, **options).build_model()


def test_without_the_package_the_extra_is_named(snapshot, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(BadTaskError, match="perennial\\[transformers\\]"):
        task_of(snapshot).build_model()
