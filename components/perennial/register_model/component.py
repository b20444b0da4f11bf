"""KFP wiring of `register_model`: register the challenger and make it champion."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def register_model(
    *,
    contract: str,
    trigger: str,
    snapshot: dsl.Input[dsl.Dataset],
    validation: dsl.Input[dsl.Artifact],
    training: dsl.Input[dsl.Artifact],
    challenger: dsl.Input[dsl.Model],
    skeleton: dsl.Input[dsl.Artifact],
    verdict: dsl.Input[dsl.Artifact],
    registration: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Register the challenger and make it champion."""
    from perennial.register_model.step import register_model_step

    result = register_model_step(
        contract=contract,
        trigger=trigger,
        snapshot=snapshot.path,
        validation=validation.path,
        training=training.path,
        challenger=challenger.path,
        skeleton=skeleton.path,
        verdict=verdict.path,
        registration=registration.path,
        report=report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
