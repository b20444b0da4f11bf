"""KFP wiring of `snapshot_data`: which bytes are trained on, and which row is in which split?"""

from typing import NamedTuple

from kfp import dsl


@dsl.component(base_image="perennial-data", install_kfp_package=False)
def snapshot_data(
    contract: str,
    snapshot: dsl.Output[dsl.Dataset],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> NamedTuple(  # type: ignore[valid-type]  # KFP reads the outputs from the shipped source
    "Sections",
    [
        ("expectations", str),
        ("skeleton", str),
        ("training", str),
        ("selection", str),
        ("gate", str),
        ("registry", str),
        ("triggers", str),
    ],
):
    """Pin the dataset's bytes and cut the contract into the section that each step needs."""
    from perennial.snapshot_data.sections import SECTIONS
    from perennial.snapshot_data.step import snapshot_data_step

    result = snapshot_data_step(
        contract=contract, snapshot=snapshot.path, report=report.path, metrics=metrics.path
    )
    metrics.metadata.update(result.metrics)
    return tuple(result.parameters[name] for name in SECTIONS)
