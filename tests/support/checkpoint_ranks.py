"""What ranks do in the tests of checkpoints beside training: save elsewhere, fail, dawdle."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.staging import DefaultStager

from perennial.engine import worker
from perennial.engine.checkpoints.checkpoint_store import RemoteCheckpointStore
from perennial.engine.checkpoints.checkpointer import Checkpointer
from perennial.engine.checkpoints.folder import Progress
from perennial.engine.checkpoints.writing import CheckpointWriter
from perennial.engine.job import TrainingJob, read_job
from perennial.engine.resilience.rank_output import start_logging
from perennial.engine.world.distributed import StopSignal, World


def save_again(folder: str) -> int:
    """Restore the job's newest checkpoint into the ranks there are, and save it into a folder."""
    job = read_job(Path(sys.argv[1]))
    start_logging(job, int(os.environ["RANK"]))
    world = World.join().arrange(job.training)
    training = worker.build(job, world, StopSignal())()
    other = job.model_copy(update={"folder": folder, "store_uri": ""})
    again = Checkpointer(other, ("loss", "minimize"), world, job.training, training.averaged)
    again.save(training.model, training.optimizer, Progress(step=training.step), {})
    again.wait()
    world.barrier()
    return 0


def stop_after_one_step() -> int:
    """Train with a signal that came before the first step."""

    def listen(self: StopSignal) -> None:
        self._requested_here = True

    StopSignal.listen = listen
    return worker.main()


def write_slowly() -> int:
    """Train while each checkpoint is written long after it was taken."""
    write = CheckpointWriter.write_data

    def late(self: CheckpointWriter, plan, planner):
        time.sleep(0.5)
        return write(self, plan, planner)

    CheckpointWriter.write_data = late
    return worker.main()


def write_slowly_without_a_copy() -> int:
    """The bug that staging prevents: what is written is what the weights have become."""
    DefaultStager.stage = lambda self, state: state
    return write_slowly()


def fail_to_write(step: int, failing_rank: int) -> int:
    """Train on a disk that is full at one checkpoint."""
    write = FileSystemWriter.write_data

    def full(self: FileSystemWriter, plan, planner):
        if f"{step:08}" in self.path.name and int(os.environ["RANK"]) == failing_rank:
            raise OSError(28, "No space left on device")
        return write(self, plan, planner)

    FileSystemWriter.write_data = full
    return worker.main()


def be_killed_while_writing(step: int, killed_rank: int) -> int:
    """Train until half of one rank's file is on disk."""
    write = FileSystemWriter.write_data

    def half(self: FileSystemWriter, plan, planner):
        written = write(self, plan, planner)
        if f"{step:08}" in self.path.name and int(os.environ["RANK"]) == killed_rank:
            file = self.path / f"__{killed_rank}_0.distcp"
            file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
            os.kill(os.getpid(), signal.SIGKILL)
        return written

    FileSystemWriter.write_data = half
    return worker.main()


def be_killed_before_the_marker(environment: dict[str, str], step: int) -> int:
    """Train into a store until all of a checkpoint is there but its marker."""
    os.environ |= environment
    upload = RemoteCheckpointStore.upload

    def stop(self: RemoteCheckpointStore, at: int, names):
        names = list(names)
        if at == step and "COMMITTED" in names:
            os.kill(os.getpid(), signal.SIGKILL)
        upload(self, at, names)

    RemoteCheckpointStore.upload = stop
    return worker.main()


def train_with(environment: dict[str, str]) -> int:
    """Train where environment variables are set, which forked ranks do not inherit."""
    os.environ |= environment
    return worker.main()


def all_values(checkpoint: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a checkpoint, whole, by PyTorch's own converter."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    file = checkpoint.with_suffix(".pt")
    dcp_to_torch_save(checkpoint, file)
    found: dict[str, torch.Tensor] = {}

    def walk(prefix: str, value: object) -> None:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        for key, inner in items:
            if isinstance(inner, torch.Tensor):
                found[f"{prefix}{key}"] = inner
            elif isinstance(inner, dict | list):
                walk(f"{prefix}{key}.", inner)

    walk("", torch.load(file, weights_only=True))
    file.unlink()
    return found


def resumed_with(job: TrainingJob, processes: int, strategy: str | None = None) -> TrainingJob:
    """The same training, by its fingerprint, in another world."""
    changes = {"strategy": strategy} if strategy else {}
    return job.model_copy(
        update={
            "num_processes": processes,
            "training": job.training.model_copy(update=changes),
        }
    )
