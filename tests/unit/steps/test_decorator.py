"""A step is recorded, and its result reused only for the same inputs and code in the same run."""

import errno
import json
import os
import shutil
import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from flushes import recorded_flushes
from perennial.contracts import environment
from perennial.contracts.errors import BadDataError, BadTaskError, OutageError, PerennialError
from perennial.contracts.section import Section, canonical_json
from perennial.steps.code_state import CodeState
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.steps.journal import Journal
from perennial.steps.parameters import CARRIED_BYTES, LargeParameter
from perennial.steps.stored_steps import StoredRun


@pytest.fixture
def run_folder(tmp_path, monkeypatch):
    folder = tmp_path / "run"
    folder.mkdir()
    monkeypatch.setenv(environment.STORE_URI, str(tmp_path / "store"))
    monkeypatch.setenv(environment.TRACKING_URI, "sqlite:///unused")
    monkeypatch.setenv(environment.RUN_FOLDER, str(folder))
    monkeypatch.setenv(environment.CODE_DIGEST, "code-1")
    monkeypatch.delenv(environment.LEASE, raising=False)
    return folder


def counting_step():
    calls = []

    @pipeline_step("double", outputs=("doubled", "report", "metrics"))
    def double_step(
        *, config: str, source: str, doubled: str, report: str, metrics: str
    ) -> StepResult:
        calls.append(config)
        Path(doubled).mkdir(parents=True)
        Path(doubled, "value").write_text(Path(source, "value").read_text() * 2)
        Path(report).write_text("<html>")
        if config == "fail":
            raise BadDataError("the value is bad", evidence="42", action="fix it")
        return StepResult(parameters={"good": True}, metrics={"size": 2.0}, summary="doubled")

    return double_step, calls


def run(step, tmp_path, attempt, config="c", text="x"):
    source = tmp_path / f"source-{attempt}"
    source.mkdir(exist_ok=True)
    (source / "value").write_text(text)
    out = tmp_path / f"out-{attempt}"
    out.mkdir(exist_ok=True)
    result = step(
        config=config,
        source=str(source),
        doubled=str(out / "doubled"),
        report=str(out / "report"),
        metrics=str(out / "metrics"),
    )
    return result, out


def kinds(folder):
    return [event["kind"] for event, _ in Journal(folder).events()]


def test_finished_step_is_reused_with_its_outputs(run_folder, tmp_path):
    step, calls = counting_step()
    first, _ = run(step, tmp_path, 1)
    second, out = run(step, tmp_path, 2)
    assert calls == ["c"]
    assert second == first
    assert (out / "doubled" / "value").read_text() == "xx"
    assert json.loads((out / "metrics").read_text()) == {"size": 2.0}
    assert kinds(run_folder) == ["step_started", "step_finished", "step_reused"]


@pytest.mark.parametrize("part", ["doubled", "report", "result.json"])
def test_a_step_of_which_a_part_was_deleted_or_damaged_runs_again(run_folder, tmp_path, part):
    step, calls = counting_step()
    run(step, tmp_path, 1)
    (kept,) = (run_folder / "steps").iterdir()
    if part == "doubled":
        shutil.rmtree(kept / part)
    elif part == "report":
        (kept / part).unlink()
    else:
        (kept / part).write_bytes(b"\0" * 20)
    _, out = run(step, tmp_path, 2)
    assert calls == ["c", "c"]
    assert (out / "doubled" / "value").read_text() == "xx"
    run(step, tmp_path, 3)
    assert calls == ["c", "c"]
    assert kinds(run_folder)[-1] == "step_reused"


def test_outputs_are_on_disk_before_the_result_that_reuses_them(run_folder, tmp_path, monkeypatch):
    flushed = recorded_flushes(monkeypatch)
    step, _ = counting_step()
    run(step, tmp_path, 1)
    (folder,) = (run_folder / "steps").iterdir()
    kept = {path.stat().st_ino: path.name for path in (folder, *folder.rglob("*"))}
    names = [kept.get(number) for number in flushed]
    before = names[: names.index("result.json")]
    assert {folder.name, "doubled", "value", "report", "metrics"} <= set(before)


@pytest.mark.parametrize("moment", ["before", "during"])
def test_a_step_of_code_that_was_edited_meanwhile_is_refused(run_folder, tmp_path, moment):
    source, edited = tmp_path / "task.py", "SCALE = -1"
    source.write_text("SCALE = 1")
    CodeState.of([source]).write(run_folder)
    double, calls = counting_step()

    @pipeline_step("double", outputs=("doubled", "report", "metrics"))
    def editing_step(
        *, config: str, source: str, doubled: str, report: str, metrics: str
    ) -> StepResult:
        (tmp_path / "task.py").write_text(edited)
        Path(doubled).mkdir(parents=True)
        Path(report).write_text("<html>")
        return StepResult()

    if moment == "before":
        source.write_text(edited)
    step = double if moment == "before" else editing_step
    with pytest.raises(BadTaskError, match=r"the code changed while the run was going\n.*task\.py"):
        run(step, tmp_path, 1)
    assert calls == []
    assert kinds(run_folder) == ["step_started", "step_failed"]
    source.write_text("SCALE = 1")  # with another time: the content counts
    run(double, tmp_path, 2)
    assert kinds(run_folder)[-1] == "step_finished"


