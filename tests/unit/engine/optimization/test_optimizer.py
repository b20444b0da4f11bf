import pytest
import torch
from torch import nn

from perennial.engine.config.optimization import Adafactor, Adam, AdamW, NAdam, Sgd
from perennial.engine.config.training import TrainingSection
from perennial.engine.optimization.adafactor import Adafactor as ShardedAdafactor
from perennial.engine.optimization.optimizer import (
    build_optimizer,
    follow_schedule,
    set_learning_rate,
)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 3)
        self.second = nn.Linear(3, 3)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        (AdamW(weight_decay=0.1), torch.optim.AdamW),
        (Adam(name="adam", weight_decay=0.1), torch.optim.Adam),
        (NAdam(name="nadam", weight_decay=0.1), torch.optim.NAdam),
        (Sgd(name="sgd", weight_decay=0.1), torch.optim.SGD),
        (Adafactor(name="adafactor", weight_decay=0.1), ShardedAdafactor),
    ],
)
def test_the_groups_carry_the_decay(settings, kind):
    optimizer = build_optimizer(Small(), TrainingSection(optimizer=settings))
    assert type(optimizer) is kind
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert [len(group["params"]) for group in optimizer.param_groups] == [2, 2]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (AdamW(betas=(0.8, 0.95)), {"betas": (0.8, 0.95), "foreach": True, "fused": False}),
        (AdamW(implementation="fused"), {"foreach": False, "fused": True}),
        (Adam(name="adam", betas=(0.7, 0.9)), {"betas": (0.7, 0.9), "foreach": True}),
        (Adam(name="adam", implementation="fused"), {"fused": True}),
        (NAdam(name="nadam"), {"decoupled_weight_decay": True, "foreach": True}),
        (Sgd(name="sgd"), {"momentum": 0.9, "nesterov": True, "foreach": True, "fused": False}),
        (Sgd(name="sgd", momentum=0.5, nesterov=False), {"momentum": 0.5, "nesterov": False}),
        (Adafactor(name="adafactor", scale_by_parameter=False), {"scale_by_parameter": False}),
    ],
)
def test_every_setting_reaches_the_algorithm(settings, expected):
    section = TrainingSection(optimizer=settings, strategy="ddp")
    for group in build_optimizer(Small(), section).param_groups:
        assert expected.items() <= group.items()
        assert group["lr"] == settings.learning_rate


def test_named_parameters_are_exempt_from_decay():
    settings = AdamW(weight_decay=0.1, no_decay=("second.*",))
    optimizer = build_optimizer(Small(), TrainingSection(optimizer=settings))
    assert [len(group["params"]) for group in optimizer.param_groups] == [1, 3]


@pytest.mark.parametrize(
    ("settings", "factor"),
    [
        (Sgd(name="sgd", reference_batch_size=64), 16.0),
        (AdamW(reference_batch_size=64), 4.0),
        (Adafactor(name="adafactor", reference_batch_size=4096), 0.5),
        (AdamW(), 1.0),
    ],
)
def test_the_rate_is_scaled_to_the_batch_where_asked_for(settings, factor, caplog):
    caplog.set_level("INFO")
    section = TrainingSection(
        optimizer=settings, global_batch_size=1024, schedule={"shape": "constant"}
    )
    optimizer = build_optimizer(Small(), section)
    peak = settings.learning_rate * factor
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([peak, peak])
    assert follow_schedule(optimizer, section, 1000) == pytest.approx(peak)
    assert ("tuned with batches of" in caplog.text) == (factor != 1.0)


@pytest.mark.parametrize(("settings", "name"), [(AdamW(), "betas"), (Sgd(name="sgd"), "momentum")])
def test_a_cycle_moves_the_momentum(settings, name):
    section = TrainingSection(steps=100, optimizer=settings, schedule={"shape": "one_cycle"})
    optimizer = build_optimizer(Small(), section)
    found = []
    for step in (0, 29, 99):
        follow_schedule(optimizer, section, step)
        values = {group[name] for group in optimizer.param_groups}
        assert len(values) == 1
        found.append(values.pop())
    expected = [0.95, 0.85, 0.95]
    if name == "betas":
        assert {second for _, second in found} == {0.999}
        found = [first for first, _ in found]
    assert found == pytest.approx(expected)


def test_a_rate_that_is_a_tensor_stays_the_same_object():
    optimizer = torch.optim.AdamW(Small().parameters(), lr=torch.tensor(0.5), foreach=False)
    rate = optimizer.param_groups[0]["lr"]
    set_learning_rate(optimizer, 0.25)
    assert optimizer.param_groups[0]["lr"] is rate
    assert float(rate) == 0.25
