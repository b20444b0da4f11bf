"""The profiles beside the overlays are real ones, and fit the objects that they are applied with."""

import tomllib

import pytest

from cluster_manifests import OVERLAYS, build, needs_kubectl, pod_template
from command_line import parse
from perennial.deployment.profile import load_profile


def name_of(path):
    return path.name


@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_a_watcher_differs_from_people_in_the_address_and_the_login_alone(overlay):
    people = load_profile(overlay / "profile.toml")
    watcher = load_profile(overlay / "watcher.toml")
    assert watcher.server.pipelines_url == "http://ml-pipeline.kubeflow.svc:8888"
    differing = {
        name
        for name in type(people).model_fields
        if getattr(people, name) != getattr(watcher, name)
    }
    assert differing <= {"server", "auth"}
    assert (people.server.namespace, people.server.multi_user) == (
        watcher.server.namespace,
        watcher.server.multi_user,
    )


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_a_profile_names_what_the_overlay_holds(overlay):
    profile, objects = load_profile(overlay / "profile.toml"), build(overlay)
    (quota,) = [item for item in objects if item["kind"] == "ResourceQuota"]
    assert profile.server.namespace == quota["metadata"]["namespace"]
    (binding,) = [
        item for item in objects
        if item["kind"] == "RoleBinding" and item["metadata"]["name"] == "perennial-launcher"
    ]  # fmt: skip
    assert profile.pods.service_account == binding["subjects"][0]["name"]
    services = {
        f"{item['spec']['ports'][0]['port']}@{item['metadata']['name']}.{item['metadata']['namespace']}.svc"
        for item in objects if item["kind"] == "Service"
    }  # fmt: skip
    assert "5000@mlflow.perennial.svc" in services
    assert profile.stores.tracking_uri == "http://mlflow.perennial.svc:5000"
    endpoint = profile.stores.environment.get("AWS_ENDPOINT_URL")
    assert endpoint == (
        "http://object-store.perennial.svc:8333" if overlay.name == "kind" else None
    )
    assert ("8333@object-store.perennial.svc" in services) is (overlay.name == "kind")


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_the_token_is_mounted_where_the_profile_in_the_cluster_reads_it(overlay):
    auth = load_profile(overlay / "watcher.toml").auth
    pods = [
        pod_template(item)["spec"] for item in build(overlay)
        if item["metadata"]["name"] in ("perennial-exporter", "perennial-watcher")
        and pod_template(item)
    ]  # fmt: skip
    assert pods
    for pod in pods:
        mounted = {mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]}
        has_token = auth.token_file.rpartition("/")[0] in mounted
        assert has_token is (auth.kind == "in-cluster")


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_every_pod_of_the_overlay_uses_the_pull_policy_of_the_profile(overlay):
    objects = build(overlay)
    secrets = {
        (item["metadata"]["namespace"], item["metadata"]["name"]): [
            each["name"] for each in item.get("imagePullSecrets", ())
        ]
        for item in objects if item["kind"] == "ServiceAccount"
    }  # fmt: skip
    used = {
        (item["metadata"]["namespace"], pod["spec"]["serviceAccountName"])
        for item in objects if (pod := pod_template(item))
    }  # fmt: skip
    assert {"mlflow", "perennial-reaper", "perennial-training", "perennial-watcher"} <= {
        name for _, name in used
    }
    wanted = list(load_profile(overlay / "profile.toml").images.pull_secrets)
    assert {account: secrets[account] for account in used} == dict.fromkeys(used, wanted)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_keys_of_the_store_may_be_missing_where_accounts_have_a_cloud_identity(overlay):
    sources = [
        source["secretRef"]
        for pod in filter(None, map(pod_template, build(overlay)))
        for container in pod["spec"]["containers"] for source in container.get("envFrom", ())
        if "secretRef" in source
    ]  # fmt: skip
    assert sources
    assert all(source == {"name": "perennial-store", "optional": True} for source in sources)


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_what_runs_our_image_calls_verbs_that_perennial_has(overlay):
    jobs = [
        item for item in build(overlay)
        if item["kind"] in ("CronJob", "Deployment") and "perennial/control@" in str(item)
    ]  # fmt: skip
    assert jobs
    for job in jobs:
        (container,) = pod_template(job)["spec"]["containers"]
        values = {each["name"]: each["value"] for each in container.get("env", ())}
        words = [values[w[2:-1]] if w.startswith("$(") else w for w in container["command"]]
        assert words[0] == "perennial"
        assert all(words), "an overlay says which model"
        # Raises where an option or a verb does not exist.
        assert parse(words[1:])[0] == words[1]


@needs_kubectl
@pytest.mark.parametrize("overlay", OVERLAYS, ids=name_of)
def test_the_config_map_holds_the_watchers_profile(overlay):
    (found,) = [
        item for item in build(overlay)
        if item["kind"] == "ConfigMap" and item["metadata"]["name"].startswith("perennial-profile-")
    ]  # fmt: skip
    assert tomllib.loads(found["data"]["profile.toml"]) == tomllib.loads(
        (overlay / "watcher.toml").read_text()
    )
