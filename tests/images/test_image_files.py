"""The files that images are made from fit together; nothing here needs a container."""

import hashlib
import importlib.util
import re
import subprocess
import sys
import tomllib
import zipfile

import pytest

from containers import IMAGES, ROOT

DOCKERFILE = (ROOT / "images" / "Dockerfile").read_text()
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture(scope="module")
def locked_install():
    spec = importlib.util.spec_from_file_location(
        "locked_install", ROOT / "images" / "locked_install.py"
    )
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_image_has_a_target_an_extra_and_a_place_in_the_bake_file():
    targets = set(re.findall(r"^FROM runtime AS (\w+)$", DOCKERFILE, re.MULTILINE))
    assert targets == set(IMAGES)
    assert targets <= PROJECT["optional-dependencies"].keys()
    bake = (ROOT / "images" / "docker-bake.hcl").read_text()
    (matrix,) = re.findall(r"matrix\s*= \{ name = \[(.*)\] \}", bake)
    assert re.findall(r'"(\w+)"', matrix) == list(IMAGES)


def test_the_bake_file_says_what_the_dockerfile_asks_and_attests_every_image():
    bake = re.sub(r"#.*", "", (ROOT / "images" / "docker-bake.hcl").read_text())
    declared = set(re.findall(r'^variable "(\w+)"', bake, re.MULTILINE))
    (target,) = re.findall(r'^target "image" \{\n(.*?)^\}', bake, re.MULTILINE | re.DOTALL)
    (args,) = re.findall(r"^  args = \{\n(.*?)^  \}", target, re.MULTILINE | re.DOTALL)
    given = dict(re.findall(r"^ +(\w+) += (\w+)$", args, re.MULTILINE))
    assert given == {name: name for name in given}, "each argument is the variable of its name"
    assert set(given) == set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
    interpolated = set(re.findall(r"\$\{(\w+)\}", bake)) - {"name"}
    assert interpolated | set(given) == declared
    assert re.search(r"^  target += name$", target, re.MULTILINE)
    assert re.findall(r'"(type=[^"]+)"', target) == ["type=provenance,mode=max", "type=sbom"]
    (secret,) = re.findall(r'"(id=[^"]+)"', target)
    mounted = set(re.findall(r"--mount=type=secret,(id=\w+)", DOCKERFILE))
    assert mounted == {secret.partition(",")[0]}


@pytest.mark.parametrize("step", sorted((ROOT / "components" / "perennial").glob("*/component.py")))
def test_every_step_names_an_image_that_is_built(step):
    (image,) = re.findall(r'base_image="perennial-(\w+)"', step.read_text())
    assert image in IMAGES


def test_what_reaches_the_builder_is_an_allow_list():
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    assert rules[0] == "*"
    for rule in rules[1:]:
        if rule.startswith("!"):
            assert (ROOT / rule[1:]).exists(), rule
        else:
            assert rule.startswith("**/"), rule
    copied = re.findall(r"^COPY (?!--from)(.+) \S+$", DOCKERFILE, re.MULTILINE)
    assert {source for line in copied for source in line.split()} <= {rule[1:] for rule in rules}


def test_every_stage_starts_from_the_digest_that_was_given():
    froms = re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)
    assert set(froms) == {"${BASE}", "tools", "runtime"}
    assert re.search(r"^ARG BASE$", DOCKERFILE, re.MULTILINE), "a default would be taken unseen"
    assert re.search(r"^USER \d+:\d+$", DOCKERFILE, re.MULTILINE)


def test_every_version_on_record_has_hashes_and_no_other_version(locked_install):
    known = locked_install.hashes((ROOT / "images" / "hashes.txt").read_text())
    pinned = set(locked_install.pins((ROOT / "constraints.txt").read_text()))
    assert set(known) == pinned | {("torch", f"{dict(pinned)['torch']}+cpu")}
    assert all(known.values())


def chosen(name="numpy", version="2.4.6", digest="a" * 64, url="https://index/x.whl"):
    archive = {"hashes": {"sha256": digest}} if digest else {}
    return {
        "metadata": {"name": name, "version": version},
        "download_info": {"url": url, "archive_info": archive},
    }


def test_a_file_is_installed_by_its_own_hash(locked_install):
    known = {("kfp-server-api", "2.17.3"): ["b" * 64], ("numpy", "2.4.6"): ["c" * 64, "a" * 64]}
    built = chosen("kfp_server_api", "2.17.3", "d" * 64, "file:///wheels/kfp.whl")
    assert locked_install.locked([chosen(), built], known) == [
        f"numpy==2.4.6 --hash=sha256:{'a' * 64}",
        f"kfp_server_api==2.17.3 --hash=sha256:{'d' * 64}",
    ]


