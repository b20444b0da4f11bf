"""Choice: select the launcher that runs the training."""

import logging
from dataclasses import dataclass
from typing import Literal

from perennial.clients.cluster import Cluster
from perennial.contracts.environment import ClusterAddress, Environment
from perennial.contracts.errors import PerennialError
from perennial.training_jobs.config import ResourcesSection
from perennial.training_jobs.job_kinds import JobKind, PyTorchJob, TrainJob
from perennial.training_jobs.launcher import Launcher
from perennial.training_jobs.local import LocalLauncher
from perennial.training_jobs.on_cluster import ClusterLauncher
from perennial.training_jobs.request import RunIdentity

Kind = Literal["local", "pytorchjob", "trainjob"]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Choice:
    """The selected launcher.

    Attributes:
        kind: Kind of the launcher.
        reason: Why it was selected.
    """

    kind: Kind
    reason: str


def choose(
    wanted: Literal["auto", "local", "pytorchjob", "trainjob"], *,
    has_pytorchjob: bool, has_trainjob: bool, has_queue: bool,
) -> Choice:  # fmt: skip
    """Select the launcher for a training on a cluster.

    If both kinds are served, an administrator installed the older one on purpose. With a queue the
    newer one is selected: Kueue 0.19 and later ignore PyTorchJobs, which would then run outside the
    quota.

    Args:
        wanted: The contract's `resources.launcher`.
        has_pytorchjob: Whether the cluster serves the training operator's kind.
        has_trainjob: Whether it serves the Trainer's.
        has_queue: Whether the contract names a queue.

    Raises:
        PerennialError: the cluster does not serve what is wanted, or neither.
    """
    served = {"pytorchjob": has_pytorchjob, "trainjob": has_trainjob}
    if wanted != "auto":
        if not served.get(wanted, True):
            raise _not_served(f'resources.launcher = "{wanted}"', served)
        return Choice(wanted, "set in the contract")
    if has_pytorchjob and has_trainjob:
        if has_queue:
            return Choice("trainjob", "both kinds are served, and Kueue ignores PyTorchJobs")
        return Choice("pytorchjob", "both kinds are served, and its API is stable")
    if has_pytorchjob:
        alone = "the cluster serves only PyTorchJob, which Kubeflow is retiring"
        held = "; the queue applies only if Kueue's integration kubeflow.org/pytorchjob is enabled"
        return Choice("pytorchjob", alone + (held if has_queue else ""))
    if has_trainjob:
        return Choice("trainjob", "the cluster serves only TrainJob")
    raise _not_served('resources.launcher = "auto"', served)


def open_launcher(resources: ResourcesSection, environment: Environment) -> Launcher:
    """Open the launcher of a step.

    A local run may be started in a pod, such as a notebook: only a pipeline's step gets its pod's
    name.

    Raises:
        PerennialError: the cluster cannot run the training as configured, or its API cannot be
            read.
    """
    address = ClusterAddress.read()
    is_step = address is not None and bool(address.pod)
    if resources.launcher == "local" or (resources.launcher == "auto" and not is_step):
        is_told = resources.launcher == "local"
        why = "set in the contract" if is_told else "this is not a pipeline step on a cluster"
        logger.info("launcher=local: %s", why)
        return LocalLauncher(resources.threads_per_process)
    cluster = Cluster.connect(address)
    kinds: dict[str, JobKind] = {"pytorchjob": PyTorchJob(), "trainjob": TrainJob()}
    choice = choose(
        resources.launcher,
        has_pytorchjob=cluster.serves(kinds["pytorchjob"].resource),
        has_trainjob=cluster.serves(kinds["trainjob"].resource),
        has_queue=bool(resources.cluster.queue),
    )
    logger.info("launcher=%s: %s", choice.kind, choice.reason)
    run = RunIdentity.of_pod(cluster.own_pod())
    return ClusterLauncher(
        cluster,
        kinds[choice.kind],
        run,
        resources,
        tracking_run_id=environment.tracking_run_id,
    )


def _not_served(wanted: str, served: dict[str, bool]) -> PerennialError:
    seen = ", ".join(name for name, is_served in served.items() if is_served) or "neither kind"
    return PerennialError(
        f"{wanted} is not possible on this cluster",
        evidence=f"its API server serves {seen}",
        action="install Kubeflow Trainer 2.3 (TrainJob) or the training operator 1.9.4 "
        "(PyTorchJob); k8s/ contains the manifests that Perennial needs in addition",
    )
