"""An operator whose pods are processes of this machine: what they train is real.

A pod's process gets what a container would: its command, its own variables with secrets looked up,
the variables that the training operator adds, and an empty disk.
"""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

from fake_training_operator import PyTorchJobs
from perennial.clients.object_store import open_store

SECRETS = {"s3": {"secret": "nothing"}}
# An image's own variables: where its Python and its packages are.
ROOT = Path(__file__).resolve().parents[2]
OF_THE_IMAGE = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT / "tests/support")}
LOOK_SECONDS = 0.1


class ProcessOperator(PyTorchJobs):
    """Trains in processes.

    Args:
        cluster: Where jobs and pods are kept.
        folder: For the pods' disks.
        evicts: Whether the first attempt's last pod is killed once there is a checkpoint.
        port: At which the ranks of a job meet.
    """

    def __init__(self, cluster, folder, port, *, evicts=False):
        self.folder, self.port = folder, port
        super().__init__(cluster, *(["evicted_in_training"] if evicts else []), "trained")

    def _trained(self, job):
        self._train(job, lambda: False)

    def _evicted_in_training(self, job):
        store = open_store(job["metadata"]["annotations"]["perennial/store-uri"])
        # One that is being written is none yet.
        self._train(
            job, lambda: any(item.key.endswith("/COMMITTED") for item in store.list("checkpoints/"))
        )

    def _train(self, job, is_time_to_evict):
        pods = self._pods(job)
        started = [self._start(job, pod, rank, len(pods)) for rank, pod in enumerate(pods)]
        try:
            for pod in pods:
                self._pod(pod, "Running", state={"running": {}})
            self._say_running(job)
            self._follow(job, dict(zip(pods, started, strict=True)), is_time_to_evict)
        finally:
            for process in started:
                kill(process)

    def _follow(self, job, processes, is_time_to_evict):
        """As the operator: a failed pod fails the job, the master's success is the job's."""
        master, *_, last = processes
        while True:
            if self.closed.wait(LOOK_SECONDS) or self._is_leaving(job):
                return
            if is_time_to_evict():
                kill(processes[last])
                why = {"reason": "Evicted", "message": "The node was low on resource"}
                self._pod(last, "Failed", **why)
                self._end_log(last)
                self._end_failed(job, processes)
                return
            codes = {pod: process.poll() for pod, process in processes.items()}
            if any(codes.values()):
                for pod, code in codes.items():
                    if code is not None:
                        self._exit(pod, code)
                self._end_failed(job, processes)
                return
            if codes[master] == 0:
                for pod, process in processes.items():
                    self._exit(pod, process.wait())
                self._complete(job)
                return

    def _end_failed(self, job, processes):
        """With cleanPodPolicy Running."""
        self._fail(job)
        for pod, process in processes.items():
            if process.poll() is None:
                kill(process)
                self._drop(pod)

    def _is_leaving(self, job):
        found = self.store.get(self.plural, job["metadata"]["name"])
        return found is None or "deletionTimestamp" in found["metadata"]

    def _start(self, job, pod, rank, machines):
        (container,) = self.store.get("pods", pod)["spec"]["containers"]
        disk = self.folder / f"{job['metadata']['uid']}-{rank}"
        for mount in container["volumeMounts"]:
            (disk / mount["mountPath"].strip("/")).mkdir(parents=True)
        variables = OF_THE_IMAGE | {each["name"]: value_of(each, disk) for each in container["env"]}
        variables |= {
            "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(self.port),
            "PET_NNODES": str(machines), "PET_NODE_RANK": str(rank),
            "PET_NPROC_PER_NODE": job["spec"]["nprocPerNode"],
        }  # fmt: skip
        program, *arguments = container["command"]
        assert program == "python"
        process = subprocess.Popen(
            [sys.executable, *arguments], env=variables, cwd=disk, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        threading.Thread(target=self._copy_log, args=(process, pod), daemon=True).start()
        return process

    def _copy_log(self, process, pod):
        with process.stdout:
            for line in process.stdout:
                self.store.write_log(pod, line.rstrip("\n"))


def value_of(variable, disk: Path) -> str:
    """Of a container's variable; mounts lie below the pod's own disk."""
    if "valueFrom" in variable:
        reference = variable["valueFrom"]["secretKeyRef"]
        return SECRETS[reference["name"]][reference["key"]]
    value = variable["value"]
    return f"{disk}{value}" if value.startswith("/scratch") else value


def kill(process):
    """A pod's end takes all its processes; torchrun's lead sessions of their own."""
    if process.poll() is None:
        for pid in [process.pid, *children_of(process.pid)]:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)
        process.wait()


def children_of(pid):
    """The processes that a process has started."""
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for thread in threads for child in thread.read_text().split()]
