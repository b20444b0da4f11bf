"""Operations on a deployment: start, show, pause, cancel, remove."""

import difflib
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from pydantic import JsonValue

from perennial.clients.pipeline_api import (
    NewRun,
    PipelineApi,
    PipelineRun,
    PipelineVersion,
    Schedule,
    UnreachableError,
)
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import flattened
from perennial.contracts.version_decisions import this_person
from perennial.deployment.desired import (
    KINDS,
    PIPELINE_OF,
    Desired,
    RunKind,
    desire,
    desire_study,
    parameters_of,
    parse_schedule_metadata,
)
from perennial.deployment.placement import read_documents, settings_in
from perennial.deployment.plan import Observed, apply, observe
from perennial.deployment.profile import Profile
from perennial.deployment.run_reasons import Waiting, reason_lines, step_states
from perennial.deployment.run_request import RunRequest
from perennial.reports.text import counted, duration, table_lines
from perennial.steps.parameters import resolve
from perennial.steps.stored_steps import StoredRun

POLL_SECONDS = 5.0
LONGEST_OUTAGE_POLLS = 120  # each beyond the client's own tries: at least ten minutes
SHOWN_RUNS = 10
EVENT_DIGITS = 16
COMPARED = ("model", "data", "reason")  # parameters for people alone


@dataclass(frozen=True)
class TargetCluster:
    """A profile and its server."""

    profile: Profile
    api: PipelineApi

    def link(self, run_id: str) -> str:
        """Return the dashboard address of a run; empty when its address is not set."""
        base = self.profile.server.dashboard_url.rstrip("/")
        return f"{base}/#/runs/details/{run_id}" if base else ""

    def experiment(self, model: str) -> str:
        """Return a model's experiment.

        Raises:
            PerennialError: nothing of this name was deployed.
        """
        found = self.api.find_experiment(model)
        if found is None:
            near = difflib.get_close_matches(model, self.deployed_schedules(), n=1)
            nearest = f"; the nearest is {near[0]}" if near else ""
            raise PerennialError(
                f"nothing is deployed for a model {model!r}",
                evidence=f"{self.profile.server.pipelines_url} has no experiment of that name"
                f"{nearest}",
                action="check the name, or `perennial deploy` its contract first",
            )
        return found

    def deployed_schedules(self) -> dict[str, dict[str, Schedule]]:
        """Return model → kind → newest schedule, of each model deployed with a schedule."""
        found: dict[str, dict[str, Schedule]] = {}
        # Oldest first, so that the newest of a kind stays.
        for schedule in self.api.schedules():
            metadata = parse_schedule_metadata(schedule.description)
            if metadata is not None:
                # Schedules of earlier versions have the model in their name alone, which a clone
                # made in the dashboard changes.
                name = schedule.name.removesuffix(f" {metadata.kind}")
                model = schedule.parameters.get("model", name)
                found.setdefault(model, {})[metadata.kind] = schedule
        return found

    def every_schedule(self, model: str) -> list[tuple[str, Schedule]]:
        """Return kind and schedule of each that a deployment made, oldest first.

        An interrupted deployment leaves more than one of a kind.
        """
        found = self.api.schedules(self.experiment(model))
        marked = ((parse_schedule_metadata(each.description), each) for each in found)
        return [(mark.kind, each) for mark, each in marked if mark is not None]

    def schedules(self, model: str) -> list[Schedule]:
        """Return the newest schedule of each kind that a deployment made."""
        newest = dict(self.every_schedule(model))
        return [newest[kind] for kind in KINDS if kind in newest]

    def deployed(self, model: str) -> Schedule:
        """Return the newest schedule: what it carries is what is deployed.

        Raises:
            PerennialError: the model has none.
        """
        schedules = self.schedules(model)
        if not schedules:
            raise PerennialError(
                f"{model} has no schedule, so contract and version are unknown",
                evidence="its experiment holds none that `perennial deploy` made",
                action="name a time under [schedules] of the profile and deploy; `perennial "
                "submit CONTRACT` starts a run without",
            )
        return max(schedules, key=lambda schedule: schedule.age)


