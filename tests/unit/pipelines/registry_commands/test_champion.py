"""People move the champion with a reason, never to something worse unless they insist."""

import os
import pwd
import sys
from collections.abc import Callable

import pytest

from perennial.cli import main
from perennial.clients.tracking import open_mlflow
from perennial.contracts.errors import PerennialError
from perennial.contracts.version_decisions import REPLACED_TAG, VersionDecision, is_rolled_back
from perennial.data.dataset import Dataset
from perennial.engine.serving.servable import make_servable
from perennial.registry.model_registry import ModelRegistry, open_registry
from perennial.registry_commands import champion as moves
from perennial.runs import Home
from registered_versions import NAME
from small_models import GOOD, TASK, USELESS, write_challenger

_REASONS = ("it is fresher", "clicks fell")


class Killed(BaseException):
    """Ends a move in the middle, as a signal would."""


@pytest.fixture
def champion(environment) -> Callable[[], str]:
    return lambda: open_registry(environment).aliases(NAME).get("champion", "")


def tags(environment, number):
    (found,) = (one for one in open_registry(environment).versions(NAME) if one.version == number)
    return found.tags


def promote(number, *more):
    return ("promote", NAME, number, "--reason", "it is fresher", *more)


def rollback(*more):
    return ("rollback", NAME, "--reason", "clicks fell", *more)


def test_a_rollback_restores_what_was_replaced_and_records_who_when_why(
    perennial, register, champion, environment
):
    register(USELESS)
    register(GOOD, "1")
    code, output = perennial(*rollback())
    assert code == 0
    assert output == f"{NAME} version 1 is champion again in place of version 2\n"
    assert champion() == "1"
    out, back = (
        VersionDecision.of(tags(environment, "2"), "rolled_back"),
        VersionDecision.of(tags(environment, "1"), "restored"),
    )
    assert out == back
    assert out.reason == "clicks fell"
    assert out.by
    assert f"rolled back {out.at} UTC by {out.by}: clicks fell" in perennial("models", NAME)[1]


def test_a_second_rollback_goes_further_back_and_the_first_version_has_nothing_behind_it(
    perennial, register, champion
):
    register(USELESS)
    register(GOOD, "1")
    register((1.0, 0.0), "2")
    for expected in ("2", "1"):
        assert perennial(*rollback())[0] == 0
        assert champion() == expected
    code, output = perennial(*rollback())
    assert code == 2
    assert "nothing to go back to" in output
    assert champion() == "1"


def test_the_gates_verdict_counts_when_the_champion_is_the_one_it_saw(
    perennial, register, champion, environment
):
    register(USELESS)
    register(GOOD, "1", promoted=False)
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (0, "2")
    assert "in place of version 1 (the gate's verdict on it is valid)" in output
    own = tags(environment, "2")
    assert (VersionDecision.of(own, "promoted").reason, own[REPLACED_TAG]) == ("it is fresher", "1")
    assert perennial(*promote("2")) == (0, f"{NAME} version 2 is champion already\n")


def test_a_better_version_is_evaluated_against_a_new_champion(
    perennial, register, champion, environment
):
    register(USELESS)
    register(GOOD, "", promoted=False)
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (0, "2"), output
    assert "judged again: " in output
    note = "it was promoted in place of version 1, with which this does not compare it"
    assert note in perennial("explain", f"{NAME}@2")[1]
    assert "with which this does not compare" not in perennial("explain", f"{NAME}@1")[1]
    client = open_mlflow(environment)
    experiment = client.get_experiment_by_name(NAME).experiment_id
    (run,) = client.search_runs([experiment], "tags.`perennial.run_id` LIKE '%judged-again%'")
    assert run.info.status == "FINISHED"


def test_a_worse_version_is_refused_unless_a_person_insists(
    perennial, register, champion, environment
):
    register(GOOD)
    register(USELESS, "", promoted=False)
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (2, "1")
    assert "is not shown to be better" in output
    code, output = perennial(*promote("2", "--force"))
    assert (code, champion()) == (0, "2")
    assert VersionDecision.of(tags(environment, "2"), "promoted").reason == "it is fresher (forced)"


def test_what_was_rolled_back_comes_back_by_force_only(perennial, register, champion):
    register(USELESS)
    register(GOOD, "1")
    perennial(*rollback())
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (2, "1")
    assert "was taken out of production" in output
    assert "clicks fell" in output
    assert perennial(*promote("2", "--force"))[0] == 0
    assert champion() == "2"


