"""Throughput: updates per second beside hand-written loops and other frameworks, in one run.

    python -m benchmarks.throughput [--rounds 7] [--only decoder]

Every cell is a process group of its own. In each round every contender makes the cell's updates, in
an order that is reversed from round to round; ratios are taken within a round, so that a machine
that gets slower slows all of them.
"""

import argparse
import importlib.metadata
import json
import os
import platform
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path

import numpy as np

from benchmarks.record import keep_figures, keep_page
from benchmarks.throughput.cells import CELLS, Cell
from benchmarks.throughput.race import Race
from perennial.steps.processes import MALLOC

REFERENCES = ("best hand-written loop", "stock loop")


def main() -> None:
    """Measure the cells and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cells whose name contains this")
    parser.add_argument("--updates", type=int, help="in a round, instead of each cell's own number")
    options = parser.parse_args()
    races = []
    for cell in CELLS:
        if options.only in cell.name:
            races.append(measure(cell, options.rounds, options.updates or cell.steps))
            print("\n".join(cell_lines(races[-1])), flush=True)
    lines = [*head(options.rounds), *(line for race in races for line in cell_lines(race))]
    keep_page("throughput.md", "\n".join(lines) + "\n")
    keep_figures("throughput.json", {"races": [race.to_dict() for race in races]})


def measure(cell: Cell, rounds: int, updates: int) -> Race:
    """Run one cell in processes of its own."""
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder:
        result = Path(folder) / "race.json"
        subprocess.run(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(cell.processes), "--max-restarts", "0"),
                *("-m", "benchmarks.throughput.race"),
                *(str(CELLS.index(cell)), str(rounds), str(updates), str(result)),
            ],
            # Frameworks differ in what they can do on CPUs; accelerator.py is for GPUs.
            env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", **MALLOC},
            check=True,
        )
        return Race.from_dict(cell, json.loads(result.read_text()))


def head(rounds: int) -> list[str]:
    """What was measured, with what, where."""
    versions = ", ".join(
        f"{name} {importlib.metadata.version(name)}"
        for name in ("torch", "lightning", "accelerate", "mosaicml", "torchtitan")
        if _is_installed(name)
    )
    return [
        "# Throughput",
        "",
        f"{date.today().isoformat()}, {platform.platform()}, {os.cpu_count()} cores, {versions}. "
        f"{rounds} rounds.",
        "",
        "Ratio = updates per second of the contender / of the reference in the same round; median "
        "(quartiles) over the rounds, of wall time and of the processor time of all ranks. "
        "Clipping and logging on for all.",
    ]


def cell_lines(race: Race) -> list[str]:
    """One cell's table."""
    lines = ["", f"## {race.cell.name}", "", "| contender | ms per update | wall / best | "
             "processor / best | wall / stock |", "| --- | --- | --- | --- | --- |"]  # fmt: skip
    for name, times in race.times.items():
        wall = np.array(times)[:, 0]
        cells = [f"{np.median(wall) / race.cell.steps * 1e3:.3f}"]
        cells += [
            ratio(race, name, REFERENCES[0], 0),
            ratio(race, name, REFERENCES[0], 1),
            ratio(race, name, REFERENCES[1], 0),
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    lines += [f"| {name} | {reason} | | | |" for name, reason in race.refusals.items()]
    return lines


def ratio(race: Race, name: str, reference: str, column: int) -> str:
    """Median and quartiles of the rounds' ratios."""
    mine, theirs = (np.array(race.times[each])[:, column] for each in (name, reference))
    low, middle, high = np.quantile(theirs / mine, [0.25, 0.5, 0.75])
    return f"{middle:.2f} ({low:.2f} to {high:.2f})"


def _is_installed(name: str) -> bool:
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


if __name__ == "__main__":
    main()
