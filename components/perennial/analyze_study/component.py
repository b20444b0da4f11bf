"""KFP wiring of `analyze_study`: what have the trials shown?"""

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def analyze_study(
    *,
    study: dsl.Input[dsl.Artifact],
    judgement: dsl.Output[dsl.Artifact],
    study_report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Analyse the trials, and judge the finalists on rows that no trial was chosen by."""
    from perennial.analyze_study.step import analyze_study_step

    result = analyze_study_step(
        study=study.path,
        judgement=judgement.path,
        report=study_report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
