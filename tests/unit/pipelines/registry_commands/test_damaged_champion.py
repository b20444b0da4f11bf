"""Whatever is damaged, no weaker challenger becomes champion by it, and a person learns what it is."""

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from adapter_versions import ADAPTER, write_adapter
from perennial.cli import main
from perennial.clients.object_store import sha256_of_file
from perennial.clients.tracking import open_mlflow
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import Environment
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.gate.config import GateSection, JudgementConfig
from perennial.gate.judgement import judge_challenger
from perennial.registry.version_files import FILES_TAG, RegisteredFiles
from registered_versions import NAME, registrar
from small_models import GOOD, TASK, lay_out

pytestmark = pytest.mark.hostile

WEAKER = (1.0, 2.0)
WEIGHTS = "model.safetensors"


@dataclass
class Registry:
    """A champion, version 1, and a weaker version 2 that the gate never compared with it."""

    home: Path
    environment: object

    @property
    def client(self):
        return open_mlflow(self.environment)

    def folder(self, number="1"):
        found = self.client.get_model_version(NAME, number)
        return Path(found.source.removeprefix("file://"))

    def file(self, name):
        return self.folder() / name

    @property
    def promotion(self):
        return self.home / f"store/registry/{NAME}.json"

    @property
    def digests(self):
        (found,) = (self.home / f"store/registry/{NAME}").glob("*.json")
        return found

    def sql(self, statement, *values):
        with closing(sqlite3.connect(self.home / "mlflow.db")) as database:
            database.execute(statement, values)
            database.commit()

    def move_source(self, source):
        self.sql("UPDATE model_versions SET source = ? WHERE version = 1", source)

    def aliases(self):
        return self.client.get_registered_model(NAME).aliases


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The registry before any damage; making it takes seconds."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        environment = lay_out(home, patch)
        register = registrar(environment, home)
        register(GOOD)
        register(WEAKER, "", promoted=False)
        shutil.copytree(home / "store", home / "store-before")
        shutil.copyfile(home / "mlflow.db", home / "before.db")
        yield Registry(home, environment)


@pytest.fixture
def registry(whole):
    yield whole
    shutil.rmtree(whole.home / "store")
    shutil.copytree(whole.home / "store-before", whole.home / "store")
    # In place, since MLflow keeps its connections.
    with (
        closing(sqlite3.connect(whole.home / "before.db")) as before,
        closing(sqlite3.connect(whole.home / "mlflow.db")) as now,
    ):
        before.backup(now)


def flip(file, at=-1):
    content = bytearray(file.read_bytes())
    content[at] ^= 1
    file.write_bytes(content)


def alter(file, old, new):
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new, 1))


def truncate(file):
    file.write_bytes(file.read_bytes()[:-4])


def replace_by_folder(file):
    file.unlink()
    file.mkdir()


def replace_by_link(file, target):
    shutil.copyfile(file, target)
    file.unlink()
    file.symlink_to(target)


def alter_state(registry):
    """A fitted number of the preprocessing."""
    record = json.loads(registry.file("challenger.json").read_text())
    record["task_state"]["target_mean"] += 1.0
    registry.file("challenger.json").write_text(json.dumps(record))


def swap_model(registry):
    """The other version's weights, with the record of them."""
    for name in (WEIGHTS, "challenger.json"):
        shutil.copyfile(registry.folder("2") / name, registry.file(name))


def tamper_store(registry):
    """The weights and the store's digests of them, which agree with each other."""
    flip(registry.file(WEIGHTS))
    record = RegisteredFiles.from_json(registry.digests.read_bytes())
    files = {**record.files, WEIGHTS: sha256_of_file(registry.file(WEIGHTS))}
    registry.digests.write_text(record.model_copy(update={"files": files}).to_json())


def tamper_mlflow(registry):
    """Source and digest of the other version, whose files are whole, as MLflow's own."""
    registry.move_source(str(registry.folder("2").as_uri()))
    registry.client.delete_model_version_tag(NAME, "1", FILES_TAG)


def announce(registry, version):
    move = {"champion": version, "replaced": "1", "done": False, "tags": {}}
    registry.promotion.write_text(json.dumps(move))


