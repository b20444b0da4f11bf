"""A version that a run registered is trained again from itself alone, to the same bits."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from click_stream import CONTRACT
from perennial.clients.tracking import open_mlflow
from perennial.registry.model_registry import open_registry
from perennial.registry.version_files import FILES_TAG
from perennial.registry_commands.catalogue import Catalogue
from perennial.runs import Home

pytestmark = pytest.mark.timeout(600)

TASK = """
from perennial.tasks.tabular import TabularClassification
from steps_of import widened


class Clicks(TabularClassification):
    def build_model(self):
        return widened(super().build_model())
"""
LAYERS = "def widened(model):\n    return model\n"


@pytest.fixture
def repository(project, tmp_path_factory, monkeypatch):
    """A repository with a task of its own, in a folder, changed since the commit.

    The contract, the data and the home lie in the project: the version must do without them.
    """
    folder = tmp_path_factory.mktemp("repository")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(folder.parent))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    (folder / "models").mkdir()
    (folder / "models" / "mine.py").write_text("# nothing yet")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "--message", "a first draft")
    (folder / "models" / "mine.py").write_text(TASK)
    (folder / "models" / "steps_of.py").write_text(LAYERS)
    contract = CONTRACT.replace("perennial.tasks.tabular:TabularClassification", "mine:Clicks")
    contract = contract.replace('uri = "data"', f'uri = "{project / "data"}"')
    (folder / "models" / "contract.toml").write_text(contract)
    return folder


def git(folder: Path, *arguments: str) -> None:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    subprocess.run(["git", "-C", str(folder), *who, *arguments], check=True)


def perennial(home: Path, *arguments: str, cwd: Path) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", *arguments, "--home", str(home)],
        capture_output=True,
        text=True,
        check=False,
        cwd=cwd,
    )
    return done.returncode, done.stdout + done.stderr


def registered_folder(home: Path) -> Path:
    version = open_registry(Catalogue(Home(home)).environment).versions("clicks")[0]
    return Path(version.source.removeprefix("file://"))


def forget_digests(home: Path) -> None:
    """As for a version that was registered before digests were recorded."""
    client = open_mlflow(Catalogue(Home(home)).environment)
    client.delete_model_version_tag("clicks", "1", FILES_TAG)
    for record in (home / "store" / "registry" / "clicks").iterdir():
        record.unlink()


def rewrite(file: Path, *keys: str, value: object) -> None:
    content = json.loads(file.read_text())
    inner = content
    for key in keys[:-1]:
        inner = inner[key]
    inner[keys[-1]] = value
    file.write_text(json.dumps(content))


@pytest.mark.full
def test_a_version_is_reproduced_from_itself_alone_or_the_difference_is_named(
    repository, project, tmp_path_factory
):
    home, elsewhere = project / "home", tmp_path_factory.mktemp("elsewhere")
    contract = repository / "models" / "contract.toml"
    code, printed = perennial(home, "run", str(contract), cwd=elsewhere)
    assert code == 0, printed

    # What is left: registry, store and data. The sources went on; somebody kept the original ones.
    original = shutil.copytree(repository, tmp_path_factory.mktemp("original") / "repository")
    shutil.rmtree(home / "runs")
    shutil.rmtree(home / "store" / "training")
    (repository / "models" / "steps_of.py").unlink()
    (repository / "models" / "mine.py").write_text("raise SystemExit('of another time')")
    contract.unlink()
    again = ("reproduce", "clicks", "1")
    code, printed = perennial(home, *again, "--code", str(original / "models"), cwd=elsewhere)
    assert code == 0, printed
    assert "identical: the weights have SHA-256" in printed
    assert "nothing that is recorded" in printed

    # Other sources and packages are refused before anything is trained; `--anyway` trains and lists
    # whether they made a difference. The data may have moved.
    (repository / "models" / "mine.py").write_text(TASK)
    scaled = "model.output.weight.data *= 1.5"
    other = LAYERS.replace("return", f"{scaled}\n    return")
    (repository / "models" / "steps_of.py").write_text(other)
    sources = ("--code", str(repository / "models"))
    rewrite(registered_folder(home) / "lineage.json", "packages", "torch", value="0.1")
    code, printed = perennial(home, *again, *sources, cwd=elsewhere)
    assert code == 2
    assert "clicks version 1 is damaged: lineage.json" in printed
    forget_digests(home)
    (project / "data").rename(project / "moved")
    moved = ("--data", str(project / "moved"))
    code, printed = perennial(home, *again, *sources, *moved, cwd=elsewhere)
    assert code == 2
    assert "nothing has been trained" in printed
    assert "packages.torch: 0.1 → " in printed
    assert "code_digest: " in printed
    code, printed = perennial(home, *again, *sources, *moved, "--anyway", cwd=elsewhere)
    assert code == 1, printed
    assert "different weights" in printed
    assert "packages.torch: 0.1 → " in printed
