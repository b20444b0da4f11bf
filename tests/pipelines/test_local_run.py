"""The whole job on one machine, through the command line, as a user runs it."""

import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from click_stream import write_project
from killing import finish, no_process_is_left, start, wait_for
from perennial.contracts.environment import Environment
from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.monitoring import DriftReport, RetrainingDecision
from perennial.contracts.training import TrainingResult
from perennial.registry.model_registry import open_registry
from perennial.runs import FLOW, Home, step_records

pytestmark = pytest.mark.timeout(600)


def perennial(project: Path, *arguments: str, expect: int = 0) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PERENNIAL_HOME": str(project / "home")},
    )
    assert done.returncode == expect, f"{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def newest(project: Path):
    home = Home(project / "home")
    run = home.runs()[-1]
    return run, home.folder(run.run_id)


def output(folder: Path, step: str, name: str) -> Path:
    (found,) = (folder / "steps").glob(f"{step}-*/{name}")
    return found


def champion(project: Path):
    home = Home(project / "home")
    environment = Environment(home.store_uri, home.tracking_uri, "test")
    return open_registry(environment).version_by_alias("clicks", "champion")


FRAGILE = """
from pathlib import Path
from perennial.tasks.tabular import TabularClassification


class Fragile(TabularClassification):
    def build_model(self):
        if Path(__file__).with_name("broken").exists():
            raise ValueError("the third shelf is empty")
        return super().build_model()
"""


@dataclass(frozen=True)
class Trained:
    """A project whose first training has succeeded.

    Attributes:
        project: The folder of contract, data and home.
        printed: What the run printed.
        weights: Digest of the model that the run registered.
    """

    project: Path
    printed: str
    weights: str


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    project = write_project(tmp_path_factory.mktemp("trained"))
    printed = perennial(project, "run", str(project / "contract.toml"))
    _, folder = newest(project)
    registered = Registration.read(output(folder, "register_model", "registration"))
    return Trained(project, printed, registered.weights_sha256)


@pytest.mark.full
def test_failed_step_is_named_with_its_reason_and_the_run_continues(project):
    (project / "fragile.py").write_text(FRAGILE)
    contract = project / "contract.toml"
    usual = "perennial.tasks.tabular:TabularClassification"
    contract.write_text(contract.read_text().replace(usual, "fragile:Fragile"))
    (project / "broken").touch()
    failed = perennial(project, "run", str(contract), expect=1)
    first, folder = newest(project)
    assert first.status == "failed"
    reason = "the third shelf is empty"
    assert "check_skeleton failed" in failed
    assert reason in failed
    log = re.search(r"log: (\S+)", failed).group(1)
    assert reason in Path(log).read_text()
    assert reason in (folder / "report.html").read_text()

    (project / "broken").unlink()
    continued = perennial(project, "run", str(contract))
    second, _ = newest(project)
    assert (second.run_id, second.attempts) == (first.run_id, 2)
    assert "validate_data" in continued
    assert "finished before" in continued


