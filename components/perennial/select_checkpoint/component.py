"""KFP wiring of `select_checkpoint`: choose the checkpoint for the gate."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def select_checkpoint(
    *,
    contract: str,
    snapshot: dsl.Input[dsl.Dataset],
    training: dsl.Input[dsl.Artifact],
    challenger: dsl.Output[dsl.Model],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Choose the checkpoint for the gate."""
    from perennial.select_checkpoint.step import select_checkpoint_step

    result = select_checkpoint_step(
        contract=contract,
        snapshot=snapshot.path,
        training=training.path,
        challenger=challenger.path,
        report=report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
