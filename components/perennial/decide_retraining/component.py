"""KFP wiring of `decide_retraining`: decide whether to retrain."""

from kfp import dsl


@dsl.component(base_image="perennial-data", install_kfp_package=False)
def decide_retraining(
    *,
    contract: str,
    snapshot: dsl.Input[dsl.Dataset],
    drift: dsl.Input[dsl.Artifact],
    decision: dsl.Output[dsl.Artifact],
    report: dsl.Output[dsl.HTML],
    metrics: dsl.Output[dsl.Metrics],
    trigger: dsl.OutputPath(str),  # type: ignore[valid-type]  # KFP's form of an output file
) -> bool:
    """Decide whether to retrain, with the reason.

    The decision is the single return value, because `kfp.local` silently evaluates a condition on a
    named output as false; the evidence is an output file.
    """
    from perennial.decide_retraining.step import decide_retraining_step

    result = decide_retraining_step(
        contract=contract,
        snapshot=snapshot.path,
        drift=drift.path,
        decision=decision.path,
        report=report.path,
        metrics=metrics.path,
        trigger=trigger,
    )
    metrics.metadata.update(result.metrics)
    return bool(result.parameters["retrain"])
