"""A planted fault of a small training is diagnosed; sound trainings get no finding."""

import pytest
import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

from perennial.contracts.training import EvaluationPoint
from perennial.engine.evaluation.diagnosis import diagnose

EVALUATIONS = 40


def rows(count, generator, label_noise):
    inputs = torch.randn(count, 10, generator=generator)
    logits = 2 * inputs[:, 0] + inputs[:, 1] * inputs[:, 2]
    flipped = torch.rand(count, generator=generator) < label_noise
    return inputs, ((logits > 0) ^ flipped).float()


def trained(
    *, rates, seed=0, width=16, training_rows=2000, validation_rows=2000, label_noise=0.05,
    batch=64, steps=10,
):  # fmt: skip
    """Evaluations of a network trained by plain SGD; `rates` is the rate at each evaluation."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(10, width), nn.Tanh(), nn.Linear(width, 1), nn.Flatten(0))
    inputs, labels = rows(training_rows, generator, label_noise)
    seen, truth = rows(validation_rows, generator, label_noise)
    points = []
    for index, rate in enumerate(rates):
        optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
        losses = []
        for _ in range(steps):
            drawn = torch.randint(len(labels), (batch,), generator=generator)
            loss = cross_entropy(model(inputs[drawn]), labels[drawn])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
        with torch.no_grad():
            figure = cross_entropy(model(seen), truth).item()
        points.append(
            EvaluationPoint(
                step=(index + 1) * steps, train_loss=sum(losses) / steps, metrics={"loss": figure}
            )
        )
    return points


def falling(peak):
    """A rate that falls to nothing, as a schedule's does."""
    return [peak * (1 - index / EVALUATIONS) for index in range(EVALUATIONS)]


FAULTS = {
    "too short": ("longer", {"rates": [0.003] * EVALUATIONS}),
    "too long": ("shorter", {"rates": falling(0.1), "steps": 80, "width": 4}),
    "too few rows": (
        "regularise",
        {"rates": [0.2] * EVALUATIONS, "training_rows": 100, "width": 128, "label_noise": 0.2},
    ),
    "a rate that grows without end": (
        "bug",
        {"rates": [0.02] * 15 + [0.02 * 1.35**n for n in range(25)], "width": 64},
    ),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", FAULTS)
def test_a_faulty_training_gets_the_advice_that_fixes_it(name, seed):
    advice, settings = FAULTS[name]
    found = diagnose(trained(seed=seed, **settings), "loss", "minimize")
    assert found.advice == advice, found.findings


@pytest.mark.parametrize("seed", range(5))
def test_a_sound_training_is_not_called_faulty(seed):
    found = diagnose(trained(seed=seed, rates=falling(0.1), steps=20), "loss", "minimize")
    assert found.advice in ("nothing", "longer", "shorter")
    for alarm in ("overfitting", "training loss rises", "jumps by", "not better"):
        assert alarm not in " ".join(found.findings)
