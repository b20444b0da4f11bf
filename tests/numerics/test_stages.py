"""Stages, frozen parameters and rates of their own: exact on any processes, and across interruptions."""

import pytest
import torch

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.optimization.optimizer import build_optimizer
from perennial.engine.optimization.parameters import freeze, named_weights
from tiny_training import (
    TinyModel,
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
    run_ranks,
    tiny_job,
    tiny_section,
    weights,
    with_options,
)

STAGES = [
    {"steps": 6, "trainable": ["head.*"], "learning_rate": 1e-2},
    {"steps": 6, "trainable": ["head.*", "blocks.1.*"], "schedule": {"shape": "constant"}},
    {"steps": 8},
]
STAGED = {
    "stages": STAGES,
    "frozen": ["blocks.0.0.bias"],
    "optimizer": {"name": "adamw", "rates": {"head.*": 3.0}, "layer_decay": 0.5},
}


def section(**changes) -> TrainingSection:
    return TrainingSection.model_validate(tiny_section().model_dump() | changes, strict=False)


def staged(root, *, processes=2, options=None, **changes):
    job = tiny_job(
        root, processes=processes, options=options, strategy=changes.get("strategy", "fsdp")
    )
    return job.model_copy(update={"training": section(**STAGED, **changes)})


def moved(before, after):
    """The first parts of the names of what two states differ in."""
    return {
        name.rpartition(".")[0] for name in before if not torch.equal(before[name], after[name])
    }


@pytest.fixture(scope="module")
def straight(root):
    """One process, never interrupted, with every checkpoint kept."""
    checkpoints = {"keep_best": 9, "keep_every_steps": 1}
    job = staged(root, strategy="single", evaluate_every_steps=1, checkpoints=checkpoints)
    return finished(job)


def test_each_stage_moves_only_its_own_parameters(root, straight):
    states = {step: weights(straight, step) for step in (1, 6, 7, 12, 13, 20)}
    assert moved(states[1], states[6]) == {"head"}
    assert moved(states[6], states[12]) == {"head", "blocks.1.0"}
    assert moved(states[12], states[20]) == {"head", "blocks.1.0", "blocks.0.0"}
    assert torch.equal(states[1]["blocks.0.0.bias"], states[20]["blocks.0.0.bias"])


def test_each_stage_follows_its_own_schedule(root):
    job = staged(root, strategy="single", log_every_steps=1)
    rates = [point.learning_rate for point in finished(job).history]
    assert rates[0] == 1e-2
    assert rates[6:12] == [3e-4] * 6
    assert rates[12] == 3e-4
    assert rates[19] < 5e-5


@pytest.mark.parametrize(("strategy", "processes"), [("ddp", 2), ("fsdp", 2)])
def test_sharded_stages_are_those_of_one_process(root, straight, strategy, processes):
    job = staged(root, strategy=strategy, processes=processes, evaluate_every_steps=1)
    found = finished(job)
    assert largest_difference(weights(found), weights(straight)) < 1e-6


RANDOM = TinyOptions(dropout=0.2, batch_norm=True)


@pytest.mark.parametrize(
    ("strategy", "processes"),
    [("single", 1), ("fsdp", 2), pytest.param("ddp", 2, marks=pytest.mark.full)],
)
@pytest.mark.parametrize("stop_after", [6, 8])
def test_a_training_interrupted_at_or_behind_a_border_is_bit_identical(
    root, strategy, processes, stop_after
):
    settings = {"strategy": strategy, "processes": processes}
    uninterrupted = finished(staged(root, options=RANDOM, **settings))
    forwards = 2 if strategy == "single" else 1
    # The calls of a stage's task are counted through: the same task object serves all.
    fault = {"fault": "terminate", "fault_call": (stop_after - 1) * forwards}
    job = staged(root, options=RANDOM.model_copy(update=fault), **settings)
    assert run_ranks(job) == [75] * processes
    resumed = finished(with_options(job, RANDOM))
    assert resumed.num_resumes >= 1
    assert largest_difference(weights(uninterrupted), weights(resumed)) == 0.0
    require_same_evaluations(uninterrupted, resumed)


def test_a_frozen_batch_normalisation_keeps_its_statistics(root):
    job = tiny_job(root, strategy="single", options=TinyOptions(batch_norm=True))
    state = weights(finished(job.model_copy(update={"training": section(frozen=["blocks.0.*"])})))
    assert torch.equal(state["blocks.0.1.running_mean"], torch.zeros(17))
    assert int(state["blocks.0.1.num_batches_tracked"]) == 0


def test_rates_are_factors_by_block_and_pattern():
    model = TinyModel(TinyOptions())
    optimizer = build_optimizer(model, section(**STAGED), find_blocks=lambda: list(model.blocks))
    names = {id(value): name for name, value in named_weights(model).items()}
    rates = {
        names[id(each)]: round(group["lr"] / 3e-4, 6)
        for group in optimizer.param_groups
        for each in group["params"]
    }
    assert rates["head.weight"] == 3.0
    assert rates["blocks.1.0.weight"] == 0.5
    assert rates["blocks.0.0.weight"] == 0.25


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"frozen": ["body.*"]}, r"training.frozen: 'body.\*' matches no parameter"),
        ({"frozen": ["*"]}, "no parameter is trained from step 0 on"),
        (
            {"stages": [{"steps": 6}, {"steps": 14, "trainable": ["haed.*"]}]},
            r"training.stages\[1\].trainable: 'haed.\*' matches no parameter",
        ),
    ],
)
def test_patterns_that_match_nothing_are_refused_before_the_first_update(changes, error):
    with pytest.raises(PerennialError, match=error):
        freeze(TinyModel(TinyOptions()), section(**changes))


def test_layer_decay_needs_blocks():
    decayed = section(optimizer={"name": "adamw", "layer_decay": 0.9})
    with pytest.raises(PerennialError, match="the task names no blocks"):
        build_optimizer(TinyModel(TinyOptions()), decayed)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"stages": [{"steps": 6}, {"steps": 6}]}, "add up to 12, but steps = 20: set steps = 12"),
        ({"stages": STAGES, "averaging": {}}, "cannot be combined with averaging"),
        ({"stages": STAGES, "anomalies": {"spike": "rewind"}}, "cannot be combined with anomalies"),
        ({"stages": STAGES, "extended_from": [10]}, "cannot be combined with extended_from"),
        ({"stages": [{"steps": 20, "schedule": {"shape": "linear", "steps": 9}}]}, "schedule.steps = 9"),
    ],
)  # fmt: skip
def test_stages_that_cannot_be_trained_are_refused_by_the_contract(changes, error):
    with pytest.raises(ValueError, match=error):
        section(**changes)
