"""Watch: starts monitoring when a dataset has gained files, once, and when they are all there.

KFP has no trigger for events. A CronJob calls this every few minutes; nothing is lost between
calls, since what was seen and handled lies in the object store.
"""

import hashlib
import json
import secrets
import time

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

START_SECONDS = 900
"""A watcher that began to start a run longer ago was killed: its CronJob ends it after 600 s."""


class WatchState(Section):
    """State of the watcher for one model's dataset."""

    seen: str = ""
    """Digest of the listing at the last look."""
    handled: str = ""
    """Digest of the listing that a run was last started for."""
    files: int = 0
    """Number of files in the handled listing."""
    starting: str = ""
    """Digest of the listing that a watcher is starting a run for."""
    starting_since: float = 0.0
    """When it began, in seconds since the epoch."""
    request: str = ""
    """Names the run that was asked for last; it may have started although no answer came."""


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
    state = _read_state(store, key, kept)
    if state.files and not files:
        raise PerennialError(
            f"{model}: the dataset has no files any more",
            evidence=f"{contract.data.uri} had {counted(state.files, 'file')} at the last run",
            action="put them back, or correct data.uri; nothing is started without files",
        )
    if listed == state.handled or not files:
        if state.seen != listed:  # what came and went again must be seen twice once more
            _keep(store, key, state.model_copy(update={"seen": listed}), kept)
        return f"{model}: nothing new in {counted(files, 'file')}"
    new = files - state.files
    now = time.time()
    if listed == state.starting and abs(now - state.starting_since) < START_SECONDS:
        return f"{model}: {new:+d} files; another watcher is starting a run"
    if listed != state.seen:
        _keep(store, key, state.model_copy(update={"seen": listed}), kept)
        return f"{model}: {counted(files, 'file')}, {new:+d}; waiting until they stay the same"
    if target.api.unfinished_runs(target.experiment(model)):
        return f"{model}: {new:+d} files, but a run is under way; the next look acts"
    evidence = json.dumps({"files": files, "new_files": new})
    request = state.request or secrets.token_hex(8)
    starting = state.model_copy(
        update={"starting": listed, "starting_since": now, "request": request}
    )
    # Of these files: a run that took a snapshot of fewer is not theirs.
    event = hashlib.sha256(f"{request} {listed}".encode()).hexdigest()
    # Before the start: of two watchers at once one writes, and the other one stops here. It counts
    # as handled only afterwards: the run of a watcher that was killed in between is not lost.
    _keep(store, key, starting, kept)
    try:
        asked = RunRequest("monitoring", "new data", evidence, event=event)
        run = start_deployed(target, model, asked)
    except PerennialError:
        # The next look tries again; if only the answer was lost, it finds the run.
        tried = state.model_copy(update={"request": request})
        _keep(store, key, tried, starting.to_json().encode())
        raise
    handled = WatchState(seen=listed, handled=listed, files=files)
    _keep(store, key, handled, starting.to_json().encode())
    return f"{model}: {new:+d} files; started {PIPELINE_OF['monitoring']} {run}"


def _read_state(store: ObjectStore, key: str, kept: bytes | None) -> WatchState:
    if not kept:
        return WatchState()
    try:
        return WatchState.from_json(kept)
    except ValueError as error:
        raise PerennialError(
            "the state of the watcher cannot be read",
            evidence=f"{store.uri}/{key}: {str(error).splitlines()[0]}",
            action="delete it: the next looks then start one run for the files that are there",
        ) from error


def _listing(store: ObjectStore) -> tuple[str, int]:
    """Return digest and number of the files that a snapshot would take."""
    found = find_partitions(store).partitions
    digest = hashlib.sha256()
    for item in found:
        digest.update(f"{item.key}\0{item.size_bytes}\0{item.version}\0".encode())
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