BYTES = {
    "a bit of the weights": lambda r: flip(r.file(WEIGHTS)),
    "a bit of the weights' header": lambda r: flip(r.file(WEIGHTS), 9),
    "weights gone": lambda r: r.file(WEIGHTS).unlink(),
    "weights truncated": lambda r: truncate(r.file(WEIGHTS)),
    "weights empty": lambda r: r.file(WEIGHTS).write_bytes(b""),
    "weights longer": lambda r: r.file(WEIGHTS).write_bytes(r.file(WEIGHTS).read_bytes() + b"x"),
    "weights are a folder": lambda r: replace_by_folder(r.file(WEIGHTS)),
    "weights are a link out of the store": lambda r: replace_by_link(
        r.file(WEIGHTS), r.home / "outside"
    ),
    "challenger.json gone": lambda r: r.file("challenger.json").unlink(),
    "challenger.json garbage": lambda r: r.file("challenger.json").write_bytes(b"\xff{"),
    "challenger.json empty": lambda r: r.file("challenger.json").write_text(""),
    "challenger.json is an HTML page": lambda r: r.file("challenger.json").write_text("<html>"),
    "preprocessing altered": alter_state,
    "another model with its own record": swap_model,
    "snapshot.json altered": lambda r: alter(r.file("snapshot.json"), '"rows":', '"rows": 1'),
    "snapshot.json gone": lambda r: r.file("snapshot.json").unlink(),
    "contract altered": lambda r: alter(r.file("contract.json"), '"seed":7', '"seed":8'),
    "reference truncated": lambda r: truncate(r.file("reference.json")),
    "code altered": lambda r: flip(r.file("code/perennial/tasks/tabular.py")),
    "code added": lambda r: r.file("code/sitecustomize.py").write_text("import os"),
    "folder empty": lambda r: (shutil.rmtree(r.folder()), r.folder().mkdir()),
    "folder gone": lambda r: shutil.rmtree(r.folder()),
    "weights and store digests agree": tamper_store,
}
PLACES = {
    "source empty": lambda r: r.move_source(""),
    "source /etc": lambda r: r.move_source("/etc"),
    "source file:///etc": lambda r: r.move_source("file:///etc"),
    "source of a host": lambda r: r.move_source("file://host/etc"),
    "source http": lambda r: r.move_source("http://127.0.0.1:9/model"),
    "source s3": lambda r: r.move_source("s3://another/bucket"),
    "source of a run": lambda r: r.move_source("runs:/0/model"),
    "source of a model": lambda r: r.move_source(f"models:/{NAME}/2"),
    "source through the server": lambda r: r.move_source("mlflow-artifacts://host/model"),
    "source with dots": lambda r: r.move_source(f"{r.folder().as_uri()}/../../../../../../etc"),
    "source with hidden dots": lambda r: r.move_source(f"{r.folder().as_uri()}/%2e%2e/%2e%2e"),
    "source of the other version": tamper_mlflow,
    "store digests gone": lambda r: r.digests.unlink(),
    "store digests garbage": lambda r: r.digests.write_text("{"),
    "tag of the digests gone": lambda r: r.client.delete_model_version_tag(NAME, "1", FILES_TAG),
    "tag of the digests garbage": lambda r: r.client.set_model_version_tag(NAME, "1", FILES_TAG, "x"),
    "all tags gone": lambda r: r.sql("DELETE FROM model_version_tags WHERE version = 1"),
}  # fmt: skip
RECORDS = {
    "alias deleted": lambda r: r.client.delete_registered_model_alias(NAME, "champion"),
    "version deleted": lambda r: r.client.delete_model_version(NAME, "1"),
    "version's row deleted": lambda r: r.sql("DELETE FROM model_versions WHERE version = 1"),
    "version in a deleted stage": lambda r: r.sql(
        "UPDATE model_versions SET current_stage = 'Deleted_Internal' WHERE version = 1"
    ),
    "version not ready": lambda r: r.sql(
        "UPDATE model_versions SET status = 'FAILED_REGISTRATION' WHERE version = 1"
    ),
    "model deleted": lambda r: r.client.delete_registered_model(NAME),
    "model renamed": lambda r: r.client.rename_registered_model(NAME, "another"),
    "model made again": lambda r: (
        r.client.delete_registered_model(NAME),
        r.client.create_registered_model(NAME),
        r.client.create_model_version(NAME, f"{r.home}/store/x"),
        r.client.set_registered_model_alias(NAME, "champion", "1"),
    ),
    "alias to a version that is gone": lambda r: r.sql(
        "UPDATE registered_model_aliases SET version = 9 WHERE alias = 'champion'"
    ),
    "promotion record garbage": lambda r: r.promotion.write_bytes(b"\x00garbage"),
    "promotion record empty": lambda r: r.promotion.write_bytes(b""),
    "promotion record of another form": lambda r: r.promotion.write_text('{"champion": 1}'),
    "promotion record gone": lambda r: r.promotion.unlink(),
    "promotion record and alias gone": lambda r: (
        r.promotion.unlink(), r.client.delete_registered_model_alias(NAME, "champion"),
    ),
    "a version that is gone was announced": lambda r: announce(r, "7"),
    "garbage was announced": lambda r: announce(r, "seven"),
}  # fmt: skip


def judge(folder):
    """What `evaluate_model` decides of a copy of version 2, in a run of its own."""
    config = JudgementConfig(
        model=ModelSection(name=NAME, task=TASK), gate=GateSection(resamples=300)
    )
    environment = replace(Environment.read(), run_id="run-2")
    return judge_challenger(
        config, folder, folder, folder, page=folder / "page.html", environment=environment
    )


def every_alias(registry):
    return {model.name: model.aliases for model in registry.client.search_registered_models()}


def sampled(names, every):
    """One in `every` of the names, in all suites; the others in the full one only."""
    return [
        name if number % every == 0 else pytest.param(name, marks=pytest.mark.full)
        for number, name in enumerate(names)
    ]


