"""Which run a command continues, what its journal records, and what makes code another code."""

import re
import shlex
import shutil
from contextlib import nullcontext
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perennial import supervisor
from perennial.arguments import open_home
from perennial.clients.object_store import open_store
from perennial.clients.tracking import open_tracking
from perennial.contract import Contract
from perennial.contracts.artifact import hand_on
from perennial.contracts.data import DataSection, ModelSection, TaskColumns
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import TrainingResult
from perennial.runs import Home, code_digest, imported_sources, step_records
from perennial.steps.journal import Journal
from small_models import stream, write_snapshot


@pytest.fixture
def contract():
    return Contract(
        model=ModelSection(name="m", task="mine:Task"),
        data=DataSection(uri="/data", label="y", ids=("i",)),
    )


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def end(home, run, status):
    run.model_copy(update={"status": status}).write(home.folder(run.run_id))


@pytest.mark.parametrize(
    ("status", "continued"),
    [("failed", True), ("interrupted", True), ("running", True), ("succeeded", False)],
)
def test_newest_run_is_continued_unless_it_succeeded(home, contract, status, continued):
    run = home.new_run(contract, "continuous_training", "code")
    end(home, run, status)
    found = home.unfinished_run(contract, "continuous_training", "code")
    assert (found is not None) == continued


def test_a_run_is_newer_than_one_of_a_clock_that_was_set_back(home, contract):
    before = home.new_run(contract, "continuous_training", "code")
    later = {"created": before.created + timedelta(days=100)}
    before.model_copy(update=later).write(home.folder(before.run_id))
    run, last = (home.new_run(contract, "continuous_training", "code") for _ in range(2))
    assert [each.run_id for each in home.runs()] == [before.run_id, run.run_id, last.run_id]
    assert home.unfinished_run(contract, "continuous_training", "code") == last
    # Dated by the clock of now all the same: `status` and reports show when it began.
    assert abs(datetime.now(UTC) - run.created) < timedelta(hours=1)


def test_runs_of_earlier_versions_come_before_newer_ones_by_their_times(home, contract):
    runs = [home.new_run(contract, "continuous_training", "code") for _ in range(3)]
    for run in runs[:2]:
        file = home.folder(run.run_id) / "run.json"
        file.write_text(re.sub(r'"number":\s*\d+,', "", file.read_text()))
    assert [each.run_id for each in home.runs()] == [each.run_id for each in runs]
    assert [each.number for each in home.runs()] == [0, 0, 3]


def test_another_contract_pipeline_or_code_is_another_run(home, contract):
    home.new_run(contract, "continuous_training", "code")
    other = contract.model_copy(update={"data": contract.data.model_copy(update={"label": "z"})})
    assert home.unfinished_run(other, "continuous_training", "code") is None
    assert home.unfinished_run(contract, "drift_monitoring", "code") is None
    assert home.unfinished_run(contract, "continuous_training", "other code") is None


@pytest.mark.parametrize("damage", ["", "null", '{"run_id": "of another version"}'])
def test_a_record_that_cannot_be_read_blocks_no_other_run(home, contract, caplog, damage):
    """It ended every command, also those about other models, and told to run the step again."""
    damaged, whole = (home.new_run(contract, "continuous_training", "code") for _ in range(2))
    file = home.folder(damaged.run_id) / "run.json"
    file.write_text(damage)
    assert [run.run_id for run in home.runs()] == [whole.run_id]
    assert str(file.parent) in caplog.text
    found = home.unfinished_run(contract, "continuous_training", "code")
    assert found is not None
    assert found.run_id == whole.run_id


def test_steps_from_one_on_are_forgotten(home, contract):
    run = home.new_run(contract, "continuous_training", "code")
    for name in ("snapshot_data-1", "select_checkpoint-1", "evaluate_model-1"):
        (home.folder(run.run_id) / "steps" / name).mkdir(parents=True)
    home.forget_from(run, "select_checkpoint")
    left = [path.name for path in (home.folder(run.run_id) / "steps").iterdir()]
    assert left == ["snapshot_data-1"]
    with pytest.raises(PerennialError, match="no step 'train'"):
        home.forget_from(run, "train")


def test_a_finished_training_is_forgotten_wherever_it_is_stored(
    home, contract, tmp_path, monkeypatch
):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "elsewhere"))
    run = home.new_run(contract, "continuous_training", "code")
    fingerprint = "0123456789abcdef" * 4
    folder = home.folder(run.run_id) / "steps" / "train_model-1"
    TrainingResult(
        fingerprint=fingerprint, task="mine:Task", options={}, columns=TaskColumns(label="y", features={}),
        task_state={}, steps=1, world_size=1, strategy="single", num_parameters=1, history=(),
        evaluations=(), checkpoints=(), seconds=1.0, num_resumes=0,
    ).write(folder / "training")  # fmt: skip
    store = open_store(home.store_uri)
    other = "training/another/result.json"
    for key in (f"training/{fingerprint[:16]}/result.json", other):
        store.write(key, b"{}")
    home.forget_from(run, "train_model")
    assert [item.key for item in store.list("training/")] == [other]
    assert not folder.exists()


