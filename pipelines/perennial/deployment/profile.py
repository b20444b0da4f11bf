"""Profile: where a contract is deployed to. One TOML file per environment, no secret in it."""

import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, StringConstraints, field_validator, model_validator

from perennial.contract_file.passwords import SECRET_NAMES, holds_password
from perennial.contract_file.sections import read_document
from perennial.contracts import environment
from perennial.contracts.section import Section
from perennial.steps.parameters import REPLACED
from perennial.steps.stored_steps import FLOW
from perennial.training_jobs.config import Digest, Toleration

Image = Annotated[Digest, StringConstraints(min_length=1)]
"""Image by digest: `python k8s/pin_images.py` writes what a build printed."""
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?$")]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
SecretKey = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][-a-z0-9.]*/[-._a-zA-Z0-9]+$")]
"""`SECRET/KEY`: a Kubernetes secret and one of its keys."""
Cpu = Annotated[str, StringConstraints(pattern=r"^[0-9]+(\.[0-9]+)?m?$")]
LABEL_KEY = r"([a-z0-9][-a-z0-9.]*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
LabelKey = Annotated[str, StringConstraints(pattern=f"^{LABEL_KEY}$")]
LabelValue = Annotated[
    str, StringConstraints(pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?$")
]
# Variables that Perennial sets, from the profile's other options.
OWN_VARIABLES = frozenset(
    {
        environment.STORE_URI,
        environment.TRACKING_URI,
        environment.RUN_ID,
        "HOME",
        environment.IMAGE_DIGEST,
        environment.CODE_DIGEST,
        environment.SECRET_FILES,
        environment.CORES,
        environment.DASK_SCHEDULER,
        environment.DASK_TLS,
        environment.SPARK,
    }
)
VOLUME_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
OWN_VOLUMES = frozenset({"scratch", "shm"})
GPU_STEPS = (
    "analyze_study",
    "detect_drift",
    "evaluate_model",
    "register_model",
    "select_checkpoint",
)
"""Steps that compute a model's predictions, on a GPU if their pod has one."""
CRON_FIELDS = (
    ("minute", 0, 59),
    ("hour", 0, 23),
    ("day of the month", 1, 31),
    ("month", 1, 12),
    ("day of the week", 0, 6),
)
CRON_NAMES = {
    "month": ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
    "day of the week": ["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
}
DAYS_OF_MONTH = {2: 29, 4: 30, 6: 30, 9: 30, 11: 30}
"""The others have 31."""


def check_address(uri: str, schemes: tuple[str, ...]) -> str:
    """Return an address, if pods can reach it and it holds no password.

    Raises:
        ValueError: another scheme, no host, or a user or password in it.
    """
    parts = urlsplit(uri)
    # Without user, password and query: the message is printed and logged.
    shown = parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()
    if parts.username or holds_password(uri):
        raise ValueError(f"{shown!r} comes with a user or password; name a secret instead")
    if parts.scheme not in schemes or not parts.netloc:
        raise ValueError(
            f"{shown!r} is not an address that a pod can reach; begin it with {schemes[0]}://"
        )
    return uri


def check_cron(text: str) -> str:
    """Return a cron expression of five fields; the error of any other names the field."""
    fields = text.split()
    if len(fields) != len(CRON_FIELDS):
        raise ValueError(
            f"{text!r} has {len(fields)} fields, not five: minute, hour, day of the month, month, "
            'day of the week, such as "0 3 * * *" for three at night'
        )
    _, _, days, months, _ = (
        {number for part in field.split(",") for number in _cron_numbers(part, *limits)}
        for field, limits in zip(fields, CRON_FIELDS, strict=True)
    )
    # With both a day of the month and one of the week, either is enough.
    if fields[-1] == "*" and min(days) > max(DAYS_OF_MONTH.get(month, 31) for month in months):
        raise ValueError(f"{text!r} never comes: none of its months has a day {min(days)}")
    return " ".join(fields)


def with_seconds(text: str) -> str:
    """Return six fields, as the server's scheduler reads them: it takes five for something else."""
    return f"0 {check_cron(text)}"


def _cron_numbers(part: str, name: str, low: int, high: int) -> range:
    matched = re.fullmatch(r"(\*|\w+(?:-\w+)?)(?:/(\d+))?", part, re.ASCII)
    if matched is None:
        raise ValueError(f"{part!r} is not valid as {name}; write a number, a range, * or */N")
    span, every = matched.groups()
    if every is not None and not 1 <= int(every) <= high:
        raise ValueError(f"{part!r}: steps of a {name} lie between 1 and {high}")
    ends = [_cron_number(end, name, low, high) for end in span.split("-")] if span != "*" else []
    if ends != sorted(ends):
        raise ValueError(f"{part!r}: the range of a {name} must not run backwards")
    first, last = (ends[0], ends[-1]) if ends else (low, high)
    # `5/15` is every 15 from 5 on.
    last = high if every is not None and len(ends) == 1 else last
    return range(first, last + 1, int(every or 1))


def _cron_number(text: str, name: str, low: int, high: int) -> int:
    if text.lower() in CRON_NAMES.get(name, ()):
        return CRON_NAMES[name].index(text.lower()) + low
    if not text.isdigit() or not low <= int(text) <= high:
        raise ValueError(f"{text!r} is not valid as {name}; it lies between {low} and {high}")
    return int(text)


def _address(*schemes: str) -> AfterValidator:
    """Return the validator of an address with one of these schemes; "" stands for none."""
    named = tuple(filter(None, schemes))
    return AfterValidator(
        lambda uri: uri if not uri and "" in schemes else check_address(uri, named)
    )


def check_size(text: str) -> str:
    """Return a size in bytes, as Kubernetes reads it; `m` would be thousandths of a byte."""
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?(k|Ki|[MGT]i?)?", text) is None:
        raise ValueError(f'{text!r} is not a size of Kubernetes; write it like "512Mi" or "2Gi"')
    return text


Quantity = Annotated[str, AfterValidator(check_size)]
Cron = Annotated[str, AfterValidator(lambda text: check_cron(text) if text else text)]


class ServerSection(Section):
    """The Kubeflow Pipelines server."""

    pipelines_url: Annotated[str, _address("http", "https")]
    """Address below which /apis/v2beta1 lies: `http://ml-pipeline.kubeflow.svc:8888` inside a
    cluster, the address of a port-forward, or `https://HOST/pipeline` behind a Kubeflow gateway."""
    dashboard_url: Annotated[str, _address("http", "https", "")] = ""
    """Address of the dashboard; links are printed when it is set."""
    namespace: Name = "kubeflow"
    """Namespace of the runs' pods: `kubeflow` for a standalone server, else the team's profile."""
    multi_user: bool = False
    """Whether pipelines and runs belong to namespaces, as in a Kubeflow distribution."""
    ca_file: str = ""
    """Certificates to trust, for a server whose certificate your company signed itself."""


class AuthSection(Section):
    """The login. Secrets are read from the environment or a mounted file, never from here."""

    kind: Literal["none", "in-cluster", "token", "dex"] = "none"
    """`none`: a port-forward to a standalone server. `in-cluster`: the pod's own projected
    token. `token`: a bearer token in $KFP_TOKEN. `dex`: a session of Kubeflow's login page, for the
    name and password in $DEX_USERNAME and $DEX_PASSWORD."""
    token_file: str = "/var/run/secrets/kubeflow/pipelines/token"
    """in-cluster: the projected token, audience pipelines.kubeflow.org; read for every request."""


class ImagesSection(Section):
    """The images that the steps run in, by digest."""

    data: Image
    """Runs `snapshot_data`, `validate_data` and `decide_retraining`."""
    trainer: Image
    """Runs everything that needs PyTorch; with your task's package on top (see images/)."""
    control: Image
    """Runs what speaks to the cluster alone."""
    pull_secrets: tuple[Name, ...] = ()
    """Kubernetes secrets for a private registry."""


class StoresSection(Section):
    """Stores of results, and the credentials of the steps."""

    store_uri: str
    """Object store of snapshots, checkpoints and trigger state, such as `s3://bucket/prefix`."""
    tracking_uri: Annotated[str, _address("http", "https", "postgresql")]
    """MLflow's tracking server."""
    pipeline_root: Annotated[str, _address("s3", "minio", "gs", "")] = ""
    """Root of KFP's artifacts; empty for the server's default."""
    secrets: dict[VariableName, SecretKey] = Field(default_factory=dict)
    """Environment variable of every step's process → `SECRET/KEY` in the runs' namespace. The
    pipeline carries the reference only; pods get the secret as files, which steps read."""
    environment: dict[VariableName, str] = Field(default_factory=dict)
    """Further variables of every step, such as `AWS_ENDPOINT_URL`; nothing secret."""

    @field_validator("store_uri")
    @classmethod
    def _is_a_store_that_steps_open(cls, uri: str) -> str:
        found = REPLACED.search(uri)
        if found:  # it is an argument of training pods, and the address of long contracts
            raise ValueError(f"{uri!r} holds {found.group()!r}, which Kubernetes or Argo replaces")
        return check_address(uri, ("s3",))

    @field_validator("secrets", "environment")
    @classmethod
    def _leaves_our_own_alone(cls, variables: dict[str, str]) -> dict[str, str]:
        ours = sorted(OWN_VARIABLES.intersection(variables))
        if ours:
            raise ValueError(f"{ours} are set by Perennial, from the other options of the profile")
        return variables

    @field_validator("secrets")
    @classmethod
    def _can_be_mounted(cls, secrets: dict[str, str]) -> dict[str, str]:
        names = {place.partition("/")[0] for place in secrets.values()}
        refused = sorted(name for name in names if not VOLUME_NAME.fullmatch(name))
        if refused or names & OWN_VOLUMES:
            raise ValueError(
                f"{refused or sorted(names & OWN_VOLUMES)} cannot be mounted, as Kubeflow names a "
                "volume after its secret: rename the secret to at most 63 lower-case letters, "
                f"digits and hyphens, other than {', '.join(sorted(OWN_VOLUMES))}"
            )
        return secrets

    @field_validator("environment")
    @classmethod
    def _holds_no_secret(cls, variables: dict[str, str]) -> dict[str, str]:
        suspects = sorted(
            name
            for name, value in variables.items()
            if SECRET_NAMES.search(name) or holds_password(value)
        )
        if suspects:
            raise ValueError(
                f"{suspects} look like secrets, which a compiled pipeline would show to everybody; "
                'name them under [stores.secrets] as "SECRET/KEY"'
            )
        return variables


class StepResources(Section):
    """Resources of a step's pod; the training job's own pods follow the contract instead."""

    cpu: Cpu = "1"
    """Requested cores; there is no limit, which would only slow bursts down."""
    memory: Quantity = "2Gi"
    """Requested and at most: more is killed rather than the node's other pods."""
    accelerator: Annotated[str, StringConstraints(pattern=f"^({LABEL_KEY})?$")] = ""
    """Resource of a GPU, such as `nvidia.com/gpu`, for a step that scores a model; it needs the
    trainer's image with CUDA. Empty computes on CPUs."""
    accelerators: Annotated[int, Field(ge=1, le=64)] = 1
    """select_checkpoint, evaluate_model and register_model score with one process on each; the
    other steps use one."""
    node_selector: dict[LabelKey, LabelValue] | None = None
    """Labels of the nodes for this step, instead of those of all pods."""
    tolerations: tuple[Toleration, ...] | None = None
    """Taints that this step tolerates, instead of those of all pods."""

    @model_validator(mode="after")
    def _counts_what_is_requested(self) -> Self:
        if self.accelerators > 1 and not self.accelerator:
            raise ValueError(
                f"accelerators = {self.accelerators} has no effect without accelerator: name the "
                'resource, such as "nvidia.com/gpu", or remove it'
            )
        return self


class PodsSection(Section):
    """Options of the steps' pods."""

    service_account: Name = "pipeline-runner"
    """Service account of the steps' pods; see k8s/ for what it needs."""
    run_as_user: Annotated[int, Field(ge=1)] = 65532
    """Numeric user of the steps; any number works with our images."""
    labels: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Labels of every pod, such as your organisation's cost centre."""
    node_selector: dict[LabelKey, LabelValue] = Field(default_factory=dict)
    """Only nodes with these labels; set it to keep cheap steps off GPU nodes."""
    tolerations: tuple[Toleration, ...] = ()
    """Taints of nodes that may be used in spite of them, such as `{ key = "spot" }`."""
    max_retries: Annotated[int, Field(ge=0, le=10)] = 2
    """Retries of a failed step, the training excepted, which resumes by itself.
    Raise it where a store or server is away for minutes. It does not help on nodes that come and
    go: Kubeflow never retries a pod that was deleted; use "retry" in the dashboard."""
    timeout_minutes: Annotated[int, Field(ge=1)] = 60
    """Timeout of every step but the training, whose budget the contract sets."""
    training_timeout_minutes: Annotated[int, Field(ge=1)] = 7 * 24 * 60
    """Timeout of the step that waits for the training job."""
    scratch: Quantity = "10Gi"
    """Disk of each step's own temporary files: a download of the data must fit."""
    shared_memory: Quantity = "1Gi"
    """Size of /dev/shm in the steps that run your task's code, where Kubernetes gives 64 MiB.
    Raise it when loading processes of yours end with a bus error; what is used counts as memory."""
    steps: dict[str, StepResources] = Field(default_factory=dict)
    """Step → what its pod asks for, where the default does not fit."""

    @field_validator("steps")
    @classmethod
    def _names_steps(cls, steps: dict[str, StepResources]) -> dict[str, StepResources]:
        known = sorted({step for flow in FLOW.values() for step in flow})
        unknown = sorted(set(steps) - set(known))
        if unknown:
            raise ValueError(f"{unknown} are not steps; the steps are: {', '.join(known)}")
        idle = sorted(
            name for name, step in steps.items() if step.accelerator and name not in GPU_STEPS
        )
        if idle:
            raise ValueError(
                f"{idle} would not use an accelerator; those that score a model do: "
                f"{', '.join(GPU_STEPS)}. The training's own are resources.cluster.accelerator "
                "of the contract; check_skeleton compares runs bit for bit, on CPUs"
            )
        return steps


class DaskSection(Section):
    """The Dask cluster that does the steps' work over partitions (k8s/components/dask)."""

    scheduler: Annotated[str, _address("tls", "tcp", "")] = ""
    """Address of the scheduler, such as `tls://perennial-dask-scheduler:8786`. Empty: each step
    works in processes of its own pod. Dask's protocol unpickles what it receives: under `tcp`,
    whoever reaches a port of the cluster runs code in it, and network policies alone keep others
    away."""
    tls_secret: Annotated[str, StringConstraints(pattern=rf"^({VOLUME_NAME.pattern})?$")] = ""
    """Kubernetes secret of type kubernetes.io/tls with `ca.crt`, `tls.crt` and `tls.key`, mounted
    in the steps' pods; needed for `tls`."""

    @model_validator(mode="after")
    def _has_certificates_for_tls(self) -> Self:
        if self.scheduler.startswith("tls:") != bool(self.tls_secret):
            raise ValueError(
                "scheduler begins with tls:// exactly where tls_secret is set (got "
                f"{self.scheduler!r} and {self.tls_secret!r})"
            )
        return self


class SparkSection(Section):
    """Spark, for a team's suite of Great Expectations."""

    connect: Annotated[str, _address("sc", "")] = ""
    """Address of Spark Connect, such as `sc://spark-connect:15002`: what no count answers is judged
    there on all rows. Empty: on a random sample. The data image then needs `perennial[spark]`, and
    the server its own right to read the data."""


class SchedulesSection(Section):
    """Schedules of the pipelines; five cron fields, in the server's time zone (UTC)."""

    monitoring: Cron = ""
    """`drift_monitoring`: looks at new data, trains when there is evidence for it. Daily or hourly,
    as the data arrives. Empty for never."""
    training: Cron = ""
    """`continuous_training` whatever the data look like. Empty for never, the usual choice when
    monitoring runs."""


class Profile(Section):
    """Profile of one environment."""

    server: ServerSection
    auth: AuthSection = AuthSection()
    images: ImagesSection
    stores: StoresSection
    pods: PodsSection = PodsSection()
    dask: DaskSection = DaskSection()
    spark: SparkSection = SparkSection()
    schedules: SchedulesSection = SchedulesSection()

    @model_validator(mode="after")
    def _keeps_credentials_encrypted(self) -> Self:
        url = urlsplit(self.server.pipelines_url)
        inside = (url.hostname or "").endswith((".svc", ".svc.cluster.local", ".localhost"))
        local = url.hostname in ("localhost", "127.0.0.1", "::1") or "." not in (url.hostname or "")
        plain = url.scheme == "http" and not inside and not local
        if plain and self.auth.kind != "none":
            raise ValueError(
                f"server.pipelines_url = {self.server.pipelines_url!r} would send credentials "
                "unencrypted; use https, or inside the cluster a name that ends with .svc"
            )
        return self


def load_profile(path: Path) -> Profile:
    """Read a profile; a relative `ca_file` is taken from the profile's folder.

    Raises:
        ContractError: every mistake found, with file, line, value, expectation and remedy.
        PerennialError: there is no such file.
    """
    profile, _ = read_document(path, Profile, "profile")
    server = profile.server
    if server.ca_file:
        absolute = str((path.resolve().parent / server.ca_file).resolve())
        server = server.model_copy(update={"ca_file": absolute})
    return profile.model_copy(update={"server": server})
