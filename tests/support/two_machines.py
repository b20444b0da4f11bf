"""Two machines: a training in two containers, started as the training operator starts its pods.

Each attempt has new containers with empty disks, as new pods have: only the store outlives it.
"""

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from click_stream import CONTRACT, add_month
from containers import Network, Pod, podman
from perennial.clients.object_store import open_store
from perennial.contract import load_contract
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import Environment, data_cache
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.folder import MARKER
from perennial.engine.job import TrainingJob
from perennial.snapshot_data.manifest import take_snapshot
from perennial.training_jobs.config import ResourcesSection, TrainModelConfig
from perennial.training_jobs.identity import training_job
from perennial.training_jobs.launcher import MALLOC

JOB = "clicks-training"
COMMAND = ("python3", "-m", "torch.distributed.run", "-m", "perennial.engine.worker")
STEPS = 300


@dataclass(frozen=True)
class Machines:
    """Where trainings of this module run.

    Attributes:
        image: Of the trainer.
        network: That the containers share.
        variables: How they reach the store.
        folder: For what the containers see and leave.
    """

    image: str
    network: Network
    variables: Mapping[str, str]
    folder: Path

    @contextmanager
    def attempt(self, job: TrainingJob) -> Iterator[list[str]]:
        """The two containers of one attempt, rank 0 first; removed at the end."""
        number = len(list(self.folder.glob("attempt-*")))
        mounts = self.folder / "job"
        mounts.mkdir(exist_ok=True)
        write_atomically(mounts / "job.json", job.to_json().encode())
        with ExitStack() as stack:
            containers = []
            for rank in range(2):
                disk = self.folder / f"attempt-{number}" / f"machine-{rank}"
                disk.mkdir(parents=True)
                disk.chmod(0o1777)
                pod = self._pod(rank, {disk: "/tmp", mounts: "/perennial:ro"})
                containers.append(stack.enter_context(pod.started(*COMMAND, "/perennial/job.json")))
            yield containers

    def _pod(self, rank: int, mounts: Mapping[Path, str]) -> Pod:
        names = (f"{JOB}-master-0", f"{JOB}-worker-0")
        addresses = (self.network.address(101), self.network.address(102))
        return Pod(
            self.image,
            {**self.variables, **training_variables(), **injected_variables(rank)},
            mounts,
            options=(
                f"--network={self.network.name}", f"--ip={addresses[rank]}",
                f"--hostname={names[rank]}", f"--add-host={names[0]}:{addresses[0]}",
            ),
        )  # fmt: skip

    def disk(self, job: TrainingJob, rank: int) -> Path:
        """The training's folder on a machine of the newest attempt."""
        newest = max(self.folder.glob("attempt-*"), key=lambda each: int(each.name[8:]))
        return newest / f"machine-{rank}" / job.root.relative_to("/tmp")


def injected_variables(rank: int) -> dict[str, str]:
    """All that the training operator 1.9 injects into the pods of a master and one worker."""
    return {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": f"{JOB}-master-0",
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "2",
        "RANK": str(rank),
        "PET_MASTER_ADDR": f"{JOB}-master-0",
        "PET_MASTER_PORT": "23456",
        "PET_NNODES": "2",
        "PET_NPROC_PER_NODE": "1",
        "PET_NODE_RANK": str(rank),
    }


def training_variables() -> dict[str, str]:
    """Those that every launcher gives the ranks."""
    return {
        "OMP_NUM_THREADS": "1",
        "POLARS_MAX_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
        **MALLOC,
    }


def clicks_job(folder: Path, bucket: str) -> TrainingJob:
    """A sharded training on data in a bucket, with its checkpoints there."""
    data = open_store(f"s3://{bucket}/data")
    for index in range(3):
        file = add_month(folder / "data", index)
        data.upload(file.relative_to(folder / "data").as_posix(), file)
    (folder / "contract.toml").write_text(CONTRACT.replace('"data"', f'"{data.uri}"', 1))
    contract = load_contract(folder / "contract.toml")
    take_snapshot(contract.data, contract.split).write(folder / "job" / "snapshot")
    training = contract.training.model_copy(update={"strategy": "fsdp", "steps": STEPS})
    settings = TrainModelConfig(
        model=contract.model, training=training, resources=ResourcesSection(num_processes=2)
    )
    environment = Environment(f"s3://{bucket}/perennial", "", "test", None, "test", "", "")
    job = training_job(settings, folder / "job" / "snapshot", environment)
    # The same as the containers see it.
    cache = Path("/tmp/.cache/perennial") / job.root.relative_to(data_cache())
    return job.model_copy(update={"snapshot": "/perennial/snapshot", "folder": str(cache)})


def newest_checkpoint(job: TrainingJob) -> int:
    """The step of the newest committed checkpoint; 0 when there is none."""
    keys = [each.key for each in open_store(job.checkpoints_uri).list("step-")]
    committed = (key.partition("/")[0] for key in keys if key.endswith(f"/{MARKER}"))
    return max((int(folder.removeprefix("step-")) for folder in committed), default=0)


def wait_for_checkpoint(job: TrainingJob, containers: list[str], *, after: int = 0) -> None:
    """Wait until a checkpoint later than a step is committed."""
    while True:
        states = [state(container)["Status"] for container in containers]
        if newest_checkpoint(job) > after:
            return
        assert states == ["running"] * len(containers), logs(containers)
        time.sleep(0.05)


def state(container: str) -> dict:
    """The state of a container's process, from podman."""
    return json.loads(podman("inspect", "--format", "{{json .State}}", container).stdout)


def ended(container: str) -> int:
    """Wait for a container's end; returns its exit code."""
    done = subprocess.run(
        ["podman", "wait", container], capture_output=True, text=True, check=True, timeout=600
    )
    return int(done.stdout)


def logs(containers: list[str]) -> str:
    """What containers have printed."""
    texts = (podman("logs", "--tail", "60", container) for container in containers)
    return "\n---\n".join(text.stdout + text.stderr for text in texts)


def result_of(machines: Machines, job: TrainingJob) -> TrainingResult:
    """What rank 0 wrote when all had finished."""
    return TrainingResult.read(machines.disk(job, 0))
