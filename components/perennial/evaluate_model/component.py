"""KFP wiring of `evaluate_model`: does the challenger beat the champion?"""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def evaluate_model(
    *,
    contract: str,
    challenger: dsl.Input[dsl.Model],
    selection: dsl.Input[dsl.Artifact],
    verdict: dsl.Output[dsl.Artifact],
    gate_report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    classification: dsl.Output[dsl.ClassificationMetrics],
) -> None:
    """Decide whether the challenger beats the champion."""
    from perennial.evaluate_model.step import evaluate_model_step, show_classes

    result = evaluate_model_step(
        contract=contract,
        snapshot=selection.path,
        challenger=challenger.path,
        skeleton=selection.path,
        verdict=verdict.path,
        report=gate_report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
    show_classes(verdict.path, classification)
