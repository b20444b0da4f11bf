"""Plan: the calls that lead from what is on the server to what should be. Pure.

The newest schedule of a kind is the one that counts; all older ones of ours are on their way out.
So two deployments at once, or one that broke off anywhere, leave a state from which the next plan
leads to exactly one schedule, and a schedule that somebody paused stays paused.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from perennial.clients.pipeline_records import PipelineVersion, Schedule
from perennial.deployment.desired import (
    KINDS,
    Desired,
    DesiredSchedule,
    Kind,
    parse_schedule_metadata,
)


@dataclass(frozen=True)
class Observed:
    """Observed state of the server, as far as one contract is concerned."""

    pipelines: Mapping[str, str] = field(default_factory=dict)
    """Name → id of those that exist."""
    versions: Mapping[str, PipelineVersion] = field(default_factory=dict)
    """Pipeline → the version that is wanted, where it exists."""
    experiment_id: str | None = None
    schedules: tuple[Schedule, ...] = ()
    """Schedules of the experiment, oldest first."""
    busy: frozenset[str] = frozenset()
    """Schedules of which a run is under way."""
    contract_is_in_place: bool = True
    """Whether a contract that is too long for KFP lies in the object store."""

    def of_kind(self, kind: Kind) -> list[Schedule]:
        """Return the schedules that deployments made, oldest first."""
        return [
            schedule
            for schedule in self.schedules
            if (mark := parse_schedule_metadata(schedule.description)) is not None
            and mark.kind == kind
        ]

    def foreign(self) -> list[Schedule]:
        """Return the schedules that people made by hand, which are not touched."""
        return [
            each for each in self.schedules if parse_schedule_metadata(each.description) is None
        ]


@dataclass(frozen=True)
class CreatePipeline:
    """A pipeline without versions."""

    name: str

    def __str__(self) -> str:
        return f"create the pipeline {self.name}"


@dataclass(frozen=True)
class UploadVersion:
    """A compiled pipeline."""

    pipeline: str
    version: str

    def __str__(self) -> str:
        return f"upload version {self.version} of {self.pipeline}"


@dataclass(frozen=True)
class StoreContract:
    """A contract that KFP cannot carry."""

    address: str

    def __str__(self) -> str:
        return f"store the contract, which is too long for KFP, as {self.address}"


@dataclass(frozen=True)
class CreateExperiment:
    """A model's folder of runs."""

    name: str

    def __str__(self) -> str:
        return f"create the experiment {self.name}"


@dataclass(frozen=True)
class CreateSchedule:
    """A recurring run; a paused one takes the place of a paused one."""

    wanted: DesiredSchedule
    paused: bool

    def __str__(self) -> str:
        how = ", paused as the one before" if self.paused else ""
        return f"create the schedule {self.wanted.name!r} ({self.wanted.cron[2:]}){how}"


@dataclass(frozen=True)
class DisableSchedule:
    """An older one starts no more runs; those under way go on."""

    schedule: Schedule

    def __str__(self) -> str:
        return f"disable the older schedule {self.schedule.name!r} of {_since(self.schedule)}"


@dataclass(frozen=True)
class DeleteSchedule:
    """An older one of which no run is under way."""

    schedule: Schedule

    def __str__(self) -> str:
        return f"delete the older schedule {self.schedule.name!r} of {_since(self.schedule)}"


Action = (
    CreatePipeline
    | UploadVersion
    | StoreContract
    | CreateExperiment
    | CreateSchedule
    | DisableSchedule
    | DeleteSchedule
)


def plan(desired: Desired, observed: Observed, kinds: Sequence[Kind] = KINDS) -> list[Action]:
    """The calls to make, in their order; none when all is as it should be.

    Args:
        desired: What should be.
        observed: What is.
        kinds: The schedules to care for; those of other kinds are left as they are.
    """
    actions: list[Action] = []
    for pipeline in desired.pipelines:
        if pipeline.name not in observed.pipelines:
            actions.append(CreatePipeline(pipeline.name))
        if pipeline.name not in observed.versions:
            actions.append(UploadVersion(pipeline.name, pipeline.version))
    if not observed.contract_is_in_place:
        actions.append(StoreContract(desired.contract.value))
    if observed.experiment_id is None:
        actions.append(CreateExperiment(desired.experiment))
    for kind in kinds:
        actions += _for_schedules(
            desired.schedules.get(kind), observed.of_kind(kind), observed.busy
        )
    return actions


def plan_warnings(desired: Desired, observed: Observed) -> list[str]:
    """Return warnings beside the plan."""
    found = []
    for kind in KINDS:
        present = observed.of_kind(kind)
        if kind in desired.schedules and present and not present[-1].enabled:
            found.append(
                f"the schedule {present[-1].name!r} is paused and stays so; "
                "`perennial schedule … --resume` starts it"
            )
        older = present[:-1] if kind in desired.schedules else present
        found += [
            f"the older schedule {schedule.name!r} of {_since(schedule)} is kept, disabled, "
            "until its run is over"
            for schedule in older
            if schedule.schedule_id in observed.busy
        ]
    found += [
        f"the schedule {schedule.name!r} was made by hand and is left alone"
        for schedule in observed.foreign()
    ]
    return found


def _for_schedules(
    wanted: DesiredSchedule | None, present: list[Schedule], busy: frozenset[str]
) -> Iterator[Action]:
    newest = present[-1] if present else None
    leaving = present
    if wanted is not None:
        mark = parse_schedule_metadata(newest.description) if newest is not None else None
        if mark is not None and mark.digest == wanted.digest:
            leaving = present[:-1]
        else:
            # Enabled from the start: a new schedule that waited for a second call would look like
            # one that somebody paused, if the deployment was interrupted between the two.
            yield CreateSchedule(wanted, paused=newest is not None and not newest.enabled)
    for schedule in leaving:
        if schedule.enabled:
            yield DisableSchedule(schedule)
        # Servers before 2.16 end a schedule's running runs with it.
        if schedule.schedule_id not in busy:
            yield DeleteSchedule(schedule)


def _since(schedule: Schedule) -> str:
    return f"{schedule.created_at:%Y-%m-%d %H:%M}"
