"""A version that a run registered is trained again from itself alone, to the same bits."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from components.clients.model_registry import open_registry
from pipelines.registry.catalogue import Catalogue
from pipelines.runs import Home

pytestmark = pytest.mark.timeout(600)


def perennial(project: Path, *arguments: str) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, "-m", "pipelines.cli", *arguments, "--home", str(project / "home")],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_a_registered_version_is_reproduced_bit_for_bit_or_the_difference_is_named(project):
    code, said = perennial(project, "run", str(project / "contract.toml"))
    assert code == 0, said
    again = ("reproduce", "clicks", "1", "--code", str(project))
    code, said = perennial(project, *again)
    assert code == 0, said
    assert "identical: the weights have SHA-256" in said
    assert "nothing that is on record" in said

    # Another seed gives other weights; another package than the recorded one is named.
    catalogue = Catalogue(Home(project / "home"))
    version = open_registry(catalogue.environment).versions("clicks")[0]
    folder = Path(version.source.removeprefix("file://"))
    for name, section, key, value in (
        ("contract.json", "training", "seed", 2),
        ("lineage.json", "packages", "torch", "0.1"),
    ):
        content = json.loads((folder / name).read_text())
        content[section][key] = value
        (folder / name).write_text(json.dumps(content))
    code, said = perennial(project, *again)
    assert code == 1, said
    assert "different weights" in said
    assert "packages.torch: 0.1 → " in said

    (folder / "contract.json").unlink()
    code, said = perennial(project, *again)
    assert code == 2
    assert "it lacks a readable contract" in said
    assert "clicks has no '2'" in perennial(project, "reproduce", "clicks", "2")[1]
