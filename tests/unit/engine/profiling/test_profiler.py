import pytest

from perennial.engine.config.training import Profile
from perennial.engine.profiling.profiler import Profiler


class Clock:
    seconds_waited = 0.0


@pytest.mark.parametrize(("first", "traced"), [(1, 2), (2, 2), (3, 2), (4, 1), (5, 0)])
def test_a_training_resumed_behind_the_first_traced_step_begins_at_once(tmp_path, first, traced):
    profiler = Profiler(Profile(start_step=2, steps=2), tmp_path, 0, Clock())
    for step in range(first, 5):
        profiler.before(step)
        profiler.after(step, is_interrupted=step == 4)
    assert (profiler.bottleneck.steps if profiler.bottleneck else 0) == traced