@pytest.mark.parametrize("change", ["config", "artifact", "code", "store", "tracking"])
def test_changed_input_or_code_runs_again(run_folder, tmp_path, monkeypatch, change):
    step, calls = counting_step()
    run(step, tmp_path, 1)
    if change == "code":
        monkeypatch.setenv(environment.CODE_DIGEST, "code-2")
    if change == "store":
        monkeypatch.setenv(environment.STORE_URI, str(tmp_path / "another"))
    if change == "tracking":
        monkeypatch.setenv(environment.TRACKING_URI, "sqlite:///another")
    run(
        step,
        tmp_path,
        2,
        config="d" if change == "config" else "c",
        text="y" if change == "artifact" else "x",
    )
    assert len(calls) == 2


def test_a_failed_validation_keeps_what_it_measured_and_runs_again(run_folder, tmp_path):
    calls = []

    @pipeline_step("validate", outputs=("validation", "report", "metrics"))
    def validate(*, validation: str, report: str, metrics: str) -> StepResult:
        calls.append(validation)
        Path(validation).mkdir()
        Path(validation, "validation.json").write_text("{}")
        raise BadDataError("a leak")

    for attempt in range(2):
        out = tmp_path / f"validate-{attempt}"
        out.mkdir()
        with pytest.raises(BadDataError):
            validate(**{name: str(out / name) for name in ("validation", "report", "metrics")})
    key = [event for event, _ in Journal(run_folder).events()][-1]["key"]
    assert (run_folder / "steps" / key / "validation" / "validation.json").exists()
    assert len(calls) == 2


def test_failed_step_keeps_its_report_and_reports_why(run_folder, tmp_path):
    step, calls = counting_step()
    with pytest.raises(BadDataError):
        run(step, tmp_path, 1, config="fail")
    event = [event for event, _ in Journal(run_folder).events()][-1]
    assert event["kind"] == "step_failed"
    assert "the value is bad" in event["error"]
    assert "fix it" in event["error"]
    assert "BadDataError" in Path(event["log"]).read_text()
    kept = run_folder / "steps" / event["key"]
    assert (kept / "report").read_text() == "<html>"
    with pytest.raises(BadDataError):
        run(step, tmp_path, 2, config="fail")
    assert calls == ["fail", "fail"]


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), True),
        (RuntimeError("(sqlite3.OperationalError) database or disk is full"), True),
        (OSError(errno.EIO, os.strerror(errno.EIO)), False),
    ],
    ids=str,
)
def test_a_step_that_finds_no_space_names_where_and_what_to_do(run_folder, error, is_full):
    @pipeline_step("full", outputs=())
    def full_step(*, config: str) -> StepResult:
        raise error

    with pytest.raises(type(error)):
        full_step(config="c")
    (*_, (failed, _)) = Journal(run_folder).events()
    assert str(error) in failed["error"]
    assert (f"MB are free in {run_folder}" in failed["error"]) == is_full
    assert ("run again to continue" in failed["error"]) == is_full


def test_a_step_without_rights_names_whose_folder_it_is(run_folder):
    @pipeline_step("refused", outputs=())
    def refused_step(*, config: str) -> StepResult:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), f"{run_folder}/no/file")

    with pytest.raises(PermissionError):
        refused_step(config="c")
    (*_, (failed, _)) = Journal(run_folder).events()
    assert f"{run_folder} belongs to user {os.geteuid()}, this is" in failed["error"]
    assert "run again to continue" in failed["error"]


def test_a_snapshot_that_fails_keeps_its_log(run_folder, tmp_path):
    """Its error outdates snapshots, of which it has none yet."""

    @pipeline_step("snapshot_data", outputs=("report",))
    def snapshot_step(*, config: str, report: str) -> StepResult:
        if config == "fail":
            raise BadDataError("no partitions")
        Path(report).write_text("<html>")
        return StepResult()

    snapshot_step(config="c", report=str(tmp_path / "report"))
    with pytest.raises(BadDataError):
        snapshot_step(config="fail", report=str(tmp_path / "failed"))
    event = [event for event, _ in Journal(run_folder).events()][-1]
    assert "no partitions" in Path(event["log"]).read_text()
    snapshot_step(config="c", report=str(tmp_path / "again"))
    assert kinds(run_folder)[-2:] == ["step_started", "step_finished"]


