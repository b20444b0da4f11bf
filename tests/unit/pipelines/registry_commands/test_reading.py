"""The commands print which versions are registered, how good they are, why, and their origin."""

import json
import re
import shutil

import pytest

from perennial.contract import Contract
from perennial.contracts.environment import TRACKING_URI
from perennial.contracts.gate import Registration, Verdict
from perennial.contracts.snapshot import Snapshot
from perennial.registry.model_registry import open_registry
from perennial.registry_commands.catalogue import Catalogue
from perennial.registry_commands.verbs import fitted
from perennial.runs import Home
from perennial.steps.journal import Journal
from registered_versions import NAME, contract_of
from small_models import GOOD, NOISY, USELESS


def test_models_are_listed_with_their_champion(perennial, register):
    register(USELESS)
    register(GOOD, "1")
    code, output = perennial("models")
    assert code == 0
    assert output.split() == [NAME, "2", "versions", "champion:", "2"]


@pytest.mark.parametrize("verb", [("models",), ("models", NAME), ("ui",)], ids=" ".join)
def test_the_password_of_mlflows_address_is_not_printed(perennial, monkeypatch, verb):
    monkeypatch.setenv(TRACKING_URI, "http://ada:secret@127.0.0.1:9")
    monkeypatch.setattr(Catalogue, "names", lambda catalogue: [])
    monkeypatch.setattr(Catalogue, "champion", lambda catalogue, name: None)
    _, output = perennial(*verb)
    assert "http://127.0.0.1:9" in output
    assert "secret" not in output


def test_versions_come_with_aliases_metrics_and_why_each_was_promoted(perennial, register):
    register(USELESS)
    register(GOOD, "1")
    register(NOISY, "2", promoted=False)
    code, output = perennial("models", NAME)
    assert code == 0
    first, second, third = output.split("  version ")[1:]
    assert "roc_auc 0.875\n" in first
    assert "UTC  challenger champion" in second
    assert "roc_auc 0.875  improvement on version 1: +0.25 [+0.125, +0.5]" in second
    assert "UTC by the gate: Promote: it is better." in second
    assert "no recorded promotion" in third


@pytest.fixture
def rejected(register, home):
    """A run whose challenger was rejected; gives its id and folder, and its journal."""
    register(GOOD)
    data = next(iter(home.glob("data-*")))
    contract = Contract.model_validate(
        {"model": {"name": NAME, "task": "m:T"}, "data": {"uri": str(data), "label": "label",
         "ids": ("row",)}}
    )  # fmt: skip
    records = Home(home)
    run = records.new_run(contract, "continuous_training", "code")
    folder = records.folder(run.run_id)
    journal = Journal(folder)
    journal.append("run", run_id=run.run_id, attempt=1)
    finish(journal, "evaluate_model", "k")
    verdict_of(promote=False, summary="Keep the champion: no better.").write(
        folder / "steps" / "k" / "verdict"
    )
    return run.run_id, folder, journal


def finish(journal, step, key):
    """Record a step that ended well."""
    journal.append("step_started", step=step, key=key, log="")
    journal.append("step_finished", step=step, key=key)


def verdict_of(**fields):
    """A verdict on one row."""
    rest = {"reasons": (), "comparisons": (), "baselines": {}, "performance_reference": ()}
    return Verdict(**fields, **rest, test_rows=1, test_blocks=1)


def test_challengers_that_the_gate_turned_down_are_listed_too(perennial, rejected):
    run_id, folder, _ = rejected
    code, output = perennial("models", NAME)
    assert code == 0
    assert f"not registered  run {run_id}\n    rejected by the gate: Keep the" in output
    (folder / "steps" / "k" / "verdict" / Verdict.file_name).write_text('{"of": "another time"}')
    code, output = perennial("models", NAME)
    assert code == 0
    assert f"not registered  run {run_id}\n    no verdict is recorded that this code" in output
    assert json.loads(perennial("models", NAME, "--json")[1])["turned_down"][0]["verdict"] is None


def test_a_challenger_that_was_judged_again_has_the_last_verdict_everywhere(perennial, rejected):
    """Its champion was replaced meanwhile: it was promoted over the one before."""
    run_id, folder, journal = rejected
    finish(journal, "register_model", "r")
    again = verdict_of(promote=True, summary="Promote: it is better than version 1.")
    made = Registration(
        name=NAME, version="4", aliases=("champion",), weights_sha256="", tracking_run_id="",
        judged_again=again,
    )  # fmt: skip
    made.write(folder / "steps" / "r" / "registration")
    assert "not registered" not in perennial("models", NAME)[1]
    assert json.loads(perennial("models", NAME, "--json")[1])["turned_down"] == []
    code, output = perennial("status", NAME)
    assert code == 0
    assert f"Promote: it is better than version 1. ({run_id})" in output
    assert "Keep the champion" not in output


