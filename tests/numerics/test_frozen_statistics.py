"""Averages of weights keep the running statistics that training kept, and renew the others."""

import pytest
import torch

from perennial.select_checkpoint.rescoring import Rescoring
from tiny_training import TinyOptions, finished, tiny_job, weights

MEAN = "blocks.0.1.running_mean"


@pytest.mark.parametrize("averaged", [True, False], ids=["moving average", "mean of two steps"])
@pytest.mark.parametrize(
    ("frozen", "affine"),
    [((), True), (("blocks.0.*",), True), (("blocks.0.*",), False)],
    ids=["trained", "frozen", "frozen without parameters"],
)
def test_statistics_of_a_frozen_normalisation_stay(root, tmp_path, averaged, frozen, affine):
    averaging = {"averaging": {"decay": 0.5}} if averaged else {}
    options = TinyOptions(batch_norm=True, affine=affine)
    job = tiny_job(root, strategy="single", options=options, frozen=frozen, **averaging)
    result = finished(job)
    steps = tuple(record.step for record in result.checkpoints)[-1 if averaged else -2 :]
    rescoring = Rescoring(job.root, root / "snapshot", tmp_path)
    found = rescoring.untrained(steps, averaged=averaged)[1].state_dict()[MEAN]
    assert torch.equal(found, weights(result)[MEAN]) == bool(frozen)
    assert torch.equal(found, torch.zeros(17)) == bool(frozen)
    (scored,) = rescoring.scores([steps])
    losses = [batch.mean_loss() for _, batch in scored]
    if averaged and frozen:  # twenty small updates apart, on the same statistics
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
