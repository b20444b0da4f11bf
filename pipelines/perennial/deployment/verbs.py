"""The verbs of `perennial` about a cluster: deploy, start, look, pause, cancel, remove."""

import argparse
import importlib.util
import json
import os
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from perennial.arguments import integer_from, path_of
from perennial.contracts.errors import PerennialError

if TYPE_CHECKING:
    from perennial.contract import Contract
    from perennial.deployment.operations import Start, TargetCluster

FAILED = 1
REFUSED = 3  # trying again is of no use
PROFILE = "PERENNIAL_PROFILE"


def deploy(options: argparse.Namespace) -> int:
    """Make the cluster hold the contract's pipelines and schedules; idempotent."""
    from perennial.deployment.apply import Deployment, observe
    from perennial.deployment.desired import desire
    from perennial.deployment.operations import difference
    from perennial.deployment.plan import plan, plan_warnings

    site = _site(options)
    desired = desire(_checked(options), site.profile)
    observed = observe(site.api, desired)
    actions = plan(desired, observed)
    if options.diff:
        nothing = "no difference in schedules, contract, images and pods"
        print("\n".join(difference(site, desired, observed)) or nothing)
    for remark in plan_warnings(desired, observed):
        print(remark)
    if not actions:
        print("nothing to do: the cluster holds what the contract and the profile ask for")
        return 0
    if options.dry_run:
        print("\n".join(f"would {action}" for action in actions))
        return 0
    for action in Deployment(site.api, desired).apply():
        print(f"✓ {action}", flush=True)
    return 0


def submit(options: argparse.Namespace) -> int:
    """Start a run of this contract on the cluster; schedules are left as they are."""
    from perennial.deployment.operations import submit as submit_run

    site, contract = _site(options), _checked(options)
    run = submit_run(site, contract, _start(options))
    return _started(site, run, wait=options.wait)


def trigger(options: argparse.Namespace) -> int:
    """Start what is deployed now, for a reason, which is stored on the run and on the version."""
    from perennial.deployment.operations import start_deployed

    site = _site(options)
    run = start_deployed(site, options.model, _start(options))
    return _started(site, run, wait=options.wait)


def receive(options: argparse.Namespace) -> int:
    """Start what is deployed now, for an event that another system signed; once per event."""
    from perennial.clients.object_store import open_store
    from perennial.deployment.operations import Start, start_deployed
    from perennial.deployment.signed_event import Gate, RefusedEventError, checked_key

    site = _site(options)
    key = checked_key(_content(options.key))
    store = open_store(site.profile.stores.store_uri)
    gate = Gate(options.model, key, store, options.window_seconds)
    body = _content(options.event).decode(errors="replace")
    claimant = _content(options.claimant).decode(errors="replace").strip()
    try:
        cause = gate.accept(body, claimant, datetime.now(UTC))
    except RefusedEventError as error:
        print(f"perennial: {error}", file=sys.stderr)
        return REFUSED
    run = start_deployed(site, options.model, Start(options.pipeline, cause))
    return _started(site, run, wait=False)


def sign(options: argparse.Namespace) -> int:
    """Print the body of a request that `receive` takes, signed now."""
    from perennial.deployment.cause import Cause
    from perennial.deployment.signed_event import Event, checked_key
    from perennial.deployment.signed_event import sign as signed

    cause = Cause(options.reason, options.evidence)
    seen = json.loads(cause.trigger).get("evidence", {})
    event = Event(model=options.model, reason=cause.reason, evidence=seen)
    print(signed(event, checked_key(_content(options.key)), datetime.now(UTC)))
    return 0


def policy(options: argparse.Namespace) -> int:
    """Print the S3 policy with the least rights of one account, or of all, as IAM reads it."""
    from perennial.contract import load_beside_its_task
    from perennial.deployment.profile import load_profile
    from perennial.deployment.s3_policy import GRANTS, s3_policy

    contract, profile = load_beside_its_task(options.contract), load_profile(options.profile)
    roles = [options.role] if options.role else list(GRANTS)
    found = {role: s3_policy(role, contract, profile, options.artifacts) for role in roles}
    print(json.dumps(found[options.role] if options.role else found, indent=2))
    return 0


