import pytest

from perennial.engine.checkpoints.checkpointer import Retention


@pytest.mark.parametrize(
    ("losses", "direction", "expected"),
    [
        ({}, "minimize", {}),
        ({1: 3.0}, "minimize", {1: ("best", "last")}),
        ({1: 3.0, 2: 1.0, 3: 2.0, 4: 9.0}, "minimize", {2: ("best",), 3: ("best",), 4: ("last",)}),
        ({1: 3.0, 2: 1.0, 3: 2.0, 4: 9.0}, "maximize", {1: ("best",), 4: ("best", "last")}),
        ({1: 1.0, 2: 1.0, 3: 1.0, 4: 1.0}, "minimize", {1: ("best",), 2: ("best",), 4: ("last",)}),
    ],
)
def test_the_best_and_the_last_are_kept_and_ties_go_to_the_earlier(losses, direction, expected):
    retention = Retention(2, None, "loss", direction)
    assert retention.choose({step: {"loss": loss} for step, loss in losses.items()}) == expected


@pytest.mark.parametrize("measured", [{}, {"other": 1.0}, {"loss": float("nan")}])
def test_a_checkpoint_without_a_figure_is_kept_only_as_the_last(measured):
    retention = Retention(1, None, "loss", "minimize")
    assert retention.choose({1: {"loss": 2.0}, 2: measured, 3: {"loss": 3.0}, 4: measured}) == {
        1: ("best",),
        4: ("last",),
    }


def test_the_better_of_weights_and_average_counts():
    figures = {
        1: {"loss": 2.0, "averaged_loss": 9.0},
        2: {"loss": 5.0, "averaged_loss": 1.0},
        3: {"loss": 3.0, "averaged_loss": 3.0},
    }
    assert Retention(1, None, "loss", "minimize").choose(figures) == {2: ("best",), 3: ("last",)}
    kept = Retention(1, None, "loss", "maximize").choose(figures)
    assert kept == {1: ("best",), 3: ("last",)}


def test_checkpoints_of_every_so_many_steps_are_kept_whatever_their_figures():
    retention = Retention(1, 20, "loss", "minimize")
    kept = retention.choose({step: {"loss": float(step)} for step in (10, 20, 30, 40, 50)})
    assert kept == {10: ("best",), 20: ("interval",), 40: ("interval",), 50: ("last",)}


def test_one_checkpoint_may_be_kept_for_several_reasons():
    retention = Retention(1, 10, "loss", "minimize")
    assert retention.choose({10: {"loss": 1.0}}) == {10: ("best", "interval", "last")}
