"""continuous_training: from a snapshot of the data to a registered model, or the reason for none.

snapshot_data → validate_data → check_skeleton → train_model → select_checkpoint
→ evaluate_model → if promote: register_model; at the end, however it comes: clean_up
"""

from kfp import dsl

from perennial.check_skeleton.component import check_skeleton
from perennial.clean_up.component import clean_up
from perennial.evaluate_model.component import evaluate_model
from perennial.register_model.component import register_model
from perennial.select_checkpoint.component import select_checkpoint
from perennial.snapshot_data.component import snapshot_data
from perennial.train_model.component import train_model
from perennial.validate_data.component import validate_data


def train_challenger(contract: str, trigger: str) -> None:
    """The tasks of a training; pipelines add them inside their own exit handler.

    A nested pipeline would cost a level, which a live backend takes 10 s for.

    Args:
        contract: The resolved training contract, as JSON.
        trigger: Why this training was started, as JSON.
    """
    # Steps whose result depends on more than their inputs (the live dataset, the current champion)
    # must never be taken from KFP's cache.
    taken = snapshot_data(contract=contract)
    taken.set_caching_options(enable_caching=False)
    snapshot = taken.outputs["snapshot"]

    validated = validate_data(contract=contract, snapshot=snapshot)

    checked = check_skeleton(contract=contract, snapshot=snapshot)
    checked.after(validated)

    trained = train_model(contract=contract, snapshot=snapshot)
    trained.after(checked)

    selected = select_checkpoint(
        contract=contract, snapshot=snapshot, training=trained.outputs["training"]
    )

    evaluated = evaluate_model(
        contract=contract,
        snapshot=snapshot,
        challenger=selected.outputs["challenger"],
        skeleton=checked.outputs["skeleton"],
    )
    evaluated.set_caching_options(enable_caching=False)

    with dsl.If(evaluated.outputs["Output"] == True, name="promote"):
        registered = register_model(
            contract=contract,
            trigger=trigger,
            snapshot=snapshot,
            validation=validated.outputs["validation"],
            training=trained.outputs["training"],
            challenger=selected.outputs["challenger"],
            skeleton=checked.outputs["skeleton"],
            verdict=evaluated.outputs["verdict"],
        )
        registered.set_caching_options(enable_caching=False)


@dsl.pipeline(
    name="continuous-training",
    description="Validates data, runs sanity checks, trains, selects, and promotes if better.",
)
def continuous_training(contract: str, trigger: str = '{"trigger":"manual"}') -> None:
    """Train a challenger and let it replace the champion if it is significantly better.

    Args:
        contract: The resolved training contract, as JSON.
        trigger: Why this training was started, as JSON.
    """
    ending = clean_up()
    ending.set_caching_options(enable_caching=False)
    with dsl.ExitHandler(ending, name="run"):
        train_challenger(contract, trigger)