def test_an_empty_registry_reports_it_and_is_not_created(perennial, home, monkeypatch):
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    (home / "mlflow.db").unlink()
    assert perennial("models") == (0, f"no model is registered in {Home(home).tracking_uri}\n")
    for verb in (["models", NAME], ["explain", NAME], ["compare", NAME, NAME]):
        code, output = perennial(*verb)
        assert code == 2
        assert "no model is registered yet" in output
    assert not (home / "mlflow.db").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["models", "click"], "the nearest is clicks"),
        (["explain", "click@1"], "the nearest is clicks"),
        (["explain", "clicks@7"], "versions: 1; aliases: challenger → 1, champion → 1"),
        (["explain", "clicks@best"], "clicks has no 'best', neither a version nor an alias"),
        (["compare", "clicks@1", "clicks@2"], "clicks has no '2'"),
    ],
)
def test_a_bad_name_is_refused_with_what_there_is(perennial, register, arguments, message):
    register(GOOD)
    code, output = perennial(*arguments)
    assert code == 2
    assert message in output


def test_comparison_shows_differences_only(perennial, register):
    register(USELESS, seed=7)
    register(GOOD, "1", seed=8)
    code, output = perennial("compare", "clicks@1", "clicks@champion")
    assert code == 0
    assert "A  clicks version 1\nB  clicks version 2 (challenger, champion)" in output
    assert "roc_auc: B is better than A by +0.25 [+0.125, +0.5] on 500 common test rows" in output
    assert "data\n  the same\n" in output
    assert "contract\n  training.seed: 7 → 8\n" in output
    assert re.search(r"^  weights: [0-9a-f]{12} → [0-9a-f]{12}$", output, re.MULTILINE)
    assert not re.search("[0-9a-f]{13}", output)
    assert "parent version: none → 1" in output


def test_metrics_of_other_test_rows_are_not_taken_for_a_comparison(perennial, register):
    register(USELESS, days=90)
    register(GOOD, "", days=60, promoted=False)
    code, output = perennial("compare", "clicks@1", "clicks@2")
    assert code == 0
    assert "each was measured on the test rows of its own snapshot" in output
    assert "there is no interval of the difference" in output
    assert "rows: 2,700 → 1,800" in output
    assert "rows by split.test: " in output
    assert "split_rows" not in output


def test_long_lines_are_broken_in_a_window_and_nowhere_else():
    line = f"    verdict  {'word ' * 9}{'0f' * 32}"
    assert list(fitted([line], 0)) == [line]
    broken = list(fitted(["", "short", line], 40))
    assert broken[:2] == ["", "short"]
    assert broken[2].startswith("    verdict  word")
    assert all(each.startswith(" " * 8) for each in broken[3:])
    assert broken[-1].strip() == "0f" * 32
    assert " ".join(broken[2:]).split() == line.split()


def test_json_output_has_the_same_content(perennial, register):
    register(USELESS, seed=7)
    register(GOOD, "1", seed=8)

    def read_json(*arguments):
        code, output = perennial(*arguments, "--json")
        assert code == 0
        return json.loads(output)

    assert read_json("models") == [{"model": NAME, "versions": ["1", "2"], "champion": "2"}]
    versions = read_json("models", NAME)["versions"]
    assert [(one["version"], one["aliases"]) for one in versions] == [
        ("1", []), ("2", ["challenger", "champion"]),
    ]  # fmt: skip
    assert versions[1]["verdict"]["comparisons"][0]["challenger"] == 0.875
    assert versions[1]["decisions"][0]["by"] == "the gate"
    differences = read_json("compare", "clicks@1", "clicks@2")["differences"]
    assert differences["data"] == {}
    assert differences["contract"] == {"training.seed": {"a": "7", "b": "8"}}
    explained = read_json("explain", NAME)
    assert explained["lineage"]["parent_version"] == "1"
    assert explained["contract"]["training"]["seed"] == 8
    assert explained["uncommitted_diff"] == "+rate = 2\n"


def test_a_version_is_explained_from_commit_to_verdict(perennial, register, home):
    register(USELESS)
    register(GOOD, "1")
    page = home / "explained.html"
    code, output = perennial("explain", "clicks@champion", "--out", str(page))
    assert code == 0
    html = page.read_text()
    contract = contract_of(_snapshot_data(home), 7).digest()
    for text in (
        "Promote: it is better.", "version 1", "drift", "evidence.columns", "abc", "packages",
        contract, "torch", "run-1", "waived: overfit_one_batch", "labels are noisy by nature",
        "better: by much", "+0.25 [+0.125, +0.5]",
    ):  # fmt: skip
        assert text.lower() in output.lower(), text
        assert text.lower() in html.lower(), text
    assert "+rate = 2" in html
    assert "training.seed = 7" in html


def _snapshot_data(home):
    return Snapshot.read(next(iter(home.glob("package-*")))).data


def test_a_version_registered_by_other_means_is_reported_with_what_it_lacks(
    perennial, register, environment, home
):
    register(GOOD, promoted=False)
    registry = open_registry(environment)
    registry.promote(NAME, "1", "")
    for name in ("contract.json", "skeleton.json"):
        for file in (home / "store").rglob(name):
            file.unlink()
    code, output = perennial("explain", NAME)
    assert code == 0
    assert "checks  not recorded" in output
    assert "A and B: not recorded" in perennial("compare", NAME, NAME)[1]
    for file in (home / "store").rglob("lineage.json"):
        file.write_text("{}")
    code, output = perennial("explain", NAME)
    assert code == 2
    assert "has no lineage that can be read" in output
    shutil.rmtree(home / "store" / "mlflow-artifacts")
    code, output = perennial("explain", NAME)
    assert code == 2
    assert "the files of clicks version 1 cannot be downloaded" in output
    assert "cannot be downloaded" in perennial("models", NAME)[1]
    assert registry.versions(NAME)
