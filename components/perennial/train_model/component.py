"""KFP wiring of `train_model`: train the model, with resume after interruptions."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def train_model(
    contract: str,
    snapshot: dsl.Input[dsl.Dataset],
    training: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train the model on the snapshot."""
    from perennial.train_model.step import train_model_step

    result = train_model_step(
        contract=contract,
        snapshot=snapshot.path,
        training=training.path,
        report=report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