def test_journal_shows_the_latest_attempt_only(tmp_path):
    journal = Journal(tmp_path)
    journal.append("run", attempt=1)
    journal.append("step_started", step="a", key="a-1", log="log")
    journal.append("step_failed", step="a", key="a-1", log="log", error="broken")
    journal.append("run", attempt=2)
    journal.append("step_started", step="a", key="a-1", log="log")
    journal.append("step_finished", step="a", key="a-1", summary="done", metrics={})
    journal.append("step_reused", step="a", key="a-1", summary="done")
    journal.append("step_reused", step="b", key="b-1", summary="from before")
    records = step_records(tmp_path)
    assert [(r.step, r.status, r.summary) for r in records] == [
        ("a", "finished", "done"),
        ("b", "reused", "from before"),
    ]


def test_half_written_event_is_not_read(tmp_path):
    journal = Journal(tmp_path)
    journal.append("run", attempt=1)
    with journal.path.open("a") as stream:
        stream.write('{"kind": "step_sta')
    assert len(list(journal.events())) == 1
    journal.append("step_started", step="a", key="a-1", log="")
    assert [event["kind"] for event, _ in journal.events()] == ["run", "step_started"]


@pytest.mark.parametrize("line", [b"\0" * 41, b"\0" * 40, b"\xff{", b"5", b"[]", b""])
def test_a_line_that_a_loss_of_power_damaged_hides_no_other(tmp_path, line):
    journal = Journal(tmp_path)
    journal.append("step_started", step="a", key="a-1", log="")
    with journal.path.open("ab") as stream:
        stream.write(line)
    journal.append("step_failed", step="a", key="a-1", log="", error="e", traceback="")
    kinds = [event["kind"] for event, _ in journal.events()]
    assert kinds == ["step_started", "step_failed"]
    assert journal.step_ends() == {"a": "failed"}
    assert [record.status for record in step_records(tmp_path)] == ["failed"]


@pytest.mark.parametrize("layout", ["mine.py", "mine/__init__.py"])
def test_changing_the_task_changes_the_code_digest(contract, tmp_path, layout):
    source = tmp_path / layout
    source.parent.mkdir(exist_ok=True)
    source.write_text("A = 1")
    before = code_digest(contract, [tmp_path])
    assert before == code_digest(contract, [tmp_path])
    source.write_text("A = 2")
    assert code_digest(contract, [tmp_path]) != before


@pytest.mark.parametrize("task", ["mine.py", "mine/task.py"])
@pytest.mark.parametrize("imported", ["layers.py", "nets/layers.py", "own/nets/deep/layers.py"])
def test_changing_a_module_that_the_task_imports_changes_the_code_digest(
    contract, tmp_path, task, imported
):
    for file in (task, imported):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("A = 1")
    layers = tmp_path / imported
    before = code_digest(contract, [tmp_path])
    layers.write_text("A = 2")
    assert code_digest(contract, [tmp_path]) != before


@pytest.mark.parametrize("task", ["mine.py", "mine/__init__.py"])
def test_what_may_not_be_edited_during_a_run_is_what_the_task_imports(contract, tmp_path, task):
    files = {
        task: "import layers\nfrom own.nets import deep",
        "layers.py": "import sizes",
        "layers/notes.py": "",  # a module goes before a folder without `__init__.py`
        "sizes.py": "A = ",  # reported by the step that imports it
        "own/nets/deep.py": "from . import wide",
        "own/nets/wide.py": "",
        "make_figures.py": "import layers",
    }
    for file, text in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    found = imported_sources(contract, [tmp_path])
    own = {file.relative_to(tmp_path).as_posix() for file in found if tmp_path in file.parents}
    assert own == {*files} - {"make_figures.py", "layers/notes.py"}
    assert Path(supervisor.__file__) in found


def test_copies_of_code_in_folders_that_cannot_be_imported_leave_the_code_digest(
    contract, tmp_path
):
    (tmp_path / "mine.py").write_text("A = 1")
    before = code_digest(contract, [tmp_path])
    for folder in (".venv/lib", "home/runs/clicks-1/code", "home/store/mlflow-artifacts/code"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "layers.py").write_text("A = 1")
    assert code_digest(contract, [tmp_path]) == before


@pytest.mark.parametrize("package", ["pillow", "tokenizers", "transformers"])
def test_another_version_of_what_a_task_computes_with_changes_the_code_digest(
    contract, tmp_path, monkeypatch, package
):
    (tmp_path / "mine.py").write_text("A = 1")
    before = code_digest(contract, [tmp_path])
    installed = tmp_path / "installed" / f"{package}-999.0.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text(f"Name: {package}\nVersion: 999.0\n")
    monkeypatch.syspath_prepend(installed.parent)
    assert code_digest(contract, [tmp_path]) != before


