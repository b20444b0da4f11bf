"""The probes measure on the contract's own rows and model, and name the option to change."""

import re
import tempfile
from pathlib import Path

import pytest

from perennial.cli import main
from perennial.engine.profiling.probe import BatchPoint
from perennial.engine.profiling.settings import SettingPoint, combined
from perennial.probe import batch_size_lines, setting_lines


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
    assert all(re.search(r"\d to [\d,]+  ", line) for line in lines[1:5])
    advised = re.match(r"(?:take micro_batch_size = (\d+): |no clear knee: )", lines[5])
    assert advised, lines[5]
    if advised[1]:
        assert "<- knee" in next(line for line in lines if line.split()[0] == advised[1])
    assert probe_folders() == before


def test_a_range_test_draws_its_picture(contract, capsys):
    assert main(["probe", "lr", contract, "--out", "rates.html"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"take learning_rate = \S+ \(the contract's: 0.01\)", printed)
    assert "<svg" in Path("rates.html").read_text()


def advice(*speeds, spread=0.02, current=512):
    sizes = [8 * 2**number for number in range(len(speeds))]
    points = [
        BatchPoint(size, tuple(size / (speed * (1 + spread * k)) for k in (-1, 0, 1)), 0)
        for size, speed in zip(sizes, speeds, strict=True)
    ]
    return list(batch_size_lines(points, current))[-1]


def test_a_size_is_advised_only_where_the_rounds_agree():
    assert advice(50, 80, 97, 100).startswith("take micro_batch_size = 32: ")
    assert "by some rounds it is 16, by others 32" in advice(50, 89, 100, spread=0.06)
    assert "keep micro_batch_size = 16" in advice(50, 89, 100, spread=0.06, current=16)
    assert "rounds of 64 rows reach 70 to 130 examples/s" in advice(60, 80, 90, 100, spread=0.3)
    assert "still rises at 32" in advice(50, 75, 100)
    assert "8 is within a tenth of the best throughput already" in advice(98, 99, 100)
    assert "only 8 was measured" in advice(98)


@pytest.mark.parametrize(
    "arguments",
    [
        ["lr", "--max", "64"],
        ["batch-size", "--out", "page.html"],
        ["settings", "--max", "8"],
        ["depth"],
    ],
)
def test_what_does_not_belong_to_a_probe_is_refused(contract, arguments):
    assert main(["probe", arguments[0], contract, *arguments[1:]]) == 2


def test_too_few_rows_are_named(contract, capsys):
    assert main(["probe", "batch-size", contract, "--max", "7"]) == 2
    assert "not enough rows to probe" in capsys.readouterr().err


def point(changes, milliseconds, losses=(1.0, 1.2, 1.1), failure=""):
    rounds = tuple(milliseconds * share / 1e3 for share in (0.99, 1.0, 1.0, 1.01, 1.02))
    return SettingPoint(changes, rounds, losses, failure)


def test_settings_are_advised_that_are_faster_in_every_round_at_equal_quality():
    own = point({}, 10.0)
    faster, worse = (
        point({"compile": True}, 5.0),
        point({"precision": "bf16"}, 4.0, (1.3, 1.3, 1.2)),
    )
    broken = SettingPoint({"allow_tf32": True}, failure="RuntimeError: no such kernel")
    lines = list(setting_lines([own, faster, worse, broken]))
    assert re.search(r"compile = true +5.00 +2.00 +1.1 \(1 to 1.2\)$", lines[2])
    assert lines[3].endswith("worse")
    assert "impossible here: RuntimeError: no such kernel" in lines[4]
    assert lines[5].startswith("take, in [training] (2.00 times as fast")
    assert lines[6:] == ["  compile = true"]
    assert list(setting_lines([own, worse, point({"compile": True}, 9.99)]))[-1].startswith("keep ")


def test_of_two_values_of_an_option_the_faster_one_is_combined_with_the_rest():
    useful = [
        point({"loading.workers": 2}, 7.0), point({"micro_batch_size": 64}, 6.0),
        point({"loading.workers": 4}, 5.0),
    ]  # fmt: skip
    assert combined(useful) == {"loading.workers": 4, "micro_batch_size": 64}


def test_the_fastest_settings_are_measured_on_the_contract(contract, capsys):
    assert main(["probe", "settings", contract]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].startswith("(the contract's)")
    assert {'precision = "bf16"', "compile = true", "loading.workers = 2"} <= {
        line[:44].strip() for line in lines
    }
    assert any(line.startswith(("take, in [training]", "keep ")) for line in lines)
