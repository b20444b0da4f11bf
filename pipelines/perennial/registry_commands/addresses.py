"""Addresses: lets a pipeline step run in this process, outside any run."""

import os

from perennial.contracts import environment
from perennial.contracts.environment import Environment


def set_addresses(place: Environment) -> None:
    """Tell a step where its services are, as a run's driver tells its processes.

    Args:
        place: Where; what it leaves empty must not be inherited from a surrounding run.
    """
    for name, value in (
        (environment.STORE_URI, place.store_uri),
        (environment.TRACKING_URI, place.tracking_uri),
        (environment.RUN_ID, place.run_id),
        (environment.CODE_DIGEST, place.code_digest),
        (environment.COMMIT, place.commit),
        (environment.CODE_PLACE, place.code_place),
        (environment.TRACKING_RUN_ID, place.tracking_run_id),
        (environment.RUN_FOLDER, ""),
        (environment.LEASE, ""),
    ):
        os.environ.pop(name, None)
        if value:
            os.environ[name] = value
