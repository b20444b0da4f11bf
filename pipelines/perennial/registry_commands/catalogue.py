"""Catalogue: which models and versions are registered, and everything known about one of them."""

import difflib
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import JsonValue

from perennial.clients.object_store import open_store
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.gate import Verdict
from perennial.contracts.lineage import CONTRACT_FILE, DIFF_FILE, LINEAGE_FILE, Lineage
from perennial.contracts.section import Section
from perennial.contracts.skeleton import SkeletonReport
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger
from perennial.registry.champion_records import (
    CHAMPION,
    ChampionRecords,
    read_stored_record,
    refuse_recorded_champion,
)
from perennial.registry.version_files import ModelVersion
from perennial.runs import Home

if TYPE_CHECKING:
    from perennial.registry.model_registry import ModelRegistry

T = TypeVar("T")
SQLITE = "sqlite:///"
FILES = (
    LINEAGE_FILE,
    CONTRACT_FILE,
    DIFF_FILE,
    Verdict.file_name,
    SkeletonReport.file_name,
    Snapshot.file_name,
    Challenger.file_name,
)


@dataclass(frozen=True)
class VersionRecord:
    """A model version with its records; None for those that it lacks.

    A version may lack a file, or hold one in a form that this code does not read any more: it was
    registered by another version of Perennial, or by other means.
    """

    version: ModelVersion
    aliases: tuple[str, ...]
    lineage: Lineage | None
    verdict: Verdict | None
    challenger: Challenger | None
    snapshot: Snapshot | None
    skeleton: SkeletonReport | None
    contract: dict[str, JsonValue] | None
    contract_text: bytes
    """The contract's file as it lies there; empty without one."""
    diff: bytes

    @property
    def title(self) -> str:
        """Title for people."""
        aliases = f" ({', '.join(self.aliases)})" if self.aliases else ""
        return f"{self.version.name} version {self.version.version}{aliases}"


@dataclass(frozen=True)
class Catalogue:
    """The registry of a home."""

    home: Home

    @property
    def environment(self) -> Environment:
        """The addresses, for a person who asks and runs nothing."""
        return Environment(self.home.store_uri, self.home.tracking_uri, "by hand")

    @property
    def registry(self) -> "ModelRegistry":
        """The registry in MLflow; opening it makes a missing database."""
        from perennial.registry.model_registry import open_registry  # noqa: PLC0415 - imports MLflow

        return open_registry(self.environment)

    def names(self) -> list[str]:
        """Return every registered model; asking does not create a database."""
        return self.registry.names() if self.has_database() else []

    def versions(self, name: str) -> list[ModelVersion]:
        """Return every version of a model, the oldest first.

        Raises:
            UnclearChampionError: the model is not registered, but the store records its champion.
            PerennialError: the model is not registered; the nearest is named. Or the home was
                moved, so that all files would seem to be gone.
        """
        self.home.require_its_place(name)
        names = self.names()
        if name not in names:
            self.champion(name)
            near = difflib.get_close_matches(name, names, n=1)
            known = f"there are: {', '.join(names)}" if names else "no model is registered yet"
            raise PerennialError(
                f"there is no model {name!r} in {self.home.shown_tracking_uri}",
                evidence=f"the nearest is {near[0]}" if near else known,
                action="`perennial models` lists them"
                if names
                else "`perennial run CONTRACT` trains and registers the first; --home names another"
                " place",
            )
        return self.registry.versions(name)

    def champion(self, name: str) -> ModelVersion | None:
        """Return the champion of a model; asking does not create a database.

        Raises:
            UnclearChampionError: the records of the champion contradict each other.
        """
        if not self.has_database():
            refuse_recorded_champion(open_store(self.home.store_uri), name)
            return None
        return self.registry.version_by_alias(name, CHAMPION)

    def champion_records(self, name: str) -> ChampionRecords:
        """Return both records of the champion, unchecked; asking does not create a database."""
        if not self.has_database():
            return read_stored_record(open_store(self.home.store_uri), name)
        return self.registry.champion_records(name)

    def find(self, place: str) -> ModelVersion:
        """Return the version at `MODEL@3`, `MODEL@champion`, or `MODEL`, which means its champion.

        Raises:
            UnclearChampionError: the champion is meant, and its records contradict each other.
            PerennialError: the model, version or alias does not exist.
        """
        name, _, wanted = place.partition("@")
        versions, aliases = self.versions(name), self.registry.aliases(name)
        # Refuses contradictory records, which the alias alone does not show.
        if wanted in ("", CHAMPION):
            self.champion(name)
        # MLflow takes a number as the name of an alias; it is a version first, as people mean it.
        by_number = {version.version: version for version in versions}
        number = wanted if wanted in by_number else aliases.get(wanted or CHAMPION, wanted)
        found = [by_number[number]] if number in by_number else []
        if not found:
            numbers = ", ".join(version.version for version in versions) or "none"
            pointing = ", ".join(f"{alias} → {at}" for alias, at in aliases.items()) or "none"
            raise PerennialError(
                f"{name} has no {wanted or CHAMPION!r}, neither a version nor an alias",
                evidence=f"versions: {numbers}; aliases: {pointing}",
                action=f"`perennial models {name}` lists them",
            )
        return found[0]

    def version_record(self, version: ModelVersion) -> VersionRecord:
        """Return everything recorded about a version; its weights are not downloaded.

        Raises:
            PerennialError: its files are gone.
        """
        files = self.registry.read_files(version, FILES)
        contract = _parsed(files.get(CONTRACT_FILE), json.loads)
        return VersionRecord(
            version=version,
            aliases=self.aliases_of(version),
            lineage=_parsed(files.get(LINEAGE_FILE), Lineage.from_json),
            verdict=_parsed(files.get(Verdict.file_name), Verdict.from_json),
            challenger=_parsed(files.get(Challenger.file_name), Challenger.from_json),
            snapshot=_parsed(files.get(Snapshot.file_name), Snapshot.from_json),
            skeleton=_parsed(files.get(SkeletonReport.file_name), SkeletonReport.from_json),
            contract=contract if isinstance(contract, dict) else None,
            contract_text=files.get(CONTRACT_FILE, b""),
            diff=files.get(DIFF_FILE, b""),
        )

    def has_database(self) -> bool:
        """Whether there is a place to look; MLflow would make a missing database, in seconds."""
        uri = self.home.tracking_uri
        return not uri.startswith(SQLITE) or Path(uri.removeprefix(SQLITE)).exists()

    def aliases_of(self, version: ModelVersion) -> tuple[str, ...]:
        """Return the aliases that point at a version."""
        aliases = self.registry.aliases(version.name)
        return tuple(sorted(alias for alias, at in aliases.items() if at == version.version))


def plain(section: Section | None) -> JsonValue:
    """Return a section as JSON values; a number that is not finite becomes null."""
    return None if section is None else json.loads(section.model_dump_json())


def name_version(version: ModelVersion, aliases: tuple[str, ...]) -> dict[str, JsonValue]:
    """Return what identifies a version, as JSON values."""
    return {
        "model": version.name,
        "version": version.version,
        "aliases": [*aliases],
        "registered_at": version.created_at.isoformat(),
        "source": version.source,
    }


def _parsed(content: bytes | None, read: Callable[[bytes], T]) -> T | None:
    if content is None:
        return None
    try:
        return read(content)
    except ValueError:
        return None
