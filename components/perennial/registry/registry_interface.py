"""Registry interface: the operations that steps and verbs need of a model registry."""

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
        """Return every registered model, sorted by name."""

    @abstractmethod
    def aliases(self, name: str) -> dict[str, str]:
        """Return alias → version; empty without the model."""

    @abstractmethod
    def version_by_alias(self, name: str, alias: str) -> ModelVersion | None:
        """Return the version of an alias; None without one, or without the model.

        Raises:
            UnclearChampionError: the alias is `champion`, and MLflow's record contradicts the
                object store's, or one is damaged.
        """

    @abstractmethod
    def champion_records(self, name: str) -> ChampionRecords:
        """Return MLflow's and the object store's records of the champion, without checking them."""

    @abstractmethod
    def repair(self, name: str, champion: str, tags: Mapping[str, Mapping[str, str]]) -> str:
        """Replace both records of the champion by a person's decision; keep the old record.

        Args:
            name: The registered model.
            champion: The new champion in both records; empty for no champion.
            tags: Version → tags that record who decided, why and when.

        Returns:
            Where the replaced record is kept; empty if there was none.
        """

    @abstractmethod
    def take_over(self, name: str, fingerprint: str) -> ModelVersion | None:
        """Return the version that an earlier attempt registered; None without one.

        Two concurrent attempts may both have created one. The first counts; the others are deleted,
        even if the attempt that created them was killed before it could.
        """

    @abstractmethod
    def versions(self, name: str) -> list[ModelVersion]:
        """Return every version of a model, the oldest first; empty without the model."""

    @abstractmethod
    def download(self, version: ModelVersion, to: Path) -> Path:
        """Download the version's files, verify them, and return the local folder.

        Raises:
            DamagedModelError: a file is missing or altered.
            PerennialError: the files are gone, or lie outside the object store.
        """

    @abstractmethod
    def read_files(self, version: ModelVersion, names: Collection[str]) -> dict[str, bytes]:
        """Return the content of the named files that the version has, without its weights.

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
        """Register a version for files that are complete at `source`.

        Idempotent: a version that already has the fingerprint is returned instead (`take_over`).

        Args:
            name: The registered model.
            source: Address of the files.
            run_id: The MLflow run.
            fingerprint: Identifies the version, so that a retry finds it again.
            tags: Tags of the version.
            description: Why it was registered.
            files: Path below `source` → SHA-256, of every file that was uploaded, to be recorded;
                empty for files whose digests are not known.
        """

    @abstractmethod
    def describe_model(self, name: str, description: str, tags: Mapping[str, str]) -> None:
        """Create the registered model if missing; set its tags and, unless empty, description."""

    @abstractmethod
    def set_alias(self, name: str, alias: str, version: str) -> None:
        """Point an alias other than `champion` at a version."""

    @abstractmethod
    def finish_move(self, name: str) -> None:
        """Complete an announced change of the champion whose writer was killed."""

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
            version: The new champion; nothing happens if it is champion already.
            expected_champion: The version it was compared with; empty for none.
            tags: Version → tags that record who changed the champion, why and when. They are set
                with the alias: a recorded change has them, even if its writer is killed.
            forced: Whether a person sets the champion although its records contradict each other.

        Raises:
            ChampionMovedError: another version became champion in between.
            UnclearChampionError: the records of the champion contradict each other.
        """
