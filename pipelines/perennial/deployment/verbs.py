"""The verbs of `perennial` about a cluster: deploy, start, look, pause, cancel, remove."""

import importlib.util
import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

import typer

from perennial.arguments import (
    FAILED,
    ContractFile,
    DryRun,
    ModelName,
    ProfileFile,
    Reason,
    file,
    flag,
    model_of,
    print_json,
    print_lines,
    refuse_both,
    text_of,
)
from perennial.contracts.errors import PerennialError

if TYPE_CHECKING:
    from perennial.contract import Contract
    from perennial.deployment.operations import DeployedModel, TargetCluster

REFUSED = 3  # trying again is of no use

RunId: TypeAlias = Annotated[str, typer.Argument(metavar="RUN", help="see `status --profile`")]
Pipeline: TypeAlias = Annotated[Literal["training", "monitoring"], typer.Option(help="to start")]
Evidence: TypeAlias = Annotated[
    str, typer.Option(parser=text_of, metavar="JSON", help="what another system saw, a JSON object")
]
Role: TypeAlias = Literal["steps", "training", "watcher", "receiver", "exporter", "deployer"]
Force: TypeAlias = Annotated[bool, flag("--force", "even while another run is under way")]
Wait: TypeAlias = Annotated[bool, flag("--wait", "until its end; exit code 1 if it fails")]
KeyFile: TypeAlias = Annotated[Path, file("file with the signing key")]


def deploy(
    contract: ContractFile,
    profile: ProfileFile,
    *,
    dry_run: DryRun = False,
    diff: Annotated[bool, flag("--diff", "print which options, images and pods change")] = False,
) -> int:
    """Make the cluster hold the contract's pipelines and schedules; idempotent."""
    from perennial.deployment.desired import desire
    from perennial.deployment.operations import difference
    from perennial.deployment.plan import apply, observe, plan, plan_warnings

    cluster = connect_to(profile)
    desired = desire(_checked(contract), cluster.profile)
    observed = observe(cluster.api, desired)
    actions = plan(desired, observed)
    if diff:
        nothing = "no difference in schedules, contract, images and pods"
        print("\n".join(difference(cluster, desired, observed)) or nothing)
    print_lines(plan_warnings(desired, observed))
    print_lines(pipeline.floor for pipeline in desired.pipelines)
    if not actions:
        print("nothing to do: the cluster holds what the contract and the profile ask for")
        return 0
    if dry_run:
        return print_lines(f"would {action}" for action in actions)
    return print_lines(f"✓ {action}" for action in apply(cluster.api, desired))


def submit(
    contract: ContractFile,
    profile: ProfileFile,
    reason: Reason,
    evidence: Evidence = "",
    pipeline: Pipeline = "training",
    *,
    force: Force = False,
    wait: Wait = False,
) -> int:
    """Start a run of this contract on the cluster; schedules are left as they are."""
    from perennial.deployment.operations import submit as submit_run
    from perennial.deployment.run_request import RunRequest

    cluster, checked = connect_to(profile), _checked(contract)
    run = submit_run(cluster, checked, RunRequest(pipeline, reason, evidence, force))
    return follow_run(cluster, run, wait=wait)


def trigger(
    model: ModelName,
    profile: ProfileFile,
    reason: Reason,
    evidence: Evidence = "",
    pipeline: Pipeline = "training",
    *,
    force: Force = False,
    wait: Wait = False,
) -> int:
    """Start what is deployed now, for a reason, which is stored on the run and on the version."""
    from perennial.deployment.operations import start_deployed
    from perennial.deployment.run_request import RunRequest

    cluster = connect_to(profile)
    run = start_deployed(cluster, model, RunRequest(pipeline, reason, evidence, force))
    return follow_run(cluster, run, wait=wait)


