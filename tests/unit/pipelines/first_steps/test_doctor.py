"""`perennial doctor`: each thing that is needed, in a line; the exit code says if one is missing."""

import os
import re
from pathlib import Path

import pytest

import perennial.first_steps.doctor
from perennial.cli import main
from perennial.first_steps.doctor import Finding, examine
from perennial.runs import Home
from ports import get_free_port

KIND = Path(__file__).resolve().parents[4] / "k8s" / "overlays" / "kind" / "profile.toml"


@pytest.fixture
def doctor(tmp_path, capsys, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "PERENNIAL_PROFILE"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments):
        code = main(["doctor", "--home", str(tmp_path / "home"), *arguments])
        return code, capsys.readouterr().out

    return run


def test_this_machine_is_ready_and_nothing_is_left_behind(doctor, tmp_path):
    code, printed = doctor()
    assert (code, printed.splitlines()[-1]) == (0, "ready")
    names = re.findall(r"^  [✓✗-] (\S+)", printed, re.M)
    assert names == ["Python", "perennial", "torch", "device", "disk", "home", "MLflow", "KFP", "cluster"]  # fmt: skip
    assert "✗" not in printed
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_does_not_answer_is_found(doctor, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://127.0.0.1:{get_free_port()}")
    code, printed = doctor()
    assert code == 1
    assert re.search(r"✗ MLflow +MLflow's server does not answer", printed)
    assert "→ check that MLFLOW_TRACKING_URI" in printed
    assert printed.endswith("1 to fix\n")


def test_a_damaged_database_is_found(doctor, tmp_path):
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mlflow.db").write_bytes(b"x" * 5000)
    code, printed = doctor()
    assert code == 1
    assert re.search(r"✗ MLflow +MLflow's database is damaged", printed)


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may write everywhere")
def test_a_home_without_rights_is_found_as_a_user(doctor, tmp_path):
    (tmp_path / "home").mkdir(mode=0o500)
    assert doctor()[0] == 1


def test_a_home_that_cannot_be_written_is_found():  # nobody may write there
    found = {each.name: each for each in examine(Home(Path("/proc/perennial")), None)}
    assert found["home"].is_good is False
    assert "--home FOLDER" in found["home"].action


def test_a_cluster_that_does_not_answer_is_found(doctor, tmp_path):
    closed = f'pipelines_url = "http://127.0.0.1:{get_free_port()}"'
    profile = tmp_path / "profile.toml"
    profile.write_text(re.sub(r"(?m)^pipelines_url = .*$", closed, KIND.read_text()))
    code, printed = doctor("--profile", str(profile))
    assert code == 1
    assert re.search(r"✗ cluster +the pipeline server cannot be reached", printed)


def test_a_full_disk_and_a_missing_package_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(perennial.first_steps.doctor, "LEAST_FREE", 1e18)
    monkeypatch.setattr(perennial.first_steps.doctor, "import_module", refuse_torch)
    found = {each.name: each for each in examine(Home(tmp_path), None)}
    assert found["disk"].is_good is False
    assert "pip install" in found["torch"].action


def refuse_torch(name):
    raise ImportError(f"No module named {name!r}")


def test_a_finding_is_a_line_and_its_action():
    assert list(Finding("disk", is_good=False, found="full", action="free it").lines()) == [
        "  ✗ disk       full",
        "    → free it",
    ]
