"""Placement: a compiled pipeline made fit for one environment.

Images become digests, and every step gets its addresses, its secrets by reference, its pod's shape
and its retries. Pure: equal inputs give equal bytes, so that an equal deployment changes nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from math import ceil
from typing import Any

import yaml
from google.protobuf import json_format
from kfp.pipeline_spec import pipeline_spec_pb2
from pydantic import JsonValue

from perennial.contracts import environment
from perennial.contracts.errors import PerennialError
from perennial.deployment.profile import PodsSection, Profile, StepResources
from perennial.training_jobs.leftovers import (
    KFP_RUN_LABEL,
    LEFT_IN_PLACE,
    NODE_ANNOTATION,
    TRAINING_STEPS,
)

UNPINNED = "0" * 64
SCRATCH = "/tmp"  # all that a read-only root file system lacks
SHARED_MEMORY = "/dev/shm"
TASK_IMAGE = "perennial-trainer"  # the one whose steps run the task's own code
Document = dict[str, Any]
# Ten times as fast; PyYAML is also built without it.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_documents(text: str) -> list[Any]:
    """Return the documents of a YAML text, such as a package: the pipeline and its platform."""
    return list(yaml.load_all(text, Loader=_LOADER))


def place(compiled: str, profile: Profile) -> str:
    """Make a compiled pipeline, with logical image names, fit for an environment.

    Raises:
        PerennialError: the pipeline names an image that the profile does not, or has not pinned.
    """
    spec, *_ = read_documents(compiled)
    executors = spec["deploymentSpec"]["executors"]
    kubernetes = {}
    for label, executor in executors.items():
        step = step_of(label)
        container = executor["container"]
        runs_task = container["image"] == TASK_IMAGE
        container["image"] = _image(str(container["image"]), profile)
        resources = profile.pods.steps.get(step, StepResources())
        container["env"] = [
            {"name": name, "value": value}
            for name, value in _variables(profile, container["image"], resources.cpu).items()
        ]
        container["resources"] = {
            "resourceCpuRequest": resources.cpu,
            "resourceMemoryRequest": resources.memory,
            "resourceMemoryLimit": resources.memory,
        }
        if resources.accelerator:
            container["resources"]["accelerator"] = {
                "resourceType": resources.accelerator,
                "resourceCount": str(resources.accelerators),
            }
        kubernetes[label] = _pod(step, profile, resources, runs_task=runs_task)
    for task in _tasks(spec):
        task["retryPolicy"] = {
            "maxRetryCount": profile.pods.max_retries,
            # Steps wait out outages themselves; a retry is for pods that were killed.
            "backoffDuration": "10s",
            "backoffFactor": 2.0,
            "backoffMaxDuration": "600s",
        }
    json_format.ParseDict(
        spec, pipeline_spec_pb2.PipelineSpec()
    )  # raises on what KFP does not know
    platform = {"platforms": {"kubernetes": {"deploymentSpec": {"executors": kubernetes}}}}
    json_format.ParseDict(platform, pipeline_spec_pb2.PlatformSpec())
    # Sorted: the version's name is the digest of this text.
    return str(yaml.safe_dump_all([spec, platform], sort_keys=True))


def step_of(executor: str) -> str:
    """Return the step of an executor's label: KFP numbers repetitions."""
    words = executor.removeprefix("exec-").split("-")
    return "_".join(words[:-1] if words[-1].isdigit() else words)


def settings_in(documents: Iterable[Document]) -> dict[str, Document]:
    """Return executor → what a profile decides about it.

    The documents are a placed pipeline's and its platform's specification; none gives nothing.
    """
    spec, platform = [*documents, {}, {}][:2]
    pods = platform.get("platforms", {}).get("kubernetes", {}).get("deploymentSpec", {})
    settings = {}
    for label, executor in spec.get("deploymentSpec", {}).get("executors", {}).items():
        container = executor["container"]
        settings[label] = {
            "image": container["image"],
            "env": {each["name"]: each.get("value", "") for each in container.get("env", ())},
            "resources": container.get("resources", {}),
            "pod": pods.get("executors", {}).get(label, {}),
        }
    return settings


def _image(logical: str, profile: Profile) -> str:
    images = profile.images
    known = {f"perennial-{name}": getattr(images, name) for name in ("data", "trainer", "control")}
    if str(known.get(logical, "")).endswith(f":{UNPINNED}"):
        raise PerennialError(
            f"the profile's image {logical.removeprefix('perennial-')} was never pinned",
            evidence=f"{known[logical]} is a placeholder for the digest of a build",
            action="write the digest of your build: `python k8s/pin_images.py`, see k8s/install.md",
        )
    if logical not in known:
        raise PerennialError(
            f"the pipeline names the image {logical!r}, which no profile can pin",
            evidence=f"known are: {', '.join(known)}",
            action="compile with this version of Perennial",
        )
    return str(known[logical])


