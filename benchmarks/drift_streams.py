"""Run `python -m benchmarks.drift_streams`: false alarms and power on made streams, by three rules.

Each stream has eight numeric columns and one of text, 500 rows a week, a reference of some weeks
and four windows after it. Quiet streams differ in how their weeks differ; the others change in one
thing from the first window on. Streams of files have no time column and files of unequal size:
they go through the choice of files as well. Peers take any column: population stability index
(PSI) of at least 0.2 on the reference's deciles, and Kolmogorov-Smirnov's p-value below 0.05, with
Bonferroni's correction. Written to `benchmarks/results/drift_streams.md`; `--only` replaces one
of its tables.
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from benchmarks.record import keep_page
from perennial.contracts.block import BlockFile
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.monitoring import Reference
from perennial.contracts.snapshot import DataFile, Snapshot
from perennial.contracts.triggers import TriggersSection
from perennial.contracts.validation import BlockSketch, CategoricalSketch, NumericSketch
from perennial.detect_drift.dependence import ALL_COLUMNS, SAMPLED_ROWS, tell_apart
from perennial.detect_drift.dependence import MIN_ROWS as MIN_PAIRED_ROWS
from perennial.detect_drift.file_windows import choose_files
from perennial.detect_drift.reference import measure_windows
from perennial.detect_drift.two_sample import Profile

RESULTS = Path(__file__).parent / "results" / "drift_streams.md"
COLUMNS, ROWS, WINDOWS = 8, 500, 4
SHARES = np.array([0.4, 0.3, 0.2, 0.1])
LEVELS = np.linspace(0, 1, 129)
TRIGGERS = TriggersSection()
Rows = tuple[NDArray[np.float64], NDArray[np.int64]]


@dataclass(frozen=True)
class Stream:
    """How a stream's weeks differ, and what changes after the reference.

    Attributes:
        name: In the table.
        weeks: Of the reference.
        level: (random, weeks) → means of each week, shape [weeks, columns].
        rows: A week's.
        tails: Degrees of freedom of the rows' Student distribution; 0 is normal.
        values: Turns numbers into those of another kind of column.
        change: Alters a window's rows.
        sizes: (random, files) → rows of each file, for streams of files instead of weeks.
        grouped: Files in a block.
    """

    name: str
    weeks: int = 13
    level: Callable[[np.random.Generator, int], NDArray[np.float64]] | None = None
    rows: int = ROWS
    tails: float = 0.0
    values: Callable[[NDArray[np.float64]], NDArray[np.float64]] | None = None
    change: Callable[[np.random.Generator, Rows], Rows] | None = None
    sizes: Callable[[np.random.Generator, int], NDArray[np.int64]] | None = None
    grouped: int = 1

    def draw(self, random: np.random.Generator) -> list[Rows]:
        """All weeks' rows."""
        total = self.weeks + WINDOWS * self.grouped
        sizes = self.sizes(random, total) if self.sizes else np.full(total, self.rows)
        levels = self.level(random, total) if self.level else np.zeros((total, COLUMNS))
        found = []
        for week in range(total):
            shape = (sizes[week], COLUMNS)
            noise = (
                random.standard_t(self.tails, shape) if self.tails else random.normal(size=shape)
            )
            numbers = levels[week] + noise
            if self.values is not None:
                numbers = self.values(numbers)
            rows = numbers, random.choice(4, size=sizes[week], p=SHARES)
            if self.change is not None and week >= self.weeks:
                rows = self.change(random, rows)
            found.append(rows)
        return found


def independent(random: np.random.Generator, weeks: int) -> NDArray[np.float64]:
    """Weeks that differ by 0.3 standard deviations, each for itself."""
    return 0.3 * random.normal(size=(weeks, COLUMNS))


def autoregressive(
    correlation: float,
) -> Callable[[np.random.Generator, int], NDArray[np.float64]]:
    """Weeks that differ by 0.3 standard deviations and resemble their neighbours."""

    def level(random: np.random.Generator, weeks: int) -> NDArray[np.float64]:
        values = random.normal(size=(weeks, COLUMNS))
        for week in range(1, weeks):
            fresh = np.sqrt(1 - correlation**2) * values[week]
            values[week] = correlation * values[week - 1] + fresh
        return 0.3 * values

    return level


