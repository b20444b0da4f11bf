import pytest
from pydantic import ValidationError

from components.engine.config import TrainingSection
from components.engine.optimization.config import AdamW, Sgd


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
        (
            '{"evaluate_every_steps": 20, "checkpoints": {"keep_every_steps": 50}}',
            "keep_every_steps = 50 names steps without a checkpoint",
        ),
        ('{"optimizer": {"name": "adamw", "momentum": 0.9}}', "momentum"),
        ('{"optimizer": {"name": "lion"}}', "lion"),
        ('{"optimizer": "sgd"}', "optimizer"),
        ('{"epochs": 3}', "epochs"),
        ('{"steps": 0}', "steps"),
        ('{"steps": "10"}', "steps"),
        ('{"strategy": "tensor"}', "strategy"),
        ('{"reduce_precision": "compute"}', "changes nothing"),
        ('{"reduce_precision": "compute", "precision": "bf16", "strategy": "ddp"}', "strategy"),
    ],
)
def test_what_would_be_ignored_or_misread_is_refused(text, message):
    with pytest.raises(ValidationError, match=message):
        TrainingSection.from_json(text)