@pytest.mark.hostile
def test_a_rollback_counts_although_the_promotion_was_by_a_clock_that_is_ahead(
    perennial, register, champion, environment
):
    register(USELESS)
    register(GOOD, "1")
    ahead = "2999-12-31 23:59:59"
    open_mlflow(environment).set_model_version_tag(NAME, "2", "perennial.promoted_at", ahead)
    assert perennial(*rollback())[0] == 0
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (2, "1")
    assert "was taken out of production" in output
    assert perennial(*promote("2", "--force"))[0] == 0
    assert not is_rolled_back(tags(environment, "2"))


@pytest.mark.hostile
@pytest.mark.parametrize("reason", ["\udcff", "a\x1b[31mb", "bell\x07", "zero\0"])
def test_a_reason_that_would_damage_the_records_changes_nothing(
    perennial, register, champion, home, reason
):
    register(USELESS)
    register(GOOD, "1")
    record = home / f"store/registry/{NAME}.json"
    before = record.read_bytes()
    for verb in (rollback("--force"), promote("1", "--force")):
        code, output = perennial(*[reason if word in _REASONS else word for word in verb])
        assert code == 2
        assert "--reason with a character that no database keeps" in output
    assert (champion(), record.read_bytes()) == ("2", before)
    assert perennial(*rollback())[0] == 0


def test_a_user_whom_the_system_does_not_know_decides_under_a_number(
    perennial, register, environment, monkeypatch
):
    register(USELESS)
    register(GOOD, "1")
    monkeypatch.setattr("getpass.getuser", lambda: pwd.getpwuid(4_000_000_000))
    assert perennial(*rollback())[0] == 0
    assert VersionDecision.of(tags(environment, "2"), "rolled_back").by == f"user {os.getuid()}"


@pytest.mark.parametrize("force", [False, True])
def test_a_version_that_does_not_load_is_no_target_of_a_rollback(
    perennial, register, champion, home, force
):
    register(USELESS)
    for file in (home / "store").rglob("model.safetensors"):
        file.write_bytes(b"damaged")
    register(GOOD, "1")
    code, output = perennial(*rollback(*["--force"] * force))
    assert (code, champion()) == ((0, "1") if force else (2, "2"))
    assert force or "version 1 is damaged: model.safetensors" in output


@pytest.mark.parametrize(
    "verb",
    [("explain", NAME), ("compare", "clicks@1", "clicks@2"), ("reproduce", NAME, "1"),
     ("models", NAME), ("models", NAME, "--repair"), rollback(), rollback("--force"), promote("1")],
    ids=" ".join,
)  # fmt: skip
def test_in_a_home_that_was_moved_no_file_is_called_gone(register, home, capsys, monkeypatch, verb):
    register(USELESS)
    register(GOOD, "1")
    for name in ("PERENNIAL_STORE_URI", "MLFLOW_TRACKING_URI"):  # the homes' own
        monkeypatch.delenv(name)
    moved = home.with_name(f"{home.name}-moved")
    home.rename(moved)
    try:
        assert main([*verb, "--home", str(moved)]) == 2
    finally:
        moved.rename(home)
    assert "was moved or copied" in capsys.readouterr().err
    assert open_registry(Home(home).environment).aliases(NAME)["champion"] == "2"


@pytest.fixture
def own_task(tmp_path, monkeypatch):
    """Exports a model of a task in a file of the user, which may be gone later."""
    file = tmp_path / "code" / "own_clicks.py"
    file.parent.mkdir()
    file.write_text("from perennial.tasks.tabular import TabularClassification as Clicks\n")
    monkeypatch.syspath_prepend(file.parent)

    def write(folder, snapshot, weights, fingerprint):
        written = write_challenger(folder, snapshot, weights, fingerprint)
        written = written.model_copy(update={"task": "own_clicks:Clicks"})
        written.write(folder)
        make_servable(folder, Dataset(snapshot))
        return written

    yield write, file
    sys.modules.pop("own_clicks", None)


@pytest.mark.parametrize("carries", [True, False])
def test_a_rollback_needs_no_present_code_of_a_version_that_carries_its_own(
    perennial, register, champion, own_task, carries
):
    write, file = own_task

    def packed(folder, *arguments):
        written = write(folder, *arguments)
        if not carries:
            (folder / "code" / file.name).write_text("raise ValueError('it was lost')")
        return written

    register(USELESS, write=packed)
    register(GOOD, "1")
    file.write_text("")  # the class was renamed since
    del sys.modules["own_clicks"]
    code, output = perennial(*rollback())
    assert (code, champion()) == ((0, "1") if carries else (2, "2"))
    assert carries or "--code names the folder of its task's code; --force skips" in output


