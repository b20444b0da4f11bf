"""KFP wiring of `validate_data`: is this snapshot fit to train on?"""

from kfp import dsl


@dsl.component(base_image="perennial-data", install_kfp_package=False)
def validate_data(
    contract: str,
    snapshot: dsl.Input[dsl.Dataset],
    validation: dsl.Output[dsl.Artifact],
    validation_report: dsl.Output[dsl.HTML],
    perennial_suite: dsl.Output[dsl.Artifact],
) -> None:
    """Measure the snapshot in one pass and judge the facts with Great Expectations."""
    from perennial.validate_data.step import validate_data_step

    validate_data_step(
        contract=contract,
        snapshot=snapshot.path,
        validation=validation.path,
        report=validation_report.path,
        perennial_suite=perennial_suite.path,
    )