def submit(target: TargetCluster, contract: Contract, request: RunRequest) -> str:
    """Start a run, or the study, of this contract as it is on disk; its id.

    What is deployed and its schedules are left as they are.

    Raises:
        PerennialError: a run of the model is under way, and `force` is false.
    """
    is_study = request.kind == "study"
    desired = (desire_study if is_study else desire)(contract, target.profile)
    # No kinds: pipelines and contract are uploaded, schedules stay as they are.
    list(apply(target.api, desired, kinds=()))
    version = observe(target.api, desired).versions[PIPELINE_OF[request.kind]]
    carried = desired.contract
    parameters = parameters_of(request.kind, carried.value, carried.text, request.trigger)
    return _start(target, desired.experiment, version, parameters, request)


def start_deployed(target: TargetCluster, model: str, request: RunRequest) -> str:
    """Start what is deployed, now; the run's id. An event starts one run, however often it asks.

    Raises:
        PerennialError: the model has no schedule, a run of it is under way, or its contract is not
            in the object store any more.
    """
    newest = target.deployed(model)
    carried = newest.parameters["contract"]
    contract = resolve(carried)  # before anything is started
    version = _deployed_version(target, newest, request.kind)
    if version is None:
        raise PerennialError(
            f"the pipeline version that {model} was deployed with does not exist any more",
            evidence=f"{PIPELINE_OF[request.kind]} does not contain the version of {newest.name!r}",
            action="deploy the contract again",
        )
    parameters = parameters_of(request.kind, carried, contract, request.trigger)
    if "model" not in newest.parameters:  # deployed before pipelines had these
        parameters = {name: parameters[name] for name in parameters if name not in COMPARED}
    return _start(target, model, version, parameters, request)


def switch(target: TargetCluster, model: str, *, enabled: bool) -> list[Schedule]:
    """Pause all of a model's schedules, or resume the newest of each kind; those that were changed.

    A deployment respects it.
    """
    # An older one that a deployment left enabled would start runs of a model that is paused.
    every = (
        target.schedules(model) if enabled else [each for _, each in target.every_schedule(model)]
    )
    changed = [each for each in every if each.enabled != enabled]
    for schedule in changed:
        target.api.set_enabled(schedule.schedule_id, enabled=enabled)
    return changed


def follow(
    target: TargetCluster,
    run_id: str,
    show: Callable[[str], None],
    *,
    sleep: Callable[[float], None] = time.sleep,
) -> PipelineRun:
    """Wait for a run's end, reporting each task's; return the ended run.

    `kfp.Client.wait_for_run_completion` is not used: it never returns for a cancelled run.

    Raises:
        UnreachableError: the server was away for longer than a restart takes.
    """
    reported: dict[str, str] = {}
    outage_polls = 0
    waiting = Waiting(target.profile.server.namespace)
    while True:
        try:
            run = target.api.run(run_id)
        except UnreachableError as error:
            outage_polls += 1
            # The run itself goes on meanwhile: wait for as long as a restart of the server takes.
            if outage_polls > LONGEST_OUTAGE_POLLS:
                raise
            if outage_polls == 1:
                show(f"{error.problem}; the run continues; still waiting")
            sleep(POLL_SECONDS)
            continue
        outage_polls = 0
        for step, state in step_states(run).items():
            if state not in ("", "PENDING", reported.get(step)):
                reported[step] = state
                show(f"  {step}: {state.lower()}")
        if run.is_over:
            show(f"{run.name}: {run.outcome}")
            for line in reason_lines(target.profile.stores.store_uri, run):
                show(f"  {line}")
            return run
        for line in waiting.new_lines(run_id):
            show(f"  {line}")
        sleep(POLL_SECONDS)


def cancel(target: TargetCluster, run_id: str) -> bool:
    """Ask for a run's end; False when it was over already."""
    run = target.api.run(run_id)
    if run.is_over:
        return False
    stored = StoredRun(target.profile.stores.store_uri, run_id)
    # Before the termination: the exit task reads it for the run's page.
    stored.write_cancellation(this_person())
    return _terminate(target, run) or not target.api.run(run_id).is_over