def test_a_version_that_lacks_its_contract_is_not_promoted_on_trust(
    perennial, register, champion, home
):
    register(USELESS)
    register(GOOD, "", promoted=False)
    for file in (home / "store").rglob("contract.json"):
        file.unlink()
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (2, "1")
    assert "it lacks contract.json" in output


@pytest.fixture
def overtaken(environment, monkeypatch):
    """While a verdict is reached, another version becomes champion, once."""
    original = moves.re_evaluate

    def during(version, champion):
        rivals = [version]

        def overtake(*arguments):
            verdict = original(*arguments)
            if rivals:
                open_registry(environment).promote(NAME, rivals.pop(), champion)
            return verdict

        monkeypatch.setattr(moves, "re_evaluate", overtake)

    return during


@pytest.mark.parametrize(
    ("rival", "expected", "text"),
    [
        ((3.0, 0.0), (2, "3"), "is not shown to be better"),
        ((2.0, 3.0), (0, "2"), "in place of version 3 (judged again: "),
    ],
    ids=["a better one", "a worse one"],
)
def test_a_champion_that_changes_meanwhile_is_compared_too(
    perennial, register, champion, overtaken, *, rival, expected, text
):
    register(USELESS)
    register(GOOD, "", promoted=False)
    register(rival, "1", promoted=False)
    overtaken("3", "1")
    code, output = perennial(*promote("2"))
    assert (code, champion()) == expected, output
    assert text in output


def test_a_rejection_by_a_champion_that_is_replaced_meanwhile_is_judged_again(
    perennial, register, champion, overtaken
):
    register((3.0, 0.0))
    register(GOOD, "", promoted=False)
    register(USELESS, "1", promoted=False)
    overtaken("3", "1")
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (0, "2"), output
    assert "in place of version 3 (judged again: " in output


def test_a_rollback_of_the_version_while_it_is_judged_counts(
    perennial, register, champion, monkeypatch
):
    register(USELESS)
    register(GOOD, "", promoted=False)
    original = moves.re_evaluate

    def decided_meanwhile(*arguments):
        verdict = original(*arguments)
        for verb in (promote("2", "--force"), rollback()):
            assert perennial(*verb)[0] == 0
        return verdict

    monkeypatch.setattr(moves, "re_evaluate", decided_meanwhile)
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (2, "1"), output
    assert "was taken out of production" in output


def test_force_is_not_meant_for_a_champion_that_came_meanwhile(
    perennial, register, champion, environment, monkeypatch
):
    register(USELESS)
    register(GOOD, "", promoted=False)
    register((3.0, 0.0), "1", promoted=False)
    original = moves.tags_of_promotion

    def overtaken(*arguments):
        open_registry(environment).promote(NAME, "3", "1")
        return original(*arguments)

    monkeypatch.setattr(moves, "tags_of_promotion", overtaken)
    code, output = perennial(*promote("2", "--force"))
    assert (code, champion()) == (2, "3")
    assert "the champion of clicks moved meanwhile; nothing was changed" in output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (promote("9"), "versions: 1"),
        (("promote", "click", "1", "--reason", "x"), "the nearest is clicks"),
        (("rollback", "click", "--reason", "x"), "the nearest is clicks"),
        (("rollback", NAME, "--reason", "  "), "--reason needs 1 to 1,000 characters"),
        (("promote", NAME, "1", "--reason", "x" * 1001), "it has 1,001"),
        (rollback(), "nothing to go back to"),
    ],
)
def test_a_bad_request_changes_nothing(perennial, register, champion, arguments, message):
    register(GOOD)
    code, output = perennial(*arguments)
    assert (code, champion()) == (2, "1")
    assert message in output


@pytest.mark.parametrize("verb", [promote("1"), rollback()])
def test_an_empty_registry_has_nothing_to_move(perennial, environment, verb):
    code, output = perennial(*verb)
    assert code == 2
    assert "no model is registered yet" in output


def test_a_move_killed_before_its_alias_is_finished_with_its_tags_by_the_next(
    perennial, register, champion, environment, monkeypatch
):
    register(USELESS)
    register(GOOD, "1")

    def killed(*_):
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(ModelRegistry, "_tag", killed)
        assert perennial(*rollback())[0] == 2
    assert champion() == "2"
    # Whoever moves next finds the announced move, and brings it to its end first.
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (2, "1")
    assert "version 1 of clicks became champion just now" in output
    assert "was taken out of production" in perennial(*promote("2"))[1]
    assert VersionDecision.of(tags(environment, "2"), "rolled_back").reason == "clicks fell"


