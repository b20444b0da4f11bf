"""KFP wiring of `decide_retraining`: train again now?"""

from kfp import dsl


@dsl.component(base_image="perennial-data", install_kfp_package=False)
def decide_retraining(
    *,
    config: str,
    snapshot: dsl.Input[dsl.Dataset],
    drift: dsl.Input[dsl.Artifact],
    decision: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    trigger: dsl.OutputPath(str),  # type: ignore[valid-type]  # KFP's form of an output file
) -> bool:
    """Train again now, and why or why not?

    The answer is the single return value, because `kfp.local` silently takes a condition on a named
    output for false; the evidence goes the other way that outputs have, a file.
    """
    from perennial.decide_retraining.step import decide_retraining_step

    result = decide_retraining_step(
        config=config,
        snapshot=snapshot.path,
        drift=drift.path,
        decision=decision.path,
        report=report.path,
        metrics=metrics.path,
        trigger=trigger,
    )
    metrics.metadata.update(result.metrics)
    return bool(result.parameters["retrain"])
