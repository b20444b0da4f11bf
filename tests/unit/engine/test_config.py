import json

import pytest
from pydantic import ValidationError

from perennial.engine.config.optimization import AdamW, Sgd
from perennial.engine.config.training import TrainingSection


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
            "keep_every_steps = 50 is not a multiple of",
        ),
        ('{"optimizer": {"name": "adamw", "momentum": 0.9}}', "momentum"),
        ('{"optimizer": {"name": "lion"}}', "lion"),
        ('{"optimizer": "sgd"}', "optimizer"),
        ('{"steps": 5, "profile": {"start_step": 6}}', "start_step = 6 is never reached"),
        ('{"epochs": 3}', "epochs"),
        ('{"steps": 0}', "steps"),
        ('{"steps": "10"}', "steps"),
        ('{"strategy": "tensor"}', "strategy"),
        ('{"loading": {"workers": 2, "prefetch_batches": 0}}', "workers = 2 has no effect"),
        ('{"anomalies": {"max_skipped": 3}}', "max_skipped = 3 has an effect only"),
        ('{"anomalies": {"max_rewinds": 1}}', "max_rewinds = 1 has an effect only"),
        (
            '{"anomalies": {"spike": "ignore", "spike_window_steps": 9}}',
            "spike_window_steps = 9 has an effect only",
        ),
        (
            '{"watchdog": {"hang_factor": null, "on_hang": "dump"}}',
            "on_hang = 'dump' has no effect",
        ),
        (
            '{"watchdog": {"hang_factor": null, "minimum_seconds": 5.0}}',
            "minimum_seconds = 5.0 has no effect",
        ),
        (
            '{"memory": {"activation_offload": true}, "parallelism": {"tensor": 2}}',
            "cannot be combined with parallelism.tensor",
        ),
        ('{"reduce_precision": "compute"}', "changes nothing"),
        ('{"reduce_precision": "compute", "precision": "bf16", "strategy": "ddp"}', "strategy"),
    ],
)
def test_what_would_be_ignored_or_misread_is_refused(text, message):
    with pytest.raises(ValidationError, match=message):
        TrainingSection.from_json(text)


@pytest.mark.parametrize(
    "text",
    [
        '{"loading": {"workers": 2}}',
        '{"anomalies": {"not_finite": "skip", "max_skipped": 3}}',
        '{"anomalies": {"spike": "rewind", "max_rewinds": 1, "spike_window_steps": 9}}',
        '{"anomalies": {"spike": "ignore"}}',
        '{"watchdog": {"hang_factor": null}}',
        '{"watchdog": {"on_hang": "dump", "minimum_seconds": 5.0}}',
        '{"schedule": {"shape": "one_cycle", "cycle_momentum": false}}',
        '{"memory": {"activation_offload": true}}',
    ],
)
def test_what_has_an_effect_is_accepted_and_stored(text):
    section = TrainingSection.from_json(text)
    assert TrainingSection.from_json(section.to_json()) == section


@pytest.mark.parametrize(
    ("current", "removed"),
    [
        (
            {"optimizer": {"name": "adafactor"}},
            {"relative_step": False, "second_moment_decay": -0.8, "update_threshold": 1.0},
        ),
        ({"optimizer": {"name": "nadam"}}, {"momentum_decay": 0.004}),
        ({"schedule": {"shape": "wsd"}}, {"decay_shape": "sqrt"}),
        (
            {"optimizer": {"name": "sgd"}, "schedule": {"shape": "one_cycle"}},
            {
                "anneal": "cosine",
                "initial_fraction": 0.04,
                "lowest_momentum": 0.85,
                "highest_momentum": 0.95,
            },
        ),
    ],
)
def test_a_section_that_an_earlier_version_stored_is_read(current, removed):
    name = list(current)[-1]
    stored = current | {name: current[name] | removed}
    expected = TrainingSection.from_json(json.dumps(current))
    assert TrainingSection.from_json(json.dumps(stored)) == expected
