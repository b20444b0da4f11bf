"""A suite of 56 expectations on flights: from counts, and by Great Expectations on pandas.

    PYTHONPATH=tests/support python -m benchmarks.suite_verdicts --months 3 --copies 12 --write

Each way is a process of its own. Its CPU seconds and memory are those after the imports, with
decoding Parquet; the peer is stock Great Expectations on one table of pandas.
"""

import argparse
import json
import resource
import runpy
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pandas as pd
import polars as pl

from benchmarks.record import keep_page
from flight_suites import ON_FACTS
from judged_suites import stock
from perennial.clients.object_store import open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.data.dataset import Dataset
from perennial.snapshot_data.manifest import take_snapshot
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.suites.document import Suite
from perennial.validate_data.suites.team_suite import TeamSuite

RESULTS = "suite_verdicts.md"
EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "flights" / "prepare.py"
WAYS = {
    "decode": "polars decodes the same rows",
    "stock": "Great Expectations on pandas",
    "cold": "from counts, nothing counted before",
    "warm": "from counts, one new partition",
}


def memory() -> float:
    """Peak resident memory of this process in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def run_way(way: str, folder: Path) -> dict[str, Any]:
    """Judge the suite one way in this process; return CPU seconds, memory and verdicts."""
    suite = Suite(name="flights", expectations=ON_FACTS)
    files = sorted((folder / "data").glob("*.parquet"))
    pd.Series([1.0]).mean()
    before, start = memory(), time.process_time()
    verdicts: list[str] = []
    if way == "decode":
        for batch in pl.scan_parquet(files).collect_batches(chunk_size=250_000):
            del batch
    elif way == "stock":
        verdicts = [outcome for outcome, _ in stock(suite, files)]
    else:
        data = DataSection(
            uri=str(folder / "data"), label="arrived_late", time="scheduled_departure",
            ids=("flight_id",),
        )  # fmt: skip
        snapshot = take_snapshot(data, SplitSection())
        section = ExpectationsSection(suite=suite.to_json())
        store = open_store(str(folder / "store"))
        before, start = memory(), time.process_time()
        team = TeamSuite.prepare(section, Dataset(snapshot).scan().collect_schema(), snapshot.rows)
        verdicts = [each.outcome for each in team.judge(snapshot, store, pl.DataFrame())]
    cpu = time.process_time() - start
    return {"cpu": cpu, "peak": memory() - before, "verdicts": verdicts}


def measure(way: str, folder: Path) -> dict[str, Any]:
    """Judge one way in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.suite_verdicts", "--way", way, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def write_rows(folder: Path, months: int, copies: int) -> list[pl.DataFrame]:
    """Write the months as partitions, as often as asked under later times; return the last two."""
    rows = runpy.run_path(str(EXAMPLE))["build_rows"]()
    parts = [
        rows.filter(pl.col("scheduled_departure").dt.month() == each + 1) for each in range(months)
    ]
    (folder / "data").mkdir()
    for copy in range(copies):
        for index, part in enumerate(parts):
            later = pl.col("scheduled_departure", "weather_observed_at").dt.offset_by(f"{copy}y")
            named = pl.concat_str("flight_id", pl.lit(f"-{copy}"))
            part.with_columns(later, flight_id=named).write_parquet(
                folder / "data" / f"{copy:02}-{index:02}.parquet"
            )
    return parts


def page(rows: int, new: int, found: dict[str, dict[str, Any]]) -> str:
    """The results as Markdown."""
    base = found["decode"]["cpu"]
    lines = [
        "# A suite of expectations: counts against Great Expectations on pandas",
        "",
        f"{rows:,} rows of flights x 26 columns, 56 expectations; warm: {new:,} of them in a new "
        "partition. CPU seconds after the imports.",
        "",
        "| way | CPU seconds | of decoding | MB above the start |",
        "|---|---|---|---|",
    ]
    for way, name in WAYS.items():
        cpu, peak = found[way]["cpu"], found[way]["peak"]
        lines.append(f"| {name} | {cpu:.2f} | {cpu / base:.1f} | {peak:,.0f} |")
    stock, cold = (found[way]["cpu"] for way in ("stock", "cold"))
    pairs = zip(found["stock"]["verdicts"], found["cold"]["verdicts"], strict=True)
    differing = sum(a != b for a, b in pairs)
    lines += [
        "",
        f"Counts take {stock / cold:.1f} times less CPU than Great Expectations on pandas; "
        f"{differing} of 56 verdicts differ.",
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure all ways on the same files and print the page."""
    parser = argparse.ArgumentParser(description="Suite verdicts from counts, and on pandas.")
    parser.add_argument("--months", type=int, default=3, help="of 2013, each a partition")
    parser.add_argument("--copies", type=int, default=1, help="of these months, in later years")
    parser.add_argument("--write", action="store_true", help="keep the page")
    parser.add_argument("--way", nargs=2, metavar=("WAY", "FOLDER"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.way:
        print(json.dumps(run_way(arguments.way[0], Path(arguments.way[1]))))
        return
    with TemporaryDirectory() as name:
        folder = Path(name)
        parts = write_rows(folder, arguments.months, arguments.copies)
        last = max((folder / "data").iterdir())
        rows = sum(part.height for part in parts) * arguments.copies
        found = {way: measure(way, folder) for way in ("decode", "stock")}
        if arguments.months * arguments.copies > 1:
            aside = last.rename(folder / "aside")
            measure("cold", folder)
            aside.rename(last)
        found["warm"] = measure("warm", folder)
        (folder / "store").rename(folder / "used")
        found["cold"] = measure("cold", folder)
        text = page(rows, parts[-1].height, found)
    print(text)
    if arguments.write:
        keep_page(RESULTS, text)


if __name__ == "__main__":
    main()
