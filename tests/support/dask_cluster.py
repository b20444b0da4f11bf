"""A real Dask scheduler and worker processes, all of which end with the test."""

import contextlib
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from ports import get_free_port

SUPPORT = Path(__file__).resolve().parent
DASK = [sys.executable, "-m", "dask"]


@dataclass
class DaskCluster:
    address: str
    folder: Path
    processes: list = field(default_factory=list)

    def start(self, *arguments, **environment):
        paths = os.pathsep.join([str(SUPPORT), os.environ.get("PYTHONPATH", "")])
        with (self.folder / f"dask-{len(self.processes)}.log").open("wb") as log:
            process = subprocess.Popen(
                [*DASK, *arguments], stdout=log, stderr=log, start_new_session=True,
                cwd=self.folder, env={**os.environ, "PYTHONPATH": paths, **environment},
            )  # fmt: skip
        self.processes.append(process)
        return process

    def start_worker(self, memory="1GB"):
        return self.start(
            "worker", self.address, "--nthreads", "1", "--no-dashboard", "--memory-limit", memory,
            "--host", "127.0.0.1", "--local-directory", str(self.folder), "--death-timeout", "20",
            DASK_DISTRIBUTED__WORKER__MEMORY__SPILL="False",
            DASK_DISTRIBUTED__WORKER__MEMORY__TARGET="False",
            DASK_DISTRIBUTED__WORKER__MEMORY__PAUSE="False",
        )  # fmt: skip


@contextlib.contextmanager
def running(cluster):
    """Kills what a cluster has started, with the workers of its nannies."""
    try:
        yield cluster
    finally:
        for process in cluster.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextlib.contextmanager
def dask_cluster(folder, workers=2, *, memory="1GB", allowed_failures=3):
    """A scheduler and workers on this machine."""
    port = get_free_port()
    with running(DaskCluster(f"tcp://127.0.0.1:{port}", folder)) as cluster:
        cluster.start(
            "scheduler", "--host", "tcp://127.0.0.1", "--port", str(port), "--no-dashboard",
            DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES=str(allowed_failures),
        )  # fmt: skip
        for _ in range(workers):
            cluster.start_worker(memory)
        yield cluster