def undeploy(target: TargetCluster, model: str, *, cancel_running: bool) -> Iterator[str]:
    """Remove a model's schedules, reporting each step; runs, versions and models stay.

    Raises:
        PerennialError: nothing is deployed under this name.
    """
    experiment = target.experiment(model)
    ours = [each for _, each in target.every_schedule(model)]
    for schedule in ours:  # all of them first: none may start a run while others are removed
        if schedule.enabled:
            target.api.set_enabled(schedule.schedule_id, enabled=False)
            yield f"disabled the schedule {schedule.name!r}"
    under_way = target.api.unfinished_runs(experiment)
    if cancel_running:
        for run in under_way:
            if _terminate(target, run):
                yield f"cancelled {run.name!r} ({run.run_id})"
    busy = {run.schedule_id for run in under_way}
    for schedule in ours:
        if schedule.schedule_id in busy:
            yield f"kept the disabled schedule {schedule.name!r} until its run is over; call again"
        else:
            target.api.delete_schedule(schedule.schedule_id)
            yield f"deleted the schedule {schedule.name!r}"
    if under_way and not cancel_running:
        runs = counted(len(under_way), "run")
        yield f"not ended: {runs} under way; --cancel-running ends what is under way"


@dataclass(frozen=True)
class DeployedModel:
    """A model's schedules and newest runs on a cluster, for people and as JSON."""

    target: TargetCluster
    name: str
    schedules: Sequence[Schedule]
    runs: Sequence[PipelineRun]

    @classmethod
    def find(cls, target: TargetCluster, name: str) -> "DeployedModel":
        """Ask the server.

        Raises:
            PerennialError: nothing is deployed under this name.
        """
        runs = target.api.runs(target.experiment(name), limit=SHOWN_RUNS)
        return cls(target, name, target.schedules(name), runs)

    def lines(self) -> Iterator[str]:
        """Yield schedules and runs, with the newest run's state and reasons."""
        server = self.target.profile.server
        yield f"{self.name} in {server.namespace} of {server.pipelines_url}"
        for each in self.schedules:
            yield f"  schedule {each.name!r}: {each.cron[2:]}{'' if each.enabled else ', PAUSED'}"
        if not self.schedules:
            yield "  no schedule"
        yield from self._run_table() or ["  no run yet"]
        yield from (f"    {line}" for line in self._newest_lines())

    def record(self) -> dict[str, JsonValue]:
        """Return the same as JSON values; `newest` has the lines about the newest run."""
        return {
            "model": self.name,
            "namespace": self.target.profile.server.namespace,
            "server": self.target.profile.server.pipelines_url,
            "schedules": [
                {"name": each.name, "cron": each.cron[2:], "enabled": each.enabled}
                for each in self.schedules
            ],
            "runs": [*self.run_records()],
            "newest": [*self._newest_lines()],
        }

    def run_lines(self) -> list[str]:
        """Return the runs for people."""
        server = self.target.profile.server.pipelines_url
        return [f"{self.name} on {server}", *(self._run_table() or ["  no run yet"])]

    def _run_table(self) -> list[str]:
        rows = [
            (
                f"{run.created_at:%Y-%m-%d %H:%M}",
                duration((run.finished_at - run.created_at).total_seconds())
                if run.finished_at
                else "",
                run.outcome,
                run.run_id,
                run.name,
            )
            for run in self.runs
        ]
        header = ("STARTED (UTC)", "TOOK", "OUTCOME", "RUN", "NAME")
        return [f"  {line}" for line in table_lines(header, rows)] if rows else []

    def run_records(self) -> Iterator[dict[str, JsonValue]]:
        """Yield the runs as JSON values."""
        for run in self.runs:
            yield {
                "run": run.run_id,
                "model": self.name,
                "name": run.name,
                "started": run.created_at.isoformat(),
                "ended": run.finished_at.isoformat() if run.finished_at else None,
                "outcome": run.outcome,
                "link": self.target.link(run.run_id) or None,
            }

    def _newest_lines(self) -> Iterator[str]:
        if not self.runs:
            return
        server = self.target.profile.server
        # A list of runs has no tasks; asking for one of them gives its steps.
        run = self.target.api.run(self.runs[0].run_id)
        if not run.is_over:
            running = [step for step, state in step_states(run).items() if state == "RUNNING"]
            yield f"running: {', '.join(running) or 'no step yet'}"
            yield from Waiting(server.namespace).lines(run.run_id)
        yield from reason_lines(self.target.profile.stores.store_uri, run)


