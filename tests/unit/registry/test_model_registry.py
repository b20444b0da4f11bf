"""Versions appear atomically and once, and the champion moves only from where it was seen."""

import py_compile
import shutil
from pathlib import Path
from threading import Barrier, Thread

import pytest
from mlflow.artifacts import download_artifacts

from perennial.clients.object_store import ConflictError, LocalObjectStore, file_digests, open_store
from perennial.clients.tracking import open_mlflow, open_tracking
from perennial.contracts.errors import DamagedModelError, PerennialError
from perennial.registry.champion_records import AliasChange, ChampionMovedError
from perennial.registry.model_registry import CHALLENGER, CHAMPION, ModelRegistry, open_registry

NAME = "flights"
KEY = f"registry/{NAME}.json"


class Killed(BaseException):
    """Ends a writer in the middle, as a signal would."""


@pytest.fixture
def registry(environment):
    made = open_registry(environment)
    made.describe_model(NAME, "text", {"team": "ml"})
    return made


@pytest.fixture
def add(environment, registry, tmp_path):
    """Registers a version with a file of its own."""
    tracking = open_tracking(environment, NAME)

    def register(fingerprint, *, with_digests=False):
        folder = tmp_path / fingerprint
        folder.mkdir(exist_ok=True)
        (folder / "weights").write_text(fingerprint)
        (folder / "MLmodel").write_text("flavors: {}")
        (folder / "code").mkdir(exist_ok=True)
        (folder / "code" / "task.py").write_text("x = 1")
        tracking.log_artifacts(folder, fingerprint)
        return registry.register(
            NAME,
            source=tracking.artifact_uri(fingerprint),
            run_id=tracking.run_id,
            fingerprint=fingerprint,
            tags={"x": "y"},
            description="why",
            files=file_digests(folder) if with_digests else {},
        ).version

    return register


def champion_of(registry):
    found = registry.version_by_alias(NAME, CHAMPION)
    return found.version if found else ""


def test_an_unknown_model_has_no_versions_and_no_champion(environment):
    registry = open_registry(environment)
    assert registry.versions("unknown") == []
    assert registry.version_by_alias("unknown", CHAMPION) is None


def test_a_version_is_registered_once_and_downloaded_whole(registry, add, tmp_path):
    assert [add("a"), add("a"), add("b")] == ["1", "1", "2"]
    versions = registry.versions(NAME)
    assert [version.version for version in versions] == ["1", "2"]
    assert versions[0].tags["x"] == "y"
    folder = registry.download(versions[1], tmp_path / "downloads")
    assert (folder / "weights").read_text() == "b"
    assert sorted(path.name for path in (tmp_path / "downloads").iterdir()) == [folder.name]


def test_a_version_that_was_loaded_where_it_lies_is_not_damaged(
    registry, add, environment, tmp_path
):
    """MLflow writes the name of a version that it loads from this machine beside its files."""
    add("a", with_digests=True)
    (place,) = Path(environment.store_uri).rglob("code")
    download_artifacts(artifact_uri=f"models:/{NAME}/1", tracking_uri=environment.tracking_uri)
    py_compile.compile(str(place / "task.py"))
    assert (place.parent / "registered_model_meta").exists()
    assert list(place.rglob("*.pyc"))
    folder = registry.download(registry.versions(NAME)[0], tmp_path / "downloads")
    files = {path.name for path in folder.rglob("*") if path.is_file()}
    assert files == {"MLmodel", "task.py", "weights"}


def test_any_other_file_beside_those_of_a_version_is_damage(registry, add, environment, tmp_path):
    add("a", with_digests=True)
    (place,) = Path(environment.store_uri).rglob("code")
    (place / "torch.py").write_text("x = 2")
    with pytest.raises(DamagedModelError, match=r"code/torch.py"):
        registry.download(registry.versions(NAME)[0], tmp_path / "downloads")


