"""KFP wiring of `run_trials`: run the trials of a hyperparameter study."""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def run_trials(
    contract: str,
    worker: str,
    skeleton: dsl.Input[dsl.Artifact],
    trials: dsl.Output[dsl.Artifact],
    trials_report: dsl.Output[dsl.HTML],
) -> None:
    """Run trial after trial until all of the study have ended."""
    from perennial.run_trials.step import run_trials_step

    run_trials_step(
        contract=contract,
        worker=worker,
        snapshot=skeleton.path,
        trials=trials.path,
        report=trials_report.path,
    )
