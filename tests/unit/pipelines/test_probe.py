"""`perennial probe`: one table of what is fastest at equal quality, and the options to take."""

import re
import tempfile
import tomllib
from pathlib import Path

import pytest

from perennial import probe
from perennial.cli import main
from perennial.contract import load_contract
from perennial.engine.profiling import settings
from perennial.engine.profiling.settings import SettingPoint, combined
from perennial.probe import knee_line, process_changes, recommendation, table


@pytest.fixture
def contract(project, monkeypatch):
    monkeypatch.chdir(project)
    monkeypatch.setattr(settings, "SECONDS", 0.01)
    return str(project / "contract.toml")


def probe_folders():
    return sorted(Path(tempfile.gettempdir()).glob("perennial-probe-*"))


FAST = [part for part in probe.PARTS if part != "compile"]


@pytest.mark.parametrize(
    "parts", [FAST, pytest.param(probe.PARTS, marks=pytest.mark.full)], ids=["fast", "all"]
)
def test_the_table_ends_with_options_to_paste(contract, capsys, monkeypatch, parts):
    """With real trainings of other numbers of processes; compilation takes long."""
    monkeypatch.setattr(settings, "ROUNDS", 2)
    monkeypatch.setattr(probe, "TRAINING_SECONDS", 0.1)
    monkeypatch.setattr(probe, "MOST_PROCESSES", 2)
    monkeypatch.setattr(probe, "count_devices", lambda: 2)
    before = probe_folders()
    only = [word for part in parts for word in ("--only", part)]
    assert main(["probe", contract, *only, "--max", "32", "--out", "rates.html"]) == 0
    printed = capsys.readouterr().out
    for title in ("throughput of a micro-batch", "one process", "whole trainings"):
        assert f"\n{title}  " in printed
    one, _, whole = printed.partition("\none process ")[2].partition("\nwhole trainings ")
    for change in ('precision = "bf16"', "workers = 2"):
        assert f"\n{change}  " in one
    assert ("\ncompile = true  " in one) == ("compile" in parts)
    assert "(the contract's)" in one
    assert "num_processes = " in whole
    assert "<svg" in Path("rates.html").read_text()
    assert re.search(r"it suggests \S+ \(the contract's: 0.01\)", printed)
    assert re.search(r"\n\n(take \(measured together|keep the )", whole)
    assert probe_folders() == before


def test_parts_are_measured_alone(contract, capsys):
    assert main(["probe", contract, "--only", "batch-size", "--max", "64"]) == 0
    printed = capsys.readouterr().out
    sizes = re.findall(r"^global_batch_size = (\d+), micro_batch_size = \1 ", printed, re.M)
    assert sizes == ["8", "16", "32", "64"]
    assert re.search(r"^(knee at \d+|no clear knee): ", printed, re.M)
    assert "precision" not in printed
    assert "whole trainings" not in printed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "depth"], "'depth' is not a part of the probe"),
        (["--only", "compile", "--out", "page.html"], "--out needs the part learning-rate"),
        (["--only", "batch-size", "--max", "7"], "not enough rows to probe"),
    ],
)
def test_what_cannot_be_measured_is_refused(contract, capsys, arguments, message):
    assert main(["probe", contract, *arguments]) == 2
    assert message in capsys.readouterr().err


def knee(*speeds, spread=0.02):
    sizes = [8 * 2**number for number in range(len(speeds))]
    points = [
        SettingPoint({}, size, tuple(size / (speed * (1 + spread * k)) for k in (-1, 0, 1)))
        for size, speed in zip(sizes, speeds, strict=True)
    ]
    return knee_line(points)


def test_a_knee_is_named_only_where_the_rounds_agree():
    assert knee(50, 80, 97, 100).startswith("knee at 32: ")
    assert "by some rounds it is 16, by others 32" in knee(50, 89, 100, spread=0.06)
    assert "rounds of 64 rows reach 70 to 130 examples/s" in knee(60, 80, 90, 100, spread=0.3)
    assert "still rises at 32" in knee(50, 75, 100)
    assert "8 is within a tenth of the best throughput already" in knee(98, 99, 100)
    assert "only 8 was measured" in knee(98)


def point(changes, milliseconds, losses=(1.0, 1.2, 1.1), failure=""):
    rounds = tuple(milliseconds * share / 1e3 for share in (0.99, 1.0, 1.0, 1.01, 1.02))
    return SettingPoint(changes, 100, rounds, losses, failure=failure)


def test_the_table_shows_speed_loss_and_what_is_impossible():
    own = point({}, 10.0)
    faster = point({"training.compile": True}, 5.0)
    worse = point({"training.precision": "bf16"}, 4.0, (1.3, 1.3, 1.2))
    broken = SettingPoint({"training.allow_tf32": True}, failure="RuntimeError: no such kernel")
    lines = list(table("one process", [own, faster, worse, broken]))
    assert re.search(r"^\(the contract's\) +10,000 .* 1.00 +- +1.1 \(1 to 1.2\)$", lines[1])
    assert re.search(r"^compile = true +20,000 .* 2.00 +- +1.1 \(1 to 1.2\)  better$", lines[2])
    assert lines[3].endswith("worse loss")
    assert lines[4].endswith("impossible here: RuntimeError: no such kernel")


def test_the_options_to_take_are_toml():
    taken = {
        "training.compile": True, "training.optimizer.learning_rate": 0.003,
        "resources.num_processes": 2,
    }  # fmt: skip
    text = "\n".join(list(recommendation(taken))[1:])
    assert tomllib.loads(text) == {
        "training": {"compile": True, "optimizer": {"learning_rate": 0.003}},
        "resources": {"num_processes": 2},
    }
    assert "keep the contract's settings" in next(recommendation({}))


def test_of_two_values_of_an_option_the_faster_one_is_combined_with_the_rest():
    useful = [
        point({"loading.workers": 2}, 7.0), point({"micro_batch_size": 64}, 6.0),
        point({"loading.workers": 4}, 5.0),
    ]  # fmt: skip
    assert combined(useful) == {"loading.workers": 4, "micro_batch_size": 64}


def test_other_numbers_of_processes_share_all_cores(contract, monkeypatch):
    monkeypatch.setattr(probe, "count_devices", lambda: 8)
    checked = load_contract(Path(contract))
    names = "resources.num_processes", "resources.threads_per_process"
    found = [
        tuple(changes.get(name, 1) for name in names)
        for changes in process_changes(checked, {"training.compile": True})
    ]
    assert found == [(1, 8), (2, 4), (4, 2), (8, 1)]
