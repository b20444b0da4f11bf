"""Model registry: versions of a model and the alias `champion`, in MLflow.

MLflow can neither create a version once nor move an alias conditionally. Versions are therefore
found again by a fingerprint, and every move of the champion is announced by a conditional write to
the object store before the alias follows (`Move`).
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Self

from mlflow.artifacts import download_artifacts, list_artifacts
from mlflow.entities.model_registry import ModelVersion as MlflowModelVersion
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from pydantic import Field
from typing_extensions import override

from components.clients.environment import Environment
from components.clients.object_store import ConflictError, ObjectStore, copy_tree, open_store
from components.clients.tracking import despite_rivals, open_mlflow, tolerated
from components.contracts.errors import PerennialError
from components.contracts.section import Section

CHAMPION = "champion"
CHALLENGER = "challenger"
FINGERPRINT_TAG = "perennial.fingerprint"
NO_TAGS: Mapping[str, Mapping[str, str]] = MappingProxyType({})


@dataclass(frozen=True)
class ModelVersion:
    """One version of a registered model."""

    name: str
    version: str
    tags: dict[str, str]
    run_id: str
    source: str
    created_at: datetime
    description: str = ""


class ChampionMovedError(PerennialError):
    """The champion is no longer the version that the challenger was compared with."""

    @classmethod
    def between(cls, name: str, expected: str, champion: str) -> Self:
        """The champion moved from the expected version to another; empty for none."""
        return cls(
            f"the champion of {name} moved while a challenger was being judged",
            evidence=f"compared with {expected or 'no champion'}, now it is {champion or 'none'}",
            action="compare it with the champion of now, as `perennial promote` does",
        )


class Move(Section):
    """The latest move of the champion; stored in the object store as `registry/<model>.json`.

    Whoever finds a move that is not done brings the alias after it before doing anything else, so
    a killed writer leaves nothing half done, and two writers cannot both leave the same champion.
    """

    champion: str
    replaced: str
    done: bool
    tags: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Version → tags that say who moved the champion, why and when; written with the alias."""


