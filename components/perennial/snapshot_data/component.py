"""KFP wiring of `snapshot_data`: which bytes are trained on, and which row is in which split?"""

from kfp import dsl


@dsl.component(base_image="perennial-data", install_kfp_package=False)
def snapshot_data(
    contract: str,
    snapshot: dsl.Output[dsl.Dataset],
    snapshot_report: dsl.Output[dsl.HTML],
) -> None:
    """Pin the dataset's bytes and the split of each row."""
    from perennial.snapshot_data.step import snapshot_data_step

    snapshot_data_step(contract=contract, snapshot=snapshot.path, report=snapshot_report.path)
