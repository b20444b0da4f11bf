"""Model registry: versions of a model and the alias `champion`, in MLflow.

MLflow can neither create a version idempotently nor move an alias conditionally. Versions are
therefore found again by a fingerprint, and every change of the champion is announced by a
conditional write to the object store before the alias moves (`AliasChange`). Both records are
compared at each use (`ChampionRecords`), and so are a version's files with their digests
(`VersionFiles`).
"""

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import TypeVar

from mlflow.artifacts import download_artifacts, list_artifacts
from mlflow.entities.model_registry import ModelVersion as MlflowModelVersion
from mlflow.store.entities.paged_list import PagedList
from mlflow.tracking import MlflowClient

from perennial.clients.mlflow_client import despite_rivals, open_mlflow, tolerated
from perennial.clients.object_store import ConflictError, ObjectStore, copy_tree, open_store
from perennial.clients.outages import outlasting
from perennial.contracts.environment import Environment, without_login
from perennial.contracts.errors import OutageError, PerennialError
from perennial.registry.champion_records import (
    CHAMPION,
    AliasChange,
    ChampionMovedError,
    ChampionRecords,
    read_change,
    record_key,
)
from perennial.registry.version_files import (
    FILES_TAG,
    FINGERPRINT_TAG,
    ModelVersion,
    RegisteredFiles,
    VersionFiles,
    remove_loading_traces,
    ways_out,
)

Entity = TypeVar("Entity")
CHALLENGER = "challenger"
NO_TAGS: Mapping[str, Mapping[str, str]] = MappingProxyType({})
NO_FILES: Mapping[str, str] = MappingProxyType({})