@pytest.mark.parametrize("damage", sampled([*BYTES, *PLACES, *RECORDS], every=2))
def test_no_damage_promotes_a_weaker_challenger(registry, tmp_path, capsys, damage):
    challenger = shutil.copytree(registry.folder("2"), tmp_path / "copied-challenger")
    {**BYTES, **PLACES, **RECORDS}[damage](registry)
    before = every_alias(registry)
    with pytest.raises(PerennialError) as stopped:
        judge(challenger)
    error = stopped.value
    assert NAME in error.problem
    assert error.evidence
    assert "perennial " in error.action or "MLflow" in error.action, error
    code = main(["promote", NAME, "2", "--reason", "it is newer", "--home", str(registry.home)])
    output = capsys.readouterr().err
    assert code == 2, output
    assert "Traceback" not in output
    assert every_alias(registry) == before


@pytest.fixture(scope="module")
def adapted_home(tmp_path_factory):
    """A champion that is an adapter, and a weaker version 2 that has all its weights."""
    home = tmp_path_factory.mktemp("adapted")
    with pytest.MonkeyPatch.context() as patch:
        environment = lay_out(home, patch)
        register = registrar(environment, home)
        register(GOOD, write=write_adapter)
        register(WEAKER, "", promoted=False)
    return Registry(home, environment)


@pytest.fixture
def adapted(adapted_home, monkeypatch):
    """The same for one test: the other champion's home stays that of other tests."""
    monkeypatch.setenv("PERENNIAL_STORE_URI", adapted_home.environment.store_uri)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", adapted_home.environment.tracking_uri)
    return adapted_home


@pytest.mark.parametrize(
    "damage", [flip, Path.unlink, pytest.param(truncate, marks=pytest.mark.full)]
)
def test_no_damage_of_an_adapters_base_promotes_a_weaker_challenger(
    adapted, tmp_path, capsys, damage
):
    challenger = shutil.copytree(adapted.folder("2"), tmp_path / "copied-challenger")
    (base,) = (adapted.home / "store/initial").glob("*.safetensors")
    content, before = base.read_bytes(), adapted.aliases()
    damage(base)
    try:
        with pytest.raises(DamagedModelError) as stopped:
            judge(challenger)
        assert base.stem in stopped.value.evidence, "the base is named, not the adapter"
        assert "perennial rollback" in stopped.value.action
        code = main(["promote", NAME, "2", "--reason", "newer", "--home", str(adapted.home)])
        assert (code, base.stem in capsys.readouterr().err) == (2, True)
    finally:
        base.write_bytes(content)
    assert adapted.aliases() == before


def test_an_adapter_is_compared_as_a_champion_and_stays(adapted, tmp_path, capsys):
    challenger = shutil.copytree(adapted.folder("2"), tmp_path / "copied-challenger")
    verdict = judge(challenger)
    assert (verdict.champion_version, verdict.promote) == ("1", False)
    assert main(["explain", f"{NAME}@champion", "--home", str(adapted.home)]) == 0
    assert ADAPTER.describe() in capsys.readouterr().out


HARMLESS = {
    "nothing": lambda r: None,
    "run deleted": lambda r: r.client.delete_run(r.client.get_model_version(NAME, "1").run_id),
    "described again": lambda r: r.client.update_model_version(NAME, "1", "words"),
    "a tag of a person": lambda r: r.client.set_model_version_tag(NAME, "1", "seen", "yes"),
    "a second alias": lambda r: r.client.set_registered_model_alias(NAME, "best", "1"),
    "the other version deleted": lambda r: r.client.delete_model_version(NAME, "2"),
}


@pytest.mark.parametrize("change", sampled(HARMLESS, every=3))
def test_a_whole_champion_is_compared_with_and_stays(registry, tmp_path, change):
    challenger = shutil.copytree(registry.folder("2"), tmp_path / "copied-challenger")
    HARMLESS[change](registry)
    verdict = judge(challenger)
    assert (verdict.champion_version, verdict.promote) == ("1", False)
    assert verdict.comparisons[0].champion > verdict.comparisons[0].challenger


def test_an_alias_moved_by_hand_is_respected_and_shown_on_the_page(registry, tmp_path):
    challenger = shutil.copytree(registry.folder("1"), tmp_path / "copied-challenger")
    registry.client.set_registered_model_alias(NAME, "champion", "2")
    verdict = judge(challenger)
    assert (verdict.champion_version, verdict.promote) == ("2", True)
    assert "by an alias that was moved by hand in MLflow" in verdict.notes[0]
    assert "moved by hand in MLflow" in (challenger / "page.html").read_text()


@pytest.mark.parametrize("moment", [None, 2**63 - 1, -(10**14)])
def test_a_version_without_a_possible_time_is_a_damaged_record(registry, capsys, moment):
    registry.sql("UPDATE model_versions SET creation_time = ? WHERE version = 1", moment)
    for verb in (["models", NAME], ["promote", NAME, "2", "--reason", "x"]):
        assert main([*verb, "--home", str(registry.home)]) == 2
        error = capsys.readouterr().err
        assert f"MLflow's record of {NAME} version 1 is damaged" in error
        assert "to do:" in error
    assert str(registry.aliases()["champion"]) == "1"
