"""Left-over jobs: find training jobs by label, and decide which of them to delete."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from types import MappingProxyType

from perennial.clients.cluster import Cluster, Object, Resource, label_selector
from perennial.engine.job import ScoringJob

PYTORCHJOBS = Resource("kubeflow.org", "v1", "pytorchjobs")
# With "Foreground", Trainer 2.1 creates the JobSet and its pods again while they are deleted.
TRAINJOBS = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", deletion="Background")
POD_LABELS: Mapping[Resource, str] = MappingProxyType(
    {
        PYTORCHJOBS: "training.kubeflow.org/job-name",
        TRAINJOBS: "jobset.sigs.k8s.io/jobset-name",
    }
)
"""Kind → the label with the job's name on its pods; they do not get a TrainJob's own labels."""
MANAGED_BY = {"app.kubernetes.io/managed-by": "perennial"}
RUN_LABEL = "perennial/run"
TRAINING_STEPS = ("train_model", "run_trials")
"""Steps that wait for trainings in pods of their own; a pipeline has one of them."""
SCORING_STEPS = ("select_checkpoint", "evaluate_model", "register_model", "detect_drift")
"""Steps that wait for scorings in pods of their own if `scoring.machines` is above 1."""
KFP_RUN_LABEL = "pipeline/runid"  # of every pod of a run
NODE_ANNOTATION = "workflows.argoproj.io/node-name"  # a step's place in the pipeline, and attempt
ATTEMPT_NUMBER = re.compile(r"\(\d+\)$")
ENDED = frozenset({"Succeeded", "Complete", "Failed"})
LEFT_IN_PLACE: Mapping[str, str] = MappingProxyType(
    {
        "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
        "karpenter.sh/do-not-disrupt": "true",
    }
)
"""Annotations that forbid moving the pod to save a machine: a training would lose its progress
since the last checkpoint, and a moved step would take its training along."""


def place_of_pod(pod: Object) -> str:
    """Return a pod's place in the pipeline, Argo's node, such as `train-model.executor(0)`."""
    node = pod["metadata"].get("annotations", {}).get(NODE_ANNOTATION, "")
    return str(node.partition(".root.")[2] or node)


def task_of_pod(pod: Object) -> str:
    """Return a pod's place without its attempt; one of a loop's has its own for each item."""
    return ATTEMPT_NUMBER.sub("", place_of_pod(pod)).removesuffix(".executor")


def step_of_pod(pod: Object) -> str:
    """Return the step that a pod executes; empty for KFP's own pods and those of a training."""
    # In a loop it follows the item: `study.workers.iteration-iterations(0:0).….run-trials`.
    name = task_of_pod(pod).rpartition(".")[2].replace("-", "_")
    return "" if name.endswith("driver") else name


def is_scoring_pod(pod: Object) -> bool:
    """Whether a pod is one of a scoring job; by its name, because TrainJobs pass on no labels."""
    return str(pod["metadata"]["name"]).startswith(f"{ScoringJob.kind}-")


def pods_of(kind: Resource, job: str) -> str:
    """Return the label selector of the pods of a job."""
    return f"{POD_LABELS[kind]}={job}"


def training_jobs(cluster: Cluster, labels: Mapping[str, str]) -> Iterator[tuple[Resource, Object]]:
    """Yield Perennial's jobs with these labels, of every kind that the cluster serves."""
    for resource in (PYTORCHJOBS, TRAINJOBS):
        if cluster.serves(resource):
            for job in cluster.list(resource, label_selector({**MANAGED_BY, **labels})):
                yield resource, job


def still_goes_on(job: Object) -> bool:
    """Whether a job must be deleted when its run has ended.

    One that has ended is kept as evidence; one that is being deleted needs no action.
    """
    return "deletionTimestamp" not in job["metadata"] and not has_ended(job)


def has_ended(job: Object) -> bool:
    """Whether a job's operator reports that it has ended."""
    return any(
        condition["type"] in ENDED and condition["status"] == "True"
        for condition in job.get("status", {}).get("conditions", ())
    )


TERMINAL = frozenset({"Succeeded", "Failed", "Error"})  # phases of an Argo Workflow


@dataclass(frozen=True)
class Reaping:
    """The decision whether to delete a job, and why."""

    name: str
    is_due: bool
    reason: str


def decide_reaping(job: Object, phases: dict[str, str], now: datetime, grace: timedelta) -> Reaping:
    """Decide whether to delete a job: yes if its run has ended.

    A running job is deleted at once, because it occupies accelerators. One that has ended is kept
    until it is as old as `grace`, because its pods are the evidence; a TrainJob is never deleted by
    itself. `phases` has run id → phase of every run whose Workflow exists; they are listed after
    the job, whose run existed when it was created.
    """
    metadata = job["metadata"]
    name, run_id = metadata["name"], metadata["labels"].get(RUN_LABEL, "")
    age = now - datetime.fromisoformat(metadata["creationTimestamp"])
    phase = phases.get(run_id)
    if "deletionTimestamp" in metadata:
        return Reaping(name, False, "it is being deleted")
    if phase is not None and phase not in TERMINAL:
        return Reaping(name, False, f"run {run_id} still runs")
    if has_ended(job) and age < grace:
        hours = age.total_seconds() / 3600
        return Reaping(name, False, f"it has ended and is only {hours:.1f} h old")
    ended = "has ended" if has_ended(job) else "still runs"
    run = f"is {phase}" if phase is not None else "is gone"
    return Reaping(name, True, f"it {ended}, and run {run_id} {run}")
