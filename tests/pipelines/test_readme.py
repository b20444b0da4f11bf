"""The README's own example works as written, and its commands exist."""

import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from command_line import parse
from perennial.api import Task
from perennial.contract import Contract
from perennial.engine.task import load_task_type
from perennial.runs import Home

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
FILES = re.findall(
    r"`([\w.]+)` [^\n]*(?:\n[^\n`]+)*:\n\n```(?:python|toml)\n(.*?)```", README, re.S
)


def test_readme_is_short_and_its_links_lead_somewhere():
    assert len(README.splitlines()) <= 240
    for link in re.findall(r"\]\(([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
    assert (ROOT / "images" / "report.png").stat().st_size <= 300_000


def test_the_contract_without_code_has_five_options_and_is_whole():
    text = re.search(r"needs? no code\..*?```toml\n(.*?)```", README, re.S)[1]
    contract = Contract.model_validate_json(json.dumps(tomllib.loads(text)))
    assert len(re.findall(r"^\w+ = ", text, re.M)) == 5
    assert issubclass(load_task_type(contract.model.task), Task)
    assert README.index(text) < README.index("(Task):"), "it stands before the class"


def test_verbs_of_the_readme_exist_with_their_options():
    lines = [line.partition("#")[0].strip() for line in README.splitlines()]
    lines += re.findall(r"`(perennial [^`]+)`", README)
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("perennial ")]
    assert len(commands) > 15
    for words in commands:
        parse(words)


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
    accuracy = re.search(r"accuracy +([\d.]+)", run("-m", "perennial.cli", "models", "digits"))[1]
    assert float(accuracy) > 0.95
    assert len(Home(tmp_path / "home").runs()) == 1
