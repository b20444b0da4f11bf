"""Exporter: model metrics as series for Prometheus.

Moments are exported as Unix times, never as ages: `time() - x` is the age when a rule asks, also if
this process has died. What cannot be read fails the scrape, so `up` shows it; no value is invented.
"""

import os
import signal
import threading
from collections.abc import Iterator

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from perennial.clients.object_store import ObjectStore, open_store
from perennial.clients.pipeline_api import PAGE_SIZE, PipelineRun
from perennial.contracts.environment import TRACKING_URI, Environment
from perennial.contracts.snapshot import as_utc
from perennial.decide_retraining.state import MonitoringRecord, monitoring_record
from perennial.deployment.desired import KINDS, PIPELINE_OF
from perennial.deployment.operations import TargetCluster
from perennial.registry.champion_records import CHAMPION
from perennial.registry.model_registry import ModelRegistry, open_registry
from perennial.registry.version_files import FINGERPRINT_TAG

SEEN_RUNS = PAGE_SIZE
"""The newest ones of a model in which its last monitoring and training are looked for: what one
request returns. A training that failed must not be forgotten after a day of hourly monitoring."""
BOUNDED_WAIT = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "1", "MLFLOW_HTTP_REQUEST_TIMEOUT": "10"}
SERIES = {
    "champion_registered_timestamp_seconds": ("When the champion was registered", ["version"]),
    "schedule_enabled": ("Whether a deployed schedule starts runs", ["kind"]),
    "run_created_timestamp_seconds": ("When the newest run was started", ["kind"]),
    "run_succeeded_timestamp_seconds": ("When the newest succeeded run ended", ["kind"]),
    "run_state": ("1 for the newest run's state", ["kind", "state"]),
    "look_timestamp_seconds": ("When monitoring looked last", []),
    "look_data_timestamp_seconds": ("Newest row that monitoring saw", []),
    "look_windows": ("Windows of new data at the last look", []),
    "look_drifted": ("Whether the last look found lasting drift", []),
    "look_decayed": ("Whether the last look found a lasting loss of performance", []),
    "look_largest_z_score": ("Largest drift of a window at the last look", []),
}
"""Name without `perennial_` → help text, and its labels beside `model`."""


class ModelCollector(Collector):
    """Reads Kubeflow Pipelines, MLflow and the object store at each scrape."""

    def __init__(self, target: TargetCluster, registry: ModelRegistry, store: ObjectStore) -> None:
        self._target = target
        self._registry = registry
        self._store = store

    def describe(self) -> list[Metric]:
        """Yield nothing; without this, registering the collector would call the servers."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        """Yield every series of every model.

        Raises:
            PerennialError: a server refuses or something stored is damaged.
        """
        families = {
            name: GaugeMetricFamily(f"perennial_{name}", text, labels=["model", *labels])
            for name, (text, labels) in SERIES.items()
        }
        for model, name, labels, value in self._values():
            families[name].add_metric([model, *labels], value)
        yield from families.values()

    def _values(self) -> Iterator[tuple[str, str, list[str], float]]:
        deployed = self._target.deployed_schedules()
        kinds = {self._target.api.find_pipeline(PIPELINE_OF[kind]): kind for kind in KINDS}
        for model, schedules in deployed.items():
            experiment_id = next(iter(schedules.values())).experiment_id
            runs = self._target.api.runs(experiment_id, limit=SEEN_RUNS)
            for kind, schedule in schedules.items():
                yield model, "schedule_enabled", [kind], float(schedule.enabled)
            for kind in KINDS:
                own = [run for run in runs if kinds.get(run.pipeline_id) == kind]
                for name, labels, value in _run_values(own):
                    yield model, name, [kind, *labels], value
        for model in sorted({*deployed, *self._registry.names()}):
            champion = self._registry.version_by_alias(model, CHAMPION)
            # Without the tag, somebody else registered it in the same MLflow.
            if champion is not None and FINGERPRINT_TAG in champion.tags:
                registered = champion.created_at.timestamp()
                yield model, "champion_registered_timestamp_seconds", [champion.version], registered
            look = monitoring_record(self._store, model).read()
            for name, value in _monitoring_values(look) if look else ():
                yield model, name, [], value


def collectors(target: TargetCluster) -> CollectorRegistry:
    """Return the collectors of this process, with the addresses of a profile.

    `MLFLOW_TRACKING_URI` names another address of MLflow, such as that of a port-forward.
    """
    stores = target.profile.stores
    # MLflow's own seven retries take four minutes where the profile's address is of the cluster.
    for name, value in BOUNDED_WAIT.items():
        os.environ.setdefault(name, value)
    tracking = os.environ.get(TRACKING_URI) or stores.tracking_uri
    environment = Environment(stores.store_uri, tracking, "exporter")
    registry = CollectorRegistry()
    registry.register(
        ModelCollector(target, open_registry(environment), open_store(stores.store_uri))
    )
    return registry


def serve(registry: CollectorRegistry, port: int) -> None:
    """Answer scrapes until SIGTERM, which the first process of a container must handle itself."""
    stopped = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    server, thread = start_http_server(port, registry=registry)
    stopped.wait()
    server.shutdown()
    server.server_close()
    thread.join()


def _run_values(runs: list[PipelineRun]) -> Iterator[tuple[str, list[str], float]]:
    """Yield values of one kind's runs, newest first."""
    for run in runs[:1]:
        yield "run_created_timestamp_seconds", [], run.created_at.timestamp()
        yield "run_state", [run.outcome.replace(" ", "_")], 1.0
    ends = [run.finished_at for run in runs if run.state == "SUCCEEDED" and run.finished_at]
    if ends:
        yield "run_succeeded_timestamp_seconds", [], max(ends).timestamp()


def _monitoring_values(look: MonitoringRecord) -> Iterator[tuple[str, float]]:
    yield "look_timestamp_seconds", look.at.timestamp()
    if look.data_time is not None:
        yield "look_data_timestamp_seconds", as_utc(look.data_time).timestamp()
    yield "look_windows", float(look.windows)
    yield "look_drifted", float(look.drifted)
    yield "look_decayed", float(look.decayed)
    yield "look_largest_z_score", look.largest_z_score