def schedule(options: argparse.Namespace) -> int:
    """List a model's schedules, pause or resume them; deployments leave paused ones paused."""
    from perennial.deployment.operations import switch

    site = _site(options)
    if options.pause or options.resume:
        switch(site, options.model, enabled=options.resume)
    for found in site.schedules(options.model):
        state = "enabled" if found.enabled else "paused"
        print(f"{found.name!r}: {found.cron[2:]}, {state}")
    return 0


def watch(options: argparse.Namespace) -> int:
    """Look once for new files in a model's dataset, and start monitoring when there are any."""
    from perennial.deployment.watch import watch as look

    print(look(_site(options), options.model))
    return 0


def exporter(options: argparse.Namespace) -> int:
    """Export model metrics for Prometheus: print them once, or serve them."""
    from prometheus_client import generate_latest

    from perennial.deployment.exporter import collectors, serve

    registry = collectors(_site(options))
    if options.port is None:
        print(generate_latest(registry).decode(), end="")
    else:
        serve(registry, options.port)
    return 0


def logs(options: argparse.Namespace) -> int:
    """Print what a run's pods print; needs access to the cluster, as kubectl has it."""
    from perennial.clients.cluster import Cluster
    from perennial.contracts.environment import ClusterAddress
    from perennial.deployment.logs import run_log_lines
    from perennial.deployment.profile import load_profile

    namespace = load_profile(options.profile).server.namespace
    cluster = Cluster.connect(ClusterAddress.read(), namespace)
    for line in run_log_lines(cluster, options.run, options.step):
        print(line, flush=True)
    return 0


def cancel(options: argparse.Namespace) -> int:
    """End a run on the cluster, its training job included."""
    from perennial.deployment.operations import cancel as cancel_run
    from perennial.deployment.operations import follow

    site = _site(options)
    if not cancel_run(site, options.run):
        print(f"{options.run} is over already: {site.api.run(options.run).outcome}")
        return 0
    follow(site, options.run, print)
    return 0


def undeploy(options: argparse.Namespace) -> int:
    """Take a model's schedules off the cluster; runs, pipeline versions and models stay."""
    from perennial.deployment.operations import undeploy as take_away

    for line in take_away(_site(options), options.model, cancel_running=options.cancel_running):
        print(line, flush=True)
    return 0


def show_status(options: argparse.Namespace) -> int:
    """Print `status --profile`."""
    from perennial.deployment.operations import status_lines

    if not options.model:
        raise PerennialError(
            "`status --profile` needs a model", action="perennial status MODEL --profile PROFILE"
        )
    print("\n".join(status_lines(_site(options), options.model)))
    return 0


# What goes on there when the command is stopped.
ON_CLUSTER = (submit, trigger, logs)