def _variables(profile: Profile, image: str, cpu: str) -> Mapping[str, str]:
    digest = image.rpartition("@")[2]
    # `1500m` are one and a half.
    cores = ceil(float(cpu[:-1]) / 1000 if cpu.endswith("m") else float(cpu))
    own = {
        environment.STORE_URI: profile.stores.store_uri,
        environment.TRACKING_URI: profile.stores.tracking_uri,
        environment.IMAGE_DIGEST: digest,
        # In an image, the code is the image.
        environment.CODE_DIGEST: digest.removeprefix("sha256:"),
        "HOME": SCRATCH,
        # Without a limit, a pod sees all cores of its node, which are not its own.
        environment.CORES: str(cores),
    }
    if profile.dask.scheduler:
        own[environment.DASK_SCHEDULER] = profile.dask.scheduler
    if profile.dask.tls_secret:
        own[environment.DASK_TLS] = f"{environment.SECRETS_FOLDER}/{profile.dask.tls_secret}"
    if profile.spark.connect:
        own[environment.SPARK] = profile.spark.connect
    if profile.stores.secrets:
        own[environment.SECRET_FILES] = " ".join(
            f"{name}={place_}" for name, place_ in sorted(profile.stores.secrets.items())
        )
    return {"OMP_NUM_THREADS": "1", **profile.stores.environment, **own}


def _pod(step: str, profile: Profile, resources: StepResources, *, runs_task: bool) -> JsonValue:
    pods = profile.pods
    labels, tolerations = resources.node_selector, resources.tolerations
    labels = pods.node_selector if labels is None else labels
    is_long = step in TRAINING_STEPS
    minutes = pods.training_timeout_minutes if is_long else pods.timeout_minutes
    secrets = {place_.partition("/")[0] for place_ in profile.stores.secrets.values()}
    mounted = sorted(secrets | {profile.dask.tls_secret} - {""})
    pod: dict[str, JsonValue] = {
        # Never as variables: the kubelet writes them wherever an argument contains `$(NAME)`.
        "secretAsVolume": [
            {"secretName": secret, "mountPath": f"{environment.SECRETS_FOLDER}/{secret}"}
            for secret in mounted
        ],
        # KFP has no variable with the run's id, only a label on every pod.
        "fieldPathAsEnv": [
            {"name": environment.RUN_ID, "fieldPath": f"metadata.labels['{KFP_RUN_LABEL}']"},
            {"name": environment.NODE, "fieldPath": f"metadata.annotations['{NODE_ANNOTATION}']"},
        ],
        "podMetadata": {
            "labels": {**pods.labels, "app.kubernetes.io/part-of": "perennial"},
            # A sidecar would outlive the step and keep its pod.
            "annotations": {
                "sidecar.istio.io/inject": "false",
                **(LEFT_IN_PLACE if is_long else {}),
            },
        },
        "emptyDirMounts": _mounts(pods, runs_task=runs_task),
        # The number is needed: without it a non-root check on a root image waits permanently.
        "securityContext": {
            "runAsUser": str(pods.run_as_user),
            "runAsGroup": str(pods.run_as_user),
            "runAsNonRoot": True,
        },
        "activeDeadlineSeconds": str(minutes * 60),
        "imagePullSecret": [{"secretName": name} for name in profile.images.pull_secrets],
        "nodeSelector": {"labels": dict(labels)} if labels else {},
        "tolerations": [
            {key: value for key, value in toleration.model_dump().items() if value}
            for toleration in (pods.tolerations if tolerations is None else tolerations)
        ],
    }
    return {key: value for key, value in pod.items() if value}


def _mounts(pods: PodsSection, *, runs_task: bool) -> list[JsonValue]:
    mounts: list[JsonValue] = [
        {"volumeName": "scratch", "mountPath": SCRATCH, "sizeLimit": pods.scratch}
    ]
    if runs_task:
        mounts.append(
            {
                "volumeName": "shm",
                "mountPath": SHARED_MEMORY,
                "medium": "Memory",
                "sizeLimit": pods.shared_memory,
            }
        )
    return mounts


def _tasks(spec: Document) -> Iterator[Document]:
    """Yield the tasks that may be repeated."""
    dags = [spec["root"]["dag"]]
    dags += [component["dag"] for component in spec["components"].values() if "dag" in component]
    for dag in dags:
        for task in dag["tasks"].values():
            component = spec["components"][task["componentRef"]["name"]]
            # A failed training is not started again: its launcher resumes what can be resumed.
            if step_of(component.get("executorLabel", "exec-train-model")) != "train_model":
                yield task