def fail_once(patch, moves=ModelRegistry._move_alias):
    """The next move of an alias fails, as where MLflow's disk is full."""

    def failing(*_):
        patch.setattr(ModelRegistry, "_move_alias", moves)
        raise PerennialError("the disk is full", evidence="0 bytes", action="free some")

    patch.setattr(ModelRegistry, "_move_alias", failing)


@pytest.fixture
def three(register):
    """Versions 1 to 3, of which each replaced the one before."""
    register(USELESS)
    register(GOOD, "1")
    register((1.0, 0.0), "2")


@pytest.mark.usefixtures("three")
def test_a_promotion_that_fails_is_shown_until_it_is_completed(perennial, champion, monkeypatch):
    fail_once(monkeypatch)
    code, output = perennial(*promote("1", "--force"))
    assert (code, champion()) == (2, "3")
    assert "version 1 of clicks is announced as champion, but not in MLflow yet" in output
    assert "free some. The next promotion, rollback or run completes it" in output
    pending = "version 1 is announced as champion in place of version 3"
    assert pending in perennial("status")[1]
    assert pending in perennial("models", NAME)[1]
    code, output = perennial("models", NAME, "--repair", "--yes")
    assert (code, champion()) == (0, "1")
    assert pending in output
    assert "announced" not in perennial("status")[1]
    assert "nothing to repair" in perennial("models", NAME, "--repair", "--yes")[1]


@pytest.mark.usefixtures("three")
@pytest.mark.parametrize("next_", [rollback(), promote("3", "--force"), rollback("--force")])
def test_a_decision_is_not_carried_out_on_a_champion_that_its_person_has_not_seen(
    perennial, champion, environment, monkeypatch, next_
):
    fail_once(monkeypatch)
    assert perennial(*promote("1", "--force"))[0] == 2
    code, output = perennial(*next_)
    assert (code, champion()) == (2, "1")
    assert "version 1 of clicks became champion just now; nothing else was changed" in output
    assert not is_rolled_back(tags(environment, "1"))
    assert perennial(*promote("3", "--force"))[0] == 0
    assert champion() == "3"


@pytest.mark.usefixtures("three")
def test_a_decision_that_failed_is_completed_by_the_same_decision(perennial, champion, monkeypatch):
    fail_once(monkeypatch)
    assert perennial(*promote("1", "--force"))[0] == 2
    code, output = perennial(*promote("1", "--force"))
    assert (code, champion()) == (0, "1")
    assert "is champion already" in output
    assert perennial(*promote("3", "--force"))[0] == 0
    fail_once(monkeypatch)
    assert perennial(*rollback())[0] == 2
    # Not a second time: that would take out what the first one restored.
    code, output = perennial(*rollback())
    assert (code, champion()) == (2, "1")
    assert "became champion just now" in output


def test_a_users_task_is_found_in_the_named_folder(perennial, register, champion, home):
    register(USELESS)
    register(GOOD, "1", promoted=False)
    code_folder = home / "own"
    code_folder.mkdir()
    (code_folder / "own_click_task.py").write_text(
        "from perennial.tasks.tabular import TabularClassification\n"
        "class Clicks(TabularClassification):\n    pass\n"
    )
    for file in (home / "store").rglob("challenger.json"):
        text = file.read_text()
        file.write_text(text.replace(TASK, "own_click_task:Clicks"))
    code, output = perennial(*promote("2"))
    assert (code, champion()) == (2, "1")
    assert "own_click_task" in output
    assert perennial(*promote("2", "--code", str(code_folder)))[0] == 0
    assert champion() == "2"


def test_a_number_names_a_version_although_an_alias_has_that_name(
    perennial, register, champion, environment
):
    """With the alias `1` at version 2, `promote clicks 1` promoted version 2."""
    register(USELESS)
    register(GOOD, "1")
    client = open_mlflow(environment)
    client.set_registered_model_alias(NAME, "1", "2")
    client.set_registered_model_alias(NAME, "2025", "2")
    code, output = perennial("promote", NAME, "1", "--reason", "x", "--force")
    assert (code, champion()) == (0, "1"), output
    code, output = perennial("promote", NAME, "2025", "--reason", "x", "--force")
    assert (code, champion()) == (0, "2"), output