def receive(
    model: ModelName,
    profile: ProfileFile,
    key: KeyFile,
    *,
    event: Annotated[Path, file("file with a request's body")],
    claimant: Annotated[Path, file("file with the name of the handler, which alone may retry")],
    window_seconds: Annotated[int, typer.Option(min=1, help="largest age of the event")] = 300,
    pipeline: Pipeline = "training",
) -> int:
    """Start what is deployed now, for an event that another system signed; once per event."""
    from perennial.clients.object_store import open_store
    from perennial.contracts.section import canonical_json
    from perennial.deployment.operations import start_deployed
    from perennial.deployment.run_request import RunRequest
    from perennial.deployment.signed_event import Gate, RefusedEventError, checked_key, event_id

    cluster = connect_to(profile)
    store = open_store(cluster.profile.stores.store_uri)
    gate = Gate(model, checked_key(_content(key)), store, window_seconds)
    body = _content(event).decode(errors="replace")
    handler = _content(claimant).decode(errors="replace").strip()
    try:
        accepted = gate.accept(body, handler, datetime.now(UTC))
    except RefusedEventError as error:
        print(f"perennial: {error}", file=sys.stderr)
        return REFUSED
    evidence = canonical_json(accepted.evidence)
    request = RunRequest(pipeline, accepted.reason, evidence, event=event_id(body))
    run = start_deployed(cluster, model, request)
    return follow_run(cluster, run, wait=False)


def sign(model: ModelName, key: KeyFile, reason: Reason, evidence: Evidence = "") -> int:
    """Print the body of a request that `receive` takes, signed now."""
    from perennial.deployment.run_request import RunRequest
    from perennial.deployment.signed_event import Event, checked_key
    from perennial.deployment.signed_event import sign as signed

    request = RunRequest("training", reason, evidence)
    seen = json.loads(request.trigger).get("evidence", {})
    event = Event(model=model, reason=reason, evidence=seen)
    print(signed(event, checked_key(_content(key)), datetime.now(UTC)))
    return 0


def policy(
    contract: ContractFile,
    profile: ProfileFile,
    role: Annotated[Role | None, typer.Option(help="default: all, by role")] = None,
    artifacts: Annotated[
        str, typer.Option(metavar="URI", help="where MLflow keeps files, if elsewhere")
    ] = "",
) -> int:
    """Print the S3 policy with the least rights of one account, or of all, as IAM reads it."""
    from perennial.contract import load_beside_its_task
    from perennial.deployment.profile import load_profile
    from perennial.deployment.s3_policy import GRANTS, s3_policy

    loaded, environment = load_beside_its_task(contract), load_profile(profile)
    roles = [role] if role else list(GRANTS)
    found = {each: s3_policy(each, loaded, environment, artifacts) for each in roles}
    print(json.dumps(found[role] if role else found, indent=2))
    return 0


def schedule(
    model: ModelName,
    profile: ProfileFile,
    *,
    pause: Annotated[bool, flag("--pause", "start no more runs")] = False,
    resume: Annotated[bool, flag("--resume", "start runs again")] = False,
) -> int:
    """List a model's schedules, pause or resume them; deployments leave paused ones paused."""
    from perennial.deployment.operations import switch

    refuse_both("--pause", "--resume", pause, resume)
    cluster = connect_to(profile)
    if pause or resume:
        switch(cluster, model, enabled=resume)
    return print_lines(
        f"{found.name!r}: {found.cron[2:]}, {'enabled' if found.enabled else 'paused'}"
        for found in cluster.schedules(model)
    )


def watch(model: ModelName, profile: ProfileFile) -> int:
    """Look once for new files in a model's dataset, and start monitoring when there are any."""
    from perennial.deployment.watch import watch as look

    print(look(connect_to(profile), model))
    return 0


def exporter(
    profile: ProfileFile,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="serve there until SIGTERM")
    ] = None,
) -> int:
    """Export model metrics for Prometheus: print them once, or serve them."""
    from prometheus_client import generate_latest

    from perennial.deployment.exporter import collectors, serve

    registry = collectors(connect_to(profile))
    if port is None:
        print(generate_latest(registry).decode(), end="")
    else:
        serve(registry, port)
    return 0


