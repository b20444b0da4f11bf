from types import SimpleNamespace

import pytest
import torch

from gathering_ranks import InBatch, compare_a_batch_of_all_ranks, gather_beside_a_shared_gradient
from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.worker import build_loader
from tiny_training import run_ranks, tiny_job


def test_gathering_leaves_the_gradients_of_others_alone(root):
    assert run_ranks(tiny_job(root), gather_beside_a_shared_gradient) == [0, 0]


def test_losses_that_compare_rows_get_those_of_all_processes(root):
    assert run_ranks(tiny_job(root), compare_a_batch_of_all_ranks) == [0, 0]


def test_processes_that_share_rows_are_refused_with_such_losses():
    world = SimpleNamespace(size=4, data_size=2, device=torch.device("cpu"))
    task = InBatch(InBatch.Options(), None)
    section = TrainingSection(global_batch_size=64, micro_batch_size=32)
    with pytest.raises(PerennialError, match="4 processes share 2 parts of a batch"):
        build_loader(task, SimpleNamespace(answers=None), section, world)
