"""KFP wiring of `detect_drift`: detect drift from the champion's reference."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def detect_drift(
    *,
    contract: str,
    validation: dsl.Input[dsl.Artifact],
    drift: dsl.Output[dsl.Artifact],
    drift_report: dsl.Output[dsl.HTML],
) -> None:
    """Detect drift from the champion's reference, and decay of its performance."""
    from perennial.detect_drift.step import detect_drift_step

    detect_drift_step(
        contract=contract,
        snapshot=validation.path,
        validation=validation.path,
        drift=drift.path,
        report=drift_report.path,
    )
