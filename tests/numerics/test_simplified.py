"""`training.simplified` trains what the same contract without its extras trains, bit for bit."""

import pytest
import torch
from torch import nn

from perennial.contracts.snapshot import Snapshot
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import training_contract, training_fingerprint
from perennial.engine.simplified import dropped_shares, turn_off_dropout
from perennial.train_model.report import training_page
from tiny_training import (
    TinyOptions,
    finished,
    largest_difference,
    require_same_evaluations,
    tiny_job,
    tiny_section,
    weights,
)

EXTRAS = {
    "optimizer": {"weight_decay": 0.3}, "averaging": {"decay": 0.9},
    "schedule": {"shape": "linear", "warmup_fraction": 0.2},
}  # fmt: skip
TURNED_OFF = (
    "training.optimizer.weight_decay = 0.3",
    'training.schedule.shape = "linear"',
    "training.averaging (decay 0.9)",
    "dropout in 2 places of the model",
    "RegularisedTask.augment",
    "what RegularisedTask.training_losses adds to its losses",
)


def job(root, task, dropout, **changes):
    made = tiny_job(root, options=TinyOptions(dropout=dropout))
    section = TrainingSection.model_validate(tiny_section().model_dump() | changes, strict=False)
    model = made.model.model_copy(update={"task": f"tiny_training:{task}"})
    return made.model_copy(update={"training": section, "model": model})


@pytest.fixture(scope="module")
def simplified(root):
    made = job(root, "RegularisedTask", 0.4, simplified=True, **EXTRAS)
    return made, finished(made)


def test_it_equals_a_contract_without_augmentation_regularisation_and_schedule(root, simplified):
    _, result = simplified
    bare = {"weight_decay": 0.0}
    constant = {"shape": "constant", "warmup_fraction": 0.2}
    plain = finished(job(root, "TinyTask", 0.0, optimizer=bare, schedule=constant))
    assert largest_difference(weights(result), weights(plain)) == 0.0
    require_same_evaluations(result, plain)
    assert {point.learning_rate for point in result.history[2:]} == {3e-4}


def test_what_it_turns_off_is_named_in_the_log_the_result_and_the_report(simplified):
    made, result = simplified
    assert result.turned_off == TURNED_OFF
    log = (made.logs / "rank-0.log").read_text()
    page = training_page(result, "")
    assert page.outcome == "warned"
    for each in TURNED_OFF:
        assert each in log
        assert each.replace('"', "&#34;") in page.html()


def test_it_is_another_training_than_the_full_one(root):
    snapshot = Snapshot.read(root / "snapshot")

    def fingerprint(**changes):
        made = job(root, "RegularisedTask", 0.4, **EXTRAS, **changes)
        return training_fingerprint(training_contract(snapshot, made.model, made.training, "code"))

    assert fingerprint(simplified=True) != fingerprint()


def test_without_it_nothing_is_turned_off():
    section = tiny_section()
    assert section.without_extras() is section
    short = section.model_copy(update={"simplified": True}).without_extras()
    assert short.without_extras() == short
    staged = TrainingSection.model_validate(
        {"simplified": True, "stages": [{"steps": 2000, "schedule": {"shape": "cosine"}}]},
        strict=False,
    ).without_extras()
    assert staged.stages[0].schedule is None
    assert staged.schedule.shape == "constant"


class StochasticDepth(nn.Module):
    def __init__(self):
        super().__init__()
        self.p = 0.2


class Attention(nn.Module):
    """As `transformers` writes them: a share that `forward` gives to a function."""

    def __init__(self):
        super().__init__()
        self.attention_dropout = 0.1
        self.scale = 0.25


@pytest.mark.parametrize(
    ("module", "names"),
    [
        (nn.Dropout(0.3), ["p"]),
        (nn.Dropout2d(0.3), ["p"]),
        (nn.Dropout(0.0), []),
        (nn.LSTM(2, 2, num_layers=2, dropout=0.3), ["dropout"]),
        (nn.MultiheadAttention(4, 2, dropout=0.3), ["dropout"]),
        (StochasticDepth(), ["p"]),
        (Attention(), ["attention_dropout"]),
        (nn.Linear(2, 2), []),
        (nn.GroupNorm(1, 2), []),
    ],
    ids=lambda value: type(value).__name__,
)
def test_every_share_of_dropped_values_is_found_and_no_other_number(module, names):
    before = dict(vars(module))
    assert list(dropped_shares(module)) == names
    assert turn_off_dropout(nn.Sequential(module)) == len(names)
    for name, value in vars(module).items():
        assert value == 0.0 if name in names else value is before[name]


def test_an_encoder_of_transformers_layers_then_computes_alike_twice():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.5, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).train()
    inputs = torch.randn(3, 5, 8)
    assert not torch.equal(model(inputs), model(inputs))
    turn_off_dropout(model)
    assert torch.equal(model(inputs), model(inputs))