def logs(
    run: RunId,
    profile: ProfileFile,
    step: Annotated[str, typer.Option(help="one step's pods, such as train_model")] = "",
) -> int:
    """Print what a run's pods print; needs access to the cluster, as kubectl has it."""
    from perennial.clients.cluster import Cluster
    from perennial.contracts.environment import ClusterAddress
    from perennial.deployment.logs import run_log_lines
    from perennial.deployment.profile import load_profile

    loaded = load_profile(profile)
    cluster = Cluster.connect(ClusterAddress.read(), loaded.server.namespace)
    return print_lines(run_log_lines(cluster, run, step, loaded.stores.store_uri))


def cancel(run: RunId, profile: ProfileFile) -> int:
    """End a run on the cluster, its training job included."""
    from perennial.deployment.operations import cancel as cancel_run
    from perennial.deployment.operations import follow

    cluster = connect_to(profile)
    if not cancel_run(cluster, run):
        print(f"{run} is over already: {cluster.api.run(run).outcome}")
        return 0
    follow(cluster, run, print)
    return 0


def undeploy(
    model: ModelName,
    profile: ProfileFile,
    *,
    cancel_running: Annotated[
        bool, flag("--cancel-running", "end the runs under way, too")
    ] = False,
) -> int:
    """Take a model's schedules off the cluster; runs, pipeline versions and models stay."""
    from perennial.deployment.operations import undeploy as take_away

    return print_lines(take_away(connect_to(profile), model, cancel_running=cancel_running))


def show_status(profile: Path, model: str, *, json: bool) -> int:
    """Print `status --profile`: of one model, or of all that are deployed."""
    found = _deployed(profile, model)
    if json:
        return print_json([each.record() for each in found])
    return print_lines(line for each in found for line in each.lines())


def show_runs(profile: Path, model: str, *, json: bool) -> int:
    """Print `runs --profile`: the newest of one model, or of all that are deployed."""
    found = _deployed(profile, model)
    if json:
        return print_json([record for each in found for record in each.run_records()])
    return print_lines(line for each in found for line in each.run_lines())


def _deployed(profile: Path, model: str) -> "list[DeployedModel]":
    from perennial.deployment.operations import DeployedModel

    target = connect_to(profile)
    names = [model_of(model)] if model else sorted(target.deployed_schedules())
    if not names:
        raise PerennialError(
            "no model is deployed with a schedule",
            evidence=f"asked {target.profile.server.pipelines_url}",
            action="name the model, or `perennial deploy` its contract",
        )
    return [DeployedModel.find(target, name) for name in names]


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PerennialError(
            f"cannot read {path}", evidence=str(error), action="name a file that is there"
        ) from error


def connect_to(profile: Path) -> "TargetCluster":
    """Return the cluster of a profile."""
    from perennial.deployment.credentials import connect
    from perennial.deployment.operations import TargetCluster
    from perennial.deployment.profile import load_profile

    loaded = load_profile(profile)
    return TargetCluster(loaded, connect(loaded))


def _checked(file: Path) -> "Contract":
    from perennial.contract import check_suite, check_task, load_beside_its_task

    contract = load_beside_its_task(file)
    if importlib.util.find_spec("torch") is None:
        print("the task is not checked: PyTorch is not installed here", flush=True)
    else:
        check_task(contract)
    if contract.expectations.suite and importlib.util.find_spec("great_expectations") is None:
        print("the suite is not checked: Great Expectations is not installed here", flush=True)
    else:
        check_suite(file, contract)
    return contract


def follow_run(cluster: "TargetCluster", run: str, *, wait: bool) -> int:
    """Print where a run is to be seen and, if asked for, wait for its end; the exit code."""
    from perennial.deployment.operations import follow

    print(f"started {run} {cluster.link(run)}".rstrip(), flush=True)
    if not wait:
        return 0
    ended = follow(cluster, run, lambda line: print(line, flush=True))
    return 0 if ended.state == "SUCCEEDED" else FAILED
