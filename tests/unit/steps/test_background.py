"""A function runs beside a block and ends with it, also when the block fails."""

import threading

import pytest

from perennial.steps.background import running_beside


@pytest.mark.parametrize("error", [None, ValueError])
def test_the_work_ends_with_the_block(error):
    began, seen = threading.Event(), []

    def work(ended):
        began.set()
        ended.wait(timeout=10)
        seen.append(ended.is_set())

    try:
        with running_beside(work, "work"):
            assert began.wait(timeout=10)
            assert any(each.name == "work" for each in threading.enumerate())
            if error is not None:
                raise error
    except ValueError:
        assert error is ValueError
    assert seen == [True]
    assert all(each.name != "work" for each in threading.enumerate())
