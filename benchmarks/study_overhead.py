"""What a trial of a study costs beyond its training, against Optuna driven by hand.

    python -m benchmarks.study_overhead [--trials 16] [--by-hand 4]

Both train the digits example with other learning rates, two trainings of one process at a time.
By hand: Optuna's `optimize(n_jobs=2)` whose objective writes a contract and calls `perennial run`,
with a home for each thread, as a home has one run of a model at a time. A study shares the
snapshot, the sanity checks and the encoded data; `perennial run` also evaluates and registers each
model. The overhead of a trial is its time, two of which pass at once, without its training's.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import Any

import optuna

from benchmarks.record import ROOT, keep_page
from perennial.contracts.training import TrainingResult
from perennial.steps.journal import Journal
from perennial.studies.records import Trial

PARALLEL = 2
STUDY = """
[study]
goal = "How long does a trial take?"
trials = {trials}
parallel = 2
[study.nuisance."training.optimizer.learning_rate"]
log = [1e-3, 1e-2]
"""


def prepare(folder: Path, steps: int) -> Path:
    """Write the digits example for one process per training; return the contract."""
    source = ROOT / "examples" / "digits"
    program = [sys.executable, str(source / "prepare.py"), str(folder / "data")]
    subprocess.run(program, check=True, capture_output=True)
    text = (source / "contract.toml").read_text().replace("steps = 150", f"steps = {steps}", 1)
    contract = folder / "contract.toml"
    contract.write_text(f"{text}\n[resources]\nnum_processes = 1\n")
    return contract


def perennial(*arguments: str) -> None:
    """Run a command; ends the benchmark with its output if it fails."""
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", *arguments],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        sys.exit(f"perennial {' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")


def run_study(contract: Path, trials: int) -> dict[str, float]:
    """Run a study; return the seconds of a trial, of a training and of the whole."""
    file, home = contract.with_name("overhead.study.toml"), contract.parent / "study"
    file.write_text(STUDY.format(trials=trials))
    began = time.monotonic()
    perennial("study", "run", str(contract), "--study", str(file), "--home", str(home))
    whole = time.monotonic() - began
    (events,) = (home / "runs").glob("*/events.jsonl")
    found = [event for event, _ in Journal(events.parent).events()]
    moments = {
        str(event["kind"]): float(str(event["time"]))
        for event in found
        if event.get("step") == "run_trials" and event["kind"] in ("step_started", "step_finished")
    }
    files = (home / "store" / "studies").glob("*/*/trials/*.json")
    ended = [Trial.from_json(each.read_bytes()) for each in files]
    trainings = [each.seconds for trial in ended for each in trial.trainings]
    seconds = moments["step_finished"] - moments["step_started"]
    return figures(seconds, whole, trainings)


def run_by_hand(contract: Path, trials: int) -> dict[str, float]:
    """Let Optuna call `perennial run`; return the same figures."""
    homes: dict[int, Path] = {}

    def objective(trial: optuna.Trial) -> float:
        home = homes.setdefault(
            threading.get_ident(), contract.parent / f"by-hand-{threading.get_ident()}"
        )
        rate = trial.suggest_float("learning_rate", 1e-3, 1e-2, log=True)
        own = contract.with_name(f"trial-{trial.number}.toml")
        own.write_text(
            contract.read_text().replace("learning_rate = 3e-3", f"learning_rate = {rate}", 1)
        )
        perennial("run", str(own), "--home", str(home))
        newest = max((home / "store" / "training").glob("*"), key=lambda each: each.stat().st_mtime)
        result = TrainingResult.read(newest)
        seconds.append(result.seconds)
        return min(point.metrics["log_loss"] for point in result.evaluations)

    seconds: list[float] = []
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    began = time.monotonic()
    study.optimize(objective, n_trials=trials, n_jobs=PARALLEL)
    whole = time.monotonic() - began
    return figures(whole, whole, seconds)


def figures(seconds: float, whole: float, trainings: list[float]) -> dict[str, float]:
    """Return the figures of so many trainings, two at a time, in so many seconds."""
    each = PARALLEL * seconds / len(trainings)
    training = statistics.mean(trainings)
    return {
        "trainings": len(trainings),
        "whole": whole,
        "per hour": 3600 * len(trainings) / seconds,
        "each": each,
        "training": training,
        "overhead": each - training,
    }


def main() -> None:
    """Measure, print and keep the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=16, help="trials of the study")
    parser.add_argument("--by-hand", type=int, default=4, help="trials by hand")
    parser.add_argument("--steps", type=int, default=150, help="optimizer steps of a trial")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="perennial-study-") as folder:
        contract = prepare(Path(folder), options.steps)
        found["`perennial study run`"] = run_study(contract, options.trials)
        print(json.dumps(found), flush=True)
        found["Optuna over `perennial run`"] = run_by_hand(contract, options.by_hand)
    rows = [
        f"| {name} | {each['trainings']:.0f} | {each['per hour']:.0f} | {each['each']:.1f} s "
        f"| {each['training']:.1f} s | {each['overhead']:.1f} s |"
        for name, each in found.items()
    ]
    head = ("how", "trainings", "trainings per hour", "a trial", "its training", "overhead")
    text = "\n".join(
        [
            f"# Overhead of a trial ({date.today().isoformat()})", "",
            f"{platform.machine()}, {os.cpu_count()} cores (load {os.getloadavg()[0]:.0f}), Python "
            f"{platform.python_version()}; digits, {options.steps} steps, two trainings at a time "
            "with one process each. A study's trainings include its confirmations; the steps "
            "before them (snapshot, validation, sanity checks) and the verdict are paid once.",
            "", f"| {' | '.join(head)} |", "|---|---|---|---|---|---|", *rows,
        ]
    )  # fmt: skip
    print(text)
    keep_page("study_overhead.md", f"{text}\n")


if __name__ == "__main__":
    main()
