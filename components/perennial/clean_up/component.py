"""KFP wiring of `clean_up`: the exit task of every pipeline that trains."""

from kfp import dsl


@dsl.component(base_image="perennial-control", install_kfp_package=False)
def clean_up(
    model: str, reason: str, pipeline: str, run_report: dsl.Output[dsl.HTML], trigger: str = ""
) -> None:
    """Delete the run's training jobs that still run, and write the run's page."""
    from perennial.clean_up.step import clean_up_step

    clean_up_step(
        model=model, reason=reason, pipeline=pipeline, trigger=trigger, report=run_report.path
    )
