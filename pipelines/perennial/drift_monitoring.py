"""drift_monitoring: drift from the champion's reference, and a retraining if it is due.

snapshot_data → validate_data → detect_drift → decide_retraining → if retrain: continuous_training
"""

from kfp import dsl

from perennial.clean_up.component import clean_up
from perennial.continuous_training import train_challenger
from perennial.decide_retraining.component import decide_retraining
from perennial.detect_drift.component import detect_drift
from perennial.snapshot_data.component import snapshot_data
from perennial.validate_data.component import validate_data


@dsl.pipeline(
    name="drift-monitoring",
    description="Compares new data with the champion's reference and retrains if it must.",
)
def drift_monitoring(contract: str) -> None:
    """Watch the stream; train again when there is evidence for it.

    Args:
        contract: The resolved training contract, as JSON.
    """
    ending = clean_up()
    ending.set_caching_options(enable_caching=False)
    with dsl.ExitHandler(ending, name="run"):
        taken = snapshot_data(contract=contract)
        taken.set_caching_options(enable_caching=False)
        snapshot = taken.outputs["snapshot"]

        validated = validate_data(contract=contract, snapshot=snapshot)

        compared = detect_drift(
            contract=contract,
            snapshot=snapshot,
            validation=validated.outputs["validation"],
        )
        compared.set_caching_options(enable_caching=False)

        decided = decide_retraining(
            contract=contract, snapshot=snapshot, drift=compared.outputs["drift"]
        )
        decided.set_caching_options(enable_caching=False)

        with dsl.If(decided.outputs["Output"] == True, name="retrain"):
            train_challenger(contract, decided.outputs["trigger"])
