"""The step `snapshot_data`: pin the dataset's files and keep the snapshot in the object store."""

from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.data import DataSection, ModelSection, SplitSection
from perennial.contracts.environment import Environment
from perennial.contracts.section import Section
from perennial.gate.config import GateSection
from perennial.snapshot_data.last_snapshot import compare_with_last
from perennial.snapshot_data.manifest import (
    list_partitions,
    store_snapshot,
    take_indexed_snapshot,
)
from perennial.snapshot_data.report import snapshot_page, summary_of
from perennial.steps.decorator import StepResult, pipeline_step


class SnapshotDataConfig(Section):
    """The sections of the contract that this step reads."""

    model: ModelSection
    data: DataSection
    split: SplitSection = SplitSection()
    gate: GateSection = GateSection()


@pipeline_step("snapshot_data", reads=SnapshotDataConfig, outputs=("snapshot", "report"))
def snapshot_data_step(*, contract: str, snapshot: str, report: str) -> StepResult:
    """Pin the dataset."""
    config = SnapshotDataConfig.from_json(contract)
    listing = list_partitions(open_store(config.data.uri))
    store = open_store(Environment.read().store_uri)
    taken, summaries, opened = take_indexed_snapshot(
        config.data, config.split, listing=listing, index_store=store
    )
    # The gate comes last, and what it needs of the columns is known now.
    config.gate.require_slices(taken.columns)
    # First the snapshot: the record of the last one names it by its digest.
    store_snapshot(taken, store)
    lost = compare_with_last(store, config.model.name, taken)
    summary = summary_of(taken, listing, lost)
    hand_on(Path(snapshot), taken)
    snapshot_page(taken, listing, summaries, summary).write(Path(report))
    scalars = {
        "rows": taken.rows,
        "partitions": len(taken.files),
        "opened_partitions": opened,
        "ignored_files": listing.num_ignored,
        "features": len(taken.task_columns.features),
    } | {f"{split.value}_rows": rows for split, rows in taken.split_rows.items()}
    return StepResult(
        metrics={name: float(value) for name, value in scalars.items()},
        summary=f"{summary} Partitions read: {opened:,}.",
    )
