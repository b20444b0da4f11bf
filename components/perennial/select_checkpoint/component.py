"""KFP wiring of `select_checkpoint`: choose the checkpoint for the gate."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def select_checkpoint(
    *,
    contract: str,
    training: dsl.Input[dsl.Artifact],
    challenger: dsl.Output[dsl.Model],
    selection: dsl.Output[dsl.Artifact],
    selection_report: dsl.Output[dsl.HTML],
) -> None:
    """Choose the checkpoint for the gate."""
    from perennial.select_checkpoint.step import select_checkpoint_step

    select_checkpoint_step(
        contract=contract,
        snapshot=training.path,
        training=training.path,
        challenger=challenger.path,
        selection=selection.path,
        report=selection_report.path,
    )
