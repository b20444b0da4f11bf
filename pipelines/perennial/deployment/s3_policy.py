"""S3 policy: the least that each account of a deployment needs in the buckets, as IAM reads it."""

from collections.abc import Iterator
from dataclasses import dataclass

from pydantic import JsonValue

from perennial.clients.tracking import ARTIFACT_PREFIX
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial import HuggingFaceWeights, SafetensorsWeights
from perennial.deployment.profile import Profile

Document = dict[str, JsonValue]


@dataclass(frozen=True)
class Grant:
    """Rights of an account, by patterns of keys below the store; `{model}` is the model's name."""

    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()
    deletes: tuple[str, ...] = ()
    """Unfinished uploads included."""
    lists: tuple[str, ...] = ()
    """Empty for what it reads: S3 reports only to accounts that may list that an object does not
    exist."""
    reads_data: bool = False
    lists_data: bool = False
    loads_task: bool = False
    """Whether it reads what `model.options` name, such as a tokenizer."""
    loads_suite: bool = False
    pins_weights: bool = False
    """Whether it reads the weights of `model.initial` where they were published."""
    artifacts: bool = False
    """Whether it gets, puts and lists the files of model versions."""
    pipeline_root: bool = False
    """Whether Kubeflow's launcher runs in its pods and passes artifacts on."""


STATE = (
    "triggers/{model}/*",
    "monitoring/{model}/*",
    "registry/{model}.json",
    "registry/{model}/*",
    "gate/{model}/tests.json",
    "tracking/{model}/*",
)
KEPT = ("parcels/*", "snapshots/*", "facts/*", "reports/*", "initial/*")
# What trainings keep for one another, and delete when nobody has used it for long.
SHARED = ("answers/*", "encoded/*", "fitted/*", "row-groups/*")
# Trials under Katib have the training's account.
MADE = ("training/*", "studies/{model}/*", *SHARED)
# What a step and the pods of its scoring jobs exchange; the step and the run's end delete it.
SCORED = "scoring/*"
GRANTS = {
    # pods.service_account of the profile, such as pipeline-runner
    "steps": Grant(
        reads=(*KEPT, SCORED, *MADE, *STATE),
        writes=(*KEPT, SCORED, *MADE, *STATE),
        deletes=(SCORED, *MADE),
        lists=("reports/*", SCORED, *MADE),
        reads_data=True,
        lists_data=True,
        loads_task=True,
        loads_suite=True,
        pins_weights=True,
        artifacts=True,
        pipeline_root=True,
    ),
    # perennial-training, and so on: the accounts of k8s/
    "training": Grant(
        reads=("initial/*", SCORED, *MADE),
        writes=(SCORED, *MADE),
        deletes=MADE,
        lists=(SCORED, *MADE),
        reads_data=True,
        loads_task=True,
    ),
    "watcher": Grant(
        reads=("parcels/*", "watch/{model}/*"), writes=("watch/{model}/*",), lists_data=True
    ),
    "receiver": Grant(reads=("parcels/*", "events/*"), writes=("events/*",)),
    "exporter": Grant(reads=("monitoring/{model}/*",)),
    # who deploys, triggers, asks for status or cancels; promoting by hand needs the steps' rights
    "deployer": Grant(
        reads=("parcels/*", "reports/*", "studies/{model}/*"),
        writes=("parcels/*", "reports/*"),
        loads_task=True,
        loads_suite=True,
    ),
}


@dataclass(frozen=True)
class Place:
    """A bucket, or a prefix in one."""

    bucket: str
    prefix: str

    @classmethod
    def of(cls, uri: str) -> "Place":
        """Return the place of an address.

        Raises:
            PerennialError: it is not an address of S3.
        """
        scheme, _, rest = uri.partition("://")
        if scheme != "s3" or not rest.strip("/"):
            raise PerennialError(
                f"{uri!r} is not an address of S3",
                evidence="a policy is about buckets",
                action="name data, store and artifacts as s3://BUCKET/PREFIX",
            )
        bucket, _, prefix = rest.partition("/")
        return cls(bucket, f"{prefix.strip('/')}/" if prefix.strip("/") else "")

    def objects(self, *patterns: str) -> list[str]:
        """Return the resources of objects."""
        return [f"arn:aws:s3:::{self.bucket}/{self.prefix}{pattern}" for pattern in patterns]


