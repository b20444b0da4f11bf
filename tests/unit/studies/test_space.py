"""Search space: places of the unit cube and values, conditions, ties, grids."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perennial.contracts.errors import PerennialError
from perennial.studies.config import Dimension
from perennial.studies.space import Axis, Space, read_with
from perennial.training_jobs.config import TrainModelConfig

RANGES = {
    "log": (1e-5, 0.3), "linear": (-0.5, 2.0), "integer": (1, 7), "log_integer": (2, 300),
}  # fmt: skip


def axis_of(**fields):
    return Axis("training.x", Dimension(**fields))


@given(st.sampled_from(sorted(RANGES)), st.floats(0.0, 1.0))
def test_a_place_gives_a_value_in_the_range_and_the_value_its_place(kind, place):
    axis = axis_of(**{kind: RANGES[kind]})
    low, high = RANGES[kind]
    value = axis.value(place)
    assert low <= value <= high
    assert axis.value(min(max(axis.unit(value), 0.0), 1.0)) == value
    assert (axis.value(0.0), axis.value(1.0)) == (low, high)


def test_values_of_whole_numbers_choices_and_steps_are_equally_likely():
    places = [(i + 0.5) / 1200 for i in range(1200)]
    for axis, values in (
        (axis_of(integer=(2, 4)), [2, 3, 4]),
        (axis_of(choices=("a", "b", 3, True)), ["a", "b", 3, True]),
        (axis_of(linear=(0.0, 0.3), step=0.1), [0.0, 0.1, 0.2, 0.3]),
        (axis_of(integer=(32, 128), step=32), [32, 64, 96, 128]),
    ):
        found = [axis.value(place) for place in places]
        assert [found.count(value) for value in values] == [1200 // len(values)] * len(values)
        assert axis.values() == axis.grid_values() == values
        assert axis.size == len(values)


def test_a_value_outside_the_range_has_a_place_outside_the_cube():
    axis = axis_of(log=(1e-3, 1e-1))
    assert axis.unit(1e-4) == pytest.approx(-0.5)
    assert axis.unit(1.0) == pytest.approx(1.5)
    assert axis.unit(-1.0) == -math.inf
    assert axis.unit("text") is None
    assert axis_of(choices=(1, True)).unit(True) == 0.75


def test_a_hyperparameter_without_a_meaning_is_left_out():
    space = Space(
        {
            "a.momentum": Dimension(linear=(0.5, 0.9), when={"a.name": ("sgd",)}),
            "a.nesterov": Dimension(choices=(True, False), when={"a.momentum": (0.9,)}),
            "a.name": Dimension(choices=("adamw", "sgd")),
        },
        {},
    )
    assert space.free == ("a.name", "a.momentum", "a.nesterov")
    assert space.decode([0.1, 1.0, 0.0]) == {"a.name": "adamw"}
    assert space.decode([0.9, 1.0, 0.0]) == {
        "a.name": "sgd", "a.momentum": 0.9, "a.nesterov": True,
    }  # fmt: skip
    assert space.decode([0.9, 0.0, 0.0]) == {"a.name": "sgd", "a.momentum": 0.5}


def test_a_tied_hyperparameter_follows_another_or_the_contract():
    space = Space(
        {
            "a.micro": Dimension(same_as="a.batch", times=0.5),
            "a.half": Dimension(same_as="a.rate", times=0.5),
            "a.batch": Dimension(integer=(64, 256), step=64),
        },
        {"a.rate": 0.3, "a.batch": 1024},
    )
    assert space.free == ("a.batch",)
    assert space.decode([0.3]) == {"a.half": 0.15, "a.batch": 128, "a.micro": 64}
    assert isinstance(space.decode([0.3])["a.micro"], int)


def test_a_circle_is_refused():
    circle = {
        "a.b": Dimension(integer=(1, 2), when={"a.c": (1,)}),
        "a.c": Dimension(same_as="a.b"),
    }
    with pytest.raises(PerennialError, match="in a circle") as caught:
        Space(circle, {})
    assert "a.b depends on a.c" in caught.value.evidence


def test_a_grid_has_each_combination_once():
    space = Space(
        {
            "a.name": Dimension(choices=("adamw", "sgd")),
            "a.momentum": Dimension(linear=(0.0, 0.9), grid_points=3, when={"a.name": ("sgd",)}),
            "a.rate": Dimension(log=(1e-3, 1e-1), grid_points=2),
        },
        {},
    )
    grid = space.grid()
    assert len(grid) == 2 * (1 + 3)
    assert {values["a.rate"] for values in grid} == {1e-3, 1e-1}
    assert {values.get("a.momentum") for values in grid} == {None, 0.0, 0.45, 0.9}


CONTRACT = {
    "model": {"name": "m", "task": "tasks:Task"},
    "training": TrainModelConfig.model_fields["training"].default.model_dump(mode="json"),
}


def test_another_kind_of_a_table_keeps_the_options_that_it_has():
    values = {"training.optimizer.name": "sgd", "training.optimizer.momentum": 0.5}
    optimizer = read_with(TrainModelConfig, CONTRACT, values).training.optimizer
    assert (optimizer.name, optimizer.momentum, optimizer.learning_rate) == ("sgd", 0.5, 3e-4)


def test_a_kind_that_does_not_exist_is_refused_whatever_else_changes():
    values = {"training.optimizer.name": "lion", "training.steps": 60}
    with pytest.raises(ValueError, match="lion"):
        read_with(TrainModelConfig, CONTRACT, values)


def test_an_option_that_the_study_names_is_never_dropped():
    values = {"training.optimizer.name": "adamw", "training.optimizer.momentum": 0.5}
    with pytest.raises(ValueError, match="momentum"):
        read_with(TrainModelConfig, CONTRACT, values)
