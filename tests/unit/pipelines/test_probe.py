"""The probes measure on the contract's own rows and model, and name the option to change."""

import re
import tempfile
from pathlib import Path

import pytest

from perennial.cli import main


@pytest.fixture
def contract(project, monkeypatch):
    monkeypatch.chdir(project)
    return str(project / "contract.toml")


def probe_folders():
    return sorted(Path(tempfile.gettempdir()).glob("perennial-probe-*"))


def test_a_table_of_batch_sizes_ends_with_advice(contract, capsys):
    before = probe_folders()
    assert main(["probe", "batch-size", contract, "--max", "64"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:5]] == ["8", "16", "32", "64"]
    assert "(the contract's)" in lines[4]
    advised = re.fullmatch(r"take micro_batch_size = (\d+): .*", lines[5])
    assert advised.group(1) in ("8", "16", "32", "64")
    assert "<- knee" in next(line for line in lines if line.split()[0] == advised.group(1))
    assert probe_folders() == before


def test_a_range_test_draws_its_picture(contract, capsys):
    assert main(["probe", "lr", contract, "--out", "rates.html"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"take learning_rate = \S+ \(the contract's: 0.01\)", printed)
    assert "<svg" in Path("rates.html").read_text()


@pytest.mark.parametrize(
    "arguments", [["lr", "--max", "64"], ["batch-size", "--out", "page.html"], ["depth"]]
)
def test_what_does_not_belong_to_a_probe_is_refused(contract, arguments):
    assert main(["probe", arguments[0], contract, *arguments[1:]]) == 2


def test_too_few_rows_are_named(contract, capsys):
    assert main(["probe", "batch-size", contract, "--max", "7"]) == 2
    assert "not enough rows to probe" in capsys.readouterr().err