class ModelRegistry:
    """The versions of every model, and its champion, in an MLflow server or database."""

    def __init__(self, client: MlflowClient, tracking_uri: str, store: ObjectStore) -> None:
        self._client = client
        self._tracking_uri = tracking_uri
        self._store = store
        self._files = VersionFiles(store, proxied=tracking_uri.startswith("http"))

    def names(self) -> list[str]:
        """Return every registered model, sorted by name."""
        return sorted(model.name for model in _every(self._client.search_registered_models))

    def version_by_alias(self, name: str, alias: str) -> ModelVersion | None:
        """Return the version of an alias; None without one, or without the model.

        Raises:
            UnclearChampionError: the alias is `champion`, and MLflow's record contradicts the
                object store's, or one is damaged.
        """
        if alias == CHAMPION:
            records = self.champion_records(name)
            return records.versions.get(records.champion())
        number = self.aliases(name).get(alias)
        return next((one for one in self.versions(name) if one.version == number), None)

    def has_champion(self, name: str, number: str) -> bool:
        """Return whether this version is champion, or no version where the number is empty.

        Raises:
            UnclearChampionError: the records of the champion contradict each other.
        """
        return self.champion_records(name).champion() == number

    def champion_records(self, name: str) -> ChampionRecords:
        """Return MLflow's and the object store's records of the champion, without checking them."""
        content = self._store.read(record_key(name))
        # MLflow and the store have no common transaction: if the store's record is the same
        # before and after, all three belong together.
        while True:
            alias = self.aliases(name).get(CHAMPION, "")
            versions = {version.version: version for version in self.versions(name)}
            again = self._store.read(record_key(name))
            if again == content:
                place = f"{self._store.uri}/{record_key(name)}"
                found = ChampionRecords(name, place, alias, *read_change(content), versions)
                return (
                    replace(found, renamed=self._find_renamed(name)) if found.problem() else found
                )
            content = again  # a promotion got in between

    def _find_renamed(self, name: str) -> tuple[str, str] | None:
        """Return the original and the present name of a model that was renamed in MLflow.

        None if neither is this name.
        """
        names = self.names()
        for present in [name] if name in names else names:
            for version in self.versions(present):
                for former in self._files.names_of(version.source):
                    if former not in names and name in (former, present):
                        return former, present
        return None

    def repair(self, name: str, champion: str, tags: Mapping[str, Mapping[str, str]]) -> str:
        """Replace both records of the champion by a person's decision; keep the old record.

        An empty champion means none; `tags` (version → tags) record who decided, why and when.

        Returns:
            Where the replaced record is kept; empty if there was none.
        """
        content = self._store.read(record_key(name))
        aside = f"registry/{name}/replaced-{datetime.now(UTC):%Y%m%dT%H%M%S.%f}.json"
        if content is not None:
            # Before any change, so that a repair that was a mistake can be undone.
            self._store.write(aside, content)
        alias = self.aliases(name).get(CHAMPION, "")
        # Also of no champion: earlier promotions without a record of the last one contradict it.
        change = self._change(name, champion, alias, tags)
        try:
            self._store.replace(record_key(name), change, previous=content)
        except ConflictError as error:
            raise PerennialError(
                f"the champion of {name} changed during the repair; nothing was changed",
                action=f"run `perennial models {name} --repair` again",
            ) from error
        self.finish_change(name)
        return f"{self._store.uri}/{aside}" if content is not None else ""

    def take_over(self, name: str, fingerprint: str) -> ModelVersion | None:
        """Return the version that an earlier attempt registered; None without one.

        Two concurrent attempts may both have created one. The first counts; the others are deleted,
        even if the attempt that created them was killed before it could.
        """
        found = self._search(f"name = '{name}' and tags.`{FINGERPRINT_TAG}` = '{fingerprint}'")
        for later in found[1:]:
            with tolerated("RESOURCE_DOES_NOT_EXIST"):  # the attempt that made it deleted it
                self._client.delete_model_version(name, later.version)
        return found[0] if found else None

    def versions(self, name: str) -> list[ModelVersion]:
        """Return every version of a model, the oldest first; empty without the model."""
        return self._search(f"name = '{name}'")

    @outlasting
    def download(self, version: ModelVersion, to: Path) -> Path:
        """Download the version's files, verify them, and return the local folder.

        Raises:
            DamagedModelError: a file is missing or altered.
            PerennialError: the files are gone, or lie outside the object store.
        """
        # First of all: it refuses a source outside the store, from which nothing may be read.
        registered = self._files.expected(version)
        target = to / f"{version.name}-{version.version}"
        to.mkdir(parents=True, exist_ok=True)
        try:
            # A scratch folder first: a broken download leaves no part of a version at `target`.
            with TemporaryDirectory(dir=to) as scratch:
                found = download_artifacts(
                    artifact_uri=version.source, dst_path=scratch, tracking_uri=self._tracking_uri
                )
                copy_tree(Path(found), target)
        except Exception as error:  # of MLflow, or of the client of whatever store it reads
            raise _gone(version, error) from error
        remove_loading_traces(target, registered.files if registered else {})
        # Outside the block above, which would report damaged files as files that are gone.
        self._files.verify_folder(version, registered, target)
        return target

    @outlasting
    def read_files(self, version: ModelVersion, names: Collection[str]) -> dict[str, bytes]:
        """Return the content of the named files that the version has, without its weights.

        Raises:
            DamagedModelError: one of them is missing or altered.
            PerennialError: the files are gone, or lie outside the object store.
        """
        registered = self._files.expected(version)
        place, found = version.source.rstrip("/"), dict[str, bytes]()
        try:
            listed = list_artifacts(artifact_uri=place, tracking_uri=self._tracking_uri)
            # MLflow lists a folder that does not exist as an empty one.
            if not listed:
                raise FileNotFoundError("the folder is empty or gone")
            present = {Path(file.path).name for file in listed if not file.is_dir}
            with TemporaryDirectory() as scratch:
                for name in sorted(present.intersection(names)):
                    file = download_artifacts(
                        artifact_uri=f"{place}/{name}",
                        dst_path=scratch,
                        tracking_uri=self._tracking_uri,
                    )
                    found[name] = Path(file).read_bytes()
        except Exception as error:  # of MLflow, or of the client of whatever store it reads
            raise _gone(version, error) from error
        contents = {name: found.get(name) for name in names}
        self._files.verify_contents(version, registered, contents)
        return found

    def register(
        self,
        name: str,
        *,
        source: str,
        run_id: str,
        fingerprint: str,
        tags: Mapping[str, str],
        description: str,
        files: Mapping[str, str] = NO_FILES,
    ) -> ModelVersion:
        """Register a version for files that are complete at `source`.

        Idempotent: a version that already has the fingerprint is returned instead (`take_over`).

        `files` are path below `source` → SHA-256, of every file that was uploaded; empty for files
        whose digests are not known.
        """
        existing = self.take_over(name, fingerprint)
        if existing is not None:
            return existing
        marked = {**tags, FINGERPRINT_TAG: fingerprint}
        if files:
            # Before the version: one whose tag has no stored digests counts as damaged.
            registered = RegisteredFiles(source=source, files=dict(files))
            marked |= self._files.record(name, registered)
        created = despite_rivals(
            self._client.create_model_version,
            name,
            source,
            run_id,
            tags=marked,
            description=description,
        )
        # MLflow numbers versions in order, so whoever created a later one now sees the first.
        return self.take_over(name, fingerprint) or _version(created)

    def describe_model(
        self, name: str, description: str, tags: Mapping[str, str], default: str = ""
    ) -> None:
        """Create the registered model if missing; set its tags and, unless empty, description.

        Without a description, one that people wrote stays; where there is none, it is the default.
        """
        with tolerated("RESOURCE_ALREADY_EXISTS"):
            self._client.create_registered_model(name)
        known = self._client.get_registered_model(name)
        description = description or ("" if known.description else default)
        if description and known.description != description:
            despite_rivals(self._client.update_registered_model, name, description)
        for key, value in tags.items():
            if known.tags.get(key) != value:
                despite_rivals(self._client.set_registered_model_tag, name, key, value)

    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point an alias other than `champion` at a version."""
        if alias == CHAMPION:
            raise ValueError("the champion moves by promote() only")
        despite_rivals(self._client.set_registered_model_alias, name, alias, version)

    def promote(
        self,
        name: str,
        version: str,
        expected_champion: str,
        tags: Mapping[str, Mapping[str, str]] = NO_TAGS,
        *,
        forced: bool = False,
    ) -> None:
        """Make a version the champion, if the champion is still the expected one.

        Nothing happens if it is champion already. `tags` (version → tags) record who changed the
        champion, why and when; they are set with the alias, even if the writer is killed. `forced`:
        a person sets the champion although its records contradict each other.

        Raises:
            ChampionMovedError: another version became champion in between.
            UnclearChampionError: the records of the champion contradict each other.
        """

        def announce(content: bytes | None) -> tuple[bytes | None, None]:
            # If this completes a change, `content` is outdated: the write conflicts and is retried.
            self.finish_change(name)
            records = self.champion_records(name)
            champion = records.alias if forced else records.champion()
            # By force, even the champion is promoted again: this replaces contradictory records.
            if champion == version and not (forced and records.problem()):
                return None, None
            if champion != expected_champion:
                raise ChampionMovedError.between(name, expected_champion, champion)
            return self._change(name, version, champion, tags), None

        self._store.update(record_key(name), announce)
        try:
            self.finish_change(name)
        except OutageError:
            raise
        except PerennialError as error:
            raise PerennialError(
                f"version {version} of {name} is announced as champion, but not in MLflow yet: "
                f"{error.problem}",
                evidence=error.evidence,
                action=f"{error.action}. The next promotion, rollback or run completes it; "
                f"`perennial models {name} --repair` does, too",
            ) from error

    def _change(
        self, name: str, version: str, replaced: str, tags: Mapping[str, Mapping[str, str]]
    ) -> bytes:
        """Return the record that announces a change of the champion."""
        recorded = {changed: dict(own) for changed, own in tags.items()}
        for one in self.versions(name):
            if one.version == version and FILES_TAG in one.tags:
                recorded[version] = {FILES_TAG: one.tags[FILES_TAG], **recorded.get(version, {})}
        change = AliasChange(champion=version, replaced=replaced, done=False, tags=recorded)
        return change.to_json().encode()

    def finish_change(self, name: str) -> bool:
        """Complete an announced change of the champion whose writer was killed.

        Returns:
            Whether there was one that moved the champion.
        """
        is_late = has_moved = False

        def complete(content: bytes | None) -> tuple[bytes | None, None]:
            nonlocal is_late, has_moved
            if content is None:
                return None, None
            records = self.champion_records(name)
            records.refuse_unusable()
            change = AliasChange.from_json(content)
            if change.done and not is_late:
                return None, None
            has_moved = has_moved or records.alias != change.champion
            self._tag(name, change)
            self._move_alias(name, change.champion)
            # After a conflict a newer change overtook this one: the alias just set is outdated.
            is_late = True
            return change.model_copy(update={"done": True}).to_json().encode(), None

        self._store.update(record_key(name), complete)
        return has_moved

    def _move_alias(self, name: str, champion: str) -> None:
        if champion:
            despite_rivals(self._client.set_registered_model_alias, name, CHAMPION, champion)
            return
        with tolerated("RESOURCE_DOES_NOT_EXIST"):
            self._client.delete_registered_model_alias(name, CHAMPION)

    def _tag(self, name: str, change: AliasChange) -> None:
        for version, tags in change.tags.items():
            for key, value in tags.items():
                # A version that was deleted meanwhile needs no tags and must not block others.
                with tolerated("RESOURCE_DOES_NOT_EXIST"):
                    despite_rivals(self._client.set_model_version_tag, name, version, key, value)

    def aliases(self, name: str) -> dict[str, str]:
        """Return alias → version; empty without the model."""
        aliases: Mapping[str, object] = {}
        with tolerated("RESOURCE_DOES_NOT_EXIST"):
            aliases = self._client.get_registered_model(name).aliases
        # A database returns 1 where a server returns "1".
        return {alias: str(version) for alias, version in aliases.items()}

    def _search(self, query: str) -> list[ModelVersion]:
        found = _every(partial(self._client.search_model_versions, query))
        # MLflow also returns versions whose registration is pending or has failed.
        ready = (_version(each) for each in found if each.status == "READY")
        return sorted(ready, key=lambda version: int(version.version))


def open_registry(environment: Environment) -> ModelRegistry:
    """Open the registry on the environment's MLflow."""
    client = open_mlflow(environment)
    store = open_store(environment.store_uri)
    return ModelRegistry(client, environment.tracking_uri, store)


def _every(search: Callable[..., PagedList[Entity]]) -> Iterator[Entity]:
    """Yield what MLflow finds, page by page."""
    token: str | None = None
    while True:
        page = search(page_token=token)
        yield from page
        token = page.token
        if not token:
            return


def _gone(version: ModelVersion, error: Exception) -> PerennialError:
    return PerennialError(
        f"the files of {version.name} version {version.version} cannot be downloaded",
        evidence=without_login(f"{version.source}: {error}"),
        action=ways_out(version.name, version.version),
    )


def _version(found: MlflowModelVersion) -> ModelVersion:
    try:
        created_at = datetime.fromtimestamp(found.creation_timestamp / 1000, UTC)
    except (TypeError, ValueError, OverflowError, OSError) as error:
        raise PerennialError(
            f"MLflow's record of {found.name} version {found.version} is damaged",
            evidence=f"its creation time is {found.creation_timestamp!r}: {error}",
            action="restore MLflow's database from a backup, or delete this version in MLflow",
        ) from error
    return ModelVersion(
        name=found.name,
        version=str(found.version),
        tags=dict(found.tags),
        run_id=found.run_id or "",
        source=found.source or "",
        created_at=created_at,
        description=found.description or "",
    )