def difference(target: TargetCluster, desired: Desired, observed: Observed) -> Iterator[str]:
    """Yield the changes of a deployment to schedules, contract, images and pods, line by line."""
    deployed = [each for kind in KINDS for each in observed.of_kind(kind)[-1:]]
    yield from _changes(
        {f"schedule {each.name!r}": each.cron[2:] for each in deployed},
        {f"schedule {each.name!r}": each.cron[2:] for each in desired.schedules.values()},
    )
    if not deployed:
        return
    newest = max(deployed, key=lambda schedule: schedule.age)
    text = resolve(newest.parameters["contract"])
    yield from _changes(*(_texts(json.loads(each)) for each in (text, desired.contract.text)))
    for kind in KINDS:
        version = _deployed_version(target, newest, kind)
        there = target.api.version_documents(version) if version is not None else []
        placed = read_documents(desired.pipeline(PIPELINE_OF[kind]).package)
        changes = _changes(*(_texts(settings_in(each)) for each in (there, placed)))
        yield from (f"{line[:2]}{kind}: {line[2:]}" for line in changes)


def _deployed_version(
    target: TargetCluster, schedule: Schedule, kind: RunKind
) -> PipelineVersion | None:
    """Return the pipeline version that was deployed with a schedule; None when it is gone."""
    mark = parse_schedule_metadata(schedule.description)
    pipeline = target.api.find_pipeline(PIPELINE_OF[kind])
    if mark is None or pipeline is None:
        return None
    return target.api.find_version(pipeline, mark.versions[kind])


def _start(
    target: TargetCluster,
    model: str,
    version: PipelineVersion,
    parameters: dict[str, str],
    request: RunRequest,
) -> str:
    experiment = target.experiment(model)
    name = f"{model} {request.kind} {datetime.now(UTC):%Y-%m-%d %H:%M}"
    if request.event:
        name = f"{model} {request.kind} event {request.event[:EVENT_DIGITS]}"
        started = target.api.find_run(experiment, name)
        if started is not None:  # by who was killed before it could report it
            return started
    under_way = target.api.unfinished_runs(experiment)
    if under_way and not request.force:
        raise PerennialError(
            f"{counted(len(under_way), 'run')} of {model} under way",
            evidence=", ".join(f"{run.name} ({run.run_id})" for run in under_way),
            action="wait, `perennial cancel` it, or use --force",
        )
    new = NewRun(
        name=name,
        version=version,
        parameters=parameters,
        description=request.trigger,  # monitoring finds a trigger of its own, and takes none
        service_account=target.profile.pods.service_account,
        pipeline_root=target.profile.stores.pipeline_root,
    )
    return target.api.start_run(experiment, new)


def _terminate(target: TargetCluster, run: PipelineRun) -> bool:
    """Terminate a run; return whether this call did it.

    A server refuses runs that are being cancelled, or are over.
    """
    if run.was_canceled:
        return False
    try:
        target.api.terminate(run.run_id)
    except PerennialError:
        now = target.api.run(run.run_id)
        if not (now.is_over or now.was_canceled):
            raise
        return False
    return True


def _texts(document: Mapping[str, JsonValue]) -> dict[str, str]:
    """Return every option's value as JSON, by its dotted name."""
    found = {}
    for name, value in flattened(document).items():
        # A server's JSON knows one kind of number.
        number = int(value) if isinstance(value, float) and value.is_integer() else value
        found[name] = json.dumps(number, ensure_ascii=False)
    return found


def _changes(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for key in sorted({*before, *after}):
        old, new = before.get(key), after.get(key)
        if old != new:
            yield from [f"- {key} = {old}"] if old is not None else []
            yield from [f"+ {key} = {new}"] if new is not None else []
