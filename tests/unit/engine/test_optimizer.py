import pytest
import torch
from torch import nn

from components.engine.config import AdamW, Sgd, TrainingSection
from components.engine.optimizer import (
    build_optimizer,
    clip_gradients,
    local_squared_norm,
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


@pytest.mark.parametrize("max_norm", [0.5, 1e3, None])
def test_clipping_equals_pytorchs(max_norm):
    ours, theirs = nn.Linear(7, 5), nn.Linear(7, 5)
    for index, (one, other) in enumerate(zip(ours.parameters(), theirs.parameters(), strict=True)):
        one.grad = torch.randn(one.shape, generator=torch.Generator().manual_seed(index))
        other.grad = one.grad.clone()
    expected = nn.utils.clip_grad_norm_(theirs.parameters(), max_norm or 1e9)
    norm = local_squared_norm(ours.parameters(), is_first_rank=True).sqrt()
    clip_gradients(ours.parameters(), norm, max_norm)
    assert float(norm) == pytest.approx(float(expected), rel=1e-6)
    for one, other in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad)


def test_replicated_gradients_are_counted_once():
    layer = nn.Linear(2, 2)
    layer.weight.grad, layer.bias.grad = torch.ones(2, 2), torch.ones(2)
    assert float(local_squared_norm(layer.parameters(), is_first_rank=True)) == pytest.approx(6.0)
    assert float(local_squared_norm(layer.parameters(), is_first_rank=False)) == 0.0
