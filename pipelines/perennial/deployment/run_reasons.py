"""Reasons of a run on a cluster: what its steps decided, why one failed, and what one waits for.

Kubeflow's API holds none of this: the records that steps write to the object store do, and pods.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from perennial.clean_up.page import find_run_results
from perennial.clients.cluster import PODS, Cluster
from perennial.clients.outages import Persistence, single_attempts
from perennial.clients.pipeline_api import PipelineRun
from perennial.contracts.environment import ClusterAddress
from perennial.contracts.errors import PerennialError
from perennial.steps.stored_steps import FLOW, StoredRun, StoredStep
from perennial.training_jobs.leftovers import (
    KFP_RUN_LABEL,
    RUN_LABEL,
    is_scoring_pod,
    place_of_pod,
    step_of_pod,
)
from perennial.training_jobs.status import PodView

STEPS = frozenset(step for flow in FLOW.values() for step in flow)
DECIDING = {"decide_retraining": "trigger", "evaluate_model": "gate", "register_model": "registry"}
CONNECT_SECONDS = 5.0


def step_states(run: PipelineRun) -> dict[str, str]:
    """Return step → state. Kubeflow also lists its drivers, executors and the workflow itself."""
    names = {task: task.replace("-", "_") for task in run.tasks}
    return {names[task]: state for task, state in run.tasks.items() if names[task] in STEPS}


def reason_lines(store_uri: str, run: PipelineRun) -> Iterator[str]:
    """Yield what the steps of a run decided, and why one failed."""
    try:
        with single_attempts():
            records = StoredRun(store_uri, run.run_id).steps()
    except PerennialError as error:
        yield f"reasons: not known here, because {store_uri} cannot be read: {error.problem}"
        return
    if not records and run.is_over and not run.was_canceled and run.state != "SUCCEEDED":
        yield f"reasons: no step has written any below {store_uri}/reports/{run.run_id}"
    found = find_run_results(records, run.name)
    if run.is_over and records and found.word != "Finished":
        yield f"verdict: {found.word}"
    for record in records:
        yield from _lines_of(record)


def _lines_of(record: StoredStep) -> Iterator[str]:
    if record.status == "failed":
        first, *rest = str(record.error).splitlines()
        yield f"{record.step} failed: {first}"
        yield from rest
    elif record.status == "finished" and record.step in DECIDING and record.summary:
        yield f"{DECIDING[record.step]}: {record.summary}"


@dataclass
class Waiting:
    """Looks for pods of runs that wait, as far as this machine may see the cluster's pods."""

    namespace: str
    _cluster: Cluster | None = None
    _problem: str = ""
    _shown: set[str] = field(default_factory=set)

    def lines(self, run_id: str) -> list[str]:
        """Return a line for each pod that waits, with the reason."""
        # Asked every few seconds: a cluster that is out of reach is stated once.
        if self._problem:
            return []
        try:
            if self._cluster is None:
                self._cluster = Cluster.connect(
                    ClusterAddress.read(), self.namespace, Persistence(CONNECT_SECONDS)
                )
            pods = [
                pod
                for label in (KFP_RUN_LABEL, RUN_LABEL)
                for pod in self._cluster.list(PODS, f"{label}={run_id}")
            ]
        except PerennialError as error:
            self._problem = error.problem
            return [f"what a step waits for cannot be seen from here: {error.problem}"]
        found = []
        for pod in pods:
            container = pod["spec"]["containers"][-1]["name"]
            view = PodView.of(pod, container)
            if view.phase == "Pending" and view.reason:
                # A driver of Kubeflow has a place alone, a pod of a job has none.
                job = "scoring" if is_scoring_pod(pod) else "train_model"
                step = step_of_pod(pod) or place_of_pod(pod) or job
                message = f": {view.message.strip()[:300]}" if view.message else ""
                found.append(f"{step} waits: {view.reason}{message}")
        return list(dict.fromkeys(found))

    def new_lines(self, run_id: str) -> list[str]:
        """Return the lines that were not returned before."""
        found = [line for line in self.lines(run_id) if line not in self._shown]
        self._shown.update(found)
        return found
