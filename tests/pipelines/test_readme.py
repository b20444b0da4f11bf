"""The README's own example works as written, and its commands exist."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from perennial.runs import Home

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FILES = re.findall(
    r"`([\w.]+)` [^\n]*(?:\n[^\n`]+)*:\n\n```(?:python|toml)\n(.*?)```", README, re.S
)


def test_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 200
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    assert (ROOT / "images" / "report.png").stat().st_size <= 300_000


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"^make ([a-z]+)", README, re.M)):
        assert re.search(rf"^{target}:", makefile, re.M), target


@pytest.mark.timeout(600)
def test_own_task_in_fifteen_minutes_trains_a_champion(tmp_path):
    assert [name for name, _ in FILES] == ["make_data.py", "digits.py", "contract.toml"]
    for name, text in FILES:
        (tmp_path / name).write_text(text)
    environment = os.environ | {"PERENNIAL_HOME": str(tmp_path / "home")}

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout

    run("make_data.py")
    assert "is valid" in run("-m", "perennial.cli", "check", "contract.toml")
    printed = run("-m", "perennial.cli", "run", "contract.toml")
    assert "digits version 1 is champion" in printed
    assert "digits" in run("-m", "perennial.cli", "status")
    assert len(Home(tmp_path / "home").runs()) == 1
