"""Watch: starts monitoring when a dataset has gained files, once, and when they are all there.

KFP has no trigger for events. A CronJob calls this every few minutes; nothing is lost between
calls, since what was seen and handled lies in the object store.
"""

import hashlib
import json

from perennial.clients.object_store import ConflictError, ObjectStore, open_store
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.data.partitions import find_partitions
from perennial.deployment.desired import PIPELINE_OF
from perennial.deployment.operations import TargetCluster, start_deployed
from perennial.deployment.run_request import RunRequest
from perennial.reports.text import counted
from perennial.steps.parameters import resolve


class WatchState(Section):
    """State of the watcher for one model's dataset."""

    seen: str = ""
    """Digest of the listing at the last look."""
    handled: str = ""
    """Digest of the listing that a run was last started for."""
    files: int = 0
    """Number of files in the handled listing."""


def watch(target: TargetCluster, model: str) -> str:
    """Look once; start `drift_monitoring` if there is something new; return what was done.

    New files are acted on when two looks in a row list the same: an upload of many files that is
    under way is waited for. While a run of the model is under way, nothing is started; the next
    look finds the files still unhandled.

    Raises:
        PerennialError: the model has no schedule with the address of its data, or the dataset
            cannot be listed.
    """
    deployed = target.deployed(model)
    contract = Contract.from_json(resolve(deployed.parameters["contract"]))
    listed, files = _listing(open_store(contract.data.uri))
    store = open_store(target.profile.stores.store_uri)
    key = f"watch/{model}/state.json"
    kept = store.read(key)
    state = WatchState.from_json(kept) if kept else WatchState()
    if listed == state.handled or not files:
        return f"{model}: nothing new in {counted(files, 'file')}"
    new = files - state.files
    if listed != state.seen:
        _keep(store, key, state.model_copy(update={"seen": listed}), kept)
        return f"{model}: {counted(files, 'file')}, {new:+d}; waiting until they stay the same"
    if target.api.unfinished_runs(target.experiment(model)):
        return f"{model}: {new:+d} files, but a run is under way; the next look acts"
    evidence = json.dumps({"files": files, "new_files": new})
    after = WatchState(seen=listed, handled=listed, files=files)
    # Kept first: of two watchers at once one writes, and the other one stops here.
    _keep(store, key, after, kept)
    try:
        run = start_deployed(target, model, RunRequest("monitoring", "new data", evidence))
    except PerennialError:
        # Nothing was started: the next look tries again.
        _keep(store, key, state, after.to_json().encode())
        raise
    return f"{model}: {new:+d} files; started {PIPELINE_OF['monitoring']} {run}"


def _listing(store: ObjectStore) -> tuple[str, int]:
    """Return digest and number of the files that a snapshot would take."""
    found = find_partitions(store).partitions
    digest = hashlib.sha256()
    for item in found:
        digest.update(f"{item.key}\0{item.size_bytes}\0".encode())
    return digest.hexdigest(), len(found)


def _keep(store: ObjectStore, key: str, state: WatchState, previous: bytes | None) -> None:
    try:
        store.replace(key, state.to_json().encode(), previous=previous)
    except ConflictError as error:
        raise PerennialError(
            "another watcher looks at the same model",
            evidence=f"{key} changed meanwhile",
            action="run one watcher for each model",
        ) from error
