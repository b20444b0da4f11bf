import pytest
from pydantic import ValidationError

from components.engine.config import AdamW, Sgd, TrainingSection


def test_the_defaults_fit_one_and_two_processes():
    section = TrainingSection()
    assert section.gradient_accumulation_steps(1) == 2
    assert section.gradient_accumulation_steps(2) == 1


@pytest.mark.parametrize(("world", "expected"), [(1, 8), (2, 4), (4, 2), (8, 1)])
def test_accumulation_follows_from_the_number_of_processes(world, expected):
    section = TrainingSection(global_batch_size=64, micro_batch_size=8)
    assert section.gradient_accumulation_steps(world) == expected


@pytest.mark.parametrize(("world", "suggested"), [(3, 48), (16, 128)])
def test_a_batch_that_cannot_be_cut_is_an_error_with_the_numbers(world, suggested):
    section = TrainingSection(global_batch_size=64, micro_batch_size=8)
    with pytest.raises(
        ValueError, match=rf"64 .*8 x {world} processes = {8 * world}; take {suggested} "
    ):
        section.gradient_accumulation_steps(world)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{}", AdamW()),
        ('{"optimizer": {"learning_rate": 0.001}}', AdamW(learning_rate=0.001)),
        ('{"optimizer": {"name": "sgd", "momentum": 0.5}}', Sgd(name="sgd", momentum=0.5)),
    ],
)
def test_the_optimizer_is_adamw_unless_named(text, expected):
    section = TrainingSection.from_json(text)
    assert section.optimizer == expected
    assert TrainingSection.from_json(section.to_json()) == section


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"optimizer": {"name": "sgd", "betas": [0.9, 0.99]}}', "betas"),
        ('{"optimizer": {"name": "adamw", "momentum": 0.9}}', "momentum"),
        ('{"optimizer": {"name": "lion"}}', "lion"),
        ('{"optimizer": "sgd"}', "optimizer"),
        ('{"epochs": 3}', "epochs"),
        ('{"steps": 0}', "steps"),
        ('{"steps": "10"}', "steps"),
        ('{"strategy": "tensor"}', "strategy"),
    ],
)
def test_what_would_be_ignored_or_misread_is_refused(text, message):
    with pytest.raises(ValidationError, match=message):
        TrainingSection.from_json(text)
