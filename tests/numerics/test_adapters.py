"""LoRA adapters: exact on any processes and across interruptions, small, and equal when merged."""

from pathlib import Path

import pytest
import torch

from adapted_training import ADAPTER, SquareTask, square_job
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.contracts.initial_model import FOLDER
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger, ScoredCandidate
from perennial.engine.adapters import build_starting_model
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.config.training import TrainingSection
from perennial.engine.export import WEIGHTS_FILE, load_model
from perennial.engine.optimization.optimizer import build_optimizer
from perennial.engine.optimization.parameters import freeze, named_weights
from perennial.engine.task import load_task
from perennial.select_checkpoint.candidates import export
from perennial.select_checkpoint.rescoring import Rescoring
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
FAST = {"optimizer": {"name": "adamw", "learning_rate": 1e-2}}
RANDOM = TinyOptions(dropout=0.2)


def section(**changes):
    return TrainingSection.model_validate(tiny_section().model_dump() | changes, strict=False)


def stored_bytes(base):
    (digest,) = base.origin.files.values()
    return (Path(base.store_uri) / FOLDER / f"{digest}.safetensors").stat().st_size


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
        # What the strategy needs besides is in the section that replaces this one.
        first = "fsdp" if strategy == "hsdp" else strategy
        job = square_job(root, initial=base, strategy=first, processes=processes, options=options)
        settings = {
            "strategy": strategy,
            "adapter": adapter,
            "log_every_steps": 1,
            **FAST,
            **changes,
        }
        section = TrainingSection.model_validate(
            tiny_section().model_dump() | settings, strict=False
        )
        return job.model_copy(update={"training": section})

    return make


@pytest.fixture(scope="module")
def straight(adapting):
    """Strategy, bits of the base → the training, each run once."""
    found = {}

    def run(strategy, bits=32):
        if (strategy, bits) not in found:
            adapter = {**ADAPTER, "base_bits": bits}
            job = adapting(strategy, dict(STRATEGIES)[strategy], adapter=adapter)
            found[strategy, bits] = finished(job)
        return found[strategy, bits]

    return run


@pytest.mark.parametrize("bits", [32, *(pytest.param(n, marks=pytest.mark.full) for n in (4, 8))])
def test_all_strategies_train_the_same(straight, bits):
    """Losses to 1e-6; the base keeps its bits, and the adapter does not stay as it was."""
    single, ddp, fsdp = (straight(strategy, bits) for strategy, _ in STRATEGIES)
    assert largest_difference(weights(ddp), weights(fsdp)) == 0.0
    for one, other in zip(single.history, fsdp.history, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-6)
    assert single.history[-1].loss < 0.9 * single.history[0].loss
    assert single.num_parameters == fsdp.num_parameters > 768 * 768 * 4, "of any bits"


@pytest.mark.full
@pytest.mark.parametrize("bits", [32, 4])
@pytest.mark.parametrize(
    "changes",
    [
        {"strategy": "hsdp", "parallelism": {"replicas": 2}},
        {"strategy": "fsdp", "parallelism": {"zero_stage": 2}},
        {"strategy": "fsdp", "memory": {"activation_checkpointing": "full"}},
    ],
)
def test_other_layouts_train_the_same(adapting, straight, changes, bits):
    found = finished(adapting(processes=2, adapter={**ADAPTER, "base_bits": bits}, **changes))
    for one, other in zip(straight("single", bits).history, found.history, strict=True):
        assert one.loss == pytest.approx(other.loss, abs=1e-6)


@pytest.mark.parametrize("bits", [32, 4])
def test_only_the_adapter_moves(straight, bits):
    first, last = (weights(straight("single", bits), step) for step in (8, 20))
    moved = {name for name in first if not torch.equal(first[name], last[name])}
    assert moved == {name for name in first if "lora_" in name} | {"head.bias"}


@pytest.mark.parametrize(
    ("strategy", "bits"),
    [
        ("fsdp", 32),
        *(
            pytest.param(*each, marks=pytest.mark.full)
            for each in (("ddp", 32), ("fsdp", 4), ("ddp", 4))
        ),
    ],
)
def test_an_interrupted_training_is_bit_identical(adapting, strategy, bits):
    processes, adapter = 2, {**ADAPTER, "base_bits": bits}
    uninterrupted = finished(adapting(strategy, processes, adapter, options=RANDOM))
    fault = {"fault": "terminate", "fault_call": 8}
    job = adapting(strategy, processes, adapter, options=RANDOM.model_copy(update=fault))
    assert run_ranks(job) == [75] * processes
    resumed = finished(with_options(job, RANDOM))
    assert resumed.num_resumes == 1
    assert largest_difference(weights(uninterrupted), weights(resumed)) == 0.0
    require_same_evaluations(uninterrupted, resumed)


