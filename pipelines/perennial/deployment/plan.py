"""Plan: the calls that lead from what is on the server to what should be, and making them.

The newest schedule of a kind is the one that counts; all older ones of ours are on their way out.
So two deployments at once, or one that broke off anywhere, leave a state from which the next plan
leads to exactly one schedule, and a schedule that somebody paused stays paused.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial

from perennial.clients.pipeline_api import (
    GoneError,
    NewSchedule,
    PipelineApi,
    PipelineVersion,
    Schedule,
    TakenError,
)
from perennial.contracts.errors import PerennialError
from perennial.deployment.desired import (
    KINDS,
    Desired,
    DesiredSchedule,
    Kind,
    parse_schedule_metadata,
)

MOST_ACTIONS = 100
# Between a new schedule's creation and its older ones' end, neither time's slot may fire twice.
HEAD_START = timedelta(seconds=60)


class OvertakenError(PerennialError):
    """A later deployment of the same model has replaced this one."""


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
    contract_is_stored: bool = True
    """Whether a contract whose address travels lies in the object store."""

    def of_kind(self, kind: Kind | None) -> list[Schedule]:
        """Return the schedules of a kind, oldest first; None for those that people made by hand."""
        found = []
        for schedule in self.schedules:
            metadata = parse_schedule_metadata(schedule.description)
            if (metadata.kind if metadata else None) == kind:
                found.append(schedule)
        return found


@dataclass(frozen=True)
class Action:
    """A call to make, with its description for people."""

    text: str
    call: Callable[[PipelineApi], object]
    creates: Kind | None = None
    """The kind of the schedule that the call creates, whose id it returns."""

    def __str__(self) -> str:
        return self.text


def observe(api: PipelineApi, desired: Desired) -> Observed:
    """Return the current state of the server."""
    pipelines, versions = {}, {}
    for pipeline in desired.pipelines:
        found = api.find_pipeline(pipeline.name)
        if found is None:
            continue
        pipelines[pipeline.name] = found
        version = api.find_version(found, pipeline.version)
        if version is not None:
            versions[pipeline.name] = version
    is_stored = desired.contract.exists_in_store
    experiment = api.find_experiment(desired.experiment)
    if experiment is None:
        return Observed(pipelines, versions, contract_is_stored=is_stored)
    schedules = tuple(api.schedules(experiment))
    # Any of them may have to leave, and waits for its runs.
    running = api.unfinished_runs(experiment) if schedules else []
    busy = frozenset(run.schedule_id for run in running if run.schedule_id)
    return Observed(pipelines, versions, experiment, schedules, busy, is_stored)


def plan(desired: Desired, observed: Observed, kinds: Sequence[Kind] = KINDS) -> list[Action]:
    """Return the calls to make in their order; none when all is as it should be.

    Schedules of other kinds are left as they are.
    """
    actions: list[Action] = []
    for pipeline in desired.pipelines:
        name, version = pipeline.name, pipeline.version
        pipeline_id = observed.pipelines.get(name)
        if pipeline_id is None:
            create = partial(
                PipelineApi.create_pipeline, name=name, description=pipeline.description
            )
            actions.append(Action(f"create the pipeline {name}", create))
        if name not in observed.versions:
            # A new pipeline's id is known after the first call, when the plan is made again.
            upload = partial(
                PipelineApi.upload_version,
                pipeline_id=str(pipeline_id),
                name=version,
                package=pipeline.package,
            )
            actions.append(Action(f"upload version {version} of {name}", upload))
    if not observed.contract_is_stored:
        text = f"store the contract as {desired.contract.value}"
        actions.append(Action(text, lambda _: desired.contract.store()))
    if observed.experiment_id is None:
        model = desired.experiment
        about = f"Trainings and monitoring of the model {model}."
        create = partial(PipelineApi.create_experiment, name=model, description=about)
        actions.append(Action(f"create the experiment {model}", create))
    for kind in kinds:
        actions += _plan_schedules(desired.schedules.get(kind), observed.of_kind(kind), observed)
    return actions


def _plan_schedules(
    wanted: DesiredSchedule | None, present: list[Schedule], observed: Observed
) -> Iterator[Action]:
    leaving = present
    if wanted is not None:
        newest = present[-1] if present else None
        metadata = parse_schedule_metadata(newest.description) if newest is not None else None
        is_as_wanted = metadata is not None and metadata.digest == wanted.digest
        # A clone made in the dashboard keeps the digest, whatever its time.
        if newest is not None and is_as_wanted and newest.cron == wanted.cron:
            leaving = present[:-1]
        else:
            # Enabled from the start: a new schedule that waited for a second call would look like
            # one that somebody paused, if the deployment was interrupted between the two.
            yield _create(wanted, observed, paused=newest is not None and not newest.enabled)
    for schedule in leaving:
        title, schedule_id = f"{schedule.name!r} of {_created(schedule)}", schedule.schedule_id
        if schedule.enabled:
            disable = partial(PipelineApi.set_enabled, schedule_id=schedule_id, enabled=False)
            yield Action(f"disable the older schedule {title}", disable)
        # Servers before 2.16 end a schedule's running runs with it.
        if schedule_id not in observed.busy:
            delete = partial(PipelineApi.delete_schedule, schedule_id=schedule_id)
            yield Action(f"delete the older schedule {title}", delete)


def _create(wanted: DesiredSchedule, observed: Observed, *, paused: bool) -> Action:
    def call(api: PipelineApi) -> str:
        new = NewSchedule(
            name=wanted.name,
            version=observed.versions[wanted.pipeline],
            parameters=wanted.parameters,
            service_account=wanted.service_account,
            pipeline_root=wanted.pipeline_root,
            description=wanted.description,
            cron=wanted.cron,
            enabled=not paused,
            starts_at=datetime.now(UTC) + HEAD_START,
        )
        return api.create_schedule(str(observed.experiment_id), new)

    suffix = ", paused as the one before" if paused else ""
    text = f"create the schedule {wanted.name!r} ({wanted.cron[2:]}){suffix}"
    return Action(text, call, creates=wanted.kind)


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
            f"the older schedule {schedule.name!r} of {_created(schedule)} is kept, disabled, "
            "until its run is over"
            for schedule in older
            if schedule.schedule_id in observed.busy
        ]
    found += [
        f"the schedule {schedule.name!r} was made by hand and is left alone"
        for schedule in observed.of_kind(None)
    ]
    return found


def _created(schedule: Schedule) -> str:
    return f"{schedule.created_at:%Y-%m-%d %H:%M}"


def apply(api: PipelineApi, desired: Desired, kinds: Sequence[Kind] = KINDS) -> Iterator[Action]:
    """Make the calls of the plan, observing the server after each; report each one once made.

    It may be broken off anywhere and made again, also by several at once: every call is chosen by
    what is on the server at that moment.

    Raises:
        OvertakenError: another deployment created a newer schedule meanwhile.
        PerennialError: the server cannot be reached or refuses.
    """
    own: dict[Kind, str] = {}
    for _ in range(MOST_ACTIONS):
        actions = plan(desired, observe(api, desired), kinds)
        if not actions:
            return
        # Only one: the next is chosen by what this one, and others meanwhile, have changed.
        action = actions[0]
        if action.creates in own:
            _withdraw(api, own[action.creates], f"{action.creates} schedule", desired.experiment)
        with suppress(TakenError, GoneError):  # somebody was faster: the next plan shows it
            result = action.call(api)
            if action.creates is not None:
                own[action.creates] = str(result)
        yield action
    raise PerennialError(
        f"the plan is not finished after {MOST_ACTIONS} calls",
        evidence=f"the next one would be: {action}",
        action="check in the dashboard whether somebody else changes these schedules",
    )


def _withdraw(api: PipelineApi, schedule_id: str, title: str, model: str) -> None:
    """Delete our schedule: a second creation is only planned where a newer one than it appeared."""
    with suppress(PerennialError):  # the other deployment may have removed it already
        api.set_enabled(schedule_id, enabled=False)
    api.delete_schedule(schedule_id)
    raise OvertakenError(
        f"another deployment of {model} overtook this one",
        evidence=f"a newer {title} than this deployment's exists",
        action="deploy again if yours is the one that should be in place",
    )
