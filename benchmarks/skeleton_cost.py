"""What the skeleton checks cost on the three examples, check by check.

    python -m benchmarks.skeleton_cost

Goal: at most 60 s for all checks on 2 idle cores, imports not counted. The data of the
examples must be there: `python examples/NAME/prepare.py examples/NAME/data`.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from datetime import date
from functools import partial
from pathlib import Path

import torch

from benchmarks.record import keep_page
from perennial.check_skeleton.examination import run_checks
from perennial.check_skeleton.subject import Subject
from perennial.contract import load_contract
from perennial.contracts.skeleton import CheckResult
from perennial.data.dataset import Dataset
from perennial.engine.task import load_task
from perennial.snapshot_data.manifest import take_snapshot

ROOT = Path(__file__).parent.parent
EXAMPLES = ("flights", "digits", "text")
GOAL = 60.0
SHOWN = 8


def main() -> None:
    """Examine the examples and write the table."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    load = os.getloadavg()[0]
    lines = [
        "# Cost of the skeleton checks",
        "",
        f"{date.today()}, {os.cpu_count()} cores (load before: {load:.1f}), torch "
        f"{torch.__version__}, `python -m benchmarks.skeleton_cost`. Seconds; imports are not "
        f"counted. Goal: {GOAL:.0f} s each.",
        "",
        "| example | preparing | checks | in all | reached | outcomes | dearest checks |",
        "|---|---|---|---|---|---|---|",
    ]
    for name in EXAMPLES:
        lines.append(examined(name))
        print(lines[-1], flush=True)
    keep_page("skeleton_cost.md", "\n".join(lines) + "\n")


def examined(name: str) -> str:
    """One example: a row of the table."""
    folder = ROOT / "examples" / name
    sys.path.insert(0, str(folder))
    contract = load_contract(folder / "contract.toml")
    snapshot = take_snapshot(contract.data, contract.split)
    make_task = partial(
        load_task, contract.model.task, contract.model.options, snapshot.task_columns
    )
    start = time.perf_counter()
    subject = Subject.prepare(make_task, Dataset(snapshot), contract.skeleton, contract.training)
    prepared = time.perf_counter() - start
    results = list(run_checks(subject))
    seconds = time.perf_counter() - start
    return (
        f"| {name} | {prepared:.1f} | {seconds - prepared:.1f} | {seconds:.1f} | "
        f"{'yes' if seconds <= GOAL else 'no'} | {outcomes(results)} | {dearest(results)} |"
    )


def outcomes(results: Sequence[CheckResult]) -> str:
    """How many checks ended how."""
    ends = [result.outcome for result in results]
    return ", ".join(
        f"{ends.count(each)} {each}"
        for each in ("passed", "warned", "failed", "skipped")
        if each in ends
    )


def dearest(results: Sequence[CheckResult]) -> str:
    """The checks that take most."""
    ordered = sorted(results, key=lambda result: -result.seconds)[:SHOWN]
    return ", ".join(f"{result.check} {result.seconds:.1f}" for result in ordered)


if __name__ == "__main__":
    main()