@pytest.mark.parametrize("bits", [32, pytest.param(4, marks=pytest.mark.full)])
def test_a_checkpoint_is_less_than_2_percent_of_the_base(straight, base, bits):
    folder = Path(straight("fsdp", bits).checkpoints[-1].uri)
    own = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    assert own < 0.02 * stored_bytes(base)


@pytest.fixture
def export_model(root, tmp_path):
    """Exports weights of a training as the selection does, and loads them as the gate does."""

    def run(result, members=(), **adapter):
        folder = tmp_path / f"export-{len(list(tmp_path.iterdir()))}"
        changes = {"adapter": result.adapter.model_copy(update=adapter)}
        changed = result.model_copy(update=changes)
        changed.write(folder / "training")
        rescoring = Rescoring(folder / "training", root / "snapshot", folder / "scratch")
        last = result.checkpoints[-1]
        chosen = ScoredCandidate(
            step=last.step, uri=last.uri, metrics={}, standard_error=0.0, kept_as=last.kept_as,
            members=members,
        )  # fmt: skip
        Challenger(
            task=result.task, options=result.options, task_state=result.task_state,
            columns=result.columns, training_fingerprint=result.fingerprint, metric="rmse",
            direction="minimize", chosen_step=last.step, candidates=(), reason="", diagnosis=(),
            weights_sha256=export(chosen, rescoring, folder / "model")[0], initial=result.initial,
            adapter=changed.adapter,
        ).write(folder / "model")  # fmt: skip
        return load_model(folder / "model")[1], folder / "model" / WEIGHTS_FILE

    return run


def predict(model):
    with torch.no_grad():
        return model(torch.randn(50, 6, generator=torch.Generator().manual_seed(0)))


@pytest.mark.parametrize(("strategy", "bits"), [("fsdp", 32), ("single", 4)])
def test_merged_and_unmerged_exports_agree(straight, base, export_model, strategy, bits):
    """The one is less than 2 % of the base, the other as large and of the task's own layers.

    Of few bits, the base that is trained is scored and served, and the sum is of its weights.
    """
    result = straight(strategy, bits)
    (adapted, small), (merged, large) = export_model(result), export_model(result, merge=True)
    expected = predict(load_checkpoint_model(result.checkpoints[-1].uri, result)[1])
    assert torch.equal(predict(adapted), expected)
    assert float((predict(merged) - expected).abs().max()) < 1e-5
    own = SquareTask(TinyOptions(), None).build_model().state_dict().keys()
    assert merged.state_dict().keys() == own
    assert small.stat().st_size < 0.02 * stored_bytes(base) < large.stat().st_size


@pytest.mark.parametrize("bits", [32, 4])
def test_the_mean_of_two_checkpoints_is_an_adapter_as_well(straight, base, export_model, bits):
    result = straight("single", bits)
    steps = tuple(record.step for record in result.checkpoints)
    mean, small = export_model(result, members=steps)
    states = [weights(result, step)["blocks.1.0.lora_B.default.weight"] for step in steps]
    found = mean.state_dict()["blocks.1.0.lora_B.default.weight"]
    assert torch.allclose(found, sum(states) / len(states), atol=1e-7)
    assert small.stat().st_size < 0.02 * stored_bytes(base)


@pytest.mark.parametrize(("bits", "share"), [(32, 1.0), (4, 0.16)])
def test_a_plan_counts_optimizer_state_for_the_adapter_alone(adapting, base, bits, share):
    plan = finished(adapting("auto", adapter={**ADAPTER, "base_bits": bits})).memory_plan.chosen
    whole = stored_bytes(base)
    assert plan.strategy == "single"
    assert (share - 0.02) * whole < plan.weights < (share + 0.02) * whole
    assert plan.optimizer_state < 0.02 * whole
    assert plan.staging < 0.02 * whole
    assert plan.loading > whole - 5000, "it is loaded in float32, before it is quantized"


STAGES = [{"steps": 6, "trainable": ["head.*"]}, {"steps": 14}]


@pytest.mark.parametrize("strategy", ["single", pytest.param("fsdp", marks=pytest.mark.full)])
def test_stages_and_frozen_parts_of_an_adapter_resume_bit_for_bit(adapting, strategy):
    processes = dict(STRATEGIES)[strategy]
    changes = {"stages": STAGES, "frozen": ["blocks.3.*"]}
    straight = finished(adapting(strategy, processes, options=RANDOM, **changes))
    # A single process needs two passes for an update.
    fault = {"fault": "terminate", "fault_call": 10 if strategy == "single" else 5}
    job = adapting(strategy, processes, options=RANDOM.model_copy(update=fault), **changes)
    assert run_ranks(job) == [75] * processes
    resumed = finished(with_options(job, RANDOM))
    assert largest_difference(weights(straight), weights(resumed)) == 0.0
    kept = weights(resumed)["blocks.3.0.lora_B.default.weight"]
    assert torch.equal(kept, torch.zeros_like(kept))


