"""Desired: the state that one contract asks for, and the metadata to find it by."""

import hashlib
import json
import logging
import re
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

from pydantic import JsonValue

from perennial.clients.outages import single_attempts
from perennial.compilation import PIPELINES, compile_pipeline
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import digest_of
from perennial.deployment.placement import place, read_documents
from perennial.deployment.profile import Profile, check_address, with_seconds
from perennial.steps.parameters import LargeParameter, encode_parameter, shown_parameter

logger = logging.getLogger(__name__)
Kind = Literal["monitoring", "training"]
RunKind = Literal["monitoring", "training", "study"]
KINDS: tuple[Kind, ...] = ("monitoring", "training")
PIPELINE_OF: dict[RunKind, str] = {
    "monitoring": "drift-monitoring",
    "training": "continuous-training",
    "study": "hyperparameter-study",
}
STUDY = "hyperparameter_study"
MARK = re.compile(
    r"perennial kind=(?P<kind>\w+) spec=(?P<spec>[0-9a-f]{12}) "
    r"monitoring=(?P<monitoring>[0-9a-f]{12}) training=(?P<training>[0-9a-f]{12})$"
)


# What Kubeflow's own pods and pauses take, measured on a live server: see k8s/scaling.md.
DRIVER_SECONDS, TASK_SECONDS = 10, 20


def count_tasks(spec: dict[str, Any], dag: dict[str, Any] | None = None) -> tuple[int, int]:
    """Return the tasks of a compiled pipeline that execute something, and its nested levels."""
    tasks = levels = 0
    for task in (dag or spec["root"]["dag"])["tasks"].values():
        component = spec["components"][task["componentRef"]["name"]]
        if "dag" not in component:
            tasks += 1
            continue
        inner = count_tasks(spec, component["dag"])
        tasks, levels = tasks + inner[0], max(levels, 1 + inner[1])
    return tasks, levels


@dataclass(frozen=True)
class DesiredPipeline:
    """A compiled and placed pipeline; its version's name is its content's digest."""

    name: str
    package: str
    description: str = ""

    @property
    def version(self) -> str:
        """Equal for equal content, so that the same deployment uploads nothing twice."""
        return hashlib.sha256(self.package.encode()).hexdigest()[:12]

    @property
    def floor(self) -> str:
        """Return how long a run takes at least, whatever its steps do."""
        tasks, levels = count_tasks(read_documents(self.package)[0])
        seconds = DRIVER_SECONDS * (1 + levels) + TASK_SECONDS * tasks
        return f"{self.name}: up to {tasks} tasks, of which Kubeflow itself takes {seconds} s"


@dataclass(frozen=True)
class DesiredSchedule:
    """A recurring run as it should be."""

    kind: Kind
    name: str
    cron: str
    versions: dict[Kind, str]
    """Versions of both pipelines, as they are deployed together."""
    parameters: dict[str, str]
    service_account: str
    pipeline_root: str

    @property
    def pipeline(self) -> str:
        """Return the name of the pipeline that it starts."""
        return PIPELINE_OF[self.kind]

    @property
    def digest(self) -> str:
        """Return the digest of everything that its runs depend on."""
        content: dict[str, JsonValue] = {
            "cron": self.cron,
            "versions": {str(kind): version for kind, version in self.versions.items()},
            "parameters": dict(self.parameters),
            "service_account": self.service_account,
            "pipeline_root": self.pipeline_root,
        }
        return digest_of(content)[:12]

    @property
    def description(self) -> str:
        """Shown in the dashboard; its end is how a later deployment knows it again."""
        return (
            "Kept by `perennial deploy`: a change made here lasts until the next one. "
            f"perennial kind={self.kind} spec={self.digest} "
            f"monitoring={self.versions['monitoring']} training={self.versions['training']}"
        )


@dataclass(frozen=True)
class Desired:
    """Desired state of one contract."""

    experiment: str
    contract: LargeParameter
    pipelines: tuple[DesiredPipeline, ...]
    schedules: dict[Kind, DesiredSchedule] = field(default_factory=dict)

    def pipeline(self, name: str) -> DesiredPipeline:
        """Return a pipeline by its name."""
        return next(pipeline for pipeline in self.pipelines if pipeline.name == name)


