"""KFP wiring of `detect_drift`: detect drift from the champion's reference."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def detect_drift(
    *,
    contract: str,
    snapshot: dsl.Input[dsl.Dataset],
    validation: dsl.Input[dsl.Artifact],
    drift: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Detect drift from the champion's reference, and decay of its performance."""
    from perennial.detect_drift.step import detect_drift_step

    result = detect_drift_step(
        contract=contract,
        snapshot=snapshot.path,
        validation=validation.path,
        drift=drift.path,
        report=report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
