import pytest
import torch
from torch import nn

from components.engine.config import TrainingSection
from components.engine.optimization.config import AdamW, Sgd
from components.engine.optimization.optimizer import (
    build_optimizer,
    split_by_decay,
)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 4)
        self.linear = nn.Linear(4, 3)
        self.norm = nn.LayerNorm(3)
        self.frozen = nn.Linear(3, 3).requires_grad_(False)


def test_only_matrices_decay():
    model = Small()
    decayed, exempt = split_by_decay(model)
    assert [id(parameter) for parameter in decayed] == [id(model.linear.weight)]
    names = {
        name for name, value in model.named_parameters() if any(value is other for other in exempt)
    }
    assert names == {"embedding.weight", "linear.bias", "norm.weight", "norm.bias"}


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (AdamW(weight_decay=0.1), torch.optim.AdamW),
        (Sgd(name="sgd", weight_decay=0.1), torch.optim.SGD),
    ],
)
def test_the_groups_carry_the_decay(settings, kind):
    optimizer = build_optimizer(Small(), TrainingSection(optimizer=settings))
    assert isinstance(optimizer, kind)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
