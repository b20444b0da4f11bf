"""A profile names where to deploy, holds no secret, and explains its mistakes."""

import pytest

from deployments import DIGEST
from perennial.contracts.errors import PerennialError
from perennial.deployment.profile import load_profile

GOOD = f"""
[server]
pipelines_url = "https://kubeflow.example/pipeline"
namespace = "team-a"
multi_user = true
ca_file = "ca.pem"

[auth]
kind = "token"

[images]
data = "registry.example/perennial-data@{DIGEST}"
trainer = "registry.example/perennial-trainer@{DIGEST}"
control = "registry.example/perennial-control@{DIGEST}"

[stores]
store_uri = "s3://perennial/store"
tracking_uri = "http://mlflow.mlflow:5000"
secrets = {{ AWS_SECRET_ACCESS_KEY = "perennial-store/secret-key" }}

[schedules]
monitoring = "0 3 * * *"
"""


def read(tmp_path, text):
    path = tmp_path / "profile.toml"
    path.write_text(text)
    return load_profile(path)


def test_a_profile_of_a_few_lines_is_enough(tmp_path):
    profile = read(tmp_path, GOOD)
    assert profile.pods.service_account == "pipeline-runner"
    assert profile.server.ca_file == str(tmp_path / "ca.pem")


@pytest.mark.parametrize("size", ["512Mi", "2Gi", "1.5Gi", "2000000Ki", "800M", "1000000000"])
def test_the_sizes_of_kubernetes_are_taken(tmp_path, size):
    profile = read(tmp_path, f'{GOOD}[pods.steps.train_model]\nmemory = "{size}"\n')
    assert profile.pods.steps["train_model"].memory == size


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("https://kubeflow.example/pipeline\"\n", "http://kubeflow.example\"\n", "unencrypted"),
        (f"perennial-data@{DIGEST}", "perennial-data:latest", r"\[images\] data = .*perennial-data:latest"),
        (f"registry.example/perennial-data@{DIGEST}", "", r"\[images\] data"),
        ("https://kubeflow.example/pipeline\"\n", "\"\n", "'' is not an address that a pod can reach; begin it with http://"),
        ("[server]", "[sever]", r"write:    \[server\]"),
        ("https://kubeflow.example", "http://kubeflow.example", "send credentials unencrypted"),
        ("https://kubeflow.example", "https://me:word@kubeflow.example", "comes with a user or password"),
        ('"s3://perennial/store"', '"/var/store"', "not an address that a pod can reach"),
        ("secrets = { AWS_SECRET_ACCESS_KEY =", "environment = { AWS_SECRET_ACCESS_KEY =", "look like secrets"),
        ("perennial-store/secret-key", "secret-key", r"\[stores\] secrets"),
        ('"s3://perennial/store"', '"gs://perennial/store"', "begin it with s3://"),
        ('"token"', '"in-cluster"\n[pods]\nlabels = { "cost centre" = "a" }', r"\[pods\] labels"),
        ('"token"', '"token"\n[pods]\nlabels = { team = "a b" }', r"\[pods\] labels"),
        ('"token"', '"token"\n[pods]\ntolerations = [{ keys = "spot" }]', r"tolerations"),
        ('"token"', '"token"\n[pods]\ntolerations = [{ key = "spot", operator = "Exist" }]', "'Exists' or 'Equal'"),
        ('"token"', '"token"\n[pods]\ntolerations = [{ key = "a", value = "b" }]', 'write operator = "Equal"'),
        ("secrets = {", 'environment = { HOME = "/home/me" }\nsecrets = {', "are set by Perennial"),
        ("secrets = {", 'secrets = { PERENNIAL_RUN_ID = "a/b",', "are set by Perennial"),
        ("secrets = {", 'environment = { HTTPS_PROXY = "http://me:word@proxy:3128" }\nsecrets = {', "look like secrets"),
        ("secrets = {", 'environment = { OPENAI_KEY = "word" }\nsecrets = {', "look like secrets"),
        ('"0 3 * * *"', '"at three"', "2 fields, not five"),
        ("[schedules]", '[dask]\nscheduler = "tls://dask:8786"\n[schedules]', "exactly where tls_secret is set"),
        ("[schedules]", '[dask]\nscheduler = "http://dask:8787"\n[schedules]', "begin it with tls://"),
        ("[schedules]", '[pods.steps.train_model]\nmemory = "512m"\n[schedules]', 'write it like "512Mi"'),
        ("[schedules]", '[pods.steps.train_model]\nmemory = "2000000ki"\n[schedules]', "not a size"),
        ("[schedules]", '[pods]\nscratch = "10GB"\n[schedules]', "not a size"),
        ("[schedules]", "[pods.steps.train]\ncpu = \"2\"\n[schedules]", r"\['train'\] are not steps"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_place(tmp_path, old, new, complaint):
    assert old in GOOD
    with pytest.raises(PerennialError, match=complaint):
        read(tmp_path, GOOD.replace(old, new))


def test_a_tag_for_an_image_is_answered_with_what_to_write(tmp_path):
    with pytest.raises(PerennialError) as caught:
        read(tmp_path, GOOD.replace(f"perennial-data@{DIGEST}", "perennial-data:latest"))
    assert str(caught.value).splitlines()[2:] == [
        'profile.toml:12 [images] data = "registry.example/perennial-data:latest"',
        "  expected: an image by digest, REPOSITORY@sha256:…; a tag may refer to another image later",
        "  write:    the Digest that `docker buildx imagetools inspect IMAGE` prints",
    ]


@pytest.mark.parametrize(
    "address",
    [
        "http://me:hidden-word@mlflow.mlflow:5000",
        "mysql://me:hidden-word@mlflow.mlflow/mlflow",
        "postgresql://mlflow.mlflow/mlflow?user=me&password=hidden-word",
    ],
)
def test_a_password_in_an_address_is_not_repeated_by_the_message(tmp_path, address):
    with pytest.raises(PerennialError) as caught:
        read(tmp_path, GOOD.replace("http://mlflow.mlflow:5000", address))
    assert "comes with a user or password" in str(caught.value)
    assert "hidden-word" not in str(caught.value)


def test_a_token_of_the_pod_is_sent_in_the_clear_inside_the_cluster_alone(tmp_path):
    inside = GOOD.replace('"token"', '"in-cluster"').replace(
        "https://kubeflow.example/pipeline", "{}"
    )
    assert read(tmp_path, inside.replace("{}", "http://ml-pipeline.kubeflow.svc:8888"))
    with pytest.raises(PerennialError, match=r"a name that ends with \.svc"):
        read(tmp_path, inside.replace("{}", "http://kubeflow.example"))