def yearly(random: np.random.Generator, weeks: int) -> NDArray[np.float64]:
    """A season of 52 weeks, half a standard deviation high, another phase in each column."""
    phase = np.arange(weeks)[:, None] / 52 + random.random(COLUMNS)
    return 0.5 * np.sin(2 * np.pi * phase) + 0.1 * random.normal(size=(weeks, COLUMNS))


def _ratings(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.clip(np.round(4.3 + 0.8 * numbers), 1, 5)


def _flags(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    """True in 2% of the rows of the first column to 98% of those of the last."""
    return (numbers > np.linspace(2, -2, COLUMNS)).astype(np.float64)


def _mostly_zero(numbers: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(numbers > 1, np.exp(numbers), 0.0)


def _shift(by: float) -> Callable[[np.random.Generator, Rows], Rows]:
    return lambda _, rows: (rows[0] + by * np.eye(COLUMNS)[0], rows[1])


def _widen(_: np.random.Generator, rows: Rows) -> Rows:
    return rows[0] * np.where(np.arange(COLUMNS) == 0, 1.5, 1.0), rows[1]


def _new_category(random: np.random.Generator, rows: Rows) -> Rows:
    return rows[0], np.where(random.random(len(rows[1])) < 0.06, 9, rows[1])


def _correlate(_: np.random.Generator, rows: Rows) -> Rows:
    numbers = rows[0].copy()
    numbers[:, 1] = 0.6 * numbers[:, 0] + 0.8 * numbers[:, 1]
    return numbers, rows[1]


def unequal(spread: float, middle: int = 500) -> Callable[..., NDArray[np.int64]]:
    """Sizes of files whose logarithms have this standard deviation, at least five rows."""

    def sizes(random: np.random.Generator, files: int) -> NDArray[np.int64]:
        rows = middle * np.exp(spread * random.normal(size=files))
        return np.clip(rows, 5, 50_000).astype(np.int64)

    return sizes


def one_huge(_: np.random.Generator, files: int) -> NDArray[np.int64]:
    """A first load of 20,000 rows, then 500 rows a file."""
    return np.where(np.arange(files) == 0, 20_000, 500)


QUIET = (
    Stream("independent rows"),
    Stream("weeks differ by 0.3 sd", level=independent),
    *(Stream(f"AR({r}), 13 weeks", level=autoregressive(r)) for r in (0.3, 0.6, 0.9)),
    Stream("AR(0.9), 52 weeks", 52, level=autoregressive(0.9)),
    Stream("AR(0.9), 40 rows a week", level=autoregressive(0.9), rows=40),
    Stream("20 rows a week", rows=20),
    Stream("heavy tails (Student, 2 df)", tails=2.0),
    Stream("ratings of 1 to 5, weeks differ by 0.3 sd", level=independent, values=_ratings),
    Stream("flags, weeks differ by 0.3 sd", level=independent, values=_flags),
    Stream("84% zeros, weeks differ by 0.3 sd", level=independent, values=_mostly_zero),
    Stream("yearly season, 13 weeks", level=yearly),
    Stream("yearly season, 26 weeks", 26, level=yearly),
    Stream("yearly season, 52 weeks", 52, level=yearly),
)
CHANGED = (
    Stream("+1 sd in 1 of 8 columns", level=independent, change=_shift(1.0)),
    Stream("+1 sd, 26 weeks", 26, level=independent, change=_shift(1.0)),
    Stream("+0.5 sd, weeks alike", change=_shift(0.5)),
    Stream("spread x 1.5 in 1 of 8", level=independent, change=_widen),
    Stream("new category, 6% of rows", level=independent, change=_new_category),
    Stream("correlation 0 to 0.6", change=_correlate),
)

FILES = (
    Stream("sizes spread by a factor of e, 20 files", 20, sizes=unequal(1.0)),
    Stream("the same, files differ by 0.3 sd", 20, level=independent, sizes=unequal(1.0)),
    Stream("the same, AR(0.6)", 20, level=autoregressive(0.6), sizes=unequal(1.0)),
    Stream("first load 40 times as large, differ by 0.3 sd", level=independent, sizes=one_huge),
    Stream("12 rows a file, 8 files a block", 104, sizes=unequal(0.5, 12), grouped=8),
)
CHANGED_FILES = (
    Stream("+1 sd in 1 of 8 columns, files differ by 0.3 sd", 20, level=independent,
           change=_shift(1.0), sizes=unequal(1.0)),
    Stream("+1 sd, first load 40 times as large", level=independent, change=_shift(1.0),
           sizes=one_huge),
    Stream("+1 sd, 12 rows a file, 8 files a block", 104, change=_shift(1.0),
           sizes=unequal(0.5, 12), grouped=8),
    Stream("new category, 6% of rows", 20, level=independent, change=_new_category,
           sizes=unequal(1.0)),
    Stream("correlation 0 to 0.6", 20, change=_correlate, sizes=unequal(1.0)),
)  # fmt: skip
TABLES = {
    "Quiet streams": ("goal: at most 7.7% of windows (1 in 13)", QUIET),
    "Changed streams": ("higher is better", CHANGED),
    "Quiet streams of files": ("goal: at most 7.7% of windows (1 in 13)", FILES),
    "Changed streams of files": ("higher is better", CHANGED_FILES),
}


def sketch(rows: Rows, week: int) -> BlockSketch:
    """A week as `validate_data` keeps it."""
    numbers, texts = rows
    start = datetime(2024, 1, 4) + week * timedelta(days=7)
    values, counts = np.unique(texts, return_counts=True)
    return BlockSketch(
        start=start,
        end=start + timedelta(days=7),
        rows=len(texts),
        label_mean=None,
        numeric={
            f"c{column}": NumericSketch(
                quantiles=tuple(np.quantile(numbers[:, column], LEVELS).tolist()), nulls=0
            )
            for column in range(COLUMNS)
        },
        categorical={
            "text": CategoricalSketch(
                counts={str(v): int(c) for v, c in zip(values, counts, strict=True)}, nulls=0
            )
        },
    )


def ours(weeks: list[Rows], stream: Stream) -> list[bool]:
    """Which windows alarm; of files those that are judged."""
    reference = stream.weeks
    sketches = [sketch(rows, week) for week, rows in enumerate(weeks)]
    if stream.sizes is not None:
        return _by_file(weeks, sketches, stream)
    scores = [
        stats.norm.ppf(stats.rankdata(numbers, axis=0) / (len(numbers) + 1)) for numbers, _ in weeks
    ]
    more = []
    if len(scores[0]) >= 40:
        separation = tell_apart(scores, reference)[:, None]
        weights = np.array([float(len(rows)) for rows in scores])
        more = [Profile(ALL_COLUMNS, "dependence", (), separation, weights)]
    measured = measure_windows(sketches[:reference], sketches[reference:], TRIGGERS, more)
    return [window.alarmed for window in measured.windows]


def _by_file(weeks: list[Rows], sketches: list[BlockSketch], stream: Stream) -> list[bool]:
    files = [BlockFile(path=f"part-{number}", sha256=f"{number}") for number in range(len(weeks))]
    blocks = [
        block.model_copy(update={"start": None, "end": None, "files": (file,)})
        for block, file in zip(sketches, files, strict=True)
    ]
    pinned = tuple(DataFile(uri=f.path, size_bytes=0, sha256=f.sha256, rows=0) for f in files)
    current = Snapshot(
        data=DataSection(uri="d", label="y"), split=SplitSection(), files=pinned, columns={},
        rows=0, split_rows={},
    )  # fmt: skip
    known = current.model_copy(update={"files": pinned[: stream.weeks]})
    chosen = choose_files(
        Reference(snapshot_digest="", time_max=None, rows=0, blocks=tuple(blocks[: stream.weeks]),
                  performance=()),
        known, blocks, current, arrivals={f.sha256: place for place, f in enumerate(files)},
        files_in_a_block=stream.grouped,
    )  # fmt: skip
    if chosen.reason_to_skip(TRIGGERS):
        return []
    numbers = [
        np.concatenate([weeks[int(file.sha256)][0] for file in block.files])[:SAMPLED_ROWS]
        for block in (*chosen.reference, *chosen.windows)
    ]
    kept = [place for place, rows in enumerate(numbers) if len(rows) >= MIN_PAIRED_ROWS]
    scores = [
        stats.norm.ppf(stats.rankdata(numbers[place], axis=0) / (len(numbers[place]) + 1))
        for place in kept
    ]
    separation, weights = np.zeros((len(numbers), 1)), np.zeros(len(numbers))
    separation[kept, 0] = tell_apart(scores, sum(place < len(chosen.reference) for place in kept))
    weights[kept] = [len(rows) for rows in scores]
    more = [Profile(ALL_COLUMNS, "dependence", (), separation, weights)]
    measured = measure_windows(chosen.reference, chosen.windows, TRIGGERS, more)
    return [window.alarmed for window in measured.windows]


def stability_index(weeks: list[Rows], stream: Stream) -> list[bool]:
    """Any column's PSI of at least 0.2."""
    reference = stream.weeks
    pooled = np.concatenate([numbers for numbers, _ in weeks[:reference]])
    edges = np.quantile(pooled, np.linspace(0, 1, 11)[1:-1], axis=0)
    found = []
    for numbers, texts in weeks[reference:]:
        bins = [
            np.bincount(np.searchsorted(edges[:, c], numbers[:, c]), minlength=10)
            for c in range(COLUMNS)
        ]
        shares = [np.maximum(counts / len(numbers), 1e-4) for counts in bins]
        indices = [float(((share - 0.1) * np.log(share / 0.1)).sum()) for share in shares]
        usual = np.concatenate([t for _, t in weeks[:reference]])
        before, now = (
            np.maximum(np.bincount(t, minlength=10) / len(t), 1e-4) for t in (usual, texts)
        )
        indices.append(float(((now - before) * np.log(now / before)).sum()))
        found.append(max(indices) >= 0.2)
    return found


def kolmogorov_smirnov(weeks: list[Rows], stream: Stream) -> list[bool]:
    """Any column's p-value below 0.05 over the number of columns."""
    reference = stream.weeks
    pooled = np.concatenate([numbers for numbers, _ in weeks[:reference]])
    return [
        min(stats.ks_2samp(pooled[:, c], numbers[:, c]).pvalue for c in range(COLUMNS))
        < 0.05 / COLUMNS
        for numbers, _ in weeks[reference:]
    ]


RULES = {"ours": ours, "PSI >= 0.2": stability_index, "KS, p < 0.05/8": kolmogorov_smirnov}


def measure(stream: Stream, repeats: int) -> list[str]:
    """A line of the table: windows alarmed, and streams whose newest two alarmed, by each rule."""
    random = np.random.default_rng(1)
    alarms: dict[str, list[list[bool]]] = {name: [] for name in RULES}
    for _ in range(repeats):
        weeks = stream.draw(random)
        for name, rule in RULES.items():
            alarms[name].append(rule(weeks, stream))
    cells = [stream.name]
    for found in alarms.values():
        judged = [alarm for windows in found for alarm in windows]
        newest = [len(windows) > 1 and windows[-1] and windows[-2] for windows in found]
        cells += [f"{np.mean(judged):.1%}", f"{np.mean(newest):.0%}"]
    return cells


def main() -> None:
    """Measure the streams and write the page, or one table of it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=100)
    parser.add_argument("--only", choices=TABLES, help="replace this table alone")
    arguments = parser.parse_args()
    started = time.process_time()
    chosen = [arguments.only] if arguments.only else list(TABLES)
    parts = dict(part.split("\n", 1) for part in RESULTS.read_text().split("\n## ")[1:])
    for title in chosen:
        goal, streams = TABLES[title]
        head = "| stream | " + " | ".join(f"{name}: windows | {name}: two newest" for name in RULES)
        lines = ["", head + " |", "|---" * 7 + "|"]
        for stream in streams:
            lines.append("| " + " | ".join(measure(stream, arguments.repeats)) + " |")
            print(lines[-1], flush=True)
        lines += [
            "",
            f"{date.today()}, {arguments.repeats} repeats, "
            f"{time.process_time() - started:.0f} s of CPU time so far.",
        ]
        parts[f"{title} ({goal})"] = "\n".join(lines) + "\n"
    about = (
        f"# Drift on made streams\n\n`python -m benchmarks.drift_streams`. {COLUMNS} numeric "
        f"columns and one of text, {ROWS} rows a week, {WINDOWS} windows after the reference. "
        "`windows`: share of windows that alarm, of those that are judged; `two newest`: share of "
        "streams whose newest two windows alarm, which starts a retraining. Files hold 500 rows in "
        "the middle; one with less than half of the usual rows is not judged.\n"
    )
    pages = [about, *(f"{k}\n{v}" for k, v in parts.items())]
    keep_page(RESULTS.name, "\n## ".join(pages))


if __name__ == "__main__":
    main()
