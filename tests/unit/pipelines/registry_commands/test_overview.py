"""`status`, `runs` and `report`: verdicts, rollbacks, filters, `MODEL@2`, JSON, unknown names."""

import json

import pytest

from perennial.contracts.gate import Registration
from perennial.registry_commands.comparison import differences
from perennial.runs import Home
from perennial.steps.journal import Journal
from registered_versions import contract_of
from small_models import GOOD, USELESS, stream, write_snapshot


@pytest.fixture
def ran(home, tmp_path):
    """Leaves the folder of a run that ended, as its steps do."""
    data = write_snapshot(tmp_path / "data-of-runs", stream(days=90)).data
    place = Home(home)

    def leave(status="succeeded", version="", error=""):
        run = place.new_run(contract_of(data, 7), "continuous_training", "code")
        folder = place.folder(run.run_id)
        run.model_copy(update={"status": status, "attempts": 1}).write(folder)
        journal = Journal(folder)
        journal.append("run", run_id=run.run_id, attempt=1)
        step = "register_model" if version else "train_model"
        journal.append("step_started", step=step, key="a", log="/log.txt")
        kind = "step_failed" if error else "step_finished"
        journal.append(kind, step=step, key="a", summary="done", error=error)
        if version:
            Registration(
                name="clicks", version=version, aliases=("champion",), weights_sha256="a",
                tracking_run_id="b",
            ).write(folder / "steps" / "a" / "registration")  # fmt: skip
        return run.run_id

    return leave


def test_status_after_a_rollback_shows_who_took_back_what_and_why(perennial, register):
    first = register(USELESS)
    second = register(GOOD, first)
    assert "rolled back" not in perennial("status", "clicks")[1]
    assert perennial("rollback", "clicks", "--reason", "clicks fell")[0] == 0
    code, output = perennial("status")
    assert code == 0
    assert f"champion     version {first}, restored" in output
    assert f"rolled back  version {second}, 2" in output
    assert output.count("clicks fell") == 2

    (state,) = json.loads(perennial("status", "clicks", "--json")[1])
    assert state["champion"] == first
    assert state["rolled_back"]["version"] == second
    assert state["rolled_back"]["reason"] == "clicks fell"


def test_every_verb_takes_a_version_behind_the_models_name(perennial, register, ran):
    first = register(USELESS)
    second = register(GOOD, first)
    runs = {number: ran(version=number) for number in (first, second)}
    for place, number in (("clicks@1", first), ("clicks@champion", second)):
        assert f"version {number}    promoted" in perennial("status", place)[1]
        assert f"version {number}  " in perennial("models", place)[1]
        listed = json.loads(perennial("runs", place, "--json")[1])
        assert [each["run"] for each in listed] == [runs[number]]
        assert runs[number] in perennial("report", place, "--no-open")[1]
    code, output = perennial("promote", "clicks@2", "--reason", "again")
    assert (code, "is champion already" in output) == (0, True)
    for refused, named in (
        (("promote", "clicks@2", "1", "--reason", "x"), "two versions were named"),
        (("promote", "clicks", "--reason", "x"), "clicks@2"),
        (("rollback", "clicks@1", "--reason", "x"), "the champion is version 2"),
        (("models", "clicks@9"), "versions: 1, 2"),
        (("runs", "clicks@9"), "versions: 1, 2"),
    ):
        code, output = perennial(*refused)
        assert (code, named in output) == (2, True), output


@pytest.mark.parametrize("verb", ["status", "runs", "report", "models", "explain"])
def test_an_empty_argument_is_not_taken_for_one_that_was_left_out(perennial, register, verb):
    """As of a shell's variable that is not set."""
    register(GOOD)
    code, output = perennial(verb, "")
    assert (code, f"an argument is empty, behind '{verb}'" in output) == (2, True), output


@pytest.mark.parametrize("place", ["@", "clicks@", "@2"])
@pytest.mark.parametrize("verb", ["status", "runs", "models"])
def test_half_a_version_is_refused(perennial, register, verb, place):
    register(GOOD)
    code, output = perennial(verb, place)
    assert (code, "lacks the model before or the version behind @" in output) == (2, True), output


