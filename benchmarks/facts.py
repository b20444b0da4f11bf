"""Run `python -m benchmarks.facts`: what do facts cost, against decoding the rows and against GX?

Months of flights are copied until each partition has a million rows. Each figure is taken in a
process of its own with one thread: CPU seconds, and the most memory that it held (`VmHWM`, which
counts the pages of files too). Decoding is polars reading every column of the same partitions.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import polars as pl

from benchmarks.record import ROOT, keep_page
from perennial.clients.object_store import open_store
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.snapshot import Snapshot
from perennial.snapshot_data.manifest import take_snapshot
from perennial.validate_data.config import ExpectationsSection
from perennial.validate_data.facts import gather_facts

RESULTS = "facts.md"
FLIGHTS = ROOT / "examples" / "flights" / "data"
TIME, LABEL = "scheduled_departure", "arrived_late"
WEATHER = ("temp", "wind_speed", "precip", "visib")
NUM_EXPECTATIONS = 40
ONE_THREAD = {"POLARS_MAX_THREADS": "1", "OMP_NUM_THREADS": "1", "PERENNIAL_CORES": "1"}


def main() -> None:
    """Measure at each size, in processes of their own, and write the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--flights", type=Path, default=FLIGHTS, help="of `make demo-data`")
    parser.add_argument("--partitions", type=int, nargs="+", default=[3, 12, 48])
    parser.add_argument("--rows", type=int, default=1_000_000, help="of a partition")
    parser.add_argument("--write", action="store_true", help="keep the results")
    parser.add_argument("--measure", nargs="+", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure, *rest = arguments.measure
        print(json.dumps(MEASURES[measure](*rest)))
        return
    with TemporaryDirectory(prefix="perennial-facts-") as name:
        page = measured(Path(name), arguments)
    print(page)
    if arguments.write:
        keep_page(RESULTS, page)


def measured(folder: Path, arguments: argparse.Namespace) -> str:
    """The page of results."""
    sizes = sorted(arguments.partitions)
    flights = sorted(arguments.flights.rglob("*.parquet")) or [synthetic_flights(folder)]
    print(f"writing {sizes[-1] + 1} partitions of {arguments.rows:,} rows", file=sys.stderr)
    for number in range(sizes[-1] + 1):
        write_partition(folder / "data", flights, number, arguments.rows)
    lines = [
        "| rows | decoding, s | facts cold, s | ratio | facts stored, s | most memory, MB |",
        "|---|---|---|---|---|---|",
    ]
    for size in sizes:
        partitions = f"0:{size}"
        decoding = process(folder, "decode", partitions)
        cold = process(folder, "facts", partitions, f"store{size}")
        stored = process(folder, "facts", partitions, f"store{size}")
        lines.append(
            f"| {size * arguments.rows:,} | {decoding['cpu']:.2f} | {cold['cpu']:.2f} "
            f"| {cold['cpu'] / decoding['cpu']:.1f} | {stored['cpu']:.2f} | {cold['memory']:.0f} |"
        )
        print(lines[-1], file=sys.stderr)
    last = sizes[-1]
    alone = process(folder, "facts", f"{last}:{last + 1}", "alone")
    warm = process(folder, "facts", f"0:{last + 1}", f"store{last}")
    gx = process(folder, "great_expectations", f"{last}:{last + 1}")
    states = [path.stat().st_size for path in (folder / f"store{last}" / "facts").rglob("*")
              if path.is_file() and path.parent.name != "merged"]  # fmt: skip
    data = [path.stat().st_size for path in (folder / "data").rglob("*.parquet")]
    return "\n".join(
        [
            "# Facts",
            "",
            f"Flights, {len(flights)} months copied to partitions of {arguments.rows:,} rows x 26 "
            f"columns; CPU seconds of one thread, polars {pl.__version__}.",
            "",
            *lines,
            "",
            f"- One more partition on top of {last}: {warm['cpu']:.2f} s, "
            f"{warm['cpu'] / alone['cpu']:.2f} of that partition alone ({alone['cpu']:.2f} s); "
            f"{warm['memory']:.0f} MB.",
            f"- Stock Great Expectations on pandas, {NUM_EXPECTATIONS} expectations on one "
            f"partition: {gx['cpu']:.2f} s and {gx['memory']:.0f} MB, reading included; that is "
            f"{gx['cpu'] / alone['cpu']:.1f} times the CPU of all facts of it.",
            f"- A state takes {max(states) / 1e6:.1f} MB at most, a partition "
            f"{sum(data) / len(data) / 1e6:.1f} MB.",
            "",
        ]
    )


def write_partition(folder: Path, flights: list[Path], number: int, rows: int) -> None:
    """One month of flights, copied to many rows; a year later for every twelve."""
    folder.mkdir(exist_ok=True)
    month = pl.read_parquet(flights[number % len(flights)])
    copies = []
    for copy in range(-(-rows // month.height)):
        later = f"{364 * (number // len(flights))}d{copy}m"
        times = [pl.col(name).dt.offset_by(later) for name, dtype in month.schema.items()
                 if dtype.is_temporal()]  # fmt: skip
        copies.append(month.with_columns(*times, pl.col("flight_id") + f"-{number}-{copy}"))
    table = pl.concat(copies).head(rows).sort(TIME)
    table.write_parquet(folder / f"{number:04}.parquet", compression="zstd")


def synthetic_flights(folder: Path) -> Path:
    """A month with the columns that are named here, where there are no flights."""
    hours = pl.datetime_range(datetime(2013, 1, 1), datetime(2013, 1, 31), "1h", eager=True)
    row = pl.int_range(pl.len())
    month = pl.DataFrame({TIME: hours, "weather_observed_at": hours}).with_columns(
        ("f" + row.cast(pl.String)).alias("flight_id"),
        ("n" + (row % 50).cast(pl.String)).alias("tailnum"),
        *(
            ((row * 7 + place) % 31).cast(pl.Float64).alias(name)
            for place, name in enumerate(WEATHER)
        ),
        (row % 4 == 0).cast(pl.Int64).alias(LABEL),
    )
    month.write_parquet(folder / "month.parquet")
    return folder / "month.parquet"


def process(folder: Path, *arguments: str) -> dict[str, float]:
    """Measure in a process of its own."""
    measure, *rest = arguments
    command = [sys.executable, "-m", "benchmarks.facts", "--measure", measure, str(folder), *rest]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ, **ONE_THREAD}
    )
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def used(began: float) -> dict[str, float]:
    """CPU seconds since, and the most memory of this process so far."""
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM"))
    return {"cpu": time.process_time() - began, "memory": peak / 1024}


def chosen(folder: str, partitions: str) -> list[Path]:
    """The files of a range of partitions."""
    first, until = map(int, partitions.split(":"))
    return sorted(Path(folder, "data").glob("*.parquet"))[first:until]


def decode(folder: str, partitions: str) -> dict[str, float]:
    """Read all columns, file by file."""
    began = time.process_time()
    for path in chosen(folder, partitions):
        pl.read_parquet(path)
    return used(began)


def snapshot_of(folder: str, partitions: str) -> Snapshot:
    """A snapshot of some partitions, in one folder that the others are absent from."""
    place = Path(folder, "view")
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for path in chosen(folder, partitions):
        os.link(path, place / path.name)
    data = DataSection(
        uri=str(place), label=LABEL, time=TIME, ids=("flight_id",),
        meta=("tailnum", "weather_observed_at"),
        available_at=dict.fromkeys(WEATHER, "weather_observed_at"),
    )  # fmt: skip
    return take_snapshot(data, SplitSection(test_fraction=0.3))


def facts(folder: str, partitions: str, store: str) -> dict[str, float]:
    """Gather facts; without the snapshot, which is another step."""
    snapshot = snapshot_of(folder, partitions)
    began = time.process_time()
    gather_facts(
        snapshot, ExpectationsSection(), datetime.now(UTC), open_store(f"{folder}/{store}")
    )
    return used(began)


def great_expectations(folder: str, partitions: str) -> dict[str, float]:
    """Validate rows by the suite that people write first: types, nulls, ranges, sets."""
    # Here, because nothing else needs it and its import takes seconds.
    gx: Any = importlib.import_module("great_expectations")
    gxe: Any = importlib.import_module("great_expectations.expectations")
    import pandas as pd  # noqa: PLC0415

    context = gx.get_context(mode="ephemeral")
    context.variables.progress_bars = {"globally": False}
    began = time.process_time()
    table = pd.concat([pd.read_parquet(path) for path in chosen(folder, partitions)])
    asset = context.data_sources.add_pandas("p").add_dataframe_asset("a")
    batch = asset.add_batch_definition_whole_dataframe("w")
    numbers = [name for name in table.columns if pd.api.types.is_numeric_dtype(table[name])]
    expectations = [gxe.ExpectColumnValuesToNotBeNull(column=name) for name in table.columns]
    expectations += [
        gxe.ExpectColumnValuesToBeBetween(column=name, min_value=-1e6, max_value=1e6)
        for name in numbers
    ]
    expectations = [*expectations, gxe.ExpectColumnValuesToBeUnique(column="flight_id")]
    suite = gx.ExpectationSuite(name="s", expectations=expectations[-NUM_EXPECTATIONS:])
    validation = gx.ValidationDefinition(name="v", data=batch, suite=context.suites.add(suite))
    context.validation_definitions.add(validation)
    validation.run(batch_parameters={"dataframe": table}, result_format="SUMMARY")
    return used(began)


MEASURES: dict[str, Callable[..., dict[str, float]]] = {
    "decode": decode,
    "facts": facts,
    "great_expectations": great_expectations,
}

if __name__ == "__main__":
    main()
