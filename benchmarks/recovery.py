"""How fast a training goes on after a kill, a lost machine or a signal, and if it is the same.

    PYTHONPATH=tests/support python -m benchmarks.recovery [--rounds 20]

Trains the tests' tiny task on two processes, as `train_model` does, so that the figures are those
of the machinery: noticing, starting processes, importing, encoding, loading, the first step.
- kill: one random rank is killed (-9) at a random moment; the time until a step is finished again.
- node loss: two torchrun agents with a worker each stand for machines; agent and worker are killed
  (-9); the time until the survivor has finished a step alone, with the state resharded.
- signal: SIGTERM; the time until the checkpoint is committed, and until all processes have ended.
"""

import argparse
import contextlib
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import date
from pathlib import Path

import torch
from torch.distributed.elastic.utils.distributed import get_free_port

from benchmarks.record import keep_page
from perennial.contracts.artifact import write_atomically
from perennial.contracts.training import TrainingResult
from perennial.engine.checkpoints.folder import MARKER, committed
from perennial.engine.job import TrainingJob
from perennial.steps.lease import RunLease
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.launcher import JobState, LocalLauncher, worker_settings
from tiny_training import TinyOptions, largest_difference, tiny_job, weights, write_snapshot

STEPS = 400
GOALS = {"kill": 12.0, "node loss": 20.0, "signal": 2.0}
# Seconds: noticing a lost machine takes three missed signs of life, 15 s by default.
RENDEZVOUS = "keep_alive_interval=1,last_call_timeout=2"


def new_job(root: Path, dropout: float = 0.2) -> TrainingJob:
    """A training long enough to be disturbed."""
    options = TinyOptions(dropout=dropout)
    return tiny_job(root, options=options, steps=STEPS, evaluate_every_steps=20)


def undisturbed(root: Path, dropout: float = 0.2) -> dict[str, torch.Tensor]:
    """The weights when nothing goes wrong."""
    job = new_job(root, dropout)
    run_to_end(job, LocalLauncher(1), max_restarts=0)
    return weights(TrainingResult.read(job.root))


def find_rank(job: TrainingJob, rank: int) -> int:
    """Process of a rank that the local launcher started."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # it has ended
            name, output = (folder / "comm").read_text(), (folder / "fd" / "1").readlink()
            if (name, output) == (f"rank-{rank}\n", job.logs / "job.log"):
                return int(folder.name)
    raise ProcessLookupError(f"rank {rank} of {job.root} is not running")


def processes_of(job: TrainingJob) -> Iterator[tuple[int, int, dict[str, str]]]:
    """Process, parent and environment of every rank that torchrun started for a job."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            command = (folder / "cmdline").read_bytes().decode().split("\0")
            if str(job.root / "job.json") not in command or "torch.distributed.run" in command:
                continue
            pairs = (folder / "environ").read_bytes().decode().split("\0")
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it has ended
            continue
        yield int(folder.name), parent, dict(pair.split("=", 1) for pair in pairs if "=" in pair)


def wait_for(path: Path, *, newer_than: float = 0.0, seconds: float = 300.0) -> float:
    """When a file was written."""
    deadline = time.time() + seconds
    while time.time() < deadline:
        if path.exists() and (written := path.stat().st_mtime) > newer_than:
            return written
        time.sleep(0.005)
    raise TimeoutError(f"{path} did not appear in {seconds:.0f} s")


def kill_a_rank(job: TrainingJob, draw: random.Random, seconds: list[float]) -> None:
    """Kill a random rank at a random moment, and note when a step was finished again."""
    wait_for(job.first_step)
    time.sleep(draw.uniform(0.0, 1.0))
    os.kill(find_rank(job, draw.randrange(job.num_processes)), signal.SIGKILL)
    killed = time.time()
    seconds.append(wait_for(job.first_step, newer_than=killed) - killed)


def measure_kill(root: Path, seed: int) -> tuple[float, TrainingResult]:
    """Seconds until training again, and how it ended."""
    job = new_job(root)
    seconds: list[float] = []
    killer = threading.Thread(target=kill_a_rank, args=(job, random.Random(seed), seconds))
    killer.start()
    run_to_end(job, LocalLauncher(1), max_restarts=1)
    killer.join()
    return seconds[0], TrainingResult.read(job.root)


