import pytest

from perennial.contracts.training import StepPoint
from perennial.engine.optimization.clip_rate import constant_clipping


def history(*shares):
    return [
        StepPoint(
            step=index, loss=1.0, learning_rate=1.0, gradient_norm=1.0, clipped_share=share,
            examples_per_second=1.0, data_wait_share=0.0,
        )
        for index, share in enumerate(shares)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "is_constant"),
    [
        ((), False),
        ((1.0, 1.0, 1.0, 1.0), False),
        ((1.0, 1.0, 1.0, 1.0, 1.0), True),
        ((0.1, 0.1, 0.1, 0.1, 0.1), False),
        ((0.5, 0.5, 0.5, 0.5, 0.5), False),
        ((0.5, 0.5, 0.5, 0.5, 0.6), True),
        ((1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0), False),
        ((0.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0), True),
    ],
)
def test_only_the_last_intervals_count_and_more_than_half_is_constant(shares, is_constant):
    assert (constant_clipping(history(*shares)) is not None) == is_constant


def test_the_warning_names_share_and_remedies():
    text = constant_clipping(history(*[0.8] * 5))
    assert "80%" in text
    assert "Raise the limit" in text
    assert "lower the learning rate" in text
