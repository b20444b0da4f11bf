"""The images as a cluster runs them: any user, a read-only root, nothing that a step does not need."""

import json

import pytest

from containers import ARBITRARY_USER, IMAGES, Pod, podman

pytestmark = [pytest.mark.full, pytest.mark.timeout(3600)]

# Image → what it is for, and what would only be weight and attack surface there.
HOLDS = {
    "data": ({"great_expectations", "polars"}, {"torch", "mlflow", "sklearn"}),
    "trainer": (
        {"torch", "mlflow", "sklearn"}, {"great_expectations", "flask", "matplotlib", "sqlalchemy"},
    ),
    "control": (
        {"kfp", "kubernetes", "mlflow", "prometheus_client"}, {"torch", "polars", "pyarrow", "numpy"},
    ),
}  # fmt: skip
ASK = """
import importlib.util, json, os, pathlib, sys, tempfile
found = {name: bool(importlib.util.find_spec(name)) for name in sys.argv[1:]}
stray = [str(path) for path in pathlib.Path("/opt/perennial").rglob("*.py")
         if not os.access(path, os.R_OK)]
compiled = pathlib.Path(importlib.util.cache_from_source(importlib.util.find_spec("perennial.cli").origin))
with tempfile.TemporaryFile(dir=pathlib.Path.home()):
    pass
try:
    pathlib.Path("/opt/tasks/new").touch()
    written = True
except OSError:
    written = False
import getpass
print(json.dumps({"packages": found, "user": os.getuid(), "name": getpass.getuser(),
                  "unreadable": stray, "compiled": compiled.exists(), "root_is_writable": written}))
"""


@pytest.fixture(scope="module")
def inspected(images):
    """Name → the result of `podman image inspect`."""
    return {
        name: json.loads(podman("image", "inspect", f"perennial-{name}").stdout)[0]
        for name in IMAGES
    }


@pytest.mark.parametrize("name", IMAGES)
def test_an_arbitrary_user_works_on_a_read_only_root_with_what_the_image_is_for(name, images):
    needed, unwanted = HOLDS[name]
    ended = Pod(images[f"perennial-{name}"]).run("python3", "-c", ASK, *needed, *unwanted)
    assert ended.returncode == 0, ended.stderr
    answer = json.loads(ended.stdout)
    assert answer == {
        "packages": dict.fromkeys(needed, True) | dict.fromkeys(unwanted, False),
        "user": int(ARBITRARY_USER.partition(":")[0]),
        "name": "perennial",
        "unreadable": [],
        "compiled": True,
        "root_is_writable": False,
    }


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_says_what_it_is_and_runs_as_a_number(name, inspected):
    config = inspected[name]["Config"]
    assert config["User"] == "65532:65532"
    labels = config["Labels"]
    for label in ("title", "description", "licenses", "version", "revision"):
        assert labels[f"org.opencontainers.image.{label}"], label
    assert "@sha256:" in labels["org.opencontainers.image.base.name"]
    environment = " ".join(config["Env"])
    assert "pip" not in environment.lower(), "nothing of the build's package index is left"


@pytest.mark.parametrize("name", IMAGES)
def test_no_image_holds_a_compiler_or_a_set_uid_program(name, images):
    look = (
        "for each in cc gcc g++ clang ld as make nvcc; do command -v $each; done; "
        "find / -xdev -type f -perm /6000 2>/dev/null; ls /run/secrets 2>/dev/null; true"
    )
    ended = Pod(images[f"perennial-{name}"]).run("sh", "-c", look)
    assert (ended.returncode, ended.stdout) == (0, "")


def test_the_control_image_compiles_the_pipelines(images):
    pod = Pod(images["perennial-control"])
    ended = pod.run("sh", "-c", "perennial compile --out /tmp/out && ls /tmp/out")
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.split()[-2:] == ["continuous_training.yaml", "drift_monitoring.yaml"]


def test_sizes_are_printed(inspected):
    for name, found in inspected.items():
        print(f"perennial-{name}: {found['Size'] / 1e6:,.0f} MB")


def test_a_base_without_a_digest_is_refused(images, tmp_path):
    ended = podman(
        "build", "--pull=never", "--file", "images/Dockerfile", "--target", "control",
        "--build-arg", "BASE=docker.io/library/python:3.11-slim-bookworm", ".",
    )  # fmt: skip
    assert ended.returncode != 0
    assert "is not a digest" in ended.stdout + ended.stderr
