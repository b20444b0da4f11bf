"""Champion records: what MLflow and the object store each record of a model's champion.

MLflow has the alias `champion`; the object store has the latest promotion (`AliasChange`). Anybody
may change MLflow, which needs no login, so its silence never means that there is no champion.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from pydantic import Field

from perennial.clients.object_store import ObjectStore
from perennial.contracts.alias_decisions import AliasDecision
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.registry.version_files import FILES_TAG, ModelVersion


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


class UnclearChampionError(PerennialError):
    """MLflow and the object store do not agree on the champion, or one of them is damaged."""


class AliasChange(Section):
    """The latest move of the champion; stored in the object store as `registry/<model>.json`.

    Whoever finds a move that is not done brings the alias after it before doing anything else, so
    a killed writer leaves nothing half done, and two writers cannot both leave the same champion.
    """

    champion: str
    replaced: str
    done: bool
    tags: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Version → tags that record who moved the champion, why and when; written with the alias.
    Those of the champion also hold the digest of its files, if it was registered with one."""


def record_key(name: str) -> str:
    """Where the object store keeps a model's latest move."""
    return f"registry/{name}.json"


def refuse_recorded_champion(store: ObjectStore, name: str) -> None:
    """Refuse to treat a model as one without a champion, though a promotion is on record.

    For what must not ask MLflow, or has asked it a while ago.

    Raises:
        UnclearChampionError: the object store has a record of a promotion.
    """
    content = store.read(record_key(name))
    if content is not None:
        place = f"{store.uri}/{record_key(name)}"
        records = ChampionRecords.of(name, place, "", content, {})
        raise UnclearChampionError(
            f"no champion of {name} was found, but a promotion is on record",
            evidence=records.lines()[-1],
            action=f"`perennial models {name}` shows both records; if they agree, the champion was "
            "promoted meanwhile: run the monitoring again",
        )


