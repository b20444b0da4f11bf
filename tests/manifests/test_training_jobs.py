"""The bodies that launchers create are what the operators' own schemas accept, to the last field."""

import dataclasses
import json
from pathlib import Path

import pytest
import yaml
from jsonschema import Draft202012Validator

from fake_operator import step_pod
from perennial.contracts.data import ModelSection
from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection
from perennial.engine.job import TrainingJob
from perennial.training_jobs.config import ClusterSection, ResourcesSection, Toleration
from perennial.training_jobs.manifests import (
    ANNOTATIONS,
    CONTAINER_SECURITY,
    VOLUME_MOUNTS,
    JobRequest,
    PyTorchJob,
    RunIdentity,
    TrainJob,
    pod_deadline,
    pod_security,
    volumes,
)
from text_expansion import evaluate, expand

HERE = Path(__file__).parent
RUNTIME = HERE.parents[1] / "k8s" / "components" / "training-runtime" / "training-runtime.yaml"
TRAINER_VERSIONS = ("2.1.0", "2.2.0", "2.3.0")


def strict(schema):
    """What `fieldValidation=Strict` makes of a structural schema: no field that it does not name."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or not schema.get("properties")
    if schema.get("type") == "object" and not is_open:
        made["additionalProperties"] = False
    return made


def problems(body, name):
    schema = strict(json.loads((HERE / "schemas" / f"{name}.json").read_text()))
    schema["properties"]["metadata"] = {"type": "object"}
    return [
        f"{'/'.join(map(str, error.path))}: {error.message}"
        for error in Draft202012Validator(schema).iter_errors(body)
    ]


def request(**changes) -> JobRequest:
    cluster = {"machines": 2, **changes}
    job = TrainingJob(
        fingerprint="0123456789abcdef", snapshot="", training=TrainingSection(), num_processes=4,
        model=ModelSection(name="house-prices", task="a:B"), folder="", attempt="a1b2c3d4",
        store_uri="s3://bucket/training/0123",
    )  # fmt: skip
    resources = ResourcesSection(num_processes=4, cluster=ClusterSection(**cluster))
    return JobRequest(job, RunIdentity.of_pod(step_pod()), resources, "mlflow-run")


EVERYTHING = {
    "accelerator": "nvidia.com/gpu", "queue": "team", "gang_scheduler": "volcano",
    "priority_class": "low", "service_account": "trainer", "node_selector": {"gpu": "h200"},
    "tolerations": (Toleration(key="gpu", effect="NoSchedule"),), "shared_memory_gib": 8.0,
}  # fmt: skip


@pytest.mark.parametrize("changes", [{}, {"machines": 1}, EVERYTHING], ids=["two", "one", "all"])
def test_pytorchjobs_fit_the_operators_schema(changes):
    assert problems(PyTorchJob().manifest(request(**changes)), "pytorchjob-1.9.4") == []


@pytest.mark.parametrize("version", TRAINER_VERSIONS)
def test_trainjobs_fit_every_version_of_the_trainer(version):
    schema = json.loads((HERE / "schemas" / f"trainjob-{version}.json").read_text())
    fields = frozenset(schema["properties"]["spec"]["properties"])
    body = TrainJob().manifest(request(accelerator="nvidia.com/gpu", queue="team"), fields)
    assert problems(body, f"trainjob-{version}") == []
    assert ("activeDeadlineSeconds" in body["spec"]) is (version != "2.1.0")


@pytest.mark.parametrize("version", TRAINER_VERSIONS)
def test_the_training_runtime_fits_every_version_of_the_trainer(version):
    assert problems(yaml.safe_load(RUNTIME.read_text()), f"trainingruntime-{version}") == []


def test_an_unknown_field_is_a_problem():
    body = PyTorchJob().manifest(request())
    body["spec"]["activeDeadlineSeconds"] = 1
    assert problems(body, "pytorchjob-1.9.4") != []


@pytest.mark.parametrize(
    ("kind", "changes", "golden"),
    [
        (PyTorchJob(), {}, "pytorchjob"),
        (PyTorchJob(), EVERYTHING, "pytorchjob-everything"),
        (TrainJob(), {}, "trainjob"),
    ],
)
def test_a_manifest_equals_its_golden_file(kind, changes, golden):
    text = yaml.safe_dump(kind.manifest(request(**changes)), sort_keys=True)
    assert text == (HERE / "golden" / f"{golden}.yaml").read_text()


def test_the_runtime_gives_its_pods_what_a_pytorchjob_has():
    (node,) = yaml.safe_load(RUNTIME.read_text())["spec"]["template"]["spec"]["replicatedJobs"]
    assert node["template"]["spec"]["backoffLimit"] == 0
    spec = node["template"]["spec"]["template"]["spec"]
    cluster = ClusterSection()
    (container,) = spec["containers"]
    assert node["template"]["spec"]["template"]["metadata"]["annotations"] == ANNOTATIONS
    assert spec["restartPolicy"] == "Never"
    assert spec["securityContext"] == pod_security(cluster.run_as_user)
    assert spec["volumes"] == volumes(cluster)
    assert spec["activeDeadlineSeconds"] == pod_deadline(cluster)
    assert spec["terminationGracePeriodSeconds"] == cluster.grace_seconds
    assert container["securityContext"] == CONTAINER_SECURITY
    assert container["volumeMounts"] == VOLUME_MOUNTS


def test_nothing_that_destroys_the_evidence_is_in_a_pytorchjob():
    spec = PyTorchJob().manifest(request())["spec"]
    assert spec["runPolicy"]["cleanPodPolicy"] == "Running"
    assert not {"backoffLimit", "activeDeadlineSeconds"} & spec["runPolicy"].keys()
    for replica in spec["pytorchReplicaSpecs"].values():
        assert replica["restartPolicy"] == "Never"
        assert replica["template"]["spec"]["activeDeadlineSeconds"] == 346920


def test_secrets_are_passed_by_reference_and_the_tracking_run_to_the_first_rank():
    replicas = PyTorchJob().manifest(request())["spec"]["pytorchReplicaSpecs"]
    found = {
        kind: {each["name"]: each for each in spec["template"]["spec"]["containers"][0]["env"]}
        for kind, spec in replicas.items()
    }
    assert "valueFrom" in found["Worker"]["AWS_SECRET_ACCESS_KEY"]
    assert "ARGO_NODE_ID" not in found["Worker"]
    assert found["Master"]["MLFLOW_RUN_ID"]["value"] == "mlflow-run"
    assert "MLFLOW_RUN_ID" not in found["Worker"]
    # The step's own comes from a label that these pods lack.
    assert all(found[kind]["PERENNIAL_RUN_ID"]["value"] == "run-1" for kind in found)


def test_training_pods_get_every_variable_that_is_not_about_the_step_itself():
    pod = step_pod()
    (container,) = (each for each in pod["spec"]["containers"] if each["name"] == "main")
    users = {"name": "TOKENIZERS_PARALLELISM", "value": "false"}
    about_the_step = [
        {"name": name, "value": "x"}
        for name in (
            "KFP_POD_NAME", "KFP_RETRY_INDEX", "ARGO_TEMPLATE", "METADATA_GRPC_SERVICE_HOST",
            "PERENNIAL_RUN_FOLDER", "PERENNIAL_CACHE", "PERENNIAL_LEASE",
        )
    ]  # fmt: skip
    before = RunIdentity.of_pod(pod).environment
    container["env"] += [users, *about_the_step]
    found = RunIdentity.of_pod(pod).environment
    assert [each for each in found if each not in before] == [users]
    assert len(found) == len(before) + 1


@pytest.mark.parametrize("kind", [PyTorchJob(), TrainJob()], ids=lambda kind: kind.title)
def test_nothing_in_a_training_pods_command_or_values_is_replaced_on_the_way(kind):
    secrets = {"AWS_SECRET_ACCESS_KEY": "the-key"}
    found = list(
        containers_in(kind.manifest(request(**EVERYTHING if kind.title == "PyTorchJob" else {})))
    )
    assert found
    for container in found:
        values = [each["value"] for each in container["env"] if "value" in each]
        for text in [*container["command"], *container.get("args", ()), *values]:
            assert expand(evaluate(text), secrets) == text


def containers_in(value):
    """Whatever in a manifest has a command and variables."""
    if isinstance(value, dict):
        if {"command", "env"} <= value.keys():
            yield value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from containers_in(item)


def test_training_pods_pull_with_the_secrets_of_the_step():
    pod = step_pod()
    pod["spec"]["imagePullSecrets"] = [{"name": "registry"}]
    made = dataclasses.replace(request(), run=RunIdentity.of_pod(pod))
    body = PyTorchJob().manifest(made)
    assert problems(body, "pytorchjob-1.9.4") == []
    for replica in body["spec"]["pytorchReplicaSpecs"].values():
        assert replica["template"]["spec"]["imagePullSecrets"] == [{"name": "registry"}]


def test_a_manifest_stays_far_below_what_can_be_carried():
    assert len(json.dumps(PyTorchJob().manifest(request(**EVERYTHING)))) < 16 * 1024


def test_options_of_the_runtime_are_refused_in_a_trainjob():
    with pytest.raises(PerennialError, match="node_selector"):
        TrainJob().manifest(request(node_selector={"gpu": "h200"}))


def test_budgets_that_the_runtime_would_cut_short_are_refused_in_a_trainjob():
    long = {"running_hours": 200.0}
    with pytest.raises(PerennialError, match="'perennial' ends pods before the timeouts"):
        TrainJob().manifest(request(budgets=long))
    assert TrainJob().manifest(request(budgets=long, runtime="ours"))
    assert TrainJob().manifest(request(budgets={"running_hours": 2.0}))


@pytest.mark.parametrize("model", ["house-prices", "a" * 63])
def test_equal_trainings_have_one_name_that_leaves_room_for_the_operators_suffixes(model):
    named = with_job(model=ModelSection(name=model, task="a:B")).name
    assert named == "training-0123456789ab-f23840"
    assert with_job(store_uri="s3://other/training/0123").name != named


def with_job(**changes) -> JobRequest:
    made = request()
    return dataclasses.replace(made, job=made.job.model_copy(update=changes))


def test_another_attempt_has_the_same_spec_and_other_resources_do_not():
    def digest(made):
        return PyTorchJob().manifest(made)["metadata"]["annotations"]["perennial/spec-sha256"]

    first = request()
    again = with_job(attempt="ffff")
    later = with_job(attempt="ffff", store_uri="s3://bucket/training/4567")
    assert digest(again) == digest(first)
    assert digest(later) != digest(first)
    assert digest(request(machines=1)) != digest(first)
