"""Records of a champion that disagree are shown, repaired when a person agrees, and kept."""

import json

import pytest

from perennial.clients.object_store import open_store
from perennial.clients.tracking import open_mlflow
from perennial.contracts.version_decisions import REPLACED_TAG
from perennial.registry.champion_records import refuse_recorded_champion
from perennial.registry.model_registry import open_registry
from perennial.registry.version_files import FILES_TAG
from perennial.registry_commands.champion import RepairEntry
from registered_versions import NAME
from small_models import GOOD, USELESS


@pytest.fixture
def record(home):
    return home / f"store/registry/{NAME}.json"


@pytest.fixture
def client(environment):
    return open_mlflow(environment)


@pytest.fixture
def champion(environment):
    def look():
        found = open_registry(environment).version_by_alias(NAME, "champion")
        return found.version if found else ""

    return look


def entries(home):
    found = sorted((home / f"store/registry/{NAME}").glob("repaired-*.json"))
    return [RepairEntry.from_json(file.read_bytes()) for file in found]


def repair(*more):
    return ("models", NAME, "--repair", *more)


@pytest.fixture
def two(register):
    register(USELESS)
    register(GOOD, "1")


def test_records_that_agree_need_no_repair(perennial, two, home):
    code, output = perennial(*repair("--yes"))
    assert (code, entries(home)) == (0, [])
    assert "nothing to repair" in output


def test_a_deleted_alias_is_set_again_and_the_repair_is_logged(
    perennial, two, client, champion, home
):
    client.delete_registered_model_alias(NAME, "champion")
    code, output = perennial("models", NAME)
    assert code == 0
    assert "champion unclear: clicks version 2 is the recorded champion, but has no alias" in output
    assert "champion: unclear: " in perennial("models")[1]
    code, output = perennial(*repair())
    assert code == 2
    assert "cannot ask for confirmation" in output
    assert "proposal: set alias and promotion record to version 2" in output
    assert entries(home) == []
    code, output = perennial(*repair("--yes"))
    assert (code, champion()) == (0, "2"), output
    (entry,) = entries(home)
    assert (entry.champion, entry.by != "") == ("2", True)
    assert "has no alias" in entry.problem
    assert perennial("rollback", NAME, "--reason", "x")[0] == 0
    assert champion() == "1"


def test_a_garbage_record_is_kept_aside_and_made_again(perennial, two, record, champion, home):
    record.write_bytes(b"\x00garbage")
    code, output = perennial("promote", NAME, "1", "--reason", "x", "--force")
    assert code == 2
    assert "cannot be read" in output
    assert "perennial models clicks --repair" in output
    code, output = perennial(*repair("--yes"))
    assert (code, champion()) == (0, "2"), output
    (kept,) = (home / f"store/registry/{NAME}").glob("replaced-*.json")
    assert kept.read_bytes() == b"\x00garbage"
    assert str(kept) in output


def test_a_promotion_announced_to_a_deleted_version_blocks_until_it_is_repaired(
    perennial, two, record, champion
):
    move = {"champion": "7", "replaced": "2", "done": False, "tags": {}}
    record.write_text(json.dumps(move))
    for verb in (("promote", NAME, "1", "--force"), ("rollback", NAME)):
        code, output = perennial(*verb, "--reason", "x")
        assert code == 2
        assert "clicks version 7 is the recorded champion, but does not exist" in output
    assert perennial(*repair("--yes"))[0] == 0
    assert champion() == "2"
    assert perennial("rollback", NAME, "--reason", "x")[0] == 0


@pytest.mark.parametrize("value", [None, "garbage"])
def test_a_digest_that_was_altered_in_mlflow_is_set_again(
    perennial, two, client, champion, *, value
):
    before = client.get_model_version(NAME, "2").tags[FILES_TAG]
    if value:
        client.set_model_version_tag(NAME, "2", FILES_TAG, value)
    else:
        client.delete_model_version_tag(NAME, "2", FILES_TAG)
    code, output = perennial("explain", NAME)
    assert code == 2
    assert "does not have the files it was promoted with" in output
    assert before in output
    assert perennial(*repair("--yes"))[0] == 0
    assert champion() == "2"
    assert client.get_model_version(NAME, "2").tags[FILES_TAG] == before
    assert perennial("explain", NAME)[0] == 0


def test_a_deleted_champion_gives_way_to_the_one_before_it(perennial, two, client, champion):
    client.delete_model_version(NAME, "2")
    code, output = perennial(*repair("--yes"))
    assert (code, champion()) == (0, "1"), output


def test_a_damaged_version_is_passed_over(perennial, two, client, champion, home):
    client.delete_registered_model_alias(NAME, "champion")
    source = client.get_model_version(NAME, "2").source.removeprefix("file://")
    weights = home / source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    code, output = perennial(*repair("--yes"))
    assert (code, champion()) == (0, "1"), output
    assert "not proposed: version 2: clicks version 2 is damaged: model.safetensors" in output