@dataclass(frozen=True)
class ChampionRecords:
    """Both records of one model's champion.

    Attributes:
        name: The registered model.
        place: Address of the object store's record.
        alias: The version that MLflow's alias `champion` points at; empty without one.
        move: The object store's record; None without one.
        garbage: Why the object store's record cannot be read; empty if it can.
        versions: Number → version, of those that exist in MLflow.
    """

    name: str
    place: str
    alias: str
    move: AliasChange | None
    garbage: str
    versions: Mapping[str, ModelVersion]

    @classmethod
    def of(
        cls,
        name: str,
        place: str,
        alias: str,
        content: bytes | None,
        versions: Mapping[str, ModelVersion],
    ) -> Self:
        """The records, with what the object store holds as it was read."""
        try:
            move, garbage = (None if content is None else AliasChange.from_json(content)), ""
        except ValueError as error:
            move, garbage = None, f"cannot be read: {str(error).splitlines()[0]}"
        return cls(name, place, alias, move, garbage, versions)

    def champion(self) -> str:
        """The number of the champion; empty without one.

        An alias that a person moved in MLflow to another version is respected.

        Raises:
            UnclearChampionError: the records contradict each other, or one is damaged.
        """
        problem = self.problem()
        if problem:
            raise self._unclear(problem)
        return self.alias

    def problem(self) -> str:
        """What is wrong with the records, in a sentence; empty if they agree."""
        name, move, alias = self.name, self.move, self.alias
        if self.garbage:
            return f"the promotion record of {name} cannot be read"
        if alias and alias not in self.versions:
            return f"the alias `champion` of {name} points at version {alias}, which is gone"
        if move is None:
            promoted = self.promoted_versions()[:1]
            return "".join(
                f"the record of the promotion of {name} {one} is gone" for one in promoted
            )
        replaced_by_hand = move.done and alias not in ("", move.champion)
        found = {
            "is gone": move.champion not in self.versions and not replaced_by_hand,
            "has no alias": not alias and (move.done or bool(move.replaced)),
            "does not have the files it was promoted with": self.has_other_files(),
        }
        wrong = [what for what, holds in found.items() if holds][:1]
        return "".join(
            f"{name} version {move.champion} is champion on record, but {what}" for what in wrong
        )

    def replaced(self) -> str:
        """The version that a new champion replaces, even if its alias is gone; empty for none."""
        recorded = self.move.champion if self.move else ""
        return self.alias or (recorded if recorded in self.versions else "")

    def moved_by_hand(self) -> str:
        """A sentence if a person moved the alias in MLflow; empty otherwise."""
        move = self.move
        if move is None or not move.done or self.alias in ("", move.champion):
            return ""
        return (
            f"version {self.alias} is champion by an alias that was moved by hand in MLflow; the "
            f"last promotion on record is that of version {move.champion}"
        )

    def promoted_versions(self) -> list[str]:
        """The versions that were promoted or restored at some time, the latest first."""
        moments = {
            number: max(said.at for said in found if said)
            for number, version in self.versions.items()
            if any(
                found := [
                    AliasDecision.of(version.tags, event) for event in ("promoted", "restored")
                ]
            )
        }
        return sorted(moments, key=lambda number: (moments[number], int(number)), reverse=True)

    def has_other_files(self) -> bool:
        """Whether the champion's digest of its files is not the one it was promoted with."""
        version = self.versions.get(self.alias)
        return version is not None and version != self.as_promoted(version)

    def as_promoted(self, version: ModelVersion) -> ModelVersion:
        """The version with the digest of its files that it was promoted with, if that is known."""
        move = self.move
        if move is None or move.champion != version.version:
            return version
        known = {FILES_TAG: move.tags.get(move.champion, {}).get(FILES_TAG, "")}
        return replace(version, tags=version.tags | known) if all(known.values()) else version

    def lines(self) -> list[str]:
        """Both records, for people."""
        found = [f"MLflow: {self._alias_line()}", f"{self.place}: {self._move_line()}"]
        if self.has_other_files():
            version = self.versions[self.alias]
            then, now = (
                each.tags.get(FILES_TAG, "missing") for each in (self.as_promoted(version), version)
            )
            found.append(f"digest of its files: promoted with {then}, tag {FILES_TAG}: {now}")
        return found

    def is_unusable(self) -> bool:
        """Whether the object store's record is garbage or announces a version that is gone."""
        move = self.move
        gone = move is not None and not move.done and move.champion not in self.versions
        return bool(self.garbage) or gone

    def refuse_unusable(self) -> None:
        """Refuse to go on from a record that nobody can act on.

        Raises:
            UnclearChampionError: it is garbage, or announces a version that is gone.
        """
        if self.is_unusable():
            raise self._unclear(self.problem())

    def _alias_line(self) -> str:
        numbers = ", ".join(sorted(self.versions, key=int)) or "none"
        alias = f"alias `champion` → {self.alias}" if self.alias else "no alias `champion`"
        return f"{alias}; versions: {numbers}"

    def _move_line(self) -> str:
        move = self.move
        if move is None:
            return self.garbage or "no promotion on record"
        said = [
            AliasDecision.of(move.tags.get(move.champion, {}), one)
            for one in ("promoted", "restored")
        ]
        who = "".join(f", {each.at} UTC by {each.by}" for each in said if each)
        replaced = f" in place of {move.replaced}" if move.replaced else ""
        state = "" if move.done else " (announced, not done)"
        return f"version {move.champion} is champion{replaced}{state}{who}"

    def _unclear(self, problem: str) -> UnclearChampionError:
        action = f"`perennial models {self.name} --repair` shows both records and proposes a repair"
        by_hand = f"; or name the champion: `perennial promote {self.name} N --force --reason …`"
        return UnclearChampionError(
            f"{problem}; nothing was compared or promoted",
            evidence="; ".join(self.lines()),
            action=action if self.is_unusable() else action + by_hand,
        )
