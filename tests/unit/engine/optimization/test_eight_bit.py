import sys

import pytest
import torch
from torch import nn

from perennial.contracts.errors import PerennialError
from perennial.engine.config.optimization import AdamW8bit
from perennial.engine.config.training import TrainingSection
from perennial.engine.optimization.optimizer import (
    adamw_8bit_type,
    build_optimizer,
    set_learning_rate,
)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao.optim", None)
    with pytest.raises(PerennialError, match=r"pip install 'perennial\[optimizers\]'"):
        adamw_8bit_type(is_on_gpu=False)


@pytest.mark.filterwarnings("ignore")  # torchao's own, about its optional kernels
def test_the_settings_reach_the_optimizer():
    pytest.importorskip("torchao", reason="needs perennial[optimizers]")
    settings = AdamW8bit(name="adamw8bit", betas=(0.8, 0.9), weight_decay=0.1)
    optimizer = build_optimizer(nn.Linear(64, 64), TrainingSection(optimizer=settings))
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert {group["betas"] for group in optimizer.param_groups} == {(0.8, 0.9)}
    set_learning_rate(optimizer, 0.25)
    assert all(
        isinstance(group["lr"], torch.Tensor) and float(group["lr"]) == 0.25
        for group in optimizer.param_groups
    )
