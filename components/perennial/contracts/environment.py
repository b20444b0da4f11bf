"""The deployment's addresses, read from environment variables in this one place."""

import atexit
import functools
import math
import os
import re
import shutil
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path

from perennial.contracts.errors import PerennialError

STORE_URI = "PERENNIAL_STORE_URI"
RUN_FOLDER = "PERENNIAL_RUN_FOLDER"
RUN_ID = "PERENNIAL_RUN_ID"
NO_RUN = "unknown"  # the run's id outside a pipeline
CODE_DIGEST = "PERENNIAL_CODE_DIGEST"
COMMIT = "PERENNIAL_COMMIT"
CODE_PLACE = "PERENNIAL_CODE_PLACE"
IMAGE_DIGEST = "PERENNIAL_IMAGE_DIGEST"
LEASE = "PERENNIAL_LEASE"
RENDEZVOUS = "PERENNIAL_RENDEZVOUS"
CACHE = "PERENNIAL_CACHE"
CORES = "PERENNIAL_CORES"
DASK_SCHEDULER = "PERENNIAL_DASK_SCHEDULER"
DASK_TLS = "PERENNIAL_DASK_TLS"
SPARK = "PERENNIAL_SPARK"
SECRET_FILES = "PERENNIAL_SECRET_FILES"
SECRETS_FOLDER = "/etc/perennial/secrets"
KUBERNETES_HOST = "KUBERNETES_SERVICE_HOST"
KUBERNETES_PORT = "KUBERNETES_SERVICE_PORT"
POD_NAME = "KFP_POD_NAME"
NODE = "PERENNIAL_NODE"  # Argo's name of the pod, which ends in the number of the attempt: "(1)"
SERVICE_ACCOUNT = "PERENNIAL_SERVICE_ACCOUNT"
SERVICE_ACCOUNT_FOLDER = "/var/run/secrets/kubernetes.io/serviceaccount"
TRACKING_URI = "MLFLOW_TRACKING_URI"
TRACKING_RUN_ID = "MLFLOW_RUN_ID"
_LOGIN = re.compile(r"//[^/@\s]*@")


def without_login(text: str) -> str:
    """Return a text without the users and passwords of addresses in it, which nobody must see."""
    return _LOGIN.sub("//", text)


def seconds_of(variable: str, default: float, *, is_zero_allowed: bool = False) -> float:
    """Return a time limit from the environment, in seconds.

    Raises:
        PerennialError: the variable holds no number of seconds, or 0 and that is not allowed.
    """
    text = os.environ.get(variable) or str(default)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.0 <= seconds < math.inf or not (seconds or is_zero_allowed):
        kind = "number" if is_zero_allowed else "positive number"
        raise PerennialError(
            f"{variable} is not a {kind} of seconds (got {text!r})",
            action=f"unset it for the default of {default:g} s",
        )
    return seconds


def data_cache() -> Path:
    """Return the folder in which files of remote stores are kept between reads.

    A run names its folder. Otherwise it is one that nobody but this user can write to, as what
    lies there is read in the place of the store's files.

    Raises:
        PerennialError: the user's folder belongs to somebody else or is a link.
    """
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    above = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    try:
        folder = above.expanduser() / "perennial"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a user without a home, or one that cannot be written to
        return _folder_of_this_process()
    return _made_private(folder)


@functools.cache
def _folder_of_this_process() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="perennial-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _made_private(folder: Path) -> Path:
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PerennialError(
            f"the cache {folder} is not a folder of this user",
            evidence=f"its owner is user {found.st_uid}, this is user {os.geteuid()}"
            if stat.S_ISDIR(found.st_mode)
            else "it is a link or a file",
            action=f"remove it, or name another folder in ${CACHE}",
        )
    if found.st_mode & 0o077:
        folder.chmod(0o700)
    return folder


def secret_places(written: str) -> dict[str, tuple[str, str]]:
    """Return variable → name and key of a Kubernetes secret, from PERENNIAL_SECRET_FILES."""
    pairs = (each.split("=", 1) for each in written.split())
    return {name: (place.partition("/")[0], place.partition("/")[2]) for name, place in pairs}


def load_secrets(folder: Path = Path(SECRETS_FOLDER)) -> None:
    """Put the mounted secrets into this process's variables, where boto3 and MLflow look.

    A container whose arguments hold texts of users has no secret among its variables, because
    Kubernetes writes a variable's value wherever an argument contains `$(NAME)`.

    Raises:
        PerennialError: a secret that the profile names is not mounted or lacks the key.
    """
    for name, (secret, key) in secret_places(os.environ.get(SECRET_FILES, "")).items():
        try:
            # Without the end of a line, with which `echo` makes secrets.
            os.environ[name] = (folder / secret / key).read_text().rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise PerennialError(
                f"the secret for {name} cannot be read",
                evidence=str(error),
                action=f"give the secret {secret!r} a key {key!r}, or change [stores.secrets] of "
                "the profile and deploy again",
            ) from error