def add_deployment_verbs(
    add: Callable[..., argparse.ArgumentParser], contract: argparse.ArgumentParser
) -> None:
    """Add the verbs and their options to the command line.

    Args:
        add: Adds a verb, with its parents.
        contract: Holds the contract's path.
    """
    profile = argparse.ArgumentParser(add_help=False)
    profile.add_argument(
        "--profile", type=path_of, default=os.environ.get(PROFILE),
        required=PROFILE not in os.environ,
        help=f"TOML file of the environment (default: ${PROFILE})",
    )  # fmt: skip
    model = argparse.ArgumentParser(add_help=False)
    model.add_argument("model", help="the model's name")
    start = argparse.ArgumentParser(add_help=False)
    start.add_argument("--reason", required=True, help="stored on the run and the version")
    start.add_argument("--evidence", default="", help="what another system saw, as a JSON object")
    start.add_argument("--force", action="store_true", help="even while another run is under way")
    start.add_argument("--wait", action="store_true", help="until its end; exit code 1 if it fails")

    deploying = add(deploy, contract, profile)
    deploying.add_argument("--dry-run", action="store_true", help="only print what would be done")
    deploying.add_argument(
        "--diff", action="store_true", help="print which options, images and pods change"
    )
    for starting in (add(submit, contract, profile, start), add(trigger, model, profile, start)):
        starting.add_argument(
            "--pipeline", choices=("training", "monitoring"), default="training",
            help="which to start (default: training)",
        )  # fmt: skip
    _add_event_options(add(receive, model, profile), add(sign, model))
    writing = add(policy, contract, profile)
    writing.add_argument(
        "--role", choices=("steps", "training", "watcher", "receiver", "exporter", "deployer"),
        default="", help="whose policy; by default all, by role",
    )  # fmt: skip
    writing.add_argument(
        "--artifacts", default="", metavar="URI",
        help="where MLflow keeps files of versions, if not in the store (s3://BUCKET/PREFIX)",
    )  # fmt: skip
    add(watch, model, profile)
    add(exporter, profile).add_argument(
        "--port",
        type=integer_from(0),
        help="serve /metrics there until SIGTERM, instead of printing once",
    )
    switching = add(schedule, model, profile).add_mutually_exclusive_group()
    switching.add_argument("--pause", action="store_true", help="start no more runs")
    switching.add_argument("--resume", action="store_true", help="start runs again")
    printing, ending = add(logs, profile), add(cancel, profile)
    for about in (printing, ending):
        about.add_argument("run", help="a run's id, as `status --profile` lists it")
    printing.add_argument("--step", default="", help="one step's pods, such as train_model")
    add(undeploy, model, profile).add_argument(
        "--cancel-running", action="store_true", help="end the runs under way, too"
    )


def _add_event_options(
    receiving: argparse.ArgumentParser, signing: argparse.ArgumentParser
) -> None:
    for parser in (receiving, signing):
        parser.add_argument("--key", type=path_of, required=True, help="file with the signing key")
    receiving.add_argument(
        "--event", type=path_of, required=True, help="file with a request's body"
    )
    receiving.add_argument(
        "--claimant", type=path_of, required=True,
        help="file with the name of the handler; only the same one may retry",
    )  # fmt: skip
    receiving.add_argument(
        "--window-seconds",
        type=integer_from(1),
        default=300,
        help="how far its timestamp may be away (300)",
    )
    receiving.add_argument(
        "--pipeline", choices=("training", "monitoring"), default="training",
        help="which to start (default: training)",
    )  # fmt: skip
    signing.add_argument("--reason", required=True, help="stored on the run and the version")
    signing.add_argument("--evidence", default="", help="what was seen, as a JSON object")


def _content(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise PerennialError(
            f"cannot read {path}", evidence=str(error), action="name a file that is there"
        ) from error


def _site(options: argparse.Namespace) -> "TargetCluster":
    from perennial.deployment.credentials import connect
    from perennial.deployment.operations import TargetCluster
    from perennial.deployment.profile import load_profile

    profile = load_profile(options.profile)
    return TargetCluster(profile, connect(profile))


def _checked(options: argparse.Namespace) -> "Contract":
    from perennial.contract import check_task, load_beside_its_task

    contract = load_beside_its_task(options.contract)
    if importlib.util.find_spec("torch") is None:
        print("the task is not checked: PyTorch is not installed here", flush=True)
    else:
        check_task(contract)
    return contract


def _start(options: argparse.Namespace) -> "Start":
    from perennial.deployment.cause import Cause
    from perennial.deployment.operations import Start

    return Start(options.pipeline, Cause(options.reason, options.evidence), options.force)


def _started(site: "TargetCluster", run: str, *, wait: bool) -> int:
    from perennial.deployment.operations import follow

    print(f"started {run} {site.link(run)}".rstrip(), flush=True)
    if not wait:
        return 0
    ended = follow(site, run, lambda line: print(line, flush=True))
    return 0 if ended.state == "SUCCEEDED" else FAILED
