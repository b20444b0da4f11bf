"""`perennial sanity`: the checks alone, live, their results kept until something changes."""

import os
import re
from pathlib import Path

import pytest

from perennial.check_skeleton.registry import Judge, check_names, select_names
from perennial.check_skeleton.verdict import format_verdict
from perennial.cli import main
from perennial.contracts.skeleton import CheckResult, SkeletonReport
from perennial.reports.page import Page
from perennial.sanity import MOST_KEPT, Sanity, closing_lines, result_lines

SETTINGS = """
[skeleton]
sample_rows = 256
batch_rows = 64
training_steps = 40
overfit_rows = 8
"""
TASK = """
import os, signal
from perennial.tasks.tabular import TabularClassification

class Plain(TabularClassification):
    pass

class Scaled(TabularClassification):
    def predict(self, output):
        return super().predict(output) * 50

class Raising(TabularClassification):
    def score(self, predictions, labels):
        raise KeyError("area")

class Unfit(TabularClassification):
    def fit(self, train):
        raise OSError("no vocabulary")

class Interrupted(TabularClassification):
    def build_model(self):
        os.kill(os.getpid(), signal.SIGINT)
        return super().build_model()
"""
AGAIN = "nothing has changed since just now"


@pytest.fixture
def sanity(project, monkeypatch, capsys):
    """Runs the verb on a task of a module of the test's own; gives exit code, output, errors."""
    monkeypatch.setenv("PERENNIAL_HOME", str(project / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", os.environ.get("OMP_NUM_THREADS", "1"))
    module = f"task_{project.name}"
    (project / f"{module}.py").write_text(TASK)
    contract = project / "contract.toml"
    stock = contract.read_text().partition("[skeleton.severities]")[0]

    def run(*arguments, task="Plain", more=""):
        own = stock.replace("perennial.tasks.tabular:TabularClassification", f"{module}:{task}")
        contract.write_text(own + SETTINGS + more)
        code = main(["sanity", str(contract), *arguments])
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def test_each_check_is_shown_and_the_second_answer_is_kept(sanity, project):
    only = ("labels", "encoding", "initial_loss", "augmentation")
    code, printed, _ = sanity("--only", *only, "--out", str(project / "pages" / "own.html"))
    assert code == 0
    shown = re.findall(r"^  ([✓!-]) (\w+) +\d+\.\d\ds  \S", printed, re.M)
    assert shown == [
        ("-", "augmentation"), ("✓", "encoding"), ("✓", "labels"), ("✓", "per_example_losses"),
        ("✓", "initial_loss"),
    ]  # fmt: skip
    assert "none of 5 checks blocks training; 4 passed, 1 not applicable" in printed
    assert f"report: {project / 'pages' / 'own.html'}" in printed
    page = (project / "pages" / "own.html").read_text()
    assert "only some checks were requested" in page

    code, again, _ = sanity("--only", *only)
    assert code == 0
    assert again.startswith(AGAIN)
    kept = re.search(r"report: (\S+)", again).group(1)
    assert Path(kept).read_text() == page
    assert again.partition("\n")[2].partition("\nreport:")[0] in printed


def test_all_checks_are_listed_without_a_contract(capsys):
    assert main(["sanity", "--list"]) == 0
    printed = capsys.readouterr().out
    named = re.findall(r"^(\w+)  \((fail|warn)\)$", printed, re.M)
    assert [name for name, _ in named] == list(check_names())
    assert {severity for _, severity in named} == {"fail", "warn"}
    assert printed.startswith(f"{len(named)} checks, in running order")
    for part in ("expects: one entry per row", "source: ", "equal for 1, 2 and 3 rows"):
        assert part in " ".join(printed.split()), part


def test_checks_that_do_not_apply_are_one_line(capsys):
    names = check_names()
    request = Sanity(None, None, names, Path("nowhere"))
    results = [Judge(name).skipped("not a text") for name in ("attention", "next_token")]
    late = Judge("resume_trial").unmeasured("6 updates timed out after 120 s")
    report = SkeletonReport(results=(*results, late, Judge("labels").passed("ok")), baselines={})
    fold, empty, verdict = closing_lines(request, report)
    assert fold == "  - 2 not applicable (reasons are in the report): attention, next_token"
    assert empty == ""
    assert "but resume_trial could not run; 1 passed, 2 not applicable, 1 not measured" in verdict
    assert not request.folds(late)
    shown = list(result_lines(late))
    assert re.match(r"  ! resume_trial +0\.00s  not measured: 6 updates timed out", shown[0])
    asked = Sanity(None, None, ("attention",), Path("nowhere"))
    assert not asked.folds(results[0]), "who asks for a check learns why it was skipped"


@pytest.mark.parametrize("change", ["task", "contract", "data", "checks", "--new"])
def test_what_could_change_an_answer_measures_again(sanity, project, write_month, change):
    only = ["--only", "encoding"]
    assert AGAIN not in sanity(*only)[1]
    assert AGAIN in sanity(*only)[1]
    more = ""
    if change == "task":
        (project / "beside.py").write_text("WIDTH = 4\n")
    elif change == "contract":
        more = "significance = 4.0\n"
    elif change == "data":
        write_month(project / "data", 3)
    elif change == "checks":
        only.append("labels")
    else:
        only.append("--new")
    assert AGAIN not in sanity(*only, more=more)[1]


def test_a_section_that_the_checks_do_not_read_changes_nothing(sanity):
    sanity("--only", "encoding")
    assert AGAIN in sanity("--only", "encoding", more="\n[registry]\ndescription = 'clicks'\n")[1]


def test_a_failure_names_the_next_action_and_stays_one_when_kept(sanity):
    for _ in range(2):
        code, printed, _ = sanity("--only", "predictions", task="Scaled")
        assert code == 1
        line, advice = re.search(r"^  ✕ (predictions .*)\n +→ (.*)$", printed, re.M).groups()
        assert "probabilities lie in" in line
        assert "protocol" in advice
        assert "1 of 2 checks failed (predictions)" in printed
    assert printed.startswith(AGAIN)


@pytest.mark.parametrize(
    ("more", "code", "printed"),
    [
        ("[skeleton.waivers]\npredictions = 'scaled later'\n", 0, "waived: scaled later"),
        ("[skeleton.severities]\npredictions = 'warn'\n", 0, "failed, counted as a warning"),
        ("[skeleton.severities]\npredictions = 'off'\n", 0, "switched off"),
        ("[skeleton.waivers]\nper_example_losses = 'x'\n", 1, "its waiver is not needed"),
    ],
)
def test_the_contract_decides_what_a_finding_weighs(sanity, more, code, printed):
    ended, shown, _ = sanity("--only", "predictions", task="Scaled", more=more)
    assert ended == code
    assert f"by the contract: {printed}" in shown


def test_a_check_that_raises_leaves_its_traceback_in_a_log(sanity):
    code, printed, errors = sanity("--only", "metric_direction", task="Raising")
    assert code == 1
    assert "KeyError: 'area'" in printed
    log = Path(re.search(r"log: (\S+)", printed).group(1))
    assert "Traceback" in log.read_text()
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("task", "more", "error"),
    [
        ("Unfit", "", "the task's fit(train) failed"),
        ("Absent", "", "has no 'Absent'"),
        ("Plain", "[skeleton.severities]\nlabel = 'off'\n", "severities has unknown checks: label"),
        ("Plain", "[skeleton.severities]\nlabels = 'mute'\n", "skeleton"),
    ],
)
def test_bad_input_is_distinguished_from_a_failed_check(sanity, task, more, error):
    code, printed, errors = sanity(task=task, more=more)
    assert code == 2
    assert error in errors
    assert "report:" not in printed


def test_unknown_checks_are_refused(sanity):
    code, _, errors = sanity("--only", "overfit_one_bach")
    assert code == 2
    assert "did you mean overfit_one_batch?" in errors


@pytest.mark.usefixtures("interruptible")
def test_a_stopped_examination_keeps_nothing(sanity):
    for _ in range(2):
        code, printed, errors = sanity("--only", "initial_loss", task="Interrupted")
        assert code == 130
        assert "stopped; nothing is kept" in errors
        assert AGAIN not in printed


def test_checks_bring_the_one_that_they_rest_on():
    assert select_names([]) == check_names()
    assert select_names(["labels"]) == ("labels",)
    assert select_names(["initial_loss", "labels"]) == (
        "labels",
        "per_example_losses",
        "initial_loss",
    )


def test_old_answers_are_forgotten(tmp_path):
    result = CheckResult(check="labels", outcome="passed", measured="", expected="", source="")
    report = SkeletonReport(results=(result,), baselines={})
    for index in range(MOST_KEPT + 3):
        folder = tmp_path / f"answer-{index:02}"
        request = Sanity(None, None, ("labels",), folder)
        request.store(report, Page("Checks", outcome="passed", summary=format_verdict(report)))
        os.utime(folder, (index, index))
    left = sorted(path.name for path in tmp_path.iterdir())
    assert len(left) == MOST_KEPT
    assert left[-1] == folder.name