def test_addresses_of_the_environment_are_the_homes(home, monkeypatch):
    assert home.tracking_uri.startswith("sqlite:///")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://tracking")
    monkeypatch.setenv("PERENNIAL_STORE_URI", "/elsewhere")
    assert (home.tracking_uri, home.store_uri) == ("http://tracking", "/elsewhere")


@pytest.mark.parametrize("name", ["100%", "what?"])
def test_a_home_that_no_database_address_can_name_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(PerennialError, match="in its path"):
        _ = Home(tmp_path / name).environment
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow")
    assert Home(tmp_path / name).environment.tracking_uri == "http://mlflow"
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    plain = tmp_path / "hö me#1;{a}"
    assert Home(plain).tracking_uri == f"sqlite:///{plain}/mlflow.db"


def test_a_home_that_was_moved_is_refused_until_its_former_place_leads_to_it(tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_URI", "PERENNIAL_STORE_URI"):
        monkeypatch.delenv(name, raising=False)
    former, moved = tmp_path / "a b" / ".perennial", tmp_path / "moved"
    Home(former).require_its_place("clicks")  # nothing is recorded yet
    open_tracking(replace(Home(former).environment, run_id="run"), "clicks")
    Home(former).require_its_place("clicks")
    former.rename(moved)
    with pytest.raises(
        PerennialError, match=r"was moved or copied.* in .*a b/\.perennial"
    ) as refused:
        Home(moved).require_its_place("clicks")
    assert shlex.join(["ln", "-s", str(moved), str(former)]) in refused.value.action
    Home(moved).require_its_place("another")
    former.symlink_to(moved)
    Home(moved).require_its_place("clicks")
    Home(former).require_its_place("clicks")


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """A project with a contract in a folder, and another folder, which is the current one."""
    (tmp_path / "project" / "models").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.delenv("PERENNIAL_HOME", raising=False)
    return tmp_path.resolve()


def test_a_new_home_beside_the_contract_is_reported_first(tree, capsys):
    home = open_home(None, tree / "project" / "models" / "contract.toml")
    assert home.path == tree / "project" / "models" / ".perennial"
    assert capsys.readouterr().err.startswith(f"home: {home.path}")


def test_a_new_home_of_a_contract_below_is_made_in_the_current_folder(tree, monkeypatch, capsys):
    monkeypatch.chdir(tree / "project")
    made = open_home(None, tree / "project" / "models" / "contract.toml")
    assert made == open_home(None)
    assert made.path == tree / "project" / ".perennial"
    assert capsys.readouterr().err == ""


def test_the_nearest_home_above_the_contract_is_used(tree, monkeypatch, capsys):
    (tree / "project" / ".perennial").mkdir()
    contract = tree / "project" / "models" / "contract.toml"
    assert open_home(None, contract).path == tree / "project" / ".perennial"
    assert "home: " in capsys.readouterr().err
    monkeypatch.chdir(tree / "project")
    assert open_home(None, contract).path == tree / "project" / ".perennial"
    assert capsys.readouterr().err == "", "it is where one would look"
    monkeypatch.chdir(tree / "project" / "models")
    assert open_home(None).path == tree / "project" / ".perennial", "without a contract"


def test_a_home_that_is_named_is_taken_as_it_is(tree, capsys):
    (tree / ".perennial").mkdir()
    assert open_home(Path(".perennial")).path == tree / "elsewhere" / ".perennial"
    assert capsys.readouterr().err == ""


def test_a_home_of_another_user_is_not_taken(tree, monkeypatch):
    (tree / ".perennial").mkdir()
    monkeypatch.setattr("os.getuid", lambda: -1)
    assert open_home(None).path == tree / "elsewhere" / ".perennial"


def test_a_current_folder_that_mlflow_cannot_write_down_is_refused(tmp_path, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, is_refused in (("Bob's", False), ('Bob\'s "own"', True)):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        with (
            pytest.raises(PerennialError, match="both kinds of quotes")
            if is_refused
            else nullcontext()
        ):
            assert Home(tmp_path / "home").tracking_uri.endswith("/home/mlflow.db")


def test_a_continued_run_names_the_partitions_that_arrived_after_its_snapshot(tmp_path):
    taken = write_snapshot(tmp_path / "data", stream())
    step = tmp_path / "run" / "steps" / "snapshot_data-1"
    assert [*supervisor.newer_data(tmp_path / "run")] == []
    step.mkdir(parents=True)
    hand_on(step / "snapshot", taken)
    assert [*supervisor.newer_data(tmp_path / "run")] == []
    shutil.copy(tmp_path / "data" / "part.parquet", tmp_path / "data" / "later.parquet")
    (line,) = supervisor.newer_data(tmp_path / "run")
    assert "without 1 newer partition ('later.parquet'); --new starts a run with all" in line
    shutil.rmtree(tmp_path / "data")  # the steps report it
    assert [*supervisor.newer_data(tmp_path / "run")] == []
