"""LoRA adapters: exact on any processes and across interruptions, small, and equal when merged."""

from pathlib import Path

import pytest
import torch

from adapted_training import ADAPTER, square_job
from perennial.contracts.errors import DamagedModelError
from perennial.contracts.initial_model import FOLDER
from perennial.contracts.snapshot import Snapshot
from perennial.engine.adapters import merge_adapter
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.config.training import TrainingSection
from perennial.engine.task import load_task
from stored_weights import store_weights
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    preload,
    require_same_evaluations,
    run_ranks,
    tiny_section,
    weights,
    with_options,
)

STRATEGIES = [("single", 1), ("ddp", 2), ("fsdp", 2)]
RANDOM = TinyOptions(dropout=0.2)


@pytest.fixture(scope="module")
def base(root):
    """Weights in the store, made by this test."""
    preload("peft")
    task = load_task(
        "adapted_training:SquareTask", {}, Snapshot.read(root / "snapshot").task_columns
    )
    torch.manual_seed(3)
    return store_weights(root / "store", task.build_model().state_dict())


@pytest.fixture(scope="module")
def adapting(root, base):
    """A job with an adapter."""

    def make(strategy="single", processes=1, adapter=ADAPTER, **changes):
        options = changes.pop("options", None)
        job = square_job(
            root, initial=base, strategy=strategy, processes=processes, options=options
        )
        settings = {"strategy": strategy, "adapter": adapter, "log_every_steps": 1, **changes}
        section = TrainingSection.model_validate(
            tiny_section().model_dump() | settings, strict=False
        )
        return job.model_copy(update={"training": section})

    return make


@pytest.fixture(scope="module")
def straight(adapting):
    """Strategy → the training, each run once."""
    found = {}

    def run(strategy):
        if strategy not in found:
            found[strategy] = finished(adapting(strategy, dict(STRATEGIES)[strategy]))
        return found[strategy]

    return run


def test_all_strategies_train_the_same(straight):
    """Losses to 1e-6; the base keeps its bits, and the adapter does not stay as it was."""
    single, ddp, fsdp = (straight(strategy) for strategy, _ in STRATEGIES)
    assert largest_difference(weights(ddp), weights(fsdp)) == 0.0
    for one, other in zip(single.history, fsdp.history, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-6)
    assert single.history[-1].loss < 0.9 * single.history[0].loss


def test_only_the_adapter_moves(straight):
    first, last = (weights(straight("single"), step) for step in (8, 20))
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    assert moved == {name for name in first if "lora_" in name} | {"head.bias"}


@pytest.mark.parametrize(("strategy", "processes"), STRATEGIES[1:])
def test_an_interrupted_training_is_bit_identical(adapting, straight, strategy, processes):
    uninterrupted = finished(adapting(strategy, processes, options=RANDOM))
    fault = {"fault": "terminate", "fault_call": 8}
    job = adapting(strategy, processes, options=RANDOM.model_copy(update=fault))
    assert run_ranks(job) == [75] * processes
    resumed = finished(with_options(job, RANDOM))
    assert resumed.num_resumes == 1
    assert largest_difference(weights(uninterrupted), weights(resumed)) == 0.0
    require_same_evaluations(uninterrupted, resumed)


def test_a_checkpoint_is_less_than_2_percent_of_the_base(straight, base):
    (digest,) = base.origin.files.values()
    whole = (Path(base.store_uri) / FOLDER / f"{digest}.safetensors").stat().st_size
    folder = Path(straight("fsdp").checkpoints[-1].uri)
    own = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert own < 0.02 * whole, (own, whole)


def test_merged_and_unmerged_predictions_agree(straight):
    result = straight("ddp")
    _, model = load_checkpoint_model(result.checkpoints[-1].uri, result)
    x = torch.randn(50, 6, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        before = model(x)
        merge_adapter(model)
        assert float((model(x) - before).abs().max()) < 1e-5
    assert not [name for name in model.state_dict() if "lora_" in name or "base_layer" in name]


def test_a_checkpoint_without_its_base_is_not_loaded_at_random(straight, base, tmp_path):
    result = straight("single")
    elsewhere = result.model_copy(
        update={"initial": base.model_copy(update={"store_uri": str(tmp_path)})}
    )
    with pytest.raises(DamagedModelError, match="gone from the store"):
        load_checkpoint_model(result.checkpoints[-1].uri, elsewhere)
