"""An exported model is scored by several processes as by one, bit for bit; its own errors stay."""

import numpy as np
import pytest

from perennial.contracts.data import Split
from perennial.contracts.errors import DamagedModelError
from perennial.data.dataset import Dataset
from perennial.engine.export import WEIGHTS_FILE
from perennial.gate.scoring import score_exported
from small_models import GOOD, stream, write_challenger, write_snapshot

KEEP = {Split.VALIDATION: ("time",), Split.TEST: ("time", "label")}


@pytest.fixture
def dataset(tmp_path):
    return Dataset(write_snapshot(tmp_path / "data", stream(days=31)))


def test_two_processes_score_what_one_does(dataset, tmp_path):
    write_challenger(tmp_path / "model", dataset.snapshot, GOOD)
    (_, alone), (_, shared) = (
        score_exported(tmp_path / "model", dataset, KEEP, number) for number in (1, 2)
    )
    assert list(shared) == list(alone) == list(KEEP)
    for split, whole in alone.items():
        for name in ("losses", "predictions", "labels", "weights"):
            np.testing.assert_array_equal(
                getattr(shared[split], name), getattr(whole, name), strict=True
            )
        assert shared[split].rows.equals(whole.rows)


def test_an_error_of_the_model_in_a_process_is_raised_as_in_one(dataset, tmp_path, caplog):
    write_challenger(tmp_path / "model", dataset.snapshot, GOOD)
    weights = tmp_path / "model" / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(DamagedModelError, match="not those that were exported"):
        score_exported(tmp_path / "model", dataset, KEEP, 2)
    assert "scored again in this process" in caplog.text