def test_rates_and_layer_decay_reach_the_adapter(base):
    optimizer = {"name": "adamw", "rates": {"*.lora_B.*": 4.0}, "layer_decay": 0.5}
    training = section(adapter=ADAPTER, optimizer=optimizer)
    task = SquareTask(TinyOptions(), None)
    model = build_starting_model(task, training, base)
    freeze(model, training)
    built = build_optimizer(model, training, find_blocks=lambda: task.blocks(model))
    names = {id(value): name for name, value in named_weights(model).items()}
    rates = {
        names[id(each)]: round(group["lr"] / 3e-4, 6)
        for group in built.param_groups
        for each in group["params"]
    }
    assert rates == {
        "blocks.1.0.lora_A.default.weight": 0.125, "blocks.1.0.lora_B.default.weight": 0.5,
        "blocks.3.0.lora_A.default.weight": 0.5, "blocks.3.0.lora_B.default.weight": 2.0,
        "head.bias": 1.0,
    }  # fmt: skip


def test_alpha_scales_and_dropout_thins_the_product(base):
    def answers(train=False, **adapter):
        training = section(adapter={**ADAPTER, **adapter})
        model = build_starting_model(SquareTask(TinyOptions(), None), training, base).train(train)
        with torch.no_grad():
            untouched = predict(model)
            for name, each in model.named_parameters():
                if "lora_B" in name:
                    each.fill_(1e-4)
            return predict(model) - untouched

    plain = answers()
    assert torch.allclose(answers(alpha=4.0), 2.0 * plain, rtol=1e-2, atol=1e-6)
    assert not torch.allclose(answers(rank=4, alpha=8.0), plain, rtol=1e-2)
    assert torch.equal(answers(dropout=0.5), plain)
    assert not torch.allclose(answers(train=True, dropout=0.5), plain, rtol=1e-2)


@pytest.mark.parametrize(
    ("adapter", "error"),
    [
        ({"targets": ["blok.*"]}, "those that can are: embedding, blocks.0.0, blocks.1.0"),
        ({"whole": ["haed.*"]}, r"training.adapter.whole: 'haed.\*' matches no parameter"),
        ({"whole": ["blocks.1.*"]}, "matches blocks.1.0.weight, which has an adapter"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(base, adapter, error):
    with pytest.raises(PerennialError, match=error):
        build_starting_model(
            SquareTask(TinyOptions(), None), section(adapter={**ADAPTER, **adapter}), base
        )


def test_a_base_of_4_bits_is_small_and_another_function(base):
    """So it matters which of the two is scored and served."""
    task = SquareTask(TinyOptions(), None)
    whole, few = (
        build_starting_model(task, section(adapter={**ADAPTER, "base_bits": bits}), base)
        for bits in (32, 4)
    )
    held = [each for each in few.parameters() if not each.requires_grad]
    assert sum(each.nbytes for each in held) < 0.16 * stored_bytes(base)
    assert 1e-4 < float((predict(few) - predict(whole)).abs().max()) < 1e-2


def test_weights_that_two_modules_share_are_refused(tmp_path):
    class Tied(SquareTask):
        def build_model(self):
            model = super().build_model()
            model.blocks[3][0].weight = model.blocks[2][0].weight
            return model

    task = Tied(TinyOptions(), None)
    tied = store_weights(
        tmp_path, {k: v.clone() for k, v in task.build_model().state_dict().items()}
    )
    with pytest.raises(PerennialError, match=r"blocks.3.0 shares its weights with another module"):
        build_starting_model(task, section(adapter=ADAPTER), tied)


def test_an_adapter_of_random_weights_is_refused():
    with pytest.raises(PerennialError, match="has no weights to adapt"):
        build_starting_model(SquareTask(TinyOptions(), None), section(adapter=ADAPTER), None)


@pytest.mark.parametrize("dimension", ["tensor", "pipeline", "context", "expert"])
def test_dimensions_that_divide_modules_are_refused_by_the_contract(dimension):
    with pytest.raises(
        ValueError, match=f"adapter cannot be combined with parallelism.{dimension}"
    ):
        section(adapter=ADAPTER, parallelism={dimension: 2})


def test_a_checkpoint_without_its_base_is_not_loaded_at_random(straight, base, tmp_path):
    result = straight("single")
    elsewhere = result.model_copy(
        update={"initial": base.model_copy(update={"store_uri": str(tmp_path)})}
    )
    with pytest.raises(DamagedModelError, match="gone from the store"):
        load_checkpoint_model(result.checkpoints[-1].uri, elsewhere)
