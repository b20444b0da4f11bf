"""Loss curves of streamed and resident trainings of the three examples, over seeds.

    python -m benchmarks.streaming_curves DATA [--seeds 3] [--steps 300] [--write]

DATA holds `flights`, `digits` and `text` as their `prepare.py` write them; those that are missing
are left out. The partitions are written again with small row groups of neighbouring days, which are
not joined, and streamed twice: with the default window of rows, and with the smallest there is, 8
row groups at a time, to show what a window that is too small costs. Everything but
`training.loading` and the seed is the example's own.

The figure is the loss on the validation sample at the end and, as the mean over the evaluations of
the second half, along the curve. Differences to the resident way are in standard errors of the
difference of means over the seeds, which is what chance alone would leave.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import polars as pl

from benchmarks.record import ROOT, keep_page
from perennial.contract import Contract, load_contract
from perennial.contracts.training import TrainingResult
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.snapshot_data.manifest import take_snapshot

GROUP_ROWS = {"digits": 32, "flights": 2_048, "text": 128}
WAYS = {
    "resident": {"mode": "resident"},
    "streamed": {"mode": "streaming", "encode_workers": 0},
    "streamed, 8 row groups at a time": {
        "mode": "streaming",
        "encode_workers": 0,
        "shuffle_rows": 1,
    },
}
WORKER = """
import sys
from perennial.engine.data import blocks
blocks.BLOCK_ROWS = 1
from perennial.engine import worker
sys.exit(worker.main())
"""


def rewrite(source: Path, target: Path, rows: int) -> None:
    """Write the partitions again with small row groups."""
    for file in sorted(source.glob("**/*.parquet")):
        place = target / file.relative_to(source)
        place.parent.mkdir(parents=True)
        pl.read_parquet(file).write_parquet(place, row_group_size=rows)


def train(contract: Contract, snapshot: Path, folder: Path, training: TrainingSection) -> Path:
    """Train in one process of its own; return the folder of the result."""
    folder.mkdir(parents=True)
    job = TrainingJob(
        fingerprint=folder.name,
        snapshot=str(snapshot),
        model=contract.model,
        training=training,
        num_processes=1,
        folder=str(folder),
    )
    (folder / "job.json").write_text(job.to_json())
    environment = {
        "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
        "PERENNIAL_RENDEZVOUS": str(folder / "rendezvous"), "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    subprocess.run(
        [sys.executable, "-c", WORKER, str(folder / "job.json")],
        env=os.environ | environment, check=False,
    )  # fmt: skip
    return folder


def losses(folder: Path) -> tuple[float, float]:
    """Return the loss at the end, and its mean over the second half of the evaluations."""
    found = [each.metrics["loss"] for each in TrainingResult.read(folder).evaluations]
    return found[-1], statistics.fmean(found[len(found) // 2 :])


def compare(name: str, data: Path, folder: Path, seeds: int, steps: int) -> Iterator[str]:
    """Yield the lines of one example's table."""
    rewrite(data, folder / "data", GROUP_ROWS[name])
    contract = load_contract(ROOT / "examples" / name / "contract.toml")
    section = contract.data.model_copy(update={"uri": str(folder / "data")})
    snapshot = take_snapshot(section, contract.split)
    snapshot.write(folder / "snapshot")
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for seed in range(1, seeds + 1):
        for way, loading in WAYS.items():
            changes = {
                "seed": seed, "loading": loading, "strategy": "single", "evaluate_every_steps": 25,
                "steps": min(steps, contract.training.steps),
            }  # fmt: skip
            values = contract.training.model_dump(mode="json") | changes
            training = TrainingSection.model_validate(values, strict=False)
            place = train(
                contract, folder / "snapshot", folder / f"{list(WAYS).index(way)}-{seed}", training
            )
            found[way].append(losses(place))
            print(name, way, seed, found[way][-1], flush=True)
    for index, what in enumerate(("at the end", "second half")):
        base, *others = ([each[index] for each in found[way]] for way in WAYS)
        cells = [f"{statistics.fmean(base):.4f} ± {statistics.stdev(base):.4f}"]
        for other in others:
            difference = statistics.fmean(other) - statistics.fmean(base)
            deviation = (statistics.variance(base) + statistics.variance(other)) ** 0.5
            errors = difference / (deviation / seeds**0.5)
            cells.append(f"{statistics.fmean(other):.4f} ({errors:+.1f})")
        yield f"| {name} | {what} | {' | '.join(cells)} |"


def main() -> None:
    """Compare the examples that are there."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("data", type=Path, help="folder with flights, digits and text")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=300, help="at most; examples may have fewer")
    parser.add_argument("--write", action="store_true", help="write the page of results")
    arguments = parser.parse_args()
    lines = [
        "# Loss curves of streamed rows",
        "",
        f"Validation loss over {arguments.seeds} seeds with its deviation; at most "
        f"{arguments.steps} steps. In parentheses: difference to resident, in standard errors.",
        "",
        f"| example | loss | {' | '.join(WAYS)} |",
        "| --- | --- | ---: | ---: | ---: |",
    ]
    with tempfile.TemporaryDirectory() as place:
        for name in GROUP_ROWS:
            if (arguments.data / name).is_dir():
                folder = Path(place) / name
                data = arguments.data / name
                lines += compare(name, data, folder, arguments.seeds, arguments.steps)
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.write:
        keep_page("streaming_curves.md", text)


if __name__ == "__main__":
    main()