def desire(contract: Contract, profile: Profile) -> Desired:
    """Return the desired state of the server.

    Raises:
        PerennialError: the data lie where no pod can read them, or the step that waits for the
            training would end before it.
    """
    _refuse_what_no_step_can_do(contract, profile)
    stored = _travelling(contract, profile.stores.store_uri)
    pipelines = tuple(
        DesiredPipeline(
            name.replace("_", "-"), place(_compiled(name), profile), pipeline.description or ""
        )
        for name, pipeline in PIPELINES.items()
        if name != STUDY
    )
    by_name = {pipeline.name: pipeline.version for pipeline in pipelines}
    versions: dict[Kind, str] = {kind: by_name[PIPELINE_OF[kind]] for kind in KINDS}
    schedules: dict[Kind, DesiredSchedule] = {
        kind: DesiredSchedule(
            kind=kind,
            name=f"{contract.model.name} {kind}",
            cron=with_seconds(cron),
            versions=versions,
            parameters=parameters_of(kind, stored.value, stored.text, '{"trigger":"schedule"}'),
            service_account=profile.pods.service_account,
            pipeline_root=profile.stores.pipeline_root,
        )
        for kind in KINDS
        if (cron := getattr(profile.schedules, kind))
    }
    return Desired(contract.model.name, stored, pipelines, schedules)


def desire_study(contract: Contract, profile: Profile) -> Desired:
    """Return the desired state for a run of the contract's study; schedules are not part of it.

    Raises:
        PerennialError: as `desire`.
    """
    _refuse_what_no_step_can_do(contract, profile)
    # As many tasks as trials run at a time: KFP runs a loop over a parameter's list inside an exit
    # handler on no cluster, so that their number is part of the pipeline.
    workers = contract.study.parallel if contract.study is not None else 1
    package = place(_compiled(STUDY, workers), profile)
    about = PIPELINES[STUDY].description or ""
    pipeline = DesiredPipeline(PIPELINE_OF["study"], package, about)
    stored = _travelling(contract, profile.stores.store_uri)
    return Desired(contract.model.name, stored, (pipeline,))


def _refuse_what_no_step_can_do(contract: Contract, profile: Profile) -> None:
    if "://" not in contract.data.uri:
        raise PerennialError(
            f"data.uri = {contract.data.uri!r} is a folder of this machine",
            evidence="the steps run in pods elsewhere",
            action="put the dataset into an object store, such as s3://bucket/flights",
        )
    try:
        check_address(contract.data.uri, ("s3",))
    except ValueError as error:
        raise PerennialError("no step can read data.uri", evidence=str(error)) from error
    if contract.resources.launcher == "trainjob":
        from perennial.training_jobs.manifests import refuse_what_the_runtime_decides  # noqa: PLC0415 - imports kubernetes

        # Now, not when the training begins.
        refuse_what_the_runtime_decides(contract.resources.cluster)
    budgets, minutes = contract.resources.cluster.budgets, profile.pods.training_timeout_minutes
    needed = 60 * (budgets.queued_hours + budgets.running_hours) + budgets.starting_minutes
    if contract.resources.launcher != "local" and needed > minutes:
        raise PerennialError(
            f"pods.training_timeout_minutes = {minutes} ends the step before its training",
            evidence=f"resources.cluster.budgets lets one attempt take {needed:.0f} minutes",
            action="raise the one in the profile, or lower the others in the contract",
        )


def _travelling(contract: Contract, store_uri: str) -> LargeParameter:
    """Return the contract as its address, which people who compare runs can read past.

    One that is short travels as itself where this machine cannot read the store.
    """
    text = contract.to_json()
    by_address = LargeParameter(text, store_uri, is_stored=True)
    as_itself = LargeParameter(text, store_uri)
    # It is too long to travel as itself.
    if as_itself.value == by_address.value:
        return by_address
    try:
        with single_attempts():
            _ = by_address.exists_in_store
    except PerennialError as error:
        logger.info("the contract travels as itself: %s", error.problem)
        return as_itself
    return by_address


def parameters_of(kind: RunKind, carried: str, contract: str, trigger: str) -> dict[str, str]:
    """Return the parameters of a pipeline: what carries the contract, why, and what people compare.

    Monitoring finds its trigger itself.
    """
    sections, why = json.loads(contract), json.loads(trigger)
    asked = {"trigger": encode_parameter(trigger)} if kind == "training" else {}
    return {
        "contract": carried,
        **asked,
        "model": sections["model"]["name"],
        "data": shown_parameter(sections["data"]["uri"]),
        "reason": shown_parameter(why.get("reason") or why["trigger"]),
    }


@dataclass(frozen=True)
class ScheduleMetadata:
    """Metadata that a deployment wrote on a schedule: as in `DesiredSchedule`."""

    kind: str
    digest: str
    versions: dict[str, str]


def parse_schedule_metadata(description: str) -> ScheduleMetadata | None:
    """Return the metadata of a deployment's schedule; None for any other schedule."""
    found = MARK.search(description)
    if found is None:
        return None
    return ScheduleMetadata(found["kind"], found["spec"], {kind: found[kind] for kind in KINDS})


def _compiled(name: str, workers: int = 1) -> str:
    with TemporaryDirectory() as folder:
        return compile_pipeline(name, Path(folder) / f"{name}.yaml", workers=workers).read_text()
