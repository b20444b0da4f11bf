import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.parallelism.parallelize import (
    free_gathered_parameters,
    parallelize,
    require_strategy,
    warm_up_buckets,
)
from perennial.engine.world.distributed import World
from tiny_training import TinyOptions, TinyTask

ALONE, PAIR = (
    World(rank=0, local_rank=0, size=size, device=torch.device("cpu")) for size in (1, 2)
)


@pytest.fixture
def alone_in_a_group(tmp_path):
    """This process as the only rank of a real group."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_single_refuses_several_processes():
    with pytest.raises(PerennialError, match="started with 2 processes"):
        parallelize(nn.Linear(2, 2), None, TrainingSection(strategy="single"), PAIR)


def test_single_leaves_the_model_alone(alone_in_a_group):
    model, task = nn.Linear(2, 2), TinyTask(TinyOptions(), None)
    world = ALONE.arrange(TrainingSection(strategy="single"))
    before = dict(model.named_parameters())
    assert parallelize(model, task, TrainingSection(strategy="single"), world) is model
    assert all(weight is before[name] for name, weight in model.named_parameters())


class Immovable(nn.Module):
    """Too large for a device: only parts of it may be moved."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(2, 2)])
        self.register_buffer("scale", torch.ones(1))

    def _apply(self, change, recurse=True):
        raise AssertionError("the whole model was moved at once")


def test_only_what_is_not_sharded_moves_as_a_whole(alone_in_a_group):
    for strategy, moves in (("fsdp", False), ("ddp", True)):
        training, task = TrainingSection(strategy=strategy), TinyTask(TinyOptions(), None)
        world = ALONE.arrange(training)
        if moves:
            with pytest.raises(AssertionError, match="moved at once"):
                parallelize(Immovable(), task, training, world)
        else:
            model = parallelize(Immovable(), task, training, world)
            assert all(isinstance(weight, DTensor) for weight in model.parameters())


def test_offloading_to_the_device_of_the_weights_is_reported_as_useless(alone_in_a_group, caplog):
    training = TrainingSection(strategy="fsdp", memory={"parameter_offload": True})
    task = TinyTask(TinyOptions(), None)
    parallelize(task.build_model(), task, training, ALONE.arrange(training))
    assert "parameter_offload changes nothing on a CPU" in caplog.text


class Recording(nn.Linear):
    def forward(self, x):
        output = super().forward(x)
        self.seen = (len(x), output.dtype)
        return output


def test_buckets_settle_in_the_types_of_the_training(alone_in_a_group):
    training = TrainingSection(strategy="ddp", precision="bf16")
    layer = Recording(2, 2, bias=False)
    model = DistributedDataParallel(layer)
    warm_up_buckets(model, {"x": torch.ones(2, 2)}, training, ALONE.device)
    assert layer.seen == (2, torch.bfloat16)
    assert layer.weight.grad is None


@pytest.mark.parametrize(
    "asked",
    [
        {"strategy": "ddp"},
        {"strategy": "fsdp"},
        {"strategy": "hsdp", "parallelism": {"replicas": 2}},
    ],
    ids=str,
)
def test_a_strategy_that_does_not_run_is_an_error(asked):
    with pytest.raises(
        PerennialError, match=f"'{asked['strategy']}' was asked for, but .* runs as 'single'"
    ):
        require_strategy(nn.Linear(2, 2), TrainingSection(**asked))


@pytest.mark.parametrize(
    ("ran", "asked", "message"),
    [
        (
            {"strategy": "fsdp"},
            {"strategy": "hsdp", "parallelism": {"replicas": 2}},
            "'hsdp' was asked for, .* as 'fsdp'",
        ),
        ({"strategy": "fsdp"}, {"strategy": "ddp"}, "'ddp' was asked for, .* as 'fsdp'"),
        (
            {"strategy": "fsdp"},
            {"strategy": "fsdp", "parallelism": {"tensor": 2}},
            "without tensor parallelism",
        ),
        (
            {"strategy": "fsdp"},
            {"strategy": "fsdp", "parallelism": {"expert": 2}},
            "without expert parallelism",
        ),
    ],
)
def test_a_layout_that_does_not_run_is_an_error(alone_in_a_group, ran, asked, message):
    world = ALONE.arrange(TrainingSection(**ran))
    task = TinyTask(TinyOptions(), None)
    model = parallelize(task.build_model(), task, TrainingSection(**ran), world)
    require_strategy(model, TrainingSection(**ran))
    with pytest.raises(PerennialError, match=message):
        require_strategy(model, TrainingSection(**asked))


@pytest.mark.parametrize(("zero_stage", "stays"), [(None, False), (3, False), (2, True)])
def test_stage_2_keeps_weights_gathered_after_the_forward_pass(alone_in_a_group, zero_stage, stays):
    training = TrainingSection(strategy="fsdp", parallelism={"zero_stage": zero_stage})
    task = TinyTask(TinyOptions(), None)
    model = parallelize(task.build_model(), task, training, ALONE.arrange(training))
    model(torch.zeros(2, 6))
    gathered = [not isinstance(weight, DTensor) for weight in model.blocks.parameters()]
    assert gathered == [stays] * len(gathered)
    free_gathered_parameters(model)
    assert all(isinstance(weight, DTensor) for weight in model.parameters())


def test_a_part_that_is_sharded_already_is_a_mixture(alone_in_a_group):
    training = TrainingSection(strategy="fsdp")
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    fully_shard(model[0], mesh=ALONE.arrange(training).layout.dense["shard"])
    with pytest.raises(PerennialError, match="runs as 'a mixture'"):
        require_strategy(model, training)
