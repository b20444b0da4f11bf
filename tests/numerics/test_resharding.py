"""A checkpoint of any number of processes loads, bit for bit, into any other number."""

import shutil
import warnings
from functools import partial
from pathlib import Path

import pytest
import torch

from checkpoint_ranks import all_values, resumed_with, save_again
from perennial.engine.checkpoints.folder import CheckpointManifest, committed, step_of
from tiny_training import TinyOptions, finished, run_ranks, tiny_job, with_options

full = pytest.mark.full


@pytest.fixture(scope="module")
def stopped(root, tmp_path_factory):
    """A copy of a training that a signal stopped after step 10, for each way to run it."""
    made = {}

    def copy(strategy: str, processes: int, **changes):
        key = f"{strategy} {processes} {changes}"
        if key not in made:
            options = changes.pop("options", TinyOptions())
            job = tiny_job(root, strategy=strategy, processes=processes, options=options, **changes)
            stopping = options.model_copy(update={"fault": "terminate", "fault_call": 8})
            assert run_ranks(with_options(job, stopping)) == [75] * processes
            made[key] = job
        folder = tmp_path_factory.mktemp("job") / "job"
        shutil.copytree(made[key].root, folder)
        return made[key].model_copy(update={"folder": str(folder)})

    return copy


def values(checkpoint: Path) -> dict[str, torch.Tensor]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return all_values(checkpoint)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (("fsdp", 2), ("fsdp", 1)),
        (("fsdp", 2), ("ddp", 2)),
        (("ddp", 2), ("fsdp", 4)),
        pytest.param(("fsdp", 1), ("fsdp", 2), marks=full),
        pytest.param(("fsdp", 2), ("fsdp", 3), marks=full),
        pytest.param(("fsdp", 2), ("fsdp", 4), marks=full),
        pytest.param(("fsdp", 4), ("fsdp", 2), marks=full),
        pytest.param(("fsdp", 4), ("fsdp", 3), marks=full),
        pytest.param(("ddp", 2), ("ddp", 1), marks=full),
        pytest.param(("ddp", 3), ("ddp", 2), marks=full),
        pytest.param(("fsdp", 3), ("single", 1), marks=full),
        pytest.param(("single", 1), ("fsdp", 3), marks=full),
    ],
    ids=lambda place: "-".join(map(str, place)),
)
def test_weights_and_optimizer_state_survive_bit_for_bit(stopped, tmp_path, before, after):
    job = stopped(*before, options=TinyOptions(batch_norm=True), averaging={"decay": 0.9})
    (strategy, processes) = after
    other = resumed_with(job, processes, strategy)
    assert run_ranks(other, partial(save_again, str(tmp_path))) == [0] * processes
    (again,) = committed(tmp_path / "checkpoints")
    assert step_of(again) == step_of(committed(job.checkpoints)[-1])
    written, read = values(committed(job.checkpoints)[-1]), values(again)
    assert written.keys() == read.keys()
    moments = [name for name in written if "exp_avg" in name]
    assert len(moments) == 2 * sum(name.startswith("averaged.") for name in written) > 0
    for name, tensor in written.items():
        assert tensor.dtype == read[name].dtype
        assert torch.equal(tensor, read[name]), name


@pytest.mark.parametrize(
    ("strategy", "sizes"),
    [
        ("fsdp", (2, 1)),
        pytest.param("fsdp", (2, 3), marks=full),
        pytest.param("fsdp", (2, 1, 4), marks=full),
        pytest.param("ddp", (1, 2), marks=full),
        pytest.param("ddp", (4, 2), marks=full),
    ],
)
def test_training_goes_on_in_a_world_of_another_size(root, stopped, strategy, sizes):
    straight = finished(tiny_job(root, strategy=strategy, processes=sizes[0]))
    job = stopped(strategy, sizes[0])
    for size in sizes[1:-1]:
        stopping = TinyOptions(fault="terminate", fault_call=2)
        codes = run_ranks(with_options(resumed_with(job, size), stopping))
        assert codes == [75] * size
    resumed = finished(resumed_with(job, sizes[-1]))
    for first, second in zip(straight.evaluations, resumed.evaluations, strict=True):
        assert second.metrics == pytest.approx(first.metrics, abs=1e-6)
        assert second.train_loss == pytest.approx(first.train_loss, abs=1e-6)
    last = CheckpointManifest.read(committed(job.checkpoints)[-1])
    assert tuple(part.processes for part in last.progress.parts) == sizes
    log = (job.logs / "rank-0.log").read_text()
    assert f"resharded from {sizes[0]} process" in log


def test_the_same_number_of_processes_is_not_called_resharding(stopped):
    job = stopped("fsdp", 2)
    finished(job)
    parts = CheckpointManifest.read(committed(job.checkpoints)[-1]).progress.parts
    assert [part.processes for part in parts] == [2]
    assert "resharded" not in (job.logs / "rank-0.log").read_text()