@pytest.mark.parametrize("verb", ["status", "runs", "report", "models"])
def test_an_unknown_model_is_answered_with_the_nearest_and_exit_code_2(perennial, register, verb):
    register(GOOD)
    code, output = perennial(verb, "cliks")
    assert code == 2
    assert "the nearest is clicks" in output


def test_runs_are_listed_under_headers_with_time_duration_and_verdict(perennial, register, ran):
    register(GOOD)
    ran(version="1")
    ran("failed", error="the folder is empty")
    ran("interrupted")
    ran("running")
    code, output = perennial("runs", "clicks")
    header, *rows = output.splitlines()
    assert code == 0
    assert header.split("  ")[0] == "RUN"
    assert [title in header for title in ("MODEL", "STARTED (UTC)", "TOOK", "VERDICT")] == [
        True
    ] * 4
    ends = ["Finished", "Failed: train_model", "Cancelled: train_model", "Failed: train_model"]
    assert [row.rpartition(" s  ")[2] for row in rows] == ends, "the last one's process was killed"


def test_a_run_whose_process_was_killed_is_reported_as_failed(perennial, ran):
    run = ran("running")
    found = json.loads(perennial("report", run, "--json")[1])
    assert found["verdict"] == "Failed"
    assert "killed" in found["headline"]


def test_status_writes_nothing_where_no_database_was_made_yet(perennial, home, ran, monkeypatch):
    """It made MLflow's, which a full disk refuses."""
    run = ran(status="failed", error="no space")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (home / "mlflow.db").unlink(missing_ok=True)
    before = {*home.rglob("*")}
    code, output = perennial("status")
    assert (code, "champion     none yet" in output, run in output) == (0, True, True), output
    record = home / "store" / "registry" / "clicks.json"
    assert {*home.rglob("*")} == before
    record.parent.mkdir(parents=True, exist_ok=True)
    record.write_text("{")
    assert "the promotion record of clicks cannot be read" in perennial("status")[1]


def test_reports_link_the_previous_run_and_an_index_of_all_runs(perennial, home, ran):
    runs = [ran("failed", error=f"reason {number}") for number in range(2)]
    for run in runs:
        assert perennial("report", run, "--no-open")[0] == 0
    page = (home / "runs" / runs[1] / "report.html").read_text()
    assert f'href="../{runs[0]}/report.html"' in page
    assert 'href="../index.html"' in page
    code, output = perennial("report", "--all", "--no-open")
    assert code == 0
    assert output.strip() == str(home / "runs" / "index.html")
    index = (home / "runs" / "index.html").read_text()
    assert index.index(runs[1]) < index.index(runs[0]), "the newest comes first"
    assert index.count("train_model failed: reason") == 2


def test_long_values_are_described_and_changed_lists_show_what_was_added_and_removed():
    windows = [
        {"column": f"c{number}", "z_score": 3.8935607, "alarmed": True} for number in range(90)
    ]
    before = {"windows": [], "features": ["a", "b"], "rate": 0.1, "note": None}
    after = {"windows": windows, "features": ["b", "c"], "rate": 0.25, "note": "x" * 5_000}
    lines = dict(line.split(": ", 1) for line in differences(before, after))
    assert lines["features"] == "added c; removed a"
    assert lines["rate"] == "0.1 → 0.25"
    assert lines["windows"].startswith("added column c0, z score 3.894, alarmed yes; column c1")
    assert max(map(len, lines.values())) < 300
    assert not set('{}[]"') & set("".join(lines.values()))
    (line,) = differences({"text": "a" * 400 + "1"}, {"text": "a" * 400 + "2"})
    assert "→" in line, "their ends differ, and ends are shown"
    middles = [{"text": "a" * 300 + number + "a" * 300} for number in "12"]
    assert "--json prints both" in differences(*middles)[0]