def test_step_that_forgets_an_output_is_an_error(run_folder, tmp_path):
    @pipeline_step("forgetful", outputs=("result",))
    def forgetful_step(*, config: str, result: str) -> StepResult:
        return StepResult()

    with pytest.raises(RuntimeError, match="without writing result"):
        forgetful_step(config="c", result=str(tmp_path / "result"))


def test_outside_a_local_run_nothing_is_recorded(run_folder, tmp_path, monkeypatch):
    monkeypatch.delenv(environment.RUN_FOLDER)
    step, calls = counting_step()
    run(step, tmp_path, 1)
    run(step, tmp_path, 2)
    assert len(calls) == 2
    assert list(run_folder.iterdir()) == []


@pytest.fixture
def on_a_cluster(run_folder, monkeypatch):
    monkeypatch.delenv(environment.RUN_FOLDER)
    monkeypatch.setenv(environment.RUN_ID, "run-7")


def test_on_a_cluster_a_failed_steps_report_is_stored_and_its_address_is_in_the_error(
    on_a_cluster, tmp_path
):
    step, _ = counting_step()
    with pytest.raises(BadDataError) as raised:
        run(step, tmp_path, 1, config="fail")
    stored = tmp_path / "store" / "reports" / "run-7" / "double.html"
    assert stored.read_text() == "<html>"
    assert traceback.format_exception(raised.value)[-1] == f"  report:   {stored}\n"


def test_a_report_that_cannot_be_stored_does_not_hide_the_error(on_a_cluster, tmp_path, caplog):
    (tmp_path / "store").write_text("no folder")
    step, _ = counting_step()
    with pytest.raises(BadDataError, match="the value is bad"):
        run(step, tmp_path, 1, config="fail")
    assert "report=reports/run-7/double.html is not in the object store" in caplog.text


def test_a_step_that_fails_before_its_report_stores_none(on_a_cluster, tmp_path):
    @pipeline_step("early", outputs=("report",))
    def early_step(*, config: str, report: str) -> StepResult:
        raise BadDataError(config)

    with pytest.raises(BadDataError):
        early_step(config="too early", report=str(tmp_path / "report"))
    stored = tmp_path / "store/reports/run-7"
    assert {file.name for file in stored.iterdir()} == {"early.json", "early.log"}
    assert (stored / "early.log").read_text().startswith("too early\n")


def stored_step(tmp_path, name="double"):
    return StoredRun(str(tmp_path / "store"), "run-7").step(name)


def test_on_a_cluster_a_step_leaves_a_record_of_what_it_found_and_logs_it_once(
    on_a_cluster, tmp_path, caplog
):
    step, _ = counting_step()
    run(step, tmp_path, 1)
    record = stored_step(tmp_path)
    assert (record.status, record.summary) == ("finished", "doubled")
    assert caplog.messages.count("step=double finished: doubled") == 1
    assert (tmp_path / "store/reports/run-7/double.html").read_text() == "<html>"


def on_attempt(monkeypatch, number):
    place = f"wf-1.root.training.double.executor({number})"
    monkeypatch.setenv(environment.NODE, place)


def test_a_retry_that_can_only_repeat_the_error_ends_with_it_at_once(
    on_a_cluster, tmp_path, monkeypatch
):
    step, calls = counting_step()
    on_attempt(monkeypatch, 0)
    with pytest.raises(BadDataError) as first:
        run(step, tmp_path, 1, config="fail")
    for number in (1, 2):
        on_attempt(monkeypatch, number)
        with pytest.raises(PerennialError) as again:
            run(step, tmp_path, 2, config="fail")
        assert str(again.value) == str(first.value)
        assert "not tried again" in again.value.__notes__[0]
    assert calls == ["fail"]


@pytest.mark.parametrize("change", ["input", "code", "a person's retry", "unknown attempt"])
def test_what_may_end_otherwise_is_tried_again(on_a_cluster, tmp_path, monkeypatch, change):
    step, calls = counting_step()
    on_attempt(monkeypatch, 0)
    with pytest.raises(BadDataError):
        run(step, tmp_path, 1, config="fail")
    on_attempt(monkeypatch, 0 if change == "a person's retry" else 1)
    if change == "unknown attempt":
        monkeypatch.delenv(environment.NODE)
    if change == "code":
        monkeypatch.setenv(environment.CODE_DIGEST, "code-2")
    with pytest.raises(BadDataError):
        run(step, tmp_path, 2, config="fail", text="y" if change == "input" else "x")
    assert calls == ["fail", "fail"]