class ModelRegistry(ABC):
    """The versions of every model, and which one is the champion."""

    @abstractmethod
    def names(self) -> list[str]:
        """Every registered model, in order of the names."""

    @abstractmethod
    def aliases(self, name: str) -> dict[str, str]:
        """Alias → version; empty without the model."""

    @abstractmethod
    def version_by_alias(self, name: str, alias: str) -> ModelVersion | None:
        """The version behind an alias; None without one, or without the model."""

    @abstractmethod
    def take_over(self, name: str, fingerprint: str) -> ModelVersion | None:
        """The version that an earlier attempt registered; None without one.

        Two attempts at once may both have made one. All agree on the first; the others, of which
        one of them may have been killed before it could delete its own, are deleted.
        """

    @abstractmethod
    def versions(self, name: str) -> list[ModelVersion]:
        """Every version of a model, the oldest first; empty without the model."""

    @abstractmethod
    def download(self, version: ModelVersion, to: Path) -> Path:
        """A local folder with the version's files.

        Raises:
            PerennialError: the files are gone.
        """

    @abstractmethod
    def read_files(self, version: ModelVersion, names: Collection[str]) -> dict[str, bytes]:
        """The content of those of the named files that the version has, without its weights.

        Raises:
            PerennialError: the files are gone.
        """

    @abstractmethod
    def register(
        self,
        name: str,
        *,
        source: str,
        run_id: str,
        fingerprint: str,
        tags: Mapping[str, str],
        description: str,
    ) -> ModelVersion:
        """A version for files that lie whole at `source`.

        The version that carries the fingerprint already is returned instead (`take_over`), so that
        a retry makes no second one.
        """

    @abstractmethod
    def describe_model(self, name: str, description: str, tags: Mapping[str, str]) -> None:
        """Create the registered model if need be; set its tags and, unless empty, description."""

    @abstractmethod
    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point an alias other than `champion` at a version."""

    @abstractmethod
    def finish_move(self, name: str) -> None:
        """Bring the champion after a move that was announced and whose writer was killed."""

    @abstractmethod
    def promote(
        self,
        name: str,
        version: str,
        expected_champion: str,
        tags: Mapping[str, Mapping[str, str]] = NO_TAGS,
    ) -> None:
        """Make a version the champion, if the champion is still the expected one.

        Args:
            name: The registered model.
            version: The new champion; nothing happens when it is champion already.
            expected_champion: The version it was compared with; empty for none.
            tags: Version → tags that say who moved the champion, why and when. They are set with
                the alias: a move that is on record has them, whoever is killed on the way.

        Raises:
            ChampionMovedError: another version became champion in between.
        """


class MlflowModelRegistry(ModelRegistry):
    """The registry of an MLflow server or database.

    Args:
        client: The server or database.
        tracking_uri: Its address, which artifact downloads need once more.
        store: Where moves of the champion are serialised.
    """

    def __init__(self, client: MlflowClient, tracking_uri: str, store: ObjectStore) -> None:
        self._client = client
        self._tracking_uri = tracking_uri
        self._store = store

    @override
    def names(self) -> list[str]:
        found: list[str] = []
        token: str | None = None
        while True:
            page = self._client.search_registered_models(page_token=token)
            found += [model.name for model in page]
            token = page.token
            if not token:
                return sorted(found)

    @override
    def version_by_alias(self, name: str, alias: str) -> ModelVersion | None:
        number = self.aliases(name).get(alias)
        if number is None:
            return None
        return _version(self._client.get_model_version(name, number))

    @override
    def take_over(self, name: str, fingerprint: str) -> ModelVersion | None:
        found = self._search(f"name = '{name}' and tags.`{FINGERPRINT_TAG}` = '{fingerprint}'")
        for later in found[1:]:
            with tolerated("RESOURCE_DOES_NOT_EXIST"):  # its own attempt deleted it
                self._client.delete_model_version(name, later.version)
        return found[0] if found else None

    @override
    def versions(self, name: str) -> list[ModelVersion]:
        return self._search(f"name = '{name}'")

    @override
    def download(self, version: ModelVersion, to: Path) -> Path:
        target = to / f"{version.name}-{version.version}"
        to.mkdir(parents=True, exist_ok=True)
        try:
            with TemporaryDirectory(dir=to) as scratch:
                found = download_artifacts(
                    artifact_uri=version.source, dst_path=scratch, tracking_uri=self._tracking_uri
                )
                copy_tree(Path(found), target)
        except (MlflowException, OSError) as error:
            raise _gone(version, error) from error
        return target

    @override
    def read_files(self, version: ModelVersion, names: Collection[str]) -> dict[str, bytes]:
        place, found = version.source.rstrip("/"), {}
        try:
            listed = list_artifacts(artifact_uri=place, tracking_uri=self._tracking_uri)
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
        except (MlflowException, OSError) as error:
            raise _gone(version, error) from error
        return found

    @override
    def register(
        self,
        name: str,
        *,
        source: str,
        run_id: str,
        fingerprint: str,
        tags: Mapping[str, str],
        description: str,
    ) -> ModelVersion:
        existing = self.take_over(name, fingerprint)
        if existing is not None:
            return existing
        marked = {**tags, FINGERPRINT_TAG: fingerprint}
        created = despite_rivals(
            self._client.create_model_version,
            name, source, run_id, tags=marked, description=description,
        )  # fmt: skip
        # MLflow counts versions up, so whoever made a later one sees the first from here on.
        return self.take_over(name, fingerprint) or _version(created)

    @override
    def describe_model(self, name: str, description: str, tags: Mapping[str, str]) -> None:
        with tolerated("RESOURCE_ALREADY_EXISTS"):
            self._client.create_registered_model(name)
        known = self._client.get_registered_model(name)
        if description and known.description != description:
            despite_rivals(self._client.update_registered_model, name, description)
        for key, value in tags.items():
            if known.tags.get(key) != value:
                despite_rivals(self._client.set_registered_model_tag, name, key, value)

    @override
    def set_alias(self, name: str, alias: str, version: str) -> None:
        if alias == CHAMPION:
            raise ValueError("the champion moves by promote() only")
        despite_rivals(self._client.set_registered_model_alias, name, alias, version)

    @override
    def finish_move(self, name: str) -> None:
        self._settle(name)

    @override
    def promote(
        self,
        name: str,
        version: str,
        expected_champion: str,
        tags: Mapping[str, Mapping[str, str]] = NO_TAGS,
    ) -> None:
        while True:
            previous = self._settle(name)
            champion = self.aliases(name).get(CHAMPION, "")
            if champion == version:
                return
            if champion != expected_champion:
                raise ChampionMovedError.between(name, expected_champion, champion)
            said = {moved: dict(own) for moved, own in tags.items()}
            move = Move(champion=version, replaced=champion, done=False, tags=said)
            try:
                self._store.replace(_key(name), move.to_json().encode(), previous=previous)
            except ConflictError:
                continue  # somebody else moved first: look again who is champion now
            self._settle(name)
            return

    def _settle(self, name: str) -> bytes | None:
        """Bring the alias after the latest move; returns what is stored about it."""
        late = False
        while True:
            content = self._store.read(_key(name))
            if content is None:
                return None
            move = Move.from_json(content)
            if move.done and not late:
                return content
            self._tag(name, move)
            despite_rivals(self._client.set_registered_model_alias, name, CHAMPION, move.champion)
            done = move.model_copy(update={"done": True}).to_json().encode()
            try:
                self._store.replace(_key(name), done, previous=content)
            except ConflictError:
                # A newer move overtook this one, and the alias just set may be the older.
                late = True
                continue
            return done

    def _tag(self, name: str, move: Move) -> None:
        for version, tags in move.tags.items():
            for key, value in tags.items():
                # A version that was deleted meanwhile needs no tags, and must block nobody.
                with tolerated("RESOURCE_DOES_NOT_EXIST"):
                    despite_rivals(self._client.set_model_version_tag, name, version, key, value)

    @override
    def aliases(self, name: str) -> dict[str, str]:
        aliases: Mapping[str, object] = {}
        with tolerated("RESOURCE_DOES_NOT_EXIST"):
            aliases = self._client.get_registered_model(name).aliases
        # A database says 1 where a server says "1".
        return {alias: str(version) for alias, version in aliases.items()}

    def _search(self, query: str) -> list[ModelVersion]:
        found: list[ModelVersion] = []
        token: str | None = None
        while True:
            page = self._client.search_model_versions(query, page_token=token)
            found += [_version(version) for version in page if version.status == "READY"]
            token = page.token
            if not token:
                return sorted(found, key=lambda version: int(version.version))


def open_registry(environment: Environment) -> ModelRegistry:
    """The registry on the environment's MLflow."""
    client = open_mlflow(environment)
    store = open_store(environment.store_uri)
    return MlflowModelRegistry(client, environment.tracking_uri, store)


def _gone(version: ModelVersion, error: Exception) -> PerennialError:
    return PerennialError(
        f"the files of {version.name} version {version.version} cannot be downloaded",
        evidence=f"{version.source}: {error}",
        action="restore them from a backup of the artifact store, or point the alias "
        "`champion` at a version that is whole",
    )


def _key(name: str) -> str:
    return f"registry/{name}.json"


def _version(found: MlflowModelVersion) -> ModelVersion:
    return ModelVersion(
        name=found.name,
        version=str(found.version),
        tags=dict(found.tags),
        run_id=found.run_id or "",
        source=found.source or "",
        created_at=datetime.fromtimestamp(found.creation_timestamp / 1000, UTC),
        description=found.description or "",
    )
