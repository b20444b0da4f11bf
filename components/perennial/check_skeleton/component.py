"""KFP wiring of `check_skeleton`, the sanity checks."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def check_skeleton(
    contract: str,
    validation: dsl.Input[dsl.Artifact],
    skeleton: dsl.Output[dsl.Artifact],
    sanity_report: dsl.Output[dsl.HTML],
) -> None:
    """Can this task learn at all?"""
    from perennial.check_skeleton.step import check_skeleton_step

    check_skeleton_step(
        contract=contract,
        snapshot=validation.path,
        skeleton=skeleton.path,
        report=sanity_report.path,
    )
