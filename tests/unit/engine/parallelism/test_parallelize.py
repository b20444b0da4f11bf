import pytest
import torch
from torch import nn

from components.contracts.errors import PerennialError
from components.engine.config import TrainingSection
from components.engine.distributed import World
from components.engine.parallelism.parallelize import parallelize, require_strategy

ALONE, PAIR = (
    World(rank=0, local_rank=0, size=size, device=torch.device("cpu")) for size in (1, 2)
)


def test_single_refuses_several_processes():
    with pytest.raises(PerennialError, match="started with 2 processes"):
        parallelize(nn.Linear(2, 2), None, TrainingSection(strategy="single"), PAIR)


def test_single_leaves_the_model_alone():
    model = nn.Linear(2, 2)
    assert parallelize(model, None, TrainingSection(strategy="single"), ALONE) is model


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_a_strategy_that_does_not_run_is_an_error(strategy):
    with pytest.raises(
        PerennialError, match=f"'{strategy}' was asked for, but .* runs as 'single'"
    ):
        require_strategy(nn.Linear(2, 2), strategy)