@pytest.mark.full
@pytest.mark.usefixtures("interruptible")
def test_stopping_leaves_no_process_and_a_run_that_continues_to_the_same_model(trained, tmp_path):
    """`faults/test_killed_runs.py` kills every process of a run."""
    home = tmp_path / "home"
    process = start(trained.project, home)
    wait_for(home, "progress", "train_model", process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert Home(home).runs()[-1].status == "interrupted"
    no_process_is_left(home)
    assert finish(trained.project, home).weights_sha256 == trained.weights

    # From a step on: what came before is kept, what comes after is done again.
    again = ("run", str(trained.project / "contract.toml"), "--home", str(home), "--from")
    perennial(trained.project, *again, "select_checkpoint")
    (run,) = Home(home).runs()
    statuses = {each.step: each.status for each in step_records(Home(home).folder(run.run_id))}
    assert statuses["train_model"] == "reused"
    assert statuses["select_checkpoint"] == "finished"
    assert "no step 'nowhere'" in perennial(trained.project, *again, "nowhere", expect=2)


def test_a_model_is_trained_kept_monitored_and_replaced(trained, write_month):
    project, contract = trained.project, str(trained.project / "contract.toml")

    # First training: there was no champion, so the floors alone decided.
    (folder,) = [Home(project / "home").folder(run.run_id) for run in Home(project / "home").runs()]
    assert [record.step for record in step_records(folder)] == list(FLOW["continuous_training"])
    first = Registration.read(output(folder, "register_model", "registration"))
    assert champion(project).version == first.version
    training = TrainingResult.read(output(folder, "train_model", "training"))
    assert (training.world_size, training.strategy) == (2, "fsdp")
    assert "register_model" in trained.printed

    # One self-contained report of all steps.
    page = (folder / "report.html").read_text()
    for step in FLOW["continuous_training"]:
        assert step in page
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:|\.\./)""", page), (
        "links to other reports only"
    )

    # A month like those before: nothing to do, and the reason is printed.
    write_month(project / "data", 3)
    perennial(project, "monitor", contract)
    _, folder = newest(project)
    assert not DriftReport.read(output(folder, "detect_drift", "drift")).drifted
    decision = RetrainingDecision.read(output(folder, "decide_retraining", "decision"))
    assert not decision.retrain
    assert "train_model" not in [record.step for record in step_records(folder)]

    # The world turns: drift is found, the model is trained again and replaced.
    write_month(project / "data", 4, shift=2.5)
    perennial(project, "monitor", contract)
    _, folder = newest(project)
    assert DriftReport.read(output(folder, "detect_drift", "drift")).drifted
    decision = RetrainingDecision.read(output(folder, "decide_retraining", "decision"))
    assert decision.retrain
    verdict = Verdict.read(output(folder, "evaluate_model", "verdict"))
    assert verdict.promote, verdict.summary
    assert verdict.champion_version == first.version
    assert champion(project).version != first.version

    # What a person asks afterwards.
    assert champion(project).version in perennial(project, "status")
    listed = perennial(project, "runs")
    assert listed.count("continuous_training") == 1
    assert "Promoted" in listed
    assert "Not retrained" in listed
    assert perennial(project, "report", "--no-open").strip().endswith("report.html")


@pytest.mark.full
def test_the_same_data_again_gives_the_same_model_which_is_not_promoted(project):
    for _ in range(2):
        perennial(project, "run", str(project / "contract.toml"))
    run, folder = newest(project)
    assert not Verdict.read(output(folder, "evaluate_model", "verdict")).promote
    assert run.status == "succeeded"
    assert champion(project).version == "1"


@pytest.mark.full
def test_a_run_streams_rows_that_were_encoded_ahead(project):
    """Another learning rate finds all of them, and gives another model of the same rows."""
    contract = project / "contract.toml"
    text = contract.read_text()
    loading = 'steps = 60\nloading = { mode = "streaming", encode_ahead = true }'
    ahead = []
    for rate in ("1e-2", "2e-2"):
        changed = text.replace("steps = 60", loading).replace("1e-2", rate)
        contract.write_text(changed)
        perennial(project, "run", str(contract))
        run, folder = newest(project)
        assert run.status == "succeeded"
        assert Verdict.read(output(folder, "evaluate_model", "verdict")).test_rows > 0
        log = output(folder, "train_model", "log.txt").read_text()
        ahead += re.findall(r"encoding ahead (\d+) of (\d+) blocks", log)
    shards = list((project / "home" / "store" / "encoded").glob("*/*.safetensors"))
    blocks = str(len(shards))
    assert ahead == [(blocks, blocks), ("0", blocks)]
    assert champion(project).version == "1"


@pytest.mark.full
def test_two_models_are_trained_in_one_home_at_the_same_time(project):
    contract = project / "contract.toml"
    other = project / "other.toml"
    text = contract.read_text().replace('name = "clicks"', 'name = "views"')
    other.write_text(text.replace("steps = 60", "steps = 80"))
    runs = [
        subprocess.Popen(
            [sys.executable, "-m", "perennial.cli", "run", str(each)],
            # What other projects leave in a shell is not the run's.
            env=os.environ
            | {"PERENNIAL_HOME": str(project / "home")}
            | {"MLFLOW_RUN_ID": "another", "PYTHONWARNINGS": "error"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for each in (contract, other)
    ]
    printed = [run.communicate()[0] for run in runs]
    assert [run.returncode for run in runs] == [0, 0], printed
    assert "clicks version 1 is champion" in printed[0]
    assert "views version 1 is champion" in printed[1]
    assert perennial(project, "runs").count("Promoted") == 2