def test_a_deleted_model_is_forgotten_only_when_a_person_agrees(perennial, two, client, champion):
    client.delete_registered_model(NAME)
    assert "is the recorded champion, but does not exist" in perennial("models", NAME)[1]
    code, output = perennial(*repair("--yes"))
    assert code == 0, output
    assert "promoted without a comparison" in output
    assert champion() == ""


def test_a_model_that_was_renamed_in_mlflow_is_to_be_renamed_back(perennial, two, client, champion):
    """All its versions seemed damaged, and the champion was to be forgotten."""
    client.rename_registered_model(NAME, "taps")
    renamed = f"taps was registered as {NAME} until it was renamed in MLflow"
    back = f'rename it back: `MlflowClient().rename_registered_model("taps", "{NAME}")`'
    for name in (NAME, "taps"):
        code, output = perennial("models", name, "--repair", "--yes")
        assert code == 0, output
        for text in (renamed, back, "nothing was changed"):
            assert text in output
        assert "forget the champion" not in output
    assert renamed in perennial("status")[1]
    output = perennial("models", "taps")[1]
    assert f"taps version 2 was registered as one of {NAME}" in output
    code, output = perennial("promote", "taps", "1", "--reason", "x")
    assert (code, back in output) == (2, True), output
    client.rename_registered_model("taps", NAME)
    assert champion() == "2"
    assert "nothing to repair" in perennial(*repair("--yes"))[1]


def test_a_champion_is_forgotten_for_good_although_its_version_is_still_listed(
    perennial, register, client, record, champion, *, home, environment
):
    """The promotion of the damaged version, without a record of it, was the next contradiction."""
    register(USELESS)
    (weights,) = home.glob("store/mlflow-artifacts/**/model.safetensors")
    weights.write_bytes(b"damaged")
    record.write_bytes(b"garbage")
    code, output = perennial(*repair("--yes"))
    assert (code, champion()) == (0, ""), output
    assert "champion: none yet" in perennial("models")[1]
    assert "nothing to repair" in perennial(*repair("--yes"))[1]
    refuse_recorded_champion(open_store(environment.store_uri), NAME)
    register(GOOD)
    assert champion() == "2", "the next challenger is promoted without a comparison"
    client.set_registered_model_alias(NAME, "champion", "1")
    assert champion() == "1"
    client.delete_registered_model_alias(NAME, "champion")
    assert "has no alias" in perennial("models", NAME)[1], "an alias that is lost later is noticed"


def test_a_repair_that_leaves_no_champion_is_done_again_if_it_was_killed(
    perennial, register, record, champion
):
    register(USELESS)
    record.write_text('{"champion":"","done":false,"replaced":"1"}')
    assert "was interrupted" in perennial("models")[1]
    assert perennial(*repair("--yes"))[0] == 0
    assert champion() == "1", "its files are whole"


def test_force_names_a_champion_where_the_alias_is_missing(perennial, two, client, champion):
    client.delete_registered_model_alias(NAME, "champion")
    code, output = perennial("promote", NAME, "1", "--reason", "x", "--force")
    assert (code, champion()) == (0, "1"), output


@pytest.mark.parametrize("lost", ["alias", "record"])
def test_a_champion_that_is_set_again_by_force_is_still_rolled_back(
    perennial, two, client, champion, record, *, lost
):
    if lost == "alias":
        client.delete_registered_model_alias(NAME, "champion")
    else:
        record.unlink()
    code, output = perennial("promote", NAME, "2", "--reason", "x", "--force")
    assert (code, champion()) == (0, "2"), output
    assert f"{NAME} version 2 is champion again (forced)" in output
    code, output = perennial("rollback", NAME, "--reason", "x")
    assert (code, champion()) == (0, "1"), output


def test_a_champion_that_is_recorded_as_its_own_predecessor_is_rolled_back(
    perennial, two, client, champion
):
    """As earlier versions of this code recorded one that was set again by force."""
    client.set_model_version_tag(NAME, "2", REPLACED_TAG, "2")
    assert perennial("rollback", NAME, "--reason", "x")[0] == 0
    assert champion() == "1"


def test_an_alias_moved_by_hand_is_respected_and_reported(perennial, two, client, champion):
    client.set_registered_model_alias(NAME, "champion", "1")
    assert champion() == "1"
    assert "moved by hand in MLflow" in perennial("models", NAME)[1]
    assert "nothing to repair" in perennial(*repair("--yes"))[1]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("models", "--repair"), "--repair needs the name of one model"),
        (("models", NAME, "--repair", "--json"), "--repair needs the name of one model"),
        (("models", NAME, "--yes"), "--yes answers the question of --repair"),
        (("models", "unknown", "--repair"), "there is no model 'unknown'"),
    ],
)
def test_a_repair_of_nothing_is_refused(perennial, environment, arguments, message):
    code, output = perennial(*arguments)
    assert code == 2
    assert message in output
