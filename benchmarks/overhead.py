"""What a local run spends outside the steps' own work.

    python -m benchmarks.overhead [--rounds 3]

Runs the flights example's first training in fresh homes. Own work of a step is the time between
its start event, written after its imports, and its end; for `train_model` it begins with the first
rank's first log line, so starting its processes is overhead too. Everything else of the wall time,
from the command to its end, is overhead: KFP, process starts, imports, reports.
"""

import argparse
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import date, datetime
from pathlib import Path

from benchmarks.record import keep_figures
from perennial.compilation import PIPELINES, compile_pipeline
from perennial.runs import Home, step_records
from perennial.steps.journal import Journal

EXAMPLE = Path("examples/flights/contract.toml")
TARGET_SECONDS = 1.0


def measure(home: Path) -> dict[str, float]:
    """Wall, own work and overhead of one fresh run, in seconds."""
    started = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "perennial.cli", "run", str(EXAMPLE), "--home", str(home),
         "--replay", "--first", "3", "--until", "3"],
        check=True, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    wall = time.perf_counter() - started
    (run,) = Home(home).runs()
    folder = Home(home).folder(run.run_id)
    own = {record.step: record.seconds for record in step_records(folder)}
    own["train_model"] -= seconds_to_start(folder, home)
    work = sum(own.values())
    return {
        "wall": wall,
        "own_work": work,
        "steps": len(own),
        "overhead_per_step": (wall - work) / len(own),
    }


def seconds_to_start(folder: Path, home: Path) -> float:
    """Seconds from the start of `train_model` to the first line that a rank logs."""
    (started,) = (
        event["time"]
        for event, _ in Journal(folder).events()
        if (event["kind"], event.get("step")) == ("step_started", "train_model")
    )
    (log,) = home.glob("store/training/*/logs/rank-0.log")
    stamp = datetime.strptime(log.read_text()[:23], "%Y-%m-%d %H:%M:%S,%f")
    return stamp.timestamp() - float(str(started))


def main() -> None:
    """Print each round and the median."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = []
    for number in range(parser.parse_args().rounds):
        with tempfile.TemporaryDirectory(prefix="perennial-bench-") as folder:
            rounds.append(measure(Path(folder) / "home"))
        print(
            f"round {number + 1}: " + "  ".join(f"{k} {v:.2f}" for k, v in rounds[-1].items()),
            flush=True,
        )
    median = statistics.median(found["overhead_per_step"] for found in rounds)
    verdict = "reached" if median <= TARGET_SECONDS else "not reached"
    print(f"overhead per step: median {median:.2f} s of {len(rounds)} rounds")
    print(f"target of {TARGET_SECONDS} s {verdict}")
    started = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="perennial-bench-") as folder:
        for name in PIPELINES:
            compile_pipeline(name, Path(folder) / f"{name}.yaml")
    compiling = time.perf_counter() - started
    print(f"compiling both pipelines, after imports: {compiling:.2f} s; target 1 s")
    result = {
        "compile_seconds": compiling,
        "date": str(date.today()),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "rounds": rounds,
        "median_overhead_per_step": median,
    }
    keep_figures("overhead.json", result)


if __name__ == "__main__":
    main()
