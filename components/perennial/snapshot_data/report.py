"""The page that shows a snapshot: its splits over time, its columns' roles, its partitions."""

from datetime import datetime

import polars as pl

from perennial.contracts.snapshot import Snapshot
from perennial.data.partitions import Listing, samples
from perennial.data.splits import rows_by_block
from perennial.reports.charts import bar_chart, line_chart
from perennial.reports.drawing import seconds_at
from perennial.reports.page import Page
from perennial.reports.text import counted
from perennial.snapshot_data.roles import role_of

_MAX_LISTED = 100
_MAX_SAMPLES = 5


def summary_of(snapshot: Snapshot, listing: Listing, lost: str) -> str:
    """Return the snapshot in one sentence, and one more on what the last snapshot had (`lost`)."""
    splits = ", ".join(f"{rows:,} {split.value}" for split, rows in snapshot.split_rows.items())
    ignored = f"; {counted(listing.num_ignored, 'other file')} ignored" if listing.ignored else ""
    partitions = counted(len(snapshot.files), "partition")
    warning = f" WARNING: since the last snapshot, {lost}." if lost else ""
    return f"{counted(snapshot.rows, 'row')} in {partitions}: {splits}{ignored}.{warning}"


def snapshot_page(
    snapshot: Snapshot, listing: Listing, summaries: pl.DataFrame, summary: str
) -> Page:
    """Return the page of a snapshot."""
    page = Page("Snapshot data", outcome="neutral", summary=summary)
    page.values(
        {
            "digest": snapshot.digest()[:12],
            "dataset": snapshot.data.uri,
            "split by": snapshot.split.resolved_method(snapshot.data),
            "first": _shown(snapshot.time_min),
            "last": _shown(snapshot.time_max),
            "features": len(snapshot.task_columns.features),
            "files ignored": f"{listing.num_ignored:,}",
        }
    )
    _add_splits(page, snapshot, summaries)
    page.heading("Columns")
    page.table(
        ["Column", "Type", "Role"],
        [[name, dtype, role_of(snapshot, name)] for name, dtype in snapshot.columns.items()],
    )
    page.heading("Partitions")
    root = f"{snapshot.data.uri.rstrip('/')}/"
    rows = [
        [file.uri.removeprefix(root), f"{file.rows:,}", f"{file.size_bytes:,}", file.sha256[:12]]
        for file in snapshot.files[-_MAX_LISTED:]
    ]
    page.table(
        ["Partition", "Rows", "Bytes", "SHA-256"],
        rows,
        caption=f"The last {len(rows)} of {counted(len(snapshot.files), 'partition')}",
    )
    if listing.ignored:
        page.heading("Files below data.uri that are not part of the dataset")
        page.table(
            ["Reason", "Files", "Samples"],
            [
                [reason, f"{len(keys):,}", samples(keys, _MAX_SAMPLES)]
                for reason, keys in sorted(listing.ignored.items())
            ],
        )
    return page


def _add_splits(page: Page, snapshot: Snapshot, summaries: pl.DataFrame) -> None:
    page.heading("Splits")
    page.figure(
        bar_chart(
            {split.value: float(rows) for split, rows in snapshot.split_rows.items()},
            x_label="rows",
        ),
        "Rows that each split selects",
    )
    blocks = rows_by_block(snapshot, summaries)
    if blocks:
        series = {
            split: [(seconds_at(day), float(rows)) for day, rows in counts]
            for split, counts in blocks.items()
        }
        page.figure(
            line_chart(series, x_label="time", y_label="rows", x_dates=True),
            f"Rows of each split in blocks of {snapshot.data.block_days} days",
        )


def _shown(moment: datetime | None) -> str:
    return "none" if moment is None else f"{moment:%Y-%m-%d %H:%M}"
