"""Registry interface: what the steps and the verbs ask of a model registry."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from types import MappingProxyType

from perennial.registry.champion_records import ChampionRecords
from perennial.registry.version_files import ModelVersion

CHAMPION = "champion"
CHALLENGER = "challenger"
NO_TAGS: Mapping[str, Mapping[str, str]] = MappingProxyType({})
NO_FILES: Mapping[str, str] = MappingProxyType({})


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
        """The version behind an alias; None without one, or without the model.

        Raises:
            UnclearChampionError: the alias is `champion`, and MLflow's record contradicts the
                object store's, or one is damaged.
        """

    @abstractmethod
    def champion_records(self, name: str) -> ChampionRecords:
        """What MLflow and the object store record of the champion, without judging it."""

    @abstractmethod
    def repair(self, name: str, champion: str, tags: Mapping[str, Mapping[str, str]]) -> str:
        """Replace both records of the champion after a person decided; keeps the old record.

        Args:
            name: The registered model.
            champion: The version that both name from now on; empty: both forget the champion.
            tags: Version → tags that say who decided, why and when.

        Returns:
            Where the replaced record is kept; empty if there was none.
        """

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
        """A local folder with the version's files, which are those that were registered.

        Raises:
            DamagedModelError: a file is missing or altered.
            PerennialError: the files are gone, or lie outside the object store.
        """

    @abstractmethod
    def read_files(self, version: ModelVersion, names: Collection[str]) -> dict[str, bytes]:
        """The content of those of the named files that the version has, without its weights.

        Raises:
            DamagedModelError: one of them is missing or altered.
            PerennialError: the files are gone, or lie outside the object store.
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
        files: Mapping[str, str] = NO_FILES,
    ) -> ModelVersion:
        """A version for files that lie whole at `source`.

        The version that carries the fingerprint already is returned instead (`take_over`), so that
        a retry makes no second one.

        Args:
            name: The registered model.
            source: Where the files lie.
            run_id: The MLflow run.
            fingerprint: By which a retry finds the version again.
            tags: Of the version.
            description: Why it was registered.
            files: Path below `source` → SHA-256, of every file that was uploaded, to be recorded;
                empty for files whose digests are not known.
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
        *,
        forced: bool = False,
    ) -> None:
        """Make a version the champion, if the champion is still the expected one.

        Args:
            name: The registered model.
            version: The new champion; nothing happens when it is champion already.
            expected_champion: The version it was compared with; empty for none.
            tags: Version → tags that say who moved the champion, why and when. They are set with
                the alias: a move that is on record has them, whoever is killed on the way.
            forced: A person names the champion although the records of it contradict each other.

        Raises:
            ChampionMovedError: another version became champion in between.
            UnclearChampionError: the records of the champion contradict each other.
        """
