"""Katib: a study's search space as an Experiment's parameters, and a trial's assignments back.

Katib proposes the values then; whatever else a study does, it does as without Katib.
"""

import json
import logging
import math
import re
import threading
from collections.abc import Mapping
from typing import Any

from pydantic import JsonValue

from perennial.clients.cluster import AlreadyExistsError, Cluster, Object, Resource
from perennial.contracts.environment import ClusterAddress
from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import RunStopped
from perennial.engine.job import EXIT_INTERRUPTED
from perennial.studies.config import Sampler
from perennial.studies.records import StudyPlan
from perennial.studies.sampling import space_of
from perennial.studies.space import Axis, Space, canonical
from perennial.studies.store import StudyStore
from perennial.training_jobs.config import ResourcesSection
from perennial.training_jobs.leftovers import MANAGED_BY, RUN_LABEL
from perennial.training_jobs.manifests import (
    ANNOTATIONS,
    STEP_CONTAINER,
    RunIdentity,
    training_pod,
    variables,
)

EXPERIMENTS = Resource("kubeflow.org", "v1beta1", "experiments", deletion="Background")
POLL_SECONDS = 10.0
logger = logging.getLogger(__name__)
VALUE = "value"
"""The name of the metric in a trial's output: of a task's own, Katib cannot read all."""

ALGORITHMS: Mapping[Sampler, str] = {
    "quasi_random": "sobol",
    "random": "random",
    "grid": "grid",
    "tpe": "multivariate-tpe",
    "gp": "bayesianoptimization",
}
"""Sampler → algorithm of Katib 0.19, as its own configuration names them."""
LOG = "log10_"
# Katib joins a container's arguments to a line for a shell, without quotes.
PLAIN = re.compile(r"[\w.+-]+")


def parameter_name(axis: Axis) -> str:
    """Return an axis's name in Katib: letters, digits and underscores."""
    return f"{LOG if axis.is_log else ''}{axis.option.replace('.', '_')}"


def parameters(space: Space) -> list[dict[str, Any]]:
    """Return an Experiment's `parameters`.

    A logarithmic range is the range of its base-10 logarithm: of Katib's suggestion services only
    some know a distribution, and the others search the plain range without saying so. Conditions
    are unknown to Katib: a value without a meaning is proposed all the same, and left out.

    Raises:
        PerennialError: two options have the same name in Katib.
    """
    names = [parameter_name(axis) for axis in space.axes]
    if len(set(names)) < len(names):
        raise PerennialError(
            "two options of the study have the same name in Katib",
            evidence=", ".join(sorted({name for name in names if names.count(name) > 1})),
            action="run the study without Katib, or leave one of them out",
        )
    return [{"name": name, **_space(axis)} for name, axis in zip(names, space.axes, strict=True)]


def _space(axis: Axis) -> dict[str, Any]:
    if axis.dimension.choices is not None:
        return {"parameterType": "categorical", "feasibleSpace": {"list": list(_labels(axis))}}
    low, high = axis.bounds
    if axis.dimension.integer is not None:
        step = {"step": str(round(axis.dimension.step))} if axis.dimension.step else {}
        return {"parameterType": "int", "feasibleSpace": {"min": str(low), "max": str(high)} | step}
    if axis.is_log:
        ends = {"min": _exponent(axis.value(0.0)), "max": _exponent(axis.value(1.0))}
        return {"parameterType": "double", "feasibleSpace": ends}
    step = {"step": repr(axis.dimension.step)} if axis.dimension.step else {}
    return {
        "parameterType": "double",
        "feasibleSpace": {"min": repr(low), "max": repr(high)} | step,
    }


def _labels(axis: Axis) -> dict[str, JsonValue]:
    """Return label → choice; a label is the choice itself where a shell leaves it alone."""
    found: dict[str, JsonValue] = {}
    for number, choice in enumerate(axis.dimension.choices or ()):
        text = choice if isinstance(choice, str) else canonical(choice)
        is_plain = PLAIN.fullmatch(text) is not None and text not in found
        found[text if is_plain else f"choice-{number}"] = choice
    return found


def read_assignments(space: Space, assignments: Mapping[str, str]) -> dict[str, JsonValue]:
    """Return option → value for what Katib assigned to the parameters.

    Raises:
        PerennialError: a parameter is missing or unknown, or its value is not in the space.
    """
    axes = {parameter_name(axis): axis for axis in space.axes}
    if set(axes) != set(assignments):
        raise PerennialError(
            "Katib's assignments are not the study's hyperparameters",
            evidence=f"got {', '.join(sorted(assignments))}; expected {', '.join(sorted(axes))}",
            action="delete the Experiment and run the study again: trials that ended are on record",
        )
    return space.complete(
        {axis.option: _value(axis, assignments[name]) for name, axis in axes.items()}
    )


