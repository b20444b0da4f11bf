"""KFP wiring of `analyze_study`: what have the trials shown?"""

from typing import List  # noqa: UP035 - KFP knows this one

from kfp import dsl


@dsl.component(base_image="perennial-trainer", install_kfp_package=False)
def analyze_study(
    *,
    contract: str,
    studies: dsl.Input[List[dsl.Artifact]],  # noqa: UP006
    judgement: dsl.Output[dsl.Artifact],
    study_report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Analyse the trials, and judge the finalists on rows that no trial was chosen by."""
    from perennial.analyze_study.step import analyze_study_step

    result = analyze_study_step(
        contract=contract,
        study=studies[0].path,  # each worker hands on the same
        judgement=judgement.path,
        report=study_report.path,
        metrics=metrics.path,
    )
    metrics.metadata.update(result.metrics)
