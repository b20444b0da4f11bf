"""Takes the snapshot, keeps it in the object store, and hands each later step its section."""

from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.environment import Environment
from perennial.snapshot_data.manifest import list_partitions, store_snapshot, take_snapshot
from perennial.snapshot_data.report import snapshot_page, summary_of
from perennial.snapshot_data.sections import cut_sections, own_config, parse_contract
from perennial.steps.decorator import StepResult, pipeline_step


@pipeline_step("snapshot_data", outputs=("snapshot", "report", "metrics"))
def snapshot_data_step(*, contract: str, snapshot: str, report: str, metrics: str) -> StepResult:
    """Pin the dataset.

    Args:
        contract: The whole contract as JSON.
        snapshot: Folder to write the `Snapshot` to.
        report: File to write the page to.
        metrics: File that the decorator writes the scalars to.
    """
    sections = parse_contract(contract)
    config = own_config(sections)
    listing = list_partitions(open_store(config.data.uri))
    taken = take_snapshot(config.data, config.split, listing=listing)
    store_snapshot(taken, open_store(Environment.read().store_uri))
    taken.write(Path(snapshot))
    snapshot_page(taken, listing).write(Path(report))
    scalars = {
        "rows": taken.rows,
        "partitions": len(taken.files),
        "ignored_files": listing.num_ignored,
        "features": len(taken.task_columns.features),
    } | {f"{split.value}_rows": rows for split, rows in taken.split_rows.items()}
    return StepResult(
        parameters=dict(cut_sections(sections)),
        metrics={name: float(value) for name, value in scalars.items()},
        summary=summary_of(taken, listing),
    )
