"""Images get into an overlay and its profiles by digest, all places at once, or not at all."""

import importlib.util
import json
import shutil
import subprocess
import sys

import pytest

from cluster_manifests import K8S, build, needs_kubectl
from perennial.deployment.profile import load_profile

NEW = "sha256:" + "ab" * 32


@pytest.fixture
def overlay(tmp_path):
    shutil.copytree(K8S, tmp_path / "k8s")
    return tmp_path / "k8s" / "overlays" / "kind"


@pytest.fixture
def pinning():
    spec = importlib.util.spec_from_file_location("pin_images", K8S / "pin_images.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@needs_kubectl
def test_what_a_build_wrote_is_pinned_everywhere(pinning, overlay, tmp_path):
    metadata = tmp_path / "digests.json"
    built = {
        name: {
            "containerimage.digest": NEW,
            "image.name": f"localhost:5001/perennial-{name}:0.1.0,localhost:5001/x:1",
        }
        for name in ("data", "trainer", "control")
    }
    metadata.write_text(json.dumps({**built, "buildx.build.warnings": []}))
    pinning.pin(overlay, pinning.built(metadata))
    for name in ("profile.toml", "watcher.toml"):
        images = load_profile(overlay / name).images
        assert images.trainer == f"localhost:5001/perennial-trainer@{NEW}"
        assert images.data == f"localhost:5001/perennial-data@{NEW}"
    assert f"localhost:5001/perennial-control@{NEW}" in str(build(overlay))


@needs_kubectl
def test_an_image_of_others_is_pinned_by_its_short_name(pinning, overlay):
    pinning.pin(
        overlay,
        {name: f"mirror.example/{name}@{NEW}" for name in ("postgres", "seaweedfs", "mlflow")},
    )
    text = str(build(overlay))
    assert all(
        f"mirror.example/{name}@{NEW}" in text for name in ("postgres", "seaweedfs", "mlflow")
    )


@pytest.mark.parametrize(
    "images",
    [
        {"trainer": "localhost:5001/trainer:latest"},
        {"trainer": f"a/b@{NEW}", "unknown": f"a/b@{NEW}"},
    ],
)
def test_a_tag_or_an_unknown_name_changes_nothing(pinning, overlay, images):
    before = {path: path.read_text() for path in overlay.iterdir()}
    with pytest.raises(SystemExit, match=r"no image"):
        pinning.pin(overlay, images)
    assert {path: path.read_text() for path in overlay.iterdir()} == before


def command(overlay, *arguments):
    """As a shell would: arguments are split by argparse alone."""
    return subprocess.run(
        [sys.executable, str(K8S / "pin_images.py"), str(overlay), *map(str, arguments)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_metadata_of_builds_and_images_by_hand_go_together_on_one_command_line(overlay, tmp_path):
    bake, build_ = tmp_path / "digests.json", tmp_path / "mlflow.json"
    control = {"containerimage.digest": NEW, "image.name": "localhost:5001/perennial-control:1"}
    bake.write_text(json.dumps({"control": control}))
    build_.write_text(
        json.dumps({"containerimage.digest": NEW, "image.name": "localhost:5001/mlflow:3.17.2"})
    )
    done = command(
        overlay,
        "--metadata",
        bake,
        "--metadata",
        build_,
        f"postgres=docker.io/library/postgres@{NEW}",
    )
    assert done.returncode == 0, done.stderr
    for message in (
        f"kustomization.yaml: mlflow = localhost:5001/mlflow@{NEW}",
        f"profile.toml: control = localhost:5001/perennial-control@{NEW}",
        f"kustomization.yaml: postgres = docker.io/library/postgres@{NEW}",
    ):
        assert message in done.stdout.splitlines()


@pytest.mark.parametrize(
    ("metadata", "arguments", "complaint"),
    [
        ({"buildx.build.ref": "default/default/x"}, [], "names no image"),
        (None, [], "cannot be read"),
        ({}, ["mlflow"], "'mlflow' is not NAME=REPOSITORY@sha256:..."),
    ],
)
def test_a_command_that_pins_nothing_fails_with_a_reason(
    overlay, tmp_path, metadata, arguments, complaint
):
    path = tmp_path / "mlflow.json"
    if metadata is not None:
        path.write_text(json.dumps(metadata))
    done = command(overlay, *(arguments or ["--metadata", path]))
    assert done.returncode != 0
    assert complaint in done.stderr
    assert "Traceback" not in done.stderr


def test_a_command_without_images_or_without_an_overlay_is_refused(overlay, tmp_path):
    assert "say which images" in command(overlay).stderr
    assert "is no folder" in command(tmp_path / "nothing", f"mlflow=a/b@{NEW}").stderr
