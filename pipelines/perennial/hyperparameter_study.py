"""hyperparameter_study: from a question about hyperparameters to a verdict that can be trusted.

snapshot_data → validate_data → check_skeleton → run_trials, one task for each worker
→ analyze_study; at the end, however it comes: clean_up
"""

from kfp import dsl
from kfp.dsl.base_component import BaseComponent

from perennial.analyze_study.component import analyze_study
from perennial.check_skeleton.component import check_skeleton
from perennial.clean_up.component import clean_up
from perennial.continuous_training import validate_snapshot
from perennial.run_trials.component import run_trials


def study_pipeline(workers: int) -> BaseComponent:
    """Return the pipeline with so many tasks that share the trials; one machine needs one.

    Their number is part of the definition: inside an exit handler, a backend loops over a list of
    the definition, not over a parameter.
    """
    names = [f"{number + 1}/{workers}" for number in range(workers)]

    @dsl.pipeline(
        name="hyperparameter-study",
        description="Trains a model with other hyperparameters, and judges the best of them on "
        "rows that none was chosen by.",
    )
    def hyperparameter_study(
        contract: str, model: str = "", data: str = "", reason: str = ""
    ) -> None:
        """Answer the question of the contract's study.

        Args:
            contract: The resolved training contract with its study, as JSON, or its address.
            model: The model's name; this and the next two are for people who compare runs.
            data: The dataset's address.
            reason: Why the study was started, in words.
        """
        ending = clean_up(model=model, reason=reason, pipeline="hyperparameter_study")
        ending.set_caching_options(enable_caching=False)
        with dsl.ExitHandler(ending, name="study"):
            checked = check_skeleton(contract=contract, validation=validate_snapshot(contract))

            with dsl.ParallelFor(names, name="workers") as worker:
                ran = run_trials(
                    contract=contract, worker=worker, skeleton=checked.outputs["skeleton"]
                )
                # Equal inputs of two workers would be one cached task, which no fan-in can find.
                ran.set_caching_options(enable_caching=False)

            analyzed = analyze_study(
                contract=contract, studies=dsl.Collected(ran.outputs["trials"])
            )
            analyzed.set_caching_options(enable_caching=False)

    found: BaseComponent = hyperparameter_study
    return found