def attempt_number() -> int:
    """Return how often Kubeflow has tried this step before; 0 where that is not known."""
    found = re.search(r"\((\d+)\)$", os.environ.get(NODE, ""))
    return int(found[1]) if found else 0


def leave_tracking_run() -> None:
    """Unset the tracking run of the environment, so that this process does not write to it."""
    os.environ.pop(TRACKING_RUN_ID, None)


def leave_run_folder() -> None:
    """Unset the run's folder, so that processes started from now on write no progress to it."""
    os.environ.pop(RUN_FOLDER, None)


@dataclass(frozen=True)
class ClusterAddress:
    """The API server, as Kubernetes tells it to every pod with a service account."""

    url: str
    namespace: str
    token_file: str
    """Read for every request: the kubelet replaces it before the token expires."""
    ca_file: str
    pod: str
    """This process's pod, as KFP names it; empty outside a pipeline."""

    @classmethod
    def read(cls) -> "ClusterAddress | None":
        """Return the address; None outside a cluster, or without a service account's token."""
        host = os.environ.get(KUBERNETES_HOST, "")
        folder = Path(os.environ.get(SERVICE_ACCOUNT) or SERVICE_ACCOUNT_FOLDER)
        if not host or not (folder / "token").is_file():
            return None
        place = f"[{host}]" if ":" in host else host
        return cls(
            url=f"https://{place}:{os.environ.get(KUBERNETES_PORT, '443')}",
            namespace=(folder / "namespace").read_text().strip(),
            token_file=str(folder / "token"),
            ca_file=str(folder / "ca.crt") if (folder / "ca.crt").is_file() else "",
            pod=os.environ.get(POD_NAME, ""),
        )


@dataclass(frozen=True)
class DaskScheduler:
    """The Dask cluster that does work over partitions."""

    address: str
    """`tls://HOST:PORT` or, without encryption and login, `tcp://HOST:PORT`."""
    tls_folder: str
    """Folder with `ca.crt`, `tls.crt` and `tls.key`, as a secret of type kubernetes.io/tls."""

    @classmethod
    def read(cls) -> "DaskScheduler | None":
        """Return the cluster; None where work is done by processes of this machine."""
        address = os.environ.get(DASK_SCHEDULER, "")
        return cls(address, os.environ.get(DASK_TLS, "")) if address else None


def spark_address() -> str:
    """Return the address of Spark Connect, on which suites run; empty where there is none."""
    return os.environ.get(SPARK, "")


@dataclass(frozen=True)
class Environment:
    """Addresses of the services that a step uses."""

    store_uri: str
    """Object store that holds snapshots, checkpoints and trigger state."""
    tracking_uri: str
    """MLflow tracking server or database."""
    run_id: str = NO_RUN
    """The pipeline run; `unknown` outside a pipeline."""
    run_folder: Path | None = None
    """The local run's folder; None on a cluster, where KFP keeps the record."""
    code_digest: str = ""
    commit: str = ""
    tracking_run_id: str = ""
    """A run that the platform already opened and that must be joined; else empty."""
    image_digest: str = ""
    """Digest of the step's container image; empty outside a container."""
    code_place: str = ""
    """The folder of the task's sources in the repository of the commit; empty outside one."""

    @classmethod
    def read(cls) -> "Environment":
        """Read the variables.

        Raises:
            PerennialError: an address without which no step can work is missing.
        """
        missing = [name for name in (STORE_URI, TRACKING_URI) if not os.environ.get(name)]
        if missing:
            raise PerennialError(
                f"the environment lacks {' and '.join(missing)}",
                action="start the step through `perennial run`, or set the variables in the pod",
            )
        folder = os.environ.get(RUN_FOLDER)
        return cls(
            store_uri=os.environ[STORE_URI],
            tracking_uri=os.environ[TRACKING_URI],
            run_id=os.environ.get(RUN_ID, NO_RUN),
            run_folder=Path(folder) if folder else None,
            code_digest=os.environ.get(CODE_DIGEST, "unknown"),
            commit=os.environ.get(COMMIT, ""),
            tracking_run_id=os.environ.get(TRACKING_RUN_ID, ""),
            image_digest=os.environ.get(IMAGE_DIGEST, ""),
            code_place=os.environ.get(CODE_PLACE, ""),
        )
