"""What a lost machine costs a training over two containers, and if the weights stay the same.

    PYTHONPATH=tests/support python -m benchmarks.two_machines [--rounds 5]

Builds the images (see images/README.md) and runs the trainer's twice on a network of podman, with
the variables that the training operator injects, sharded by FSDP over gloo, checkpoints in a store
of the S3 protocol. Each round kills one container (-9), in turns the first and the second, after a
random checkpoint; then two new ones with empty disks start, as a launcher's next attempt does.
- noticed: from the kill until the other container has ended by itself;
- training again: from the start of the new containers until one more checkpoint is committed, so
  with imports, the data, the restored checkpoint and 20 steps.
"""

import argparse
import platform
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.record import keep_page
from container_services import new_bucket, store_server
from containers import built_images, new_network, podman
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.job import TrainingJob
from two_machines import (
    Machines,
    clicks_job,
    ended,
    logs,
    newest_checkpoint,
    result_of,
    wait_for_checkpoint,
)

LAST_KILL = 120
"""No kill after this step: much of the 300 must be left."""


@dataclass(frozen=True)
class Round:
    """One kill: of which rank, the newest checkpoint then, and what it cost."""

    rank: int
    step: int
    noticed_seconds: float
    again_seconds: float
    equal: bool


def main() -> None:
    """Measure and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    images = built_images()
    with (
        new_network(images["perennial-control"]) as network,
        store_server(network) as endpoint,
        tempfile.TemporaryDirectory() as folder,
    ):
        store = new_bucket(endpoint)
        machines = Machines(images["perennial-trainer"], network, store.variables, Path(folder))
        job = clicks_job(Path(folder), store.bucket)
        found = list(measured(machines, job, rounds))
    text = page(found)
    keep_page("two_machines.md", text)
    print(text)


def measured(machines: Machines, job: TrainingJob, rounds: int) -> Iterator[Round]:
    """The rounds, each compared with one undisturbed training."""
    expected = final_weights(run_to_end(machines, job))
    generator = random.Random(0)
    for number in range(rounds):
        again = job.model_copy(update={"store_uri": f"{job.store_uri}-{number}"})
        rank = 1 - number % 2
        with machines.attempt(again) as containers:
            wait_for_checkpoint(again, containers, after=generator.randrange(LAST_KILL))
            killed = time.monotonic()
            podman("kill", "--signal=KILL", containers[rank])
            if ended(containers[1 - rank]) == 0:
                raise SystemExit(f"nobody noticed:\n{logs(containers)}")
            noticed = time.monotonic() - killed
        step = newest_checkpoint(again)
        started = time.monotonic()
        with machines.attempt(again) as containers:
            wait_for_checkpoint(again, containers, after=step)
            back = time.monotonic() - started
            result = finished(machines, again, containers)
        found = final_weights(result)
        equal = all(torch.equal(tensor, found[name]) for name, tensor in expected.items())
        yield Round(rank, step, noticed, back, equal and result.num_resumes == 1)


def run_to_end(machines: Machines, job: TrainingJob) -> TrainingResult:
    """One attempt that nothing disturbs."""
    with machines.attempt(job) as containers:
        return finished(machines, job, containers)


def finished(machines: Machines, job: TrainingJob, containers: list[str]) -> TrainingResult:
    """What an attempt left that must succeed."""
    if [ended(each) for each in containers] != [0, 0]:
        raise SystemExit(logs(containers))
    return result_of(machines, job)


def final_weights(result: TrainingResult) -> Mapping[str, Tensor]:
    """Of the last checkpoint, out of the store."""
    last = max(result.checkpoints, key=lambda record: record.step)
    return load_checkpoint_model(last.uri, result)[1].state_dict()


def page(rounds: list[Round]) -> str:
    """The results as Markdown."""
    rows = "\n".join(
        f"| {each.rank} | {each.step} | {each.noticed_seconds:.1f} | {each.again_seconds:.1f} "
        f"| {'bit-identical' if each.equal else 'DIFFERENT'} |"
        for each in rounds
    )
    same = sum(each.equal for each in rounds)
    noticed = statistics.median(each.noticed_seconds for each in rounds)
    again = statistics.median(each.again_seconds for each in rounds)
    load = Path("/proc/loadavg").read_text().split()[0]
    return f"""# Two machines ({date.today()})

{platform.machine()}, 2 cores (load {load}), podman, torch {torch.__version__};
FSDP over gloo on two containers, a tiny table.

| rank killed | newest checkpoint | noticed, s | training again, s | final weights |
|---|---|---|---|---|
{rows}

Verdict: the weights are those of an undisturbed training in {same} of {len(rounds)} rounds.
The other container ends by itself {noticed:.1f} s after the kill (median). New containers have
committed a checkpoint {again:.1f} s after their start. No goal was set; the times are upper bounds
of a busy machine.
"""


if __name__ == "__main__":
    main()
