"""`perennial check` foresees what no training can overcome: the reason, the line to write, exit 1."""

import re
from pathlib import Path

import polars as pl
import pytest

from minimal_contract import MINIMAL
from perennial.cli import main
from perennial.contract import load_contract
from perennial.contracts.validation import ValidationReport
from perennial.runs import Home
from perennial.snapshot_data.manifest import take_snapshot

ROOT = Path(__file__).resolve().parents[4]
CONTRACT = f"""{MINIMAL}[split]
[training]
[expectations]
[gate]
"""


@pytest.fixture
def project(tmp_path):
    """Writes a contract and its data; returns exit code and output of the check."""

    def check(capsys, rows=1200, days=0, **lines):
        text = CONTRACT
        for section, line in lines.items():
            text = text.replace(f"[{section}]", f"[{section}]\n{line}")
        (tmp_path / "contract.toml").write_text(text)
        write_data(tmp_path / "data", rows, days)
        code = main(["check", str(tmp_path / "contract.toml"), "--home", str(tmp_path / "home")])
        return code, capsys.readouterr().out

    return check


def write_data(folder, rows, days):
    folder.mkdir(exist_ok=True)
    number = pl.int_range(rows, eager=True)
    frame = pl.DataFrame({"click_id": number, "clicked": number % 2, "x": number / 7})
    if days:
        minutes = pl.duration(minutes=pl.col("click_id") * (days * 1440 // rows))
        frame = frame.with_columns(shown_at=pl.datetime(2024, 1, 1) + minutes)
    frame.write_parquet(folder / "clicks.parquet")


OBSTACLES = {
    "too few test rows": (
        {"rows": 528}, r"will never be promoted: \d+ test rows, gate.min_test_rows = 200",
    ),
    "too few rows at all": (
        {"rows": 450, "gate": "min_test_rows = 20"}, r"450 rows, expectations.min_rows = 500",
    ),
    "too few rows for the sanity checks": (
        {"rows": 40, "gate": "min_test_rows = 5", "expectations": "min_rows = 20"},
        r"the validation split has \d rows, the sanity checks need 16",
    ),
    "too few days": (
        {"rows": 4000, "days": 28, "data": 'time = "shown_at"'},
        r"\d independent test days, gate.min_test_blocks = 8",
    ),
    "a part that is larger than the whole": (
        {"training": "global_batch_size = 64\nmicro_batch_size = 256"},
        r"micro_batch_size = 256 is above global_batch_size = 64",
    ),
    "a training for debugging": ({"training": "simplified = true"}, r"training.simplified = true"),
    "percent for a share": ({"gate": "required = { roc_auc = 80 }"}, r"roc_auc = 80, but roc_auc is at most 1"),
    "a loss below zero": ({"gate": "required = { log_loss = -0.5 }"}, r"log_loss is at least 0"),
}  # fmt: skip


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_what_can_never_be_promoted_is_foreseen_with_the_line_to_write(project, capsys, obstacle):
    how, reason = OBSTACLES[obstacle]
    code, printed = project(capsys, **how)
    assert (code, printed) == (1, printed)
    assert re.search(reason, printed), printed
    assert "is valid, but will never be promoted" in printed
    if line := re.search(r"write:    (\w+ = .*)  # in \[(\w+)\]", printed):
        how = {key: re.sub(rf"{line[1].split()[0]} = .*", "", str(value)) if key == line[2] else value
               for key, value in how.items()}  # fmt: skip
        how[line[2]] = f"{how.get(line[2], '')}\n{line[1]}"
        code, printed = project(capsys, **how)
        assert not re.search(reason, printed), printed


def test_a_default_is_no_contradiction(project, capsys):
    code, printed = project(capsys, training="global_batch_size = 64")
    assert (code, "never" in printed) == (0, False)


@pytest.mark.parametrize(("allowed", "code"), [("", 1), ('leakage_allow = ["x"]', 0)])
def test_a_leak_that_was_found_before_is_remembered(project, capsys, tmp_path, allowed, code):
    assert project(capsys)[0] == 0
    contract = load_contract(tmp_path / "contract.toml")
    home = Home(tmp_path / "home")
    run = home.new_run(contract, "continuous_training", "code")
    digest = take_snapshot(contract.data, contract.split).digest()
    facts = {"rows": 1200, "leakage_auc:x": 0.991, "leakage_auc:gone": 1.0}
    report = ValidationReport(snapshot_digest=digest, facts=facts, expectations=(), blocks=())
    report.write(home.folder(run.run_id) / "steps" / "validate_data-1" / "validation")
    found, printed = project(capsys, expectations=allowed)
    assert found == code
    assert ("label alone (x 0.991)" in printed) == bool(code)
    assert ('leakage_allow = ["x"]  # in [expectations]' in printed) == bool(code)


@pytest.mark.parametrize(
    ("uri", "problem"),
    [
        ("models/base.safetensors", "is not the pinned file"),
        ("models/other.safetensors", "there is no"),
        ("models/base.bin", "is pickled, and loading a pickle can run any code"),
    ],
)
def test_initial_weights_are_read_before_anything_runs(tmp_path, capsys, uri, problem):
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("base.safetensors", "base.bin"):
        (folder / name).write_bytes(b"something else")
    initial = f'source = "safetensors", uri = "{tmp_path / uri}", sha256 = "{"0" * 64}"'
    text = CONTRACT.replace("[data]", f"initial = {{ {initial} }}\n[data]")
    (tmp_path / "contract.toml").write_text(text)
    assert main(["check", str(tmp_path / "contract.toml"), "--home", str(tmp_path / "home")]) == 2
    assert problem in capsys.readouterr().err


def test_an_address_of_no_store_is_a_mistake(tmp_path, capsys):
    text = CONTRACT.replace('"data"', '"https://host/data"')
    (tmp_path / "contract.toml").write_text(text)
    code = main(["check", str(tmp_path / "contract.toml"), "--home", str(tmp_path / "home")])
    assert code == 2
    assert "has the unsupported scheme 'https'" in capsys.readouterr().err


def test_without_the_store_it_says_what_was_not_looked_at(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    text = CONTRACT.replace('"data"', '"s3://nowhere/clicks"')
    (tmp_path / "contract.toml").write_text(text)
    code = main(["check", str(tmp_path / "contract.toml"), "--home", str(tmp_path / "home")])
    printed = capsys.readouterr().out
    assert (code, printed) == (0, printed)
    assert "# not looked at: the data, no snapshot is stored here: " in printed
    assert "contract.toml is valid\n" in printed