@pytest.mark.parametrize(
    "file",
    [chosen(digest="e" * 64), chosen(version="2.4.7"), chosen("leftpad"), chosen(digest=""),
     chosen(digest="e" * 64, url="file:///elsewhere/numpy.whl")],
    ids=["other bytes", "another version", "not recorded", "without a hash", "another folder"],
)  # fmt: skip
def test_a_file_that_is_not_on_record_is_not_installed(locked_install, file):
    with pytest.raises(SystemExit, match=r"hashes\.txt does not name these files"):
        locked_install.locked([file], {("numpy", "2.4.6"): ["a" * 64]})


def test_pip_itself_refuses_a_file_that_changed_after_it_was_chosen(tmp_path):
    wheel = tmp_path / "small-1.0-py3-none-any.whl"

    def write(content):
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("small.py", content)
            info = "small-1.0.dist-info"
            archive.writestr(
                f"{info}/METADATA", "Metadata-Version: 2.1\nName: small\nVersion: 1.0\n"
            )
            archive.writestr(
                f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
            )
            archive.writestr(f"{info}/RECORD", "")

    def install():
        command = [
            sys.executable, "-m", "pip", "install", "--no-index", "--find-links", str(tmp_path),
            "--no-deps", "--require-hashes", "--target", str(tmp_path / "out"), "--upgrade",
            "--requirement", str(tmp_path / "locked.txt"),
        ]  # fmt: skip
        return subprocess.run(command, capture_output=True, text=True, check=False)

    write("honest = True")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    (tmp_path / "locked.txt").write_text(f"small==1.0 --hash=sha256:{digest}\n")
    assert install().returncode == 0
    write("honest = False")
    done = install()
    assert done.returncode != 0
    assert "DO NOT MATCH THE HASHES" in done.stderr


@pytest.mark.parametrize(
    ("installed", "strangers"),
    [
        ({"torch": "2.13.0", "numpy": "2.4.6"}, []),
        ({"nvidia-nccl-cu13": "2.29.7", "triton": "3.7.1"}, []),
        ({"numpy": "2.4.7"}, ["numpy==2.4.7"]),
        ({"leftpad": "1.0"}, ["leftpad==1.0"]),
    ],
    ids=["as recorded", "the CUDA build", "another version", "not recorded"],
)
def test_a_version_that_is_not_on_record_fails_the_build(locked_install, installed, strangers):
    pinned = dict(locked_install.pins((ROOT / "constraints.txt").read_text()))
    assert list(locked_install.unpinned(installed, pinned)) == strangers


def test_the_cpu_build_of_pytorch_satisfies_its_pin(locked_install):
    (found,) = locked_install.pins("torch==2.13.0+cpu\n")
    assert found == ("torch", "2.13.0")


@pytest.mark.parametrize(
    ("build", "requirement"), [("cpu", "torch==2.13.0+cpu"), ("cuda", "torch===2.13.0")]
)
def test_an_image_gets_one_build_of_pytorch_and_extras_within_extras(
    locked_install, build, requirement, monkeypatch
):
    monkeypatch.chdir(ROOT)
    torch = locked_install.torch_build("2.13.0", build)
    wanted = list(locked_install.requirements(["trainer", "transformers"], torch))
    assert [each for each in wanted if each.startswith("torch")] == [requirement]
    assert any(each.startswith("tokenizers") for each in wanted)
    assert not any(each.startswith(("perennial", "great-expectations")) for each in wanted)


def test_the_example_is_importable_where_the_images_look(tmp_path):
    program = "from perennial.engine.task import load_task_type; import sys; print(load_task_type(sys.argv[1]).__name__)"
    done = subprocess.run(
        [sys.executable, "-c", program, "clicks.smooth:SmoothClicks"],
        capture_output=True, text=True, check=False, cwd=ROOT,
        env={"PYTHONPATH": str(ROOT / "images" / "example"), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.stdout.strip() == "SmoothClicks", done.stderr


def test_what_packages_test_themselves_with_goes_and_nothing_else(locked_install, tmp_path):
    gone = ["pandas/tests/io/test_csv.py", "torch/test/c10_test", "torch/bin/test_api"]
    kept = [
        "werkzeug/test.py", "sklearn/utils/_testing.py", "torch/bin/torch_shm_manager",
        "torch-2.dist-info/licenses/json/test/LICENSE",
    ]  # fmt: skip
    for name in [*gone, "pandas/io/tests/deep/tests/a.py", *kept]:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    found = {
        path.relative_to(tmp_path).as_posix() for path in locked_install.tests_of_others(tmp_path)
    }
    assert found == {"pandas/tests", "pandas/io/tests", "torch/test", "torch/bin/test_api"}
