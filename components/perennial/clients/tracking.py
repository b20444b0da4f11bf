"""Tracking: the record of one pipeline run that all its steps write to, in MLflow."""

import getpass
import json
import logging
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient

from perennial.clients.mlflow_client import despite_rivals, open_mlflow
from perennial.clients.object_store import (
    ConflictError,
    LocalObjectStore,
    ObjectStore,
    StoredObject,
    open_store,
)
from perennial.clients.outages import single_attempts
from perennial.contracts.environment import ClusterAddress, Environment
from perennial.contracts.errors import PerennialError

RUN_TAG = "perennial.run_id"
TRIGGER_TAG = "perennial.trigger"
NAMESPACE_TAG = "perennial.namespace"
OUTCOME_TAG = "perennial.outcome"
NOTE_TAG = "mlflow.note.content"
ARTIFACT_PREFIX = "mlflow-artifacts"
# The scheme of places that can be reached through an MLflow server only.
PASSED_ON = "mlflow-artifacts:"
# Limits of MLflow's batch call: entities of one kind, and characters of a parameter.
BATCH_METRICS = 1000
BATCH_PARAMS = 100
PARAM_CHARACTERS = 6000
DATASET_DIGEST_CHARACTERS = 36
# Experiments of this kind open on their runs in MLflow's UI.
EXPERIMENT_TAGS = MappingProxyType({"mlflow.experimentKind": "custom_model_development"})
NOT_ADDED = "the run's page is not added to MLflow"
RUN_PAGE = "reports/run.html"
ENDED_TAG = "perennial.ended"
MOST_CLOSED = 1000  # the next call finds more
logger = logging.getLogger(__name__)


class Tracking:
    """The record of one pipeline run in MLflow; every method may be repeated by a retry.

    Args:
        client: The server or database.
        run: The run to write to.
        owned: Whether Perennial opened it; only then is it marked as finished or failed.
        files: Where its files go; None leaves that to MLflow.
    """

    def __init__(
        self, client: MlflowClient, run: Run, *, owned: bool, files: "RunFiles | None"
    ) -> None:
        self.run_id = run.info.run_id
        self._files = files
        self._client = client
        self._run = run
        self._owned = owned

    def log_params(self, params: Mapping[str, object]) -> None:
        """Record what the run was given; a parameter keeps its first value.

        Raises:
            PerennialError: a parameter is recorded with another value.
        """
        recorded = self._client.get_run(self.run_id).data.params
        values = {name: str(value)[:PARAM_CHARACTERS] for name, value in params.items()}
        for name, value in values.items():
            if recorded.get(name, value) != value:
                raise PerennialError(
                    f"parameter {name!r} of tracking run {self.run_id} cannot change its value",
                    evidence=f"recorded value: {recorded[name]!r}; new value: {value!r}",
                    action="start a new run for a changed training",
                )
        new = [Param(name, value) for name, value in values.items() if name not in recorded]
        self._log("params", new, BATCH_PARAMS)

    def log_dataset(
        self, name: str, digest: str, *, uri: str, profile: Mapping[str, object], context: str
    ) -> None:
        """Record the data that the run reads, as MLflow's own datasets do; idempotent.

        Args:
            name: Of the dataset.
            digest: Of its content; MLflow keeps the first 36 characters.
            uri: Where it is stored.
            profile: What MLflow shows of it, such as the number of rows.
            context: What it is used for.
        """
        scheme = uri.partition("://")[0] if "://" in uri else "local"
        dataset = Dataset(
            name=name,
            digest=digest[:DATASET_DIGEST_CHARACTERS],
            source_type=scheme,
            source=json.dumps({"uri": uri}),
            profile=json.dumps(profile),
        )
        tags = [InputTag("mlflow.data.context", context)]
        self._client.log_inputs(self.run_id, datasets=[DatasetInput(dataset, tags)])

    def log_text(self, text: str, path: str) -> None:
        """Upload a text as a file of the run, over what an earlier attempt left."""
        folder, _, name = path.rpartition("/")
        with tempfile.TemporaryDirectory() as scratch:
            (Path(scratch) / name).write_text(text)
            self.log_artifacts(Path(scratch), folder)

    def log_metrics(self, metrics: Mapping[str, float]) -> None:
        """Record scalars; after a retry the latest values count."""
        now = int(time.time() * 1000)
        points = [Metric(name, value, now, 0) for name, value in metrics.items()]
        self._log("metrics", points, BATCH_METRICS)

    def log_curve(self, name: str, points: Sequence[tuple[int, float]]) -> None:
        """Record one metric over steps; a recorded point is not doubled."""
        # MLflow drops a point whose name, step, value and time are recorded: a time that
        # depends on the step alone lets a retry send everything again.
        start = self._run.info.start_time
        metrics = [Metric(name, value, start + step, step) for step, value in points]
        self._log("metrics", metrics, BATCH_METRICS)

    def log_artifacts(self, folder: Path, path: str, settled: Sequence[str] = ()) -> None:
        """Upload a folder's content below `path` of the run, over what an earlier attempt left.

        The content of `settled` files follows from `path`: one that is there in full is not sent
        again.
        """
        if self._files is None:
            self._client.log_artifacts(self.run_id, str(folder), path or None)
            return
        store = self._files.store
        for file in sorted(found for found in folder.rglob("*") if found.is_file()):
            name = file.relative_to(folder).as_posix()
            key = "/".join(filter(None, (self._files.prefix, path, name)))
            # Size and name decide: the content of a settled file follows from its path.
            present = store.list(key) if name in settled else []
            if StoredObject(key, file.stat().st_size) not in present:
                store.upload(key, file)

    def set_tags(self, tags: Mapping[str, str]) -> None:
        """Set or replace tags."""
        self._log("tags", [RunTag(name, value) for name, value in tags.items()], BATCH_PARAMS)

    def _log(self, kind: str, entries: Sequence[object], at_once: int) -> None:
        """Record entities of one kind, as `log_batch` names it, so many at once."""
        for start in range(0, len(entries), at_once):
            part: dict[str, Any] = {kind: entries[start : start + at_once]}
            despite_rivals(self._client.log_batch, self.run_id, **part)

    def set_outcome(self, outcome: str, why: str) -> None:
        """Record what became of the run's model, as a tag and in the note that MLflow shows."""
        self.set_tags({OUTCOME_TAG: outcome, NOTE_TAG: f"**{outcome}.** {why}"})

    def artifact_uri(self, path: str) -> str:
        """Return the address of the content uploaded below `path`."""
        return f"{self._files.uri if self._files else self._run.info.artifact_uri}/{path}"

    def finish(self) -> None:
        """Mark the run as finished."""
        if self._owned:
            self._client.set_terminated(self.run_id)

    def fail(self) -> None:
        """Mark the run as failed; opening it again, as a retry does, takes that back."""
        if self._owned:
            self._client.set_terminated(self.run_id, status="FAILED")


