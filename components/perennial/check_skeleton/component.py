"""KFP wiring of `check_skeleton`, the sanity checks."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def check_skeleton(
    contract: str,
    snapshot: dsl.Input[dsl.Dataset],
    skeleton: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Can this task learn at all?"""
    from perennial.check_skeleton.step import check_skeleton_step

    result = check_skeleton_step(
        contract=contract,
        snapshot=snapshot.path,
        skeleton=skeleton.path,
        report=report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
