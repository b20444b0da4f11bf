"""What a task has learned, as a training keeps it."""

import pytest

from perennial.engine.job import FittedTask


def test_a_fitted_state_is_kept_as_json_reads_it_back():
    """Tuples are lists then, also those within; what JSON cannot hold is refused."""
    state = {"load": (1.5, 0.25), "names": [("a", 1)]}
    fitted = FittedTask(fingerprint="f" * 64, state=state)
    assert fitted.state == {"load": [1.5, 0.25], "names": [["a", 1]]}
    assert FittedTask.from_json(fitted.to_json()) == fitted
    with pytest.raises(ValueError, match="not JSON compliant"):
        FittedTask(fingerprint="f" * 64, state={"mean": (float("nan"),)})
