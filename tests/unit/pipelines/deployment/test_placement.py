"""A placed pipeline has pinned images, secrets by reference only, and pods that are allowed to run."""

import pytest
import yaml
from google.protobuf import json_format
from kfp.kubernetes import kubernetes_executor_config_pb2

from deployments import DIGEST, profile
from perennial.compilation import PIPELINES, compile_pipeline
from perennial.contracts import environment
from perennial.contracts.errors import PerennialError
from perennial.deployment.placement import place, settings_in, step_of
from perennial.training_jobs.leftovers import LEFT_IN_PLACE

SECRETS = {"AWS_ACCESS_KEY_ID": "s3-access/key", "AWS_SECRET_ACCESS_KEY": "s3-access/word"}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("compiled")
    return {name: compile_pipeline(name, folder / f"{name}.yaml").read_text() for name in PIPELINES}


def images_in(placed):
    settings = settings_in(yaml.safe_load_all(placed))
    return {label: each["image"] for label, each in settings.items()}


def parts(placed):
    spec, platform = yaml.safe_load_all(placed)
    pods = platform["platforms"]["kubernetes"]["deploymentSpec"]["executors"]
    return spec, pods


@pytest.mark.parametrize("name", PIPELINES)
def test_every_image_is_pinned_by_digest(compiled, name):
    images = images_in(place(compiled[name], profile()))
    assert images
    assert all(image.endswith(f"@{DIGEST}") for image in images.values())


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pod_is_what_kfp_reads_and_may_run_under_restricted_security(compiled, name):
    placed = place(compiled[name], profile(stores={"secrets": SECRETS}))
    spec, pods = parts(placed)
    assert set(pods) == set(spec["deploymentSpec"]["executors"])
    for pod in pods.values():
        read = json_format.ParseDict(pod, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
        assert read.security_context.run_as_non_root
        assert read.security_context.run_as_user > 0
        assert read.empty_dir_mounts[0].mount_path == "/tmp"
        assert read.field_path_as_env[0].field_path == "metadata.labels['pipeline/runid']"
        (secret,) = read.secret_as_volume
        assert (secret.secret_name, secret.optional) == ("s3-access", False)
        assert secret.mount_path == f"{environment.SECRETS_FOLDER}/s3-access"
        assert not read.secret_as_env, "Kubernetes would write its value into arguments"
    for executor in spec["deploymentSpec"]["executors"].values():
        values = {each["name"]: each["value"] for each in executor["container"]["env"]}
        assert set(environment.secret_places(values[environment.SECRET_FILES])) == set(SECRETS)
        assert not set(SECRETS) & set(values)


@pytest.mark.parametrize("secret", ["a.b", "scratch", "shm", "x" * 64])
def test_a_secret_that_no_volume_can_be_named_after_is_refused(secret):
    with pytest.raises(ValueError, match="cannot be mounted"):
        profile(stores={"secrets": {"TOKEN": f"{secret}/key"}})


@pytest.mark.parametrize("name", PIPELINES)
def test_steps_that_run_the_tasks_code_get_shared_memory_and_no_others(compiled, name):
    _, pods = parts(place(compiled[name], profile(pods={"shared_memory": "3Gi"})))
    mounted = {}
    for label, pod in pods.items():
        read = json_format.ParseDict(pod, kubernetes_executor_config_pb2.KubernetesExecutorConfig())
        mounted[label] = [
            (mount.medium, mount.size_limit)
            for mount in read.empty_dir_mounts
            if mount.mount_path == "/dev/shm"
        ]
    images = images_in(compiled[name])
    assert mounted == {
        label: [("Memory", "3Gi")] if image == "perennial-trainer" else []
        for label, image in images.items()
    }
    assert set(images.values()) > {"perennial-trainer"}


def test_equal_inputs_give_equal_bytes_and_a_new_image_gives_others(compiled):
    text = compiled["continuous_training"]
    assert place(text, profile()) == place(text, profile())
    other = profile(images={"data": f"registry.example/perennial-data@sha256:{'f' * 64}"})
    assert place(text, other) != place(text, profile())


def test_the_training_waits_for_days_and_is_not_started_twice(compiled):
    spec, pods = parts(place(compiled["continuous_training"], profile()))
    assert int(pods["exec-train-model"]["activeDeadlineSeconds"]) == 7 * 24 * 3600
    assert int(pods["exec-validate-data"]["activeDeadlineSeconds"]) == 3600
    tasks = {}
    for component in [spec["root"], *spec["components"].values()]:
        tasks |= component.get("dag", {}).get("tasks", {})
    assert "retryPolicy" not in tasks["train-model"]
    assert tasks["validate-data"]["retryPolicy"]["maxRetryCount"] == 2
    assert tasks["register-model"]["retryPolicy"]["maxRetryCount"] == 2


@pytest.mark.parametrize("name", PIPELINES)
def test_autoscalers_leave_the_machine_of_a_training_alone_and_no_other(compiled, name):
    _, pods = parts(place(compiled[name], profile()))
    kept = {
        label
        for label, pod in pods.items()
        if pod["podMetadata"]["annotations"].items() >= LEFT_IN_PLACE.items()
    }
    trains = "exec-run-trials" if name == "hyperparameter_study" else "exec-train-model"
    assert kept == {trains}


def test_a_step_requests_what_the_profile_states(compiled):
    big = profile(pods={"steps": {"validate_data": {"cpu": "4", "memory": "16Gi"}}})
    executors = parts(place(compiled["drift_monitoring"], big))[0]["deploymentSpec"]["executors"]
    asked = executors["exec-validate-data"]["container"]["resources"]
    assert asked == {
        "resourceCpuRequest": "4", "resourceMemoryRequest": "16Gi", "resourceMemoryLimit": "16Gi",
    }  # fmt: skip
    assert not [label for label in executors if label.endswith("-2")]


def test_an_image_that_no_profile_knows_is_refused(compiled):
    text = compiled["continuous_training"].replace("image: perennial-data", "image: python:3.11")
    with pytest.raises(PerennialError, match=r"'python:3\.11'"):
        place(text, profile())


def test_selectors_tolerations_and_pull_secrets_reach_every_pod(compiled):
    where = profile(
        pods={"node_selector": {"pool": "cpu"}, "tolerations": ({"key": "spot", "operator": "Exists"},)},
        images={"pull_secrets": ("registry-login",)},
    )  # fmt: skip
    for pod in parts(place(compiled["continuous_training"], where))[1].values():
        assert pod["nodeSelector"] == {"labels": {"pool": "cpu"}}
        assert pod["tolerations"] == [{"key": "spot", "operator": "Exists"}]
        assert pod["imagePullSecret"] == [{"secretName": "registry-login"}]


def test_an_image_that_was_never_pinned_is_refused(compiled):
    zeros = profile(images={"data": f"registry.example/perennial-data@sha256:{'0' * 64}"})
    with pytest.raises(PerennialError, match=r"image data was never pinned.*\n.*0000"):
        place(compiled["continuous_training"], zeros)


def test_variables_of_the_profile_reach_every_step_and_win_over_a_default(compiled):
    where = profile(stores={"environment": {"OMP_NUM_THREADS": "4", "AWS_REGION": "eu-central-1"}})
    for text, threads in ((place(compiled["continuous_training"], where), "4"),
                          (place(compiled["continuous_training"], profile()), "1")):  # fmt: skip
        for executor in parts(text)[0]["deploymentSpec"]["executors"].values():
            values = {each["name"]: each["value"] for each in executor["container"]["env"]}
            assert values["OMP_NUM_THREADS"] == threads
            assert values["HOME"] == "/tmp"
            assert values.get("AWS_REGION", "") == ("eu-central-1" if threads == "4" else "")


def test_every_step_gets_its_cores_and_the_dask_cluster(compiled):
    where = profile(
        pods={"steps": {"validate_data": {"cpu": "2500m"}}},
        dask={"scheduler": "tls://perennial-dask-scheduler:8786", "tls_secret": "dask-tls"},
        spark={"connect": "sc://spark-connect:15002"},
    )
    spec, pods = parts(place(compiled["continuous_training"], where))
    for label, executor in spec["deploymentSpec"]["executors"].items():
        values = {each["name"]: each["value"] for each in executor["container"]["env"]}
        assert values["PERENNIAL_CORES"] == ("3" if step_of(label) == "validate_data" else "1")
        assert values["PERENNIAL_SPARK"] == "sc://spark-connect:15002"
        assert values["PERENNIAL_DASK_SCHEDULER"] == "tls://perennial-dask-scheduler:8786"
        assert values["PERENNIAL_DASK_TLS"] == "/etc/perennial/secrets/dask-tls"
        mounts = {each["secretName"]: each["mountPath"] for each in pods[label]["secretAsVolume"]}
        assert mounts["dask-tls"] == values["PERENNIAL_DASK_TLS"]


GPU = {
    "accelerator": "nvidia.com/gpu", "node_selector": {"gpu": "h100"},
    "tolerations": [{"key": "nvidia.com/gpu"}],
}  # fmt: skip


def test_a_step_that_scores_a_model_gets_the_accelerators_it_asks_for(compiled):
    pods = {"node_selector": {"pool": "cpu"}, "steps": {
        "evaluate_model": GPU, "select_checkpoint": {**GPU, "accelerators": 4}}}  # fmt: skip
    spec, kubernetes = parts(place(compiled["continuous_training"], profile(pods=pods)))
    counts = {"exec-evaluate-model": "1", "exec-select-checkpoint": "4"}
    for label, executor in spec["deploymentSpec"]["executors"].items():
        found = executor["container"]["resources"].get("accelerator")
        pod = json_format.ParseDict(
            kubernetes[label], kubernetes_executor_config_pb2.KubernetesExecutorConfig()
        )
        if label not in counts:
            assert found is None
            assert dict(pod.node_selector.labels) == {"pool": "cpu"}
            continue
        assert found == {"resourceType": "nvidia.com/gpu", "resourceCount": counts[label]}
        assert dict(pod.node_selector.labels) == {"gpu": "h100"}
        assert [each.key for each in pod.tolerations] == ["nvidia.com/gpu"]


@pytest.mark.parametrize("step", ["snapshot_data", "train_model", "check_skeleton"])
def test_a_step_that_would_leave_an_accelerator_idle_is_refused(step):
    with pytest.raises(ValueError, match="would not use an accelerator"):
        profile(pods={"steps": {step: GPU}})


def test_a_number_of_accelerators_without_their_name_is_refused():
    with pytest.raises(ValueError, match="accelerators = 2 has no effect without accelerator"):
        profile(pods={"steps": {"evaluate_model": {"accelerators": 2}}})