@dataclass(frozen=True)
class RunFiles:
    """The files of a run in the object store, which no reader ever sees in part."""

    store: ObjectStore
    prefix: str
    uri: str
    """The prefix's address, for MLflow."""

    @classmethod
    def of(cls, environment: Environment, run: Run, experiment: str) -> "RunFiles | None":
        """Return the files of a run; None where only MLflow can reach them.

        A server that passes files on to a store of its own would have every byte of a model go
        through it, on the way in and at each loading: where the object store is S3, they go there.
        """
        store, place = open_store(environment.store_uri), str(run.info.artifact_uri)
        root = _address(store)
        if place.startswith(f"{root}/"):
            return cls(store, place.removeprefix(f"{root}/"), place)
        if not isinstance(store, LocalObjectStore) and place.startswith(PASSED_ON):
            prefix = f"{ARTIFACT_PREFIX}/{experiment}/{run.info.run_id}/artifacts"
            return cls(store, prefix, f"{root}/{prefix}")
        return None


def open_tracking(environment: Environment, experiment: str) -> Tracking:
    """Return the run of this pipeline run: the one the platform opened, else one of our own.

    A retry, and every later step of the pipeline run, get the same run. The experiment, which has
    the model's name, is created when it does not exist yet.

    Raises:
        PerennialError: the platform's run or the experiment cannot be used.
    """
    client = open_mlflow(environment)
    run_id, owned = environment.tracking_run_id, not environment.tracking_run_id
    if owned:
        experiment_id = _experiment(client, environment, experiment)
        run_id = _claimed(client, environment, experiment, experiment_id)
    run = _joined(client, run_id)
    if owned and run.info.status in ("FAILED", "KILLED"):
        client.update_run(run_id, status="RUNNING")
    files = RunFiles.of(environment, run, experiment)
    return Tracking(client, run, owned=owned, files=files)


def _claimed(
    client: MlflowClient, environment: Environment, experiment: str, experiment_id: str
) -> str:
    """Return the one tracking run of a pipeline run; MLflow cannot create a run only once."""
    store, key = open_store(environment.store_uri), _claim_key(environment, experiment)
    claimed = store.read(key)
    if claimed is not None:
        return claimed.decode()
    name = short_name(environment.run_id, experiment)
    tags = _tags(environment, experiment)
    # Before the claim: a crash in between leaves an open run, which is closed by its tag later. In
    # the other order, every later step would join a run that does not exist.
    created = client.create_run(experiment_id, tags=tags, run_name=name)
    run_id = str(created.info.run_id)
    try:
        store.replace(key, run_id.encode(), previous=None)
    except ConflictError:
        # Our own write, if its answer was lost and it was sent again.
        winner = (store.read(key) or b"").decode()
        if winner != run_id:
            client.delete_run(run_id)
        return winner
    return run_id


def _claim_key(environment: Environment, experiment: str) -> str:
    return f"tracking/{experiment}/{environment.run_id}"


