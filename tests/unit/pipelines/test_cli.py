"""Help and suggestions; options that would be ignored, unknown names, missing packages."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
import urllib.request
from importlib.metadata import packages_distributions, version
from pathlib import Path

import pytest
import typer

from perennial.cli import STUDY_VERBS, VERBS, app, main
from perennial.clients.tracking import open_tracking
from perennial.verb_errors import EXTRAS, explain_error
from ports import get_free_port
from small_models import environment_at

ROOT = Path(__file__).resolve().parents[3]
KIND = ROOT / "k8s" / "overlays" / "kind" / "profile.toml"


NAMES = [verb.__name__.rstrip("_") for verbs in VERBS.values() for verb in verbs]


def perennial(*arguments, **environment):
    return subprocess.run(
        [sys.executable, "-m", "perennial.cli", *arguments],
        env={key: value for key, value in os.environ.items() if key != "GITHUB_ACTIONS"}
        | environment,
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def test_names_are_written_in_a_terminal_that_knows_none_of_their_letters():
    done = perennial("check", "mañana.toml", LC_ALL="C", PYTHONUTF8="0")
    assert done.returncode == 2
    assert "mañana.toml" in done.stderr


def test_help_groups_the_verbs_and_is_plain_in_a_pipe():
    done = perennial("--help")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    lines = [line.strip("│╭─╮ ") for line in done.stdout.splitlines()]
    places = [lines.index(heading) for heading in VERBS]
    assert places == sorted(places)
    last = NAMES.index("ui") + 1  # of its panel, in which a group of verbs stands at the end
    expected = [*NAMES[:last], "study", *NAMES[last:]]
    assert re.findall(r"^│ ([a-z]+)\s", done.stdout, re.M) == expected


@pytest.mark.parametrize("verb", [*NAMES, *(f"study {name}" for name in STUDY_VERBS)])
def test_every_verb_and_every_option_has_a_help_text(verb, capsys):
    assert main([*verb.split(), "--help"]) == 0
    printed = capsys.readouterr().out
    command = typer.main.get_command(app)
    for word in verb.split():
        command = command.commands[word]
    shown = [each for each in command.params if not each.hidden]
    assert [
        each.name
        for each in shown
        if each.opts[-1].startswith("-") and each.opts[-1] not in printed
    ] == []
    assert [each.name for each in shown if not each.help] == []
    # A word in square brackets is markup, of which nothing would be printed.
    assert [each.name for each in shown if re.search(r"(?<!\\)\[[a-z/]", each.help)] == []


def test_the_version_is_the_packages(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"perennial {version('perennial')}\n"


@pytest.mark.parametrize(
    ("arguments", "suggestion"),
    [
        (["sanit", "c.toml"], "Did you mean 'sanity'"),
        (["deploi"], "Did you mean 'deploy'"),
        (["run", "c.toml", "--replai"], "--replay"),
    ],
)
def test_what_is_misspelt_is_answered_with_what_is_near(arguments, suggestion, capsys):
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert suggestion in printed
    assert "--help`" in printed


def test_verbs_and_options_are_completed_by_the_shell():
    for words, completion in (("perennial san", "sanity"), ("perennial run --repl", "--replay")):
        done = perennial(
            _PERENNIAL_COMPLETE="complete_bash", COMP_WORDS=words,
            COMP_CWORD=str(len(words.split()) - 1),
        )  # fmt: skip
        assert done.stdout.split() == [completion]


HEAVY = {"torch", "kfp", "mlflow", "numpy", "polars", "pandas", "boto3", "kubernetes"}


@pytest.mark.parametrize(
    ("arguments", "heavy"),
    [(["--help"], HEAVY | {"pydantic"}), (["status"], HEAVY), (["runs"], HEAVY)],
)
def test_help_and_questions_without_a_registry_import_nothing_heavy(arguments, heavy, tmp_path):
    code = f"import sys; from perennial.cli import main; main({arguments}); print({heavy} & {{*sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.endswith("set()\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "c.toml", "--first", "2"],
        ["run", "c.toml", "--until", "5"],
        ["run", "c.toml", "--new", "--from", "train_model"],
        ["run", "c.toml", "--replay", "--new"],
        ["run", "c.toml", "--replay", "--from", "train_model"],
        ["sanity", "c.toml", "labels"],
        ["schedule", "m", "--profile", "p", "--pause", "--resume"],
        ["models", "--yes"],
        ["models", "m", "--repair", "--json"],
    ],
)
def test_options_that_would_be_ignored_are_refused(arguments, capsys):
    assert main(arguments) == 2
    assert "--" in capsys.readouterr().err


NAMED = {
    "training.metric": "metric = 'roc_acu'",
    "selection.metric": "metric = 'roc_acu'",
    "selection.limits.roc_acu": "limits = { log_loss = 0.6, roc_acu = 0.5 }",
    "gate.metric": "metric = 'roc_acu'",
}


@pytest.mark.parametrize("place", NAMED)
@pytest.mark.parametrize("verb", ["check", "run", "monitor"])
def test_metric_that_the_task_lacks_is_found_before_anything_runs(tmp_path, capsys, place, verb):
    contract = tmp_path / "contract.toml"
    contract.write_text(
        "[model]\nname = 'm'\ntask = 'perennial.tasks.tabular:TabularClassification'\n"
        "[data]\nuri = 'd'\nlabel = 'y'\nids = ['i']\n"
        f"[{place.split('.')[0]}]\n{NAMED[place]}\n"
    )
    home = [] if verb == "check" else ["--home", str(tmp_path / "home")]
    assert main([verb, str(contract), *home]) == 2
    printed = capsys.readouterr().err
    assert f"{place} names 'roc_acu'" in printed
    section, _, key = place.removesuffix(".roc_acu").rpartition(".")
    line = f'{key} = "roc_auc"  # in [{section}]'
    assert (
        f"write {'roc_auc = …  # in [selection.limits]' if 'limits' in place else line}" in printed
    )
    assert not (tmp_path / "home").exists()


def test_runs_and_status_of_an_empty_home_report_it(tmp_path, capsys):
    for verb in ("runs", "status"):
        assert main([verb, "--home", str(tmp_path)]) == 0
        assert "no runs" in capsys.readouterr().out
    assert main(["report", "--home", str(tmp_path)]) == 2


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["exporter", "--profile", str(KIND)], "prometheus_client", "control"),
        (["check", str(ROOT / "examples" / "flights" / "contract.toml")], "torch", "trainer"),
    ],
)
def test_a_package_that_is_not_installed_is_answered_with_the_extra_that_brings_it(
    monkeypatch, capsys, arguments, module, extra
):
    for name in [name for name in sys.modules if name.startswith("perennial.engine.task")]:
        monkeypatch.delitem(sys.modules, name)  # it is imported again, and with it what it imports
    monkeypatch.setitem(sys.modules, module, None)
    assert main(arguments) == 2
    printed = capsys.readouterr().err
    assert f"this command needs {module}, which is not installed here" in printed
    assert f"pip install -e '.[{extra}]'" in printed


def test_a_module_that_no_extra_brings_is_left_to_its_traceback():
    assert explain_error(ModuleNotFoundError("No module named 'mine'", name="mine")) is None


def test_an_mlflow_that_does_not_answer_is_named_with_the_next_action(monkeypatch, capsys):
    address = f"http://127.0.0.1:{get_free_port()}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    assert main(["models", "flights"]) == 2
    printed = capsys.readouterr().err
    assert "MLflow's server does not answer" in printed
    assert address in printed


def test_every_extra_brings_the_module_that_it_is_named_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]

    def brought(extra):
        for text in extras[extra]:
            if inner := re.fullmatch(r"perennial\[(.+)\]", text):
                for name in inner[1].split(","):
                    yield from brought(name)
            else:
                yield re.split(r"[\[<>=]", text)[0].lower().replace("_", "-")

    made = packages_distributions()
    for module, extra in EXTRAS.items():
        names = {name.lower().replace("_", "-") for name in made.get(module, [module])}
        assert names & set(brought(extra)), (module, extra)


def test_the_page_of_mlflow_needs_a_home_with_runs(tmp_path, capsys):
    assert main(["ui", "--home", str(tmp_path)]) == 2
    assert f"there is nothing to show in {tmp_path}" in capsys.readouterr().err


def test_the_password_of_mlflows_database_is_no_argument_of_its_page(tmp_path, monkeypatch, capsys):
    started = []
    address = "postgresql://ada:secret@127.0.0.1/mlflow"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", address)
    monkeypatch.setattr(
        subprocess, "call", lambda command, env=None: started.append((command, env)) or 0
    )
    assert main(["ui", "--home", str(tmp_path)]) == 0
    ((command, environment),) = started
    assert "secret" not in " ".join(command)
    assert environment["MLFLOW_BACKEND_STORE_URI"] == address
    assert "shows postgresql://127.0.0.1/mlflow" in capsys.readouterr().out


@pytest.mark.full  # MLflow's server takes half a minute to start
def test_the_page_of_mlflow_shows_the_homes_runs(tmp_path):
    open_tracking(environment_at(tmp_path / "mlflow.db", tmp_path), "prices")
    port = get_free_port()
    command = [sys.executable, "-m", "perennial.cli", "ui", "--home", str(tmp_path)]
    server = subprocess.Popen([*command, "--port", str(port)], start_new_session=True)
    url = f"http://127.0.0.1:{port}/api/2.0/mlflow/experiments/get-by-name?experiment_name=prices"
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), urllib.request.urlopen(url) as answer:
                assert json.load(answer)["experiment"]["name"] == "prices"
                return
            time.sleep(0.2)
        pytest.fail("MLflow's page did not open")
    finally:
        os.killpg(server.pid, signal.SIGTERM)
        server.wait()