def start_agent(job: TrainingJob, port: int, lease: RunLease) -> subprocess.Popen[bytes]:
    """A torchrun that stands for one of one or two machines."""
    with (job.logs / "agents.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:2",
             "--nproc-per-node", "1", "--max-restarts", "2", "--rdzv-backend", "c10d",
             "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "recovery",
             "--rdzv-conf", RENDEZVOUS, "--local-addr", "127.0.0.1",
             "-m", "perennial.engine.worker", str(job.root / "job.json")],
            env={**lease.variables(os.environ), **worker_settings(1)}, stdout=log, stderr=log,
        )  # fmt: skip


def measure_node_loss(root: Path) -> tuple[float, TrainingResult]:
    """Seconds until the survivor trains again, and how it ended.

    Without dropout, whose masks depend on the number of processes.
    """
    job = new_job(root, dropout=0.0)
    job.logs.mkdir()
    write_atomically(job.root / "job.json", job.to_json().encode())
    port = get_free_port()
    lease = RunLease(job.root)
    lease.acquire()  # the workers end with this process
    agents = [start_agent(job, port, lease)]
    time.sleep(2)  # the first agent hosts the rendezvous; losing that one ends the attempt
    agents.append(start_agent(job, port, lease))
    try:
        wait_for(job.first_step)
        wait_for(job.checkpoints / "step-00000020" / MARKER)
        workers = [pid for pid, parent, _ in processes_of(job) if parent == agents[1].pid]
        for pid in (agents[1].pid, *workers):
            os.kill(pid, signal.SIGKILL)
        killed = time.time()
        job.first_step.unlink()
        seconds = wait_for(job.first_step, newer_than=killed) - killed
        if agents[0].wait(300):
            raise RuntimeError(f"the surviving agent failed: see {job.logs}")
    finally:
        for agent in agents:
            agent.kill()
            agent.wait()
        lease.release()
    result = TrainingResult.read(job.root)
    if result.world_size != 1:
        raise RuntimeError(f"{result.world_size} processes finished it: nothing was lost")
    return seconds, result


def measure_signal(root: Path, seed: int) -> tuple[float, float]:
    """Seconds from SIGTERM to the committed checkpoint, and to the end of all processes."""
    job, launcher = new_job(root), LocalLauncher(1)
    launcher.start(job)
    wait_for(job.first_step)
    time.sleep(random.Random(seed).uniform(0.0, 1.0))
    asked = time.time()
    launcher.stop()
    if launcher.wait().state is not JobState.INTERRUPTED:
        raise RuntimeError(f"it was over before the signal: see {job.logs}")
    ended = time.time()
    saved = (committed(job.checkpoints)[-1] / MARKER).stat().st_mtime
    return max(0.0, saved - asked), ended - asked


def line(name: str, seconds: list[float], goal: float | None, same: str) -> str:
    """One row of the table."""
    target = f"≤ {goal:.0f} s" if goal else ""
    return (
        f"| {name} | {len(seconds)} | {statistics.median(seconds):.2f} s | {max(seconds):.2f} s "
        f"| {target} | {same} |"
    )


def main() -> None:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20)
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_snapshot(root)
        expected = undisturbed(root)
        kills, equal = [], 0
        for seed in range(rounds):
            seconds, result = measure_kill(root, seed)
            kills.append(seconds)
            equal += largest_difference(weights(result), expected) == 0.0
            print(f"kill {seed}: {seconds:.2f} s, equal so far {equal} of {seed + 1}", flush=True)
        signals = [measure_signal(root, seed) for seed in range(min(rounds, 5))]
        lost, result = measure_node_loss(root)
        difference = largest_difference(weights(result), undisturbed(root, dropout=0.0))
    load = os.getloadavg()[0]
    text = "\n".join(
        [
            f"# Recovery ({date.today().isoformat()})", "",
            f"{platform.machine()}, {os.cpu_count()} cores (load {load:.0f}), Python "
            f"{platform.python_version()}, torch {torch.__version__}, gloo; tiny model, two ranks.",
            "", "| what | rounds | median | longest | goal | final weights |",
            "|---|---|---|---|---|---|",
            line("kill -9 of a rank → training again", kills, GOALS["kill"],
                 f"bit-identical {equal} of {rounds}"),
            line("node lost (2 → 1) → training again", [lost], GOALS["node loss"],
                 f"differ by {difference:.1e} (sums of 1 instead of 2 processes)"),
            line("SIGTERM → checkpoint committed", [saved for saved, _ in signals],
                 GOALS["signal"], ""),
            line("SIGTERM → all processes ended", [ended for _, ended in signals], None, ""),
        ]
    )  # fmt: skip
    print(text)
    keep_page("recovery.md", f"{text}\n")
    if equal < rounds:
        sys.exit(f"{rounds - equal} trainings ended with other weights")


if __name__ == "__main__":
    main()
