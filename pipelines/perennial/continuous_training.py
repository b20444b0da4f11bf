"""continuous_training: from a snapshot of the data to a registered model, or the reason for none.

snapshot_data → validate_data → check_skeleton → train_model → select_checkpoint
→ evaluate_model → register_model; at the end, however it comes: clean_up
"""

from kfp import dsl
from kfp.dsl.pipeline_channel import PipelineChannel

from perennial.check_skeleton.component import check_skeleton
from perennial.clean_up.component import clean_up
from perennial.evaluate_model.component import evaluate_model
from perennial.register_model.component import register_model
from perennial.select_checkpoint.component import select_checkpoint
from perennial.snapshot_data.component import snapshot_data
from perennial.train_model.component import train_model
from perennial.validate_data.component import validate_data


def train_challenger(contract: str, trigger: str, validation: PipelineChannel) -> None:
    """Add the tasks of a training; pipelines call this inside their own exit handler.

    Each takes what its predecessor hands on, which holds what the steps before it found: one line
    of steps in the dashboard. A nested pipeline would cost a level, which a live backend takes 10 s
    for.

    Args:
        contract: The resolved training contract, as JSON.
        trigger: Why this training was started, as JSON.
        validation: The output of a task that hands on the validated snapshot.
    """
    checked = check_skeleton(contract=contract, validation=validation)
    # It pins the champion that a warm start, teachers or an ensemble take; a cached result would
    # pin one that has been replaced since.
    checked.set_caching_options(enable_caching=False)

    trained = train_model(contract=contract, skeleton=checked.outputs["skeleton"])

    selected = select_checkpoint(contract=contract, training=trained.outputs["training"])
    challenger = selected.outputs["challenger"]

    evaluated = evaluate_model(
        contract=contract, challenger=challenger, selection=selected.outputs["selection"]
    )
    evaluated.set_caching_options(enable_caching=False)

    # Also after a rejection: a condition at the end would leave the group "running" for Kubeflow.
    registered = register_model(
        contract=contract,
        trigger=trigger,
        challenger=challenger,
        verdict=evaluated.outputs["verdict"],
    )
    registered.set_caching_options(enable_caching=False)


def validate_snapshot(contract: str) -> PipelineChannel:
    """Add the first two tasks of every pipeline; return what the second one hands on."""
    # Steps whose result depends on more than their inputs (the live dataset, the current champion)
    # must never be taken from KFP's cache.
    taken = snapshot_data(contract=contract)
    taken.set_caching_options(enable_caching=False)
    validated = validate_data(contract=contract, snapshot=taken.outputs["snapshot"])
    return validated.outputs["validation"]


@dsl.pipeline(
    name="continuous-training",
    description="Trains a challenger on a validated snapshot of the data; it becomes champion if "
    "it is significantly better than the current one.",
)
def continuous_training(
    contract: str,
    trigger: str = '{"trigger":"manual"}',
    model: str = "",
    data: str = "",
    reason: str = "",
) -> None:
    """Train a challenger and let it replace the champion if it is significantly better.

    Args:
        contract: The resolved training contract, as JSON, or its address.
        trigger: Why this training was started, as JSON.
        model: The model's name; this and the next two are for people who compare runs.
        data: The dataset's address.
        reason: Why this training was started, in words.
    """
    ending = clean_up(model=model, reason=reason, trigger=trigger, pipeline="continuous_training")
    ending.set_caching_options(enable_caching=False)
    with dsl.ExitHandler(ending, name="training"):
        train_challenger(contract, trigger, validate_snapshot(contract))