def _joined(client: MlflowClient, run_id: str) -> Run:
    try:
        return client.get_run(run_id)
    except MlflowException as error:
        raise PerennialError(
            f"the tracking run {run_id} cannot be joined",
            evidence=str(error),
            action="check that MLFLOW_TRACKING_URI is the server on which it was opened, or start "
            "a new pipeline run",
        ) from error


def _experiment(client: MlflowClient, environment: Environment, name: str) -> str:
    found = client.get_experiment_by_name(name)
    if found is None:
        try:
            location = _artifact_location(environment, name)
            return client.create_experiment(name, location, tags=dict(EXPERIMENT_TAGS))
        except MlflowException as error:
            # Another run of the model may have created it in between.
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            found = client.get_experiment_by_name(name)
    if found is None or found.lifecycle_stage != "active":
        raise PerennialError(
            f"the MLflow experiment {name!r} was deleted",
            action="restore it (`mlflow experiments restore`), or give the model another name",
        )
    return str(found.experiment_id)


def _artifact_location(environment: Environment, experiment: str) -> str | None:
    """Return where artifacts go; None for a server, which knows it."""
    # A database alone would choose the working folder.
    if environment.tracking_uri.startswith(("http://", "https://", "databricks")):
        return None
    return f"{_address(open_store(environment.store_uri))}/{ARTIFACT_PREFIX}/{experiment}"


def _address(store: ObjectStore) -> str:
    return store.root.absolute().as_uri() if isinstance(store, LocalObjectStore) else store.uri


def short_name(run_id: str, experiment: str) -> str:
    """Return a run's name in MLflow: its experiment has the model's name, ids of KFP are long."""
    own = run_id.removeprefix(f"{experiment}-")
    return own[:8] if re.fullmatch(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", own) else own


def _tags(environment: Environment, experiment: str) -> dict[str, str]:
    tags = {
        RUN_TAG: environment.run_id,
        "mlflow.user": _user(),
        "mlflow.source.name": "perennial continuous_training",
        "mlflow.source.type": "JOB",
        NOTE_TAG: f"Training of {experiment}, pipeline run {environment.run_id}.",
    }
    address = ClusterAddress.read()
    if address is not None and address.pod:
        tags[NAMESPACE_TAG] = address.namespace
    if environment.commit:
        tags["mlflow.source.git.commit"] = environment.commit
    return tags


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user needs no name
        return "unknown"


def add_run_page(environment: Environment, experiment: str, page: str, trigger: str) -> None:
    """Upload the page of an ended pipeline run to its MLflow run, if a step has opened one.

    A run that ended before `register_model` gets its trigger's tag here. The status stays as it is.
    """
    claimed = open_store(environment.store_uri).read(_claim_key(environment, experiment))
    run_id = environment.tracking_run_id or (claimed or b"").decode()
    if not run_id:
        return
    client = open_mlflow(environment)
    run = _joined(client, run_id)
    files = RunFiles.of(environment, run, experiment)
    tracking = Tracking(client, run, owned=False, files=files)
    tracking.log_text(page, RUN_PAGE)
    if TRIGGER_TAG not in run.data.tags:
        tracking.set_tags({TRIGGER_TAG: trigger})


def close_abandoned_runs(
    environment: Environment,
    is_over: Callable[[Mapping[str, str]], bool],
    reason: str,
    experiment: str = "",
    status: Literal["FAILED", "KILLED"] = "KILLED",
) -> list[str]:
    """End each open MLflow run of a pipeline run that is over; return the ids of those that were.

    A step that is cancelled or killed has no time to close its own. Opening a run again, as a
    resumed pipeline run does, takes the mark back. An MLflow that does not answer does not fail the
    caller's own work.

    Args:
        environment: The addresses.
        is_over: Decides by an MLflow run's tags.
        reason: Kept as a tag.
        experiment: The one to search; empty for all.
        status: What the runs end with.
    """
    closed: list[str] = []
    try:
        with single_attempts():
            client = open_mlflow(environment)
            experiments = [
                found.experiment_id
                for found in client.search_experiments()
                if experiment in ("", found.name)
            ]
            query = f"attributes.status = 'RUNNING' and tags.`{RUN_TAG}` LIKE '%'"
            # Only runs that Perennial opened: others in the same server are not ours to end.
            found = client.search_runs(experiments, query, max_results=MOST_CLOSED)
            for run_id in [run.info.run_id for run in found if is_over(run.data.tags)]:
                # Before the status: after a crash in between, the run is still found as open.
                client.set_tag(run_id, ENDED_TAG, reason)
                client.set_terminated(run_id, status=status)
                logger.warning("closed MLflow run %s as %s: %s", run_id, status, reason)
                closed.append(run_id)
    except Exception as error:  # whatever MLflow's client raises
        logger.warning("open MLflow runs of ended runs are not closed: %s", error)
    return closed
