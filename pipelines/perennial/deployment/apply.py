"""Apply: observe, make the plan's first call, observe again, until nothing is left to do."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from perennial.clients.pipeline_api import GoneError, PipelineApi, TakenError
from perennial.clients.pipeline_records import NewSchedule
from perennial.contracts.errors import PerennialError
from perennial.deployment.desired import KINDS, Desired, Kind
from perennial.deployment.plan import (
    Action,
    CreateExperiment,
    CreatePipeline,
    CreateSchedule,
    DeleteSchedule,
    DisableSchedule,
    Observed,
    StoreContract,
    UploadVersion,
    plan,
)

MOST_ACTIONS = 100
# Between a new schedule's creation and its older ones' end, neither time's slot may fire twice.
HEAD_START = timedelta(seconds=60)


class OvertakenError(PerennialError):
    """A later deployment of the same model has replaced this one."""


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
        return Observed(pipelines, versions, contract_is_in_place=is_stored)
    schedules = tuple(api.schedules(experiment))
    running = api.unfinished_runs(experiment) if len(schedules) > len(desired.schedules) else []
    busy = frozenset(run.schedule_id for run in running if run.schedule_id)
    return Observed(pipelines, versions, experiment, schedules, busy, is_stored)


class Deployment:
    """One attempt to make a server hold what is desired.

    It may be broken off anywhere and made again, also by several at once: every call is chosen by
    what is on the server at that moment.
    """

    def __init__(
        self,
        api: PipelineApi,
        desired: Desired,
        kinds: Sequence[Kind] = KINDS,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._desired = desired
        self._kinds = kinds
        self._now = now
        self._own: dict[Kind, str] = {}
        """Schedules that this attempt created."""

    def apply(self) -> Iterator[Action]:
        """Make the calls of the plan; report each one after it was made.

        Raises:
            OvertakenError: another deployment created a newer schedule meanwhile.
            PerennialError: the server cannot be reached or refuses.
        """
        for _ in range(MOST_ACTIONS):
            observed = observe(self._api, self._desired)
            actions = plan(self._desired, observed, self._kinds)
            if not actions:
                return
            action = actions[0]
            if isinstance(action, CreateSchedule):
                self._give_way(action.wanted.kind)
            with suppress(TakenError, GoneError):  # somebody was faster: the next look shows it
                self._perform(action, observed)
            yield action
        raise PerennialError(
            f"the plan is not finished after {MOST_ACTIONS} calls",
            evidence=f"the next one would be: {action}",
            action="check in the dashboard whether somebody else changes these schedules",
        )

    def _give_way(self, kind: Kind) -> None:
        """A second creation is only called for where a newer schedule than ours appeared."""
        own = self._own.get(kind)
        if own is None:
            return
        with suppress(PerennialError):  # the other deployment may have removed it already
            self._api.set_enabled(own, enabled=False)
        self._api.delete_schedule(own)
        raise OvertakenError(
            f"another deployment of {self._desired.experiment} overtook this one",
            evidence=f"a newer {kind} schedule than this deployment's is there",
            action="deploy again if yours is the one that should be in place",
        )

    def _perform(self, action: Action, observed: Observed) -> None:
        api = self._api
        match action:
            case CreatePipeline(name):
                api.create_pipeline(name, "Made by `perennial deploy`.")
            case UploadVersion(name, version):
                package = self._desired.pipeline(name).package
                api.upload_version(observed.pipelines[name], version, package, "")
            case StoreContract():
                self._desired.contract.store()
            case CreateExperiment(name):
                api.create_experiment(name, f"Everything about the model {name}.")
            case CreateSchedule(wanted, paused):
                new = NewSchedule(
                    name=wanted.name,
                    version=observed.versions[wanted.pipeline],
                    parameters=wanted.parameters,
                    service_account=wanted.service_account,
                    pipeline_root=wanted.pipeline_root,
                    description=wanted.description,
                    cron=wanted.cron,
                    enabled=not paused,
                    starts_at=self._now() + HEAD_START,
                )
                self._own[wanted.kind] = api.create_schedule(str(observed.experiment_id), new)
            case DisableSchedule(schedule):
                api.set_enabled(schedule.schedule_id, enabled=False)
            case DeleteSchedule(schedule):
                api.delete_schedule(schedule.schedule_id)
