"""The examples' models are reproduced bit for bit, though the sources went on since."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.timeout(3000)]

ROOT = Path(__file__).parents[2]
FLIGHTS = ("--replay", "--first", "3", "--until", "3")


@pytest.mark.parametrize(
    ("example", "model", "prepare", "options"),
    [("flights", "flights-late", ("--months", "1-3"), FLIGHTS), ("digits", "digits", (), ())],
)
def test_an_example_is_reproduced_from_its_version_alone(
    tmp_path, example, model, prepare, options
):
    sources, home = tmp_path / "sources", tmp_path / "home"
    tracked = (
        "git",
        "-C",
        str(ROOT),
        "ls-files",
        "-z",
        "--cached",
        "--others",
        "--exclude-standard",
    )
    listed = subprocess.run(tracked, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        (sources / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, sources / name)
    git(sources, "init", "--quiet")
    git(sources, "add", ".")
    git(sources, "commit", "--quiet", "--message", "then")

    folder = sources / "examples" / example
    python(sources, tmp_path, str(folder / "prepare.py"), str(folder / "data"), *prepare)
    arguments = ("-m", "perennial.cli", "run", str(folder / "contract.toml"), "--home", str(home))
    python(sources, tmp_path, *arguments, *options)

    # Now: neither the run's folder nor its checkpoints, and the sources are others.
    shutil.rmtree(home / "runs")
    shutil.rmtree(home / "store" / "training")
    change(sources, "components/perennial/engine/export.py", "# another idea\n")
    git(sources, "commit", "--quiet", "--all", "--message", "now")
    git(sources, "worktree", "add", "--quiet", str(tmp_path / "original"), "HEAD~1")
    asked = ("-m", "perennial.cli", "reproduce", model, "1", "--home", str(home))
    code = tmp_path / "original" / folder.relative_to(sources)
    printed = python(tmp_path / "original", tmp_path, *asked, "--code", str(code))
    assert "identical: the weights have SHA-256" in printed
    assert "nothing that is recorded" in printed


def change(sources: Path, name: str, line: str) -> None:
    with (sources / name).open("a") as file:
        file.write(line)


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True)


def python(sources: Path, cwd: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=cwd,
        env={**os.environ, "PYTHONPATH": f"{sources / 'components'}:{sources / 'pipelines'}", "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
