import pytest
from pydantic import ValidationError

from perennial.engine.config.training import TrainingSection

FUSED_SGD = {"name": "sgd", "implementation": "fused"}
CYCLE = {"shape": "one_cycle"}


def section(**settings):
    return TrainingSection.model_validate(settings, strict=False)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"optimizer": FUSED_SGD, "strategy": "fsdp"}, "no fused SGD for sharded weights"),
        (
            {"optimizer": FUSED_SGD, "strategy": "hsdp", "parallelism": {"replicas": 2}},
            "no fused SGD for sharded weights",
        ),
        ({"optimizer": FUSED_SGD, "strategy": "auto"}, "no fused SGD for sharded weights"),
        (
            {"optimizer": FUSED_SGD, "strategy": "ddp", "parallelism": {"tensor": 2}},
            "no fused SGD for sharded weights",
        ),
        ({"optimizer": {"name": "adamw8bit"}, "parallelism": {"tensor": 2}}, "adamw8bit"),
        ({"optimizer": {"name": "sgd", "momentum": 0.0}}, "nesterov = false"),
        ({"optimizer": {"name": "adafactor"}, "schedule": CYCLE}, "has no momentum"),
        (
            {"optimizer": {"name": "sgd", "momentum": 0.0, "nesterov": False}, "schedule": CYCLE},
            "has no momentum",
        ),
        ({"optimizer": {"name": "adamw8bit"}, "schedule": CYCLE}, "compile its kernel again"),
        ({"steps": 100, "schedule": {"steps": 90}}, "is not training.steps = 100"),
        ({"clipping": {"method": "value"}}, "max_value"),
        ({"clipping": {"method": "value", "max_value": 1.0, "max_norm": 1.0}}, "max_norm"),
        ({"clipping": {"method": "none", "max_norm": 1.0}}, "max_norm"),
        ({"clipping": {"percentile": 50.0}}, "percentile"),
        ({"clipping": {"method": "median"}}, "median"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(settings, message):
    with pytest.raises(ValidationError, match=message):
        section(**settings)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": FUSED_SGD, "strategy": "ddp"},
        {"optimizer": FUSED_SGD, "strategy": "single"},
        {"optimizer": {"name": "adamw", "implementation": "fused"}, "strategy": "fsdp"},
        {"optimizer": {"name": "adafactor"}, "schedule": CYCLE | {"cycle_momentum": False}},
        {"optimizer": {"name": "nadam"}, "schedule": CYCLE},
        {"steps": 100, "schedule": {"steps": 90, "allow_other_length": True}},
        {"steps": 100, "schedule": {"shape": "wsd", "steps": 100}},
        {"clipping": {"method": "adaptive", "percentile": 75.0, "window": 50}},
        {"clipping": {"max_norm": 2.0}},
        {"averaging": {"decay": 0.99, "warm_up": False}},
    ],
)
def test_what_works_is_accepted_and_travels_as_json(settings):
    first = section(**settings)
    assert TrainingSection.from_json(first.to_json()) == first