def _value(axis: Axis, text: str) -> JsonValue:
    if axis.dimension.choices is not None:
        labels = _labels(axis)
        if text in labels:
            return labels[text]
    else:
        try:
            number = 10.0 ** float(text) if axis.is_log else float(json.loads(text))
        except (ValueError, OverflowError, TypeError):
            number = float("nan")
        place = axis.unit(number)
        # An exponent is rounded, so that the ends of a range are not hit exactly.
        if place is not None and -1e-6 <= place <= 1 + 1e-6:
            return axis.value(min(max(place, 0.0), 1.0))
    raise PerennialError(
        f"Katib assigned a value to {axis.option} that is not in its space",
        evidence=f"{parameter_name(axis)} = {text!r}",
        action="delete the Experiment and run the study again: trials that ended are on record",
    )


def _exponent(value: JsonValue) -> str:
    return repr(round(math.log10(float(value)), 9)) if isinstance(value, int | float) else ""


def experiment(
    plan: StudyPlan, resources: ResourcesSection, run: RunIdentity, trials: int
) -> Object:
    """Return the Experiment whose trials are the first stage of a study, without its baseline.

    Each trial is a Job of one pod, which trains, writes the trial's record, and prints its value.
    `trials` is how many of them have no record yet.

    Raises:
        PerennialError: the study needs what Katib lacks.
    """
    study, space = plan.study, space_of(plan)
    _refuse_what_katib_lacks(plan, resources)
    names = [parameter_name(axis) for axis in space.axes]
    labels = {**MANAGED_BY, RUN_LABEL: run.run_id, "perennial/model": plan.model}
    program: Object = {
        "name": STEP_CONTAINER,
        "image": resources.cluster.image or run.image,
        "command": [
            *("python", "-m", "perennial.studies.katib_trial", plan.prefix),
            *(f"{name}=${{trialParameters.{name}}}" for name in names),
        ],
        "env": variables(run, resources, {}),
    }
    return {
        "apiVersion": f"{EXPERIMENTS.group}/{EXPERIMENTS.version}",
        "kind": "Experiment",
        "metadata": {
            "name": experiment_name(plan),
            "labels": labels,
            **({"ownerReferences": [run.owner]} if run.owner else {}),
        },
        "spec": {
            "objective": {"type": plan.direction, "objectiveMetricName": VALUE},
            "algorithm": {
                "algorithmName": ALGORITHMS[study.sampler],
                "algorithmSettings": _settings(study.sampler, study.seed),
            },
            "parameters": parameters(space),
            "maxTrialCount": trials,
            "parallelTrialCount": min(study.parallel, trials),
            # A trial that diverges is a result.
            "maxFailedTrialCount": trials,
            "metricsCollectorSpec": {"collector": {"kind": "StdOut"}},
            # The suggestion service ends with the Experiment, which nothing resumes.
            "resumePolicy": "Never",
            "trialTemplate": {
                "primaryContainerName": STEP_CONTAINER,
                "successCondition": _condition("Complete"),
                "failureCondition": _condition("Failed"),
                "trialParameters": [{"name": name, "reference": name} for name in names],
                "trialSpec": _job(training_pod(program, resources, run, labels), labels),
            },
        },
    }


def _job(pod: Object, labels: Mapping[str, str]) -> Object:
    """Return a Job that runs a pod once."""
    metadata = {"labels": dict(labels), "annotations": dict(ANNOTATIONS)}
    # No retry by the Job: `TrialRunner` tries again what did not fail because of the values.
    spec = {"backoffLimit": 0, "template": {"metadata": metadata, "spec": pod}}
    return {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}


def experiment_name(plan: StudyPlan) -> str:
    """Return the Experiment's name, of at most 40 characters."""
    return f"{plan.model[:23].rstrip('-')}-{plan.study_digest[:16]}"


def _settings(sampler: Sampler, seed: int) -> list[dict[str, str]]:
    """Return the algorithm's settings; those of `sobol` and `grid` have no seed."""
    names = {"random": "random_state", "gp": "random_state", "tpe": "seed"}
    return [{"name": names[sampler], "value": str(seed)}] if sampler in names else []


def _condition(name: str) -> str:
    # In GJSON, the query language of Katib's conditions.
    return f'status.conditions.#(type=="{name}")#|#(status=="True")#'


