"""drift_monitoring: drift from the champion's reference, and a retraining if it is due.

snapshot_data → validate_data → detect_drift → decide_retraining → if retrain: the steps of a
training from check_skeleton on; at the end, however it comes: clean_up
"""

from kfp import dsl

from perennial.clean_up.component import clean_up
from perennial.continuous_training import train_challenger, validate_snapshot
from perennial.decide_retraining.component import decide_retraining
from perennial.detect_drift.component import detect_drift


@dsl.pipeline(
    name="drift-monitoring",
    description="Compares new data with the champion's reference, and trains a challenger on them "
    "if they drifted, the champion's loss rose, or a training is due.",
)
def drift_monitoring(contract: str, model: str = "", data: str = "", reason: str = "") -> None:
    """Watch the stream; train again when there is evidence for it.

    Args:
        contract: The resolved training contract, as JSON, or its address.
        model: The model's name; this and the next two are for people who compare runs.
        data: The dataset's address.
        reason: Why the run was started, in words.
    """
    ending = clean_up(model=model, reason=reason, pipeline="drift_monitoring")
    ending.set_caching_options(enable_caching=False)
    with dsl.ExitHandler(ending, name="monitoring"):
        compared = detect_drift(contract=contract, validation=validate_snapshot(contract))
        compared.set_caching_options(enable_caching=False)

        decided = decide_retraining(contract=contract, drift=compared.outputs["drift"])
        decided.set_caching_options(enable_caching=False)

        with dsl.If(decided.outputs["Output"] == True, name="retrain"):
            train_challenger(contract, decided.outputs["trigger"], decided.outputs["decision"])
