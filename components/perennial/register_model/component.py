"""KFP wiring of `register_model`: register the challenger and make it champion."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def register_model(
    *,
    contract: str,
    trigger: str,
    challenger: dsl.Input[dsl.Model],
    verdict: dsl.Input[dsl.Artifact],
    registration: dsl.Output[dsl.Artifact],
    registration_report: dsl.Output[dsl.HTML],
) -> None:
    """Register the challenger and make it champion."""
    from perennial.register_model.step import register_model_step

    register_model_step(
        contract=contract,
        trigger=trigger,
        snapshot=verdict.path,
        validation=verdict.path,
        training=verdict.path,
        challenger=challenger.path,
        skeleton=verdict.path,
        verdict=verdict.path,
        registration=registration.path,
        report=registration_report.path,
    )
