"""Edits of a contract keep its comments and order, and change nothing else."""

import tomllib

import pytest

from perennial.contract_file.edits import change_options
from perennial.contracts.errors import PerennialError

CONTRACT = """\
# What this model is for.
[model]
name = "digits" # never change it
options = { hidden = [8, 8], dropout = 0.1 }

[training]
steps = 150
optimizer = { name = "adamw", learning_rate = 3e-3 } # found by hand
betas = [
  0.9, # first
  0.99,
]

[training.schedule]
warm_up = 10
# the end
"""


def changed_lines(before, after):
    old, new = before.splitlines(), after.splitlines()
    return [line for line in new if line not in old], [line for line in old if line not in new]


@pytest.mark.parametrize(
    ("option", "value", "new", "old"),
    [
        ("training.steps", 300, ["steps = 300"], ["steps = 150"]),
        (
            "training.optimizer.learning_rate",
            0.01,
            ['optimizer = { name = "adamw", learning_rate = 0.01 } # found by hand'],
            ['optimizer = { name = "adamw", learning_rate = 3e-3 } # found by hand'],
        ),
        (
            "training.optimizer.weight_decay",
            0.1,
            [
                'optimizer = { name = "adamw", learning_rate = 0.003, weight_decay = 0.1 } '
                "# found by hand"
            ],
            ['optimizer = { name = "adamw", learning_rate = 3e-3 } # found by hand'],
        ),
        ("training.schedule.warm_up", 20, ["warm_up = 20"], ["warm_up = 10"]),
        ("training.schedule.name", "cosine", ['name = "cosine"'], []),
        ("training.seed", 7, ["seed = 7"], []),
        ("training.clip.norm", 1.5, ["clip.norm = 1.5"], []),
        ("model.name", "figures", ['name = "figures" # never change it'], ['name = "digits" # never change it']),
        ("gate.metric", "log_loss", ["[gate]", 'metric = "log_loss"'], []),
    ],
)  # fmt: skip
def test_one_option_is_changed_in_place(option, value, new, old):
    after = change_options(CONTRACT, {option: value})
    assert changed_lines(CONTRACT, after) == (new, old)
    document, (*tables, name) = tomllib.loads(after), option.split(".")
    for table in tables:
        document = document[table]
    assert document[name] == value


def test_a_value_of_several_lines_is_replaced_whole():
    after = change_options(CONTRACT, {"training.betas": [0.8, 0.9]})
    assert tomllib.loads(after)["training"]["betas"] == [0.8, 0.9]
    assert "betas = [0.8, 0.9]\n" in after


def test_an_option_is_removed():
    text = "[training]\nsteps = 3 # few\nbetas = [\n  0.9,\n]\nseed = 1\n"
    assert (
        change_options(text, {"training.betas": None}) == "[training]\nsteps = 3 # few\nseed = 1\n"
    )
    inline = "optimizer = { learning_rate = 1e-3, betas = [0.9, 0.99] }\n"
    after = change_options(inline, {"optimizer.betas": None})
    assert after == "optimizer = { learning_rate = 0.001 }\n"


def test_dotted_and_quoted_keys_are_found():
    text = '[training]\noptimizer.learning_rate = 1e-3 # a\n"steps" = 3\n'
    after = change_options(text, {"training.optimizer.learning_rate": 0.1, "training.steps": 4})
    assert after == '[training]\noptimizer.learning_rate = 0.1 # a\n"steps" = 4\n'


def test_a_number_sign_in_a_text_is_no_comment():
    text = '[model]\nname = "a # b" # c\n'
    assert change_options(text, {"model.name": "d"}) == '[model]\nname = "d" # c\n'


def test_a_file_without_a_line_end_is_continued():
    after = change_options("[training]\nsteps = 3", {"training.seed": 1})
    assert after == "[training]\nsteps = 3\nseed = 1\n"


def test_what_cannot_be_changed_is_reported_with_the_line_to_write():
    with pytest.raises(PerennialError, match="cannot be changed in place") as raised:
        change_options("training = 3\n", {"training.steps": 4})
    assert "steps = 4" in str(raised.value)
