"""KFP wiring of `train_model`: train the model, with resume after interruptions."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def train_model(
    contract: str,
    skeleton: dsl.Input[dsl.Artifact],
    training: dsl.Output[dsl.Artifact],
    training_report: dsl.Output[dsl.HTML],
) -> None:
    """Train the model on the snapshot."""
    from perennial.train_model.step import train_model_step

    train_model_step(
        contract=contract,
        snapshot=skeleton.path,
        training=training.path,
        report=training_report.path,
    )
