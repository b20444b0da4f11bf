"""KFP wiring of `evaluate_model`: does the challenger beat the champion?"""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def evaluate_model(
    *,
    contract: str,
    snapshot: dsl.Input[dsl.Dataset],
    challenger: dsl.Input[dsl.Model],
    skeleton: dsl.Input[dsl.Artifact],
    verdict: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> bool:
    """Decide whether the challenger beats the champion."""
    from perennial.evaluate_model.step import evaluate_model_step

    result = evaluate_model_step(
        contract=contract,
        snapshot=snapshot.path,
        challenger=challenger.path,
        skeleton=skeleton.path,
        verdict=verdict.path,
        report=report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
    return bool(result.parameters["promote"])