def test_concurrent_attempts_leave_one_version(registry, add, environment):
    barrier, found = Barrier(2), []
    add("other")
    source = registry.versions(NAME)[0].source

    def attempt():
        mine = open_registry(environment)
        barrier.wait()
        made = mine.register(
            NAME, source=source, run_id="", fingerprint="same", tags={}, description=""
        )
        found.append(made.version)

    threads = [Thread(target=attempt) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    same = [v for v in registry.versions(NAME) if v.tags["perennial.fingerprint"] == "same"]
    assert len(same) == 1
    assert len(found) == 2


def test_what_a_rival_left_that_was_killed_before_it_gave_way_is_deleted(
    registry, add, environment
):
    add("a")
    left = open_mlflow(environment).create_model_version(
        NAME, registry.versions(NAME)[0].source, tags={"perennial.fingerprint": "a"}
    )
    assert str(left.version) == "2"
    assert registry.take_over(NAME, "a").version == "1"
    assert [version.version for version in registry.versions(NAME)] == ["1"]
    assert registry.take_over(NAME, "b") is None


def test_files_that_are_missing_are_an_error_that_names_the_version(registry, add, tmp_path):
    add("a")
    version = registry.versions(NAME)[0]
    for file in list((tmp_path / "store").rglob("weights")):
        shutil.rmtree(file.parent)
    with pytest.raises(PerennialError, match="flights version 1 cannot be downloaded"):
        registry.download(version, tmp_path / "downloads")


def test_the_champion_moves_only_from_where_it_was_seen(registry, add):
    first, second, third = add("a"), add("b"), add("c")
    registry.promote(NAME, first, "")
    with pytest.raises(ChampionMovedError, match="compared with no champion, current: 1"):
        registry.promote(NAME, second, "")
    registry.promote(NAME, second, first)
    with pytest.raises(ChampionMovedError, match="compared with 1, current: 2"):
        registry.promote(NAME, third, first)
    assert champion_of(registry) == second


def test_a_promotion_may_be_repeated(registry, add):
    version = add("a")
    for _ in range(2):
        registry.promote(NAME, version, "")
    assert champion_of(registry) == version


def test_a_rollback_by_hand_is_respected(registry, add, environment):
    first, second, third = add("a"), add("b"), add("c")
    registry.promote(NAME, first, "")
    registry.promote(NAME, second, first)
    open_mlflow(environment).set_registered_model_alias(NAME, CHAMPION, first)
    with pytest.raises(ChampionMovedError):
        registry.promote(NAME, third, second)
    assert champion_of(registry) == first
    registry.promote(NAME, third, first)
    assert champion_of(registry) == third


def test_the_champion_alias_cannot_bypass_the_comparison(registry, add):
    with pytest.raises(ValueError, match="promote"):
        registry.set_alias(NAME, CHAMPION, add("a"))
    registry.set_alias(NAME, CHALLENGER, "1")
    assert registry.version_by_alias(NAME, CHALLENGER).version == "1"


class KilledStore(LocalObjectStore):
    """Dies before or after its nth conditional write."""

    def __init__(self, root, write, when):
        super().__init__(root)
        self.writes_left, self.when = write, when

    def replace(self, key, content, *, previous):
        self.writes_left -= 1
        if self.writes_left == 0 and self.when == "before":
            raise Killed
        super().replace(key, content, previous=previous)
        if self.writes_left == 0:
            raise Killed


@pytest.mark.parametrize("write", [1, 2])
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_promotion_killed_anywhere_is_finished_by_a_retry_or_a_rival(
    registry, add, environment, write, when
):
    first, second, third = add("a"), add("b"), add("c")
    registry.promote(NAME, first, "")
    store = KilledStore(open_store(environment.store_uri).root, write, when)
    dying = ModelRegistry(open_mlflow(environment), environment.tracking_uri, store)
    with pytest.raises(Killed):
        dying.promote(NAME, second, first)
    if (write, when) == (1, "before"):
        registry.promote(NAME, third, first)  # nothing had happened yet
        assert champion_of(registry) == third
        return
    with pytest.raises(ChampionMovedError):
        registry.promote(NAME, third, first)
    assert champion_of(registry) == second
    registry.promote(NAME, second, first)
    assert AliasChange.from_json(store.read(KEY)) == AliasChange(
        champion=second, replaced=first, done=True
    )


class PausedStore(LocalObjectStore):
    """Lets rivals act between a writer's alias and its closing write."""

    def __init__(self, root, rivals):
        super().__init__(root)
        self.rivals = rivals

    def replace(self, key, content, *, previous):
        if AliasChange.from_json(content).done and self.rivals:
            self.rivals.pop()()
        super().replace(key, content, previous=previous)


def test_a_writer_that_slept_does_not_undo_a_newer_promotion(registry, add, environment):
    first, second, third = add("a"), add("b"), add("c")
    registry.promote(NAME, first, "")

    def overtake():
        registry.promote(NAME, second, first)  # finishes the sleeper's move
        registry.promote(NAME, third, second)
        # The sleeper's own alias call arrives only now.
        open_mlflow(environment).set_registered_model_alias(NAME, CHAMPION, second)

    store = PausedStore(open_store(environment.store_uri).root, [overtake])
    sleeper = ModelRegistry(open_mlflow(environment), environment.tracking_uri, store)
    sleeper.promote(NAME, second, first)
    assert champion_of(registry) == third


def test_of_concurrent_promotions_exactly_one_wins(registry, add, environment):
    base = add("base")
    registry.promote(NAME, base, "")
    rivals = [add(name) for name in "abcd"]
    barrier, outcomes = Barrier(len(rivals)), {}

    def attempt(version):
        mine = open_registry(environment)
        barrier.wait()
        try:
            mine.promote(NAME, version, base)
            outcomes[version] = "won"
        except ChampionMovedError:
            outcomes[version] = "lost"

    threads = [Thread(target=attempt, args=(version,)) for version in rivals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(outcomes.values()) == ["lost", "lost", "lost", "won"]
    assert outcomes[champion_of(registry)] == "won"


def test_the_lock_is_the_stores_own_conditional_write(environment):
    store = open_store(environment.store_uri)
    store.replace(KEY, b"1", previous=None)
    with pytest.raises(ConflictError):
        store.replace(KEY, b"2", previous=None)


def test_a_contract_without_a_description_leaves_what_people_wrote(environment, registry):
    registry.describe_model(NAME, "", {})
    assert open_mlflow(environment).get_registered_model(NAME).description == "text"
    registry.describe_model(NAME, "another", {})
    assert open_mlflow(environment).get_registered_model(NAME).description == "another"
