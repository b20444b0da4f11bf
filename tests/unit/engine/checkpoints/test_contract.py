import pytest

from checkpoint_files import manifest
from perennial.contracts.errors import PerennialError
from perennial.engine.checkpoints.folder import differences, require_same_training

THEN = {"training": {"seed": 1, "clipping": {"max_norm": 1.0}}, "code": "abc", "gone": True}
NOW = {"training": {"seed": 2, "clipping": {"max_norm": 1.0}}, "code": "abc", "new": []}


def test_differences_are_named_with_both_values():
    assert differences(THEN, NOW) == [
        ("gone", "True", "(absent)"),
        ("new", "(absent)", "[]"),
        ("training.seed", "1", "2"),
    ]
    assert differences(THEN, THEN) == []


def test_a_section_that_becomes_a_value_differs():
    assert differences({"averaging": None}, {"averaging": {"decay": 0.9}}) == [
        ("averaging", "None", "(absent)"),
        ("averaging.decay", "(absent)", "0.9"),
    ]


def test_a_checkpoint_of_another_training_is_refused_and_the_settings_are_named():
    with pytest.raises(PerennialError) as raised:
        require_same_training("/there", manifest(8, contract=THEN), "other", NOW)
    text = str(raised.value)
    assert "/there belongs to another training" in text
    assert "training.seed: 1 in the checkpoint, 2 now" in text
    assert "max_norm" not in text


def test_a_checkpoint_of_the_same_training_is_accepted():
    require_same_training("/there", manifest(8, contract=THEN), "f", THEN)


def test_a_long_list_of_differences_is_cut():
    many = {f"key-{number:02}": number for number in range(20)}
    with pytest.raises(PerennialError, match="and 8 more"):
        require_same_training("/there", manifest(8, contract=many), "other", {})