def s3_policy(role: str, contract: Contract, profile: Profile, artifacts: str = "") -> Document:
    """Return the policy of one account: a key of `GRANTS`.

    `artifacts` is where MLflow keeps the files of model versions; by default in the store.
    """
    grant, model = GRANTS[role], contract.model.name
    store, data = Place.of(profile.stores.store_uri), Place.of(contract.data.uri)
    kept = Place.of(
        artifacts or f"{profile.stores.store_uri.rstrip('/')}/{ARTIFACT_PREFIX}/{model}"
    )

    def named(patterns: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(pattern.format(model=model) for pattern in patterns)

    statements = [
        _objects("Read", "s3:GetObject", store.objects(*named(grant.reads))),
        _objects("Write", "s3:PutObject", store.objects(*named(grant.writes))),
        _objects("Delete", "s3:DeleteObject", store.objects(*named(grant.deletes))),
        _objects("StopUploads", "s3:AbortMultipartUpload", store.objects(*named(grant.deletes))),
        _listing("List", "s3:ListBucket", store, named(grant.lists or grant.reads)),
        _listing("ListUploads", "s3:ListBucketMultipartUploads", store, named(grant.deletes)),
    ]
    if grant.reads_data:
        statements.append(_objects("ReadData", "s3:GetObject", data.objects("*")))
    if grant.lists_data:
        statements.append(_listing("ListData", "s3:ListBucket", data, ("*",)))
    for number, (place, pattern) in enumerate(_named_places(grant, contract)):
        statements += [
            _objects(f"ReadNamed{number}", "s3:GetObject", place.objects(pattern)),
            _listing(f"ListNamed{number}", "s3:ListBucket", place, (pattern,)),
        ]
    places = {"Versions": kept} if grant.artifacts else {}
    root = profile.stores.pipeline_root
    if grant.pipeline_root and root.startswith("s3://"):
        places["PassedOn"] = Place.of(root)
    for name, place in places.items():
        statements += [
            _objects(f"Read{name}", "s3:GetObject", place.objects("*")),
            _objects(f"Write{name}", "s3:PutObject", place.objects("*")),
            _listing(f"List{name}", "s3:ListBucket", place, ("*",)),
        ]
    return {"Version": "2012-10-17", "Statement": [each for each in statements if each]}


def _named_places(grant: Grant, contract: Contract) -> Iterator[tuple[Place, str]]:
    """Yield where the contract names files of its own: a place, and the pattern of their keys."""
    named, initial = list[str](), contract.model.initial
    if grant.loads_task:
        named += _texts(contract.model.options)
    if grant.loads_suite:
        named.append(contract.expectations.suite.partition("#")[0])
    if grant.pins_weights and isinstance(initial, SafetensorsWeights):
        named.append(initial.uri)
    if grant.pins_weights and isinstance(initial, HuggingFaceWeights):
        named.append(f"{initial.uri.rstrip('/')}/*")
    for uri in sorted({each for each in named if each.startswith("s3://")}):
        folder, _, pattern = uri.rpartition("/")
        yield Place.of(folder), pattern


def _texts(value: JsonValue) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


def _objects(name: str, action: str, resources: list[str]) -> Document:
    if not resources:
        return {}
    return {"Sid": name, "Effect": "Allow", "Action": [action], "Resource": [*resources]}


def _listing(name: str, action: str, place: Place, patterns: tuple[str, ...]) -> Document:
    """Return the conditions for listing keys with these prefixes.

    Without the right to list, S3 answers 403 for an object that does not exist, where 404 tells
    steps that they are the first. That question names no prefix, hence `IfExists`.
    """
    if not patterns:
        return {}
    prefixes: list[JsonValue] = [f"{place.prefix}{pattern}" for pattern in patterns]
    return {
        "Sid": name,
        "Effect": "Allow",
        "Action": [action],
        "Resource": [f"arn:aws:s3:::{place.bucket}"],
        "Condition": {"StringLikeIfExists": {"s3:prefix": prefixes}},
    }
