"""Each step of the placed pipelines runs inside its image, against a store of the S3 protocol."""

import subprocess
from importlib.metadata import version

import pytest

from click_stream import CONTRACT, add_month
from container_services import ACCOUNT
from containers import ROOT, Pod, podman, reference
from deployments import profile
from kfp_backend import Backend
from perennial.clients.object_store import open_store
from perennial.compilation import compile_pipeline
from perennial.contract import load_contract
from perennial.contracts.environment import SECRETS_FOLDER, Environment
from perennial.decide_retraining.state import monitoring_record
from perennial.deployment.placement import place
from perennial.registry.model_registry import open_registry

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]
TASK = "clicks.smooth:SmoothClicks"


@pytest.fixture(scope="module")
def with_own_task(images) -> dict[str, str]:
    """The images, the trainer replaced by one that a user has built on top of it."""
    name = "perennial-example"
    subprocess.run(
        [
            *("podman", "build", "--quiet", "--pull=never", "--tag", name),
            *("--build-arg", f"TRAINER={images['perennial-trainer']}", "images/example"),
        ],
        cwd=ROOT, check=True,
    )  # fmt: skip
    yield {**images, "perennial-trainer": reference(name)}
    podman("rmi", "--force", name)


def test_both_pipelines_run_in_their_images_and_a_champion_comes_out(
    with_own_task, network, store, tracking_server, tmp_path
):
    data = open_store(f"s3://{store.bucket}/data")
    for index in range(3):
        file = add_month(tmp_path / "data", index)
        data.upload(file.relative_to(tmp_path / "data").as_posix(), file)
    text = CONTRACT.replace('"perennial.tasks.tabular:TabularClassification"', f'"{TASK}"')
    text = text.replace('uri = "data"', f'uri = "{data.uri}"')
    assert TASK in text
    assert data.uri in text
    (tmp_path / "contract.toml").write_text(text)
    contract = load_contract(tmp_path / "contract.toml").to_json()
    environment = profile(
        images={name.removeprefix("perennial-"): image for name, image in with_own_task.items()},
        stores={
            "store_uri": f"s3://{store.bucket}/perennial",
            "tracking_uri": tracking_server,
            "environment": {"AWS_ENDPOINT_URL_S3": store.endpoint},
            "secrets": {name: f"s3-access/{name}" for name in ACCOUNT},
        },
    )

    secrets = tmp_path / "secrets"
    (secrets / "s3-access").mkdir(parents=True)
    for name, value in ACCOUNT.items():
        (secrets / "s3-access" / name).write_text(value)

    def pod(image: str, variables, mounts) -> Pod:
        mounted = {**mounts, secrets: SECRETS_FOLDER}  # the secret, as the kubelet mounts it
        return Pod(image, variables, mounted, options=(f"--network={network.name}",))

    def backend(name: str) -> Backend:
        compiled = compile_pipeline(name, tmp_path / f"{name}.yaml")
        compiled.write_text(place(compiled.read_text(), environment))
        return Backend(compiled, store.bucket, pod, tmp_path / name)

    training = backend("continuous_training")
    training.run(contract=contract)
    assert training.executed == [
        "snapshot-data", "validate-data", "check-skeleton", "train-model", "select-checkpoint",
        "evaluate-model", "register-model", "clean-up",
    ]  # fmt: skip
    reports = [key for key in training.keys("v2/artifacts") if key.endswith("/report")]
    assert len(reports) == len(training.executed) - 1, "all but clean_up, which decides nothing"
    kept = open_store(environment.stores.store_uri).list("training/")
    assert any("/checkpoints/step-" in each.key for each in kept)
    registry = open_registry(Environment(environment.stores.store_uri, tracking_server, "test"))
    assert registry.aliases("clicks")["champion"] == "1"
    champion = registry.version_by_alias("clicks", "champion")
    required = registry.read_files(champion, ["requirements.txt"])["requirements.txt"].decode()
    assert f"mlflow=={version('mlflow-skinny')}" in required.splitlines(), "all of it, to serve"
    assert "mlflow-" not in required

    monitoring = backend("drift_monitoring")
    monitoring.run(contract=contract)
    assert monitoring.executed[:4] == [
        "snapshot-data", "validate-data", "detect-drift", "decide-retraining",
    ]  # fmt: skip
    assert monitoring.executed[-1] == "clean-up"
    look = monitoring_record(open_store(environment.stores.store_uri), "clicks").read()
    assert look.champion_version == "1"
    assert look.retrain is ("train-model" in monitoring.executed)
