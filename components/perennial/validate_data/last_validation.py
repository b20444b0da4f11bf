"""Last validation: reused when snapshot, limits and code are still the same."""

from collections.abc import Callable

from pydantic import JsonValue

from perennial.clients.object_store import ObjectStore
from perennial.contracts.environment import Environment, spark_address
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.validation import ValidationReport
from perennial.steps.last_result import LastResult, find_last, inputs_digest
from perennial.validate_data.config import ValidateDataConfig


class Validation(LastResult):
    """Results of the step; the newest one is kept as `monitoring/<model>/validation.json`."""

    found: ValidationReport
    suite: JsonValue
    """The suite of Great Expectations that judged the facts."""
    raw_suite: str
    """The limits and the team's suite, for the raw rows."""
    page: str


def validate_once(
    store: ObjectStore,
    config: ValidateDataConfig,
    snapshot: Snapshot,
    environment: Environment,
    validate: Callable[[str], Validation],
) -> tuple[Validation, bool]:
    """Return the last validation if its inputs are the same; else validate.

    Only what lets a run go on is stored: whoever repeats a failed run has changed something.

    Returns:
        The validation, and whether it is the last one.
    """
    limits = config.expectations.to_json()
    inputs = inputs_digest([limits, snapshot.digest(), spark_address()], environment)
    key = f"monitoring/{config.model.name}/validation.json"
    last = find_last(store, key, Validation, inputs)
    if last is not None:
        return last, True
    made = validate(inputs)
    if not made.found.failures:
        store.write(key, made.to_json().encode())
    return made, False