def _refuse_what_katib_lacks(plan: StudyPlan, resources: ResourcesSection) -> None:
    if plan.study.pruning != "off":
        raise PerennialError(
            f'study.pruning = "{plan.study.pruning}" is unknown to Katib',
            evidence="Katib 0.19 stops early by `medianstop` alone",
            action='set pruning = "off", or leave proposed_by = "katib" out',
        )
    if plan.study.device_hours is not None:
        raise PerennialError(
            "Katib does not end a search by study.device_hours",
            evidence=f"it would run all {plan.study.trials} trials",
            action="limit study.trials instead, or leave proposed_by out",
        )
    if resources.cluster.machines > 1:
        raise PerennialError(
            f"a trial on {resources.cluster.machines} machines cannot run as a trial of Katib",
            evidence="its trials are Jobs of one pod here",
            action="set resources.cluster.machines = 1, or leave study.proposed_by out",
        )
    if plan.study.sampler == "grid" and any(a.size is None for a in space_of(plan).axes):
        raise PerennialError(
            "Katib's grid needs whole numbers or choices",
            evidence="its service refuses a range of real numbers without a step",
            action='use choices, or sampler = "quasi_random"',
        )


class KatibSearch:
    """Has Katib propose and run the first stage of a study, so many trials of it.

    Raises:
        PerennialError: this is no step on a cluster, or the study needs what Katib lacks.
    """

    def __init__(self, plan: StudyPlan, resources: ResourcesSection, trials: int) -> None:
        address = ClusterAddress.read()
        if address is None or not address.pod:
            raise PerennialError(
                'study.proposed_by = "katib" needs a cluster with Katib',
                evidence="this is not a pipeline step on a cluster",
                action="leave it out, or start the study with `perennial study submit`",
            )
        cluster = Cluster.connect(address)
        self._cluster = cluster
        self._name = experiment_name(plan)
        self._body = experiment(plan, resources, RunIdentity.of_pod(cluster.own_pod()), trials)
        self._stopped = threading.Event()

    def run(self) -> None:
        """Make the Experiment, if no other worker has, and wait until it has ended.

        Raises:
            PerennialError: the cluster has no Katib, or the Experiment failed or was deleted.
            RunStopped: it was stopped; the trials that ended are on record.
        """
        if not self._cluster.serves(EXPERIMENTS):
            raise PerennialError(
                "the cluster has no Katib, which study.proposed_by asks for",
                evidence=f"its API server does not serve {EXPERIMENTS}",
                action="install Katib, or leave study.proposed_by out",
            )
        try:
            self._cluster.create(EXPERIMENTS, self._body)
            logger.info("experiment=%s created", self._name)
        except AlreadyExistsError:
            logger.info("experiment=%s is there already", self._name)
        shown = -1
        while not self._stopped.wait(POLL_SECONDS):
            found = self._cluster.get(EXPERIMENTS, self._name)
            if found is None:
                raise PerennialError(
                    f"the Experiment {self._name} was deleted before it ended",
                    action="run the study again: trials that ended are on record",
                )
            status = found.get("status", {})
            ended = sum(status.get(name, 0) for name in ("trialsSucceeded", "trialsFailed"))
            if ended != shown:
                logger.info("experiment=%s trials=%d ended", self._name, ended)
                shown = ended
            kind, message = outcome_of(found) or ("", "")
            if kind == "Failed":
                raise PerennialError(
                    f"the Experiment {self._name} failed",
                    evidence=message,
                    action=f"see `kubectl describe experiment {self._name}`; delete it to try "
                    "again",
                )
            if kind:
                return
        self._cluster.delete(EXPERIMENTS, self._name)
        raise RunStopped(EXIT_INTERRUPTED)

    def stop(self) -> None:
        """Delete the Experiment with its running trials; for a signal handler, too."""
        self._stopped.set()


def search_by_katib(store: StudyStore, resources: ResourcesSection) -> KatibSearch | None:
    """Return the search that is Katib's; None if the study has none, or its trials have ended.

    Raises:
        PerennialError: as `KatibSearch`.
    """
    plan = store.plan
    numbers = range(1, plan.study.trials + 1)
    missing = len(numbers) - len(store.trials(numbers))
    if plan.study.proposed_by != "katib" or not missing:
        return None
    return KatibSearch(plan, resources, missing)


def outcome_of(found: Object) -> tuple[str, str] | None:
    """Return how an Experiment ended, and its message; None while it runs."""
    for each in found.get("status", {}).get("conditions", ()):
        if each["type"] in ("Succeeded", "Failed") and each.get("status") == "True":
            return each["type"], each.get("message", "")
    return None