@pytest.mark.parametrize(
    "error", [OutageError("the store is away"), ValueError("in the task"), MemoryError()]
)
def test_an_outage_and_a_crash_are_tried_again(on_a_cluster, tmp_path, monkeypatch, error):
    calls = []

    @pipeline_step("fragile", outputs=())
    def fragile_step(*, config: str) -> StepResult:
        calls.append(config)
        raise error

    for number in (0, 1):
        on_attempt(monkeypatch, number)
        with pytest.raises(type(error)):
            fragile_step(config="c")
    assert len(calls) == 2
    assert stored_step(tmp_path, "fragile").status == "failed"


def test_in_kubeflows_pod_an_error_for_people_is_printed_once_without_a_traceback(
    on_a_cluster, tmp_path
):
    """Run as KFP's executor does, whose own handler logs to the standard output."""
    program = (
        "import logging, sys\n"
        "logging.basicConfig(stream=sys.stdout, level=logging.INFO, format='KFP %(message)s')\n"
        "from perennial.contracts.errors import BadDataError\n"
        "from perennial.steps.decorator import pipeline_step\n"
        "@pipeline_step('early', outputs=())\n"
        "def early_step(*, config):\n"
        "    logging.getLogger('botocore.credentials').info('Found credentials')\n"
        "    logging.getLogger('perennial').info('one line')\n"
        "    raise BadDataError('the value is bad', action='fix it')\n"
        "early_step(config='c')\n"
    )
    variables = {**os.environ, environment.POD_NAME: "step-1"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == "the value is bad\n  to do:    fix it\n"
    assert done.stdout == "KFP one line\n"


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_metrics_that_kfp_cannot_carry_are_refused(value):
    with pytest.raises(ValueError, match="finite"):
        StepResult(metrics={"loss": value})


def test_a_long_text_arrives_by_its_address(run_folder, tmp_path):
    step, calls = counting_step()
    text = "x" * (CARRIED_BYTES + 1)
    address = LargeParameter(text, str(tmp_path / "elsewhere")).store()
    run(step, tmp_path, 1, config=address)
    run(step, tmp_path, 2, config=address)
    assert calls == [text]


class Reader(Section):
    """What the step below reads of a contract."""

    model: dict[str, str]
    selection: dict[str, str]


@pytest.mark.parametrize(
    ("section", "times"),
    [("gate", 1), ("selection", 2), ("model", 2)],
)
@pytest.mark.parametrize("places", ["x", "x" * CARRIED_BYTES], ids=["short", "by its address"])
def test_a_step_runs_again_when_a_section_changed_that_it_reads(
    run_folder, tmp_path, section, times, places
):
    calls = []

    @pipeline_step("choose", reads=Reader, outputs=())
    def choose_step(*, contract: str) -> StepResult:
        calls.append(contract)
        return StepResult()

    contract = {name: {"a": places} for name in ("model", "selection", "gate")}
    for sections in (contract, contract | {section: {"a": "other"}}):
        text = LargeParameter(canonical_json(sections), str(tmp_path / "store"))
        choose_step(contract=text.store())
    assert len(calls) == times
    assert all(set(json.loads(text)) == {"model", "selection"} for text in calls)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("[]", "is not a JSON object of a contract's sections"),
        ('{"model":{},"gat":{}}', "unknown: gat"),
    ],
)
def test_a_text_that_is_not_a_contract_fails_the_step_on_record(run_folder, text, message):
    @pipeline_step("choose", reads=Reader, outputs=())
    def choose_step(*, contract: str) -> StepResult:
        raise AssertionError

    with pytest.raises(PerennialError, match=message):
        choose_step(contract=text)
    assert kinds(run_folder) == ["step_started", "step_failed"]


def test_a_lost_text_fails_the_step_on_record(run_folder, tmp_path):
    step, calls = counting_step()
    with pytest.raises(PerennialError, match="there is no"):
        run(step, tmp_path, 1, config=f"{tmp_path}/store/parcels/{'0' * 64}.json")
    assert calls == []
    assert kinds(run_folder) == ["step_started", "step_failed"]


@pytest.mark.parametrize("end", ["", "\n", "\r\n"])  # `echo` writes one
def test_a_step_reads_its_secrets_from_files(run_folder, tmp_path, monkeypatch, end):
    folder = tmp_path / "secrets"
    (folder / "store").mkdir(parents=True)
    (folder / "store" / "key").write_bytes(f"a=b $(c){end}".encode())
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY", raising=False)
    monkeypatch.setenv(environment.SECRET_FILES, "AWS_SECRET_ACCESS_KEY=store/key")
    environment.load_secrets(folder)
    assert os.environ["AWS_SECRET_ACCESS_KEY"] == "a=b $(c)"

    monkeypatch.setenv(environment.SECRET_FILES, "AWS_SECRET_ACCESS_KEY=store/other")
    step, calls = counting_step()
    with pytest.raises(PerennialError, match="the secret for AWS_SECRET_ACCESS_KEY") as caught:
        run(step, tmp_path, 1)
    assert "'other'" in caught.value.action
    assert calls == []
