"""KFP wiring of `decide_retraining`: decide whether to retrain."""

from kfp import dsl


@dsl.component(base_image="perennial-data", install_kfp_package=False)
def decide_retraining(
    *,
    contract: str,
    drift: dsl.Input[dsl.Artifact],
    decision: dsl.Output[dsl.Artifact],
    decision_report: dsl.Output[dsl.HTML],
    trigger: dsl.OutputPath(str),  # type: ignore[valid-type]  # KFP's form of an output file
) -> bool:
    """Decide whether to retrain, with the reason.

    The decision is the single return value, because `kfp.local` silently evaluates a condition on a
    named output as false; the evidence is an output file.
    """
    from perennial.decide_retraining.step import decide_retraining_step

    result = decide_retraining_step(
        contract=contract,
        snapshot=drift.path,
        drift=drift.path,
        decision=decision.path,
        report=decision_report.path,
        trigger=trigger,
    )
    return bool(result.parameters["retrain"])
