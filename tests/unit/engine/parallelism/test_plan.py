import pytest
from pydantic import ValidationError
from torch import nn

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.config.parallelism import Parallelism
from perennial.engine.config.training import TrainingSection
from perennial.engine.parallelism.plan import checked_plan, matching
from perennial.engine.task import ParallelPlan

PLAN = ParallelPlan(blocks="blocks", tensor={"head": "logits"}, divisible={"heads": 4})


@pytest.mark.parametrize("dimension", ["tensor", "context", "expert", "pipeline"])
@pytest.mark.parametrize("plan", [None, ParallelPlan()])
def test_a_dimension_without_a_plan_names_the_method_to_write(plan, dimension):
    with pytest.raises(BadTaskError, match=rf"{dimension} = 2, but MyTask.*\n.*parallel_plan\(\)"):
        checked_plan(plan, "MyTask", Parallelism(**{dimension: 2}))


@pytest.mark.parametrize("parallelism", [Parallelism(), Parallelism(tensor=4)])
def test_a_plan_that_covers_what_is_used_is_taken(parallelism):
    assert checked_plan(PLAN, "MyTask", parallelism) is PLAN
    assert checked_plan(None, "MyTask", Parallelism()) is None


def test_sizes_that_cannot_be_divided_are_named():
    with pytest.raises(PerennialError, match=r"model.options.heads = 4 is not divisible by .* 8"):
        checked_plan(PLAN, "MyTask", Parallelism(tensor=8))


def test_a_star_matches_one_segment():
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.ReLU()), nn.Linear(1, 1))
    assert [name for name, _ in matching(model, "*.0", "MyTask")] == ["0.0"]
    assert [name for name, _ in matching(model, "*", "MyTask")] == ["0", "1"]
    with pytest.raises(BadTaskError, match=r"names '\*\.7', which its model does not have"):
        list(matching(model, "*.7", "MyTask"))


@pytest.mark.parametrize(
    ("strategy", "parallelism", "message"),
    [
        ("fsdp", {"replicas": 2}, "needs strategy = 'hsdp'"),
        ("hsdp", {}, "needs parallelism.replicas > 1"),
        ("fsdp", {"pipeline_schedule": "gpipe"}, "has no effect with pipeline = 1"),
        ("fsdp", {"sequence_parallel": True}, "needs parallelism.tensor > 1"),
        ("ddp", {"tensor": 2}, "parallelism.tensor needs strategy = 'fsdp' or 'hsdp'"),
        ("ddp", {"expert": 2}, "parallelism.expert needs strategy = 'fsdp' or 'hsdp'"),
        ("ddp", {"zero_stage": 3}, "supports 1; stage 1 is `ddp`, 2 and 3 are `fsdp`"),
        ("fsdp", {"zero_stage": 1}, "supports 2 or 3"),
        ("single", {"zero_stage": 2}, "a single process shares nothing"),
    ],
)
def test_what_a_strategy_cannot_run_is_refused_with_the_contract(strategy, parallelism, message):
    with pytest.raises(ValidationError, match=message):
        TrainingSection(strategy=strategy, parallelism=parallelism)


@pytest.mark.parametrize(
    ("strategy", "parallelism"),
    [
        ("hsdp", {"replicas": 2, "zero_stage": 2}),
        ("ddp", {"zero_stage": 1, "context": 2}),
        ("fsdp", {"tensor": 2, "sequence_parallel": True, "zero_stage": 3}),
        ("auto", {}),
    ],
)
def test_what_a_strategy_can_run_is_accepted(strategy, parallelism):
    assert TrainingSection(strategy=strategy, parallelism=parallelism).strategy == strategy
