"""Champion records: the champion according to MLflow and according to the object store.

MLflow has the alias `champion`; the object store has the latest promotion (`AliasChange`). Anybody
may change MLflow, which needs no login, so a missing alias does not mean that the model has none.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from pydantic import Field

from perennial.clients.object_store import ObjectStore
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section
from perennial.contracts.version_decisions import VersionDecision
from perennial.registry.version_files import FILES_TAG, ModelVersion, rename_back

CHAMPION = "champion"
"""The alias of the version in production."""


class ChampionMovedError(PerennialError):
    """The champion is not the version any more that the challenger was compared with."""

    @classmethod
    def between(cls, name: str, expected: str, champion: str) -> Self:
        """Return the error for a champion that moved between two versions; empty for none."""
        return cls(
            f"the champion of {name} changed while a challenger was compared with it",
            evidence=f"compared with {expected or 'no champion'}, current: {champion or 'none'}",
            action="compare it with the current champion, as `perennial promote` does",
        )


class UnclearChampionError(PerennialError):
    """MLflow's and the object store's champion differ, or one of the records is damaged."""


class AliasChange(Section):
    """The latest change of the champion; stored in the object store as `registry/<model>.json`.

    Whoever finds a change that is not done moves the alias before doing anything else, so a killed
    writer leaves nothing half done, and two writers cannot both replace the same champion.
    """

    champion: str
    """Empty if a person's repair left the model without one."""
    replaced: str
    done: bool
    tags: dict[str, dict[str, str]] = Field(default_factory=dict)
    """Version → tags that record who changed the champion, why and when; written with the alias.
    The champion's tags also contain the digest of its files, if it was registered with one."""


def record_key(name: str) -> str:
    """Return the object store's key of a model's latest change."""
    return f"registry/{name}.json"


def read_change(content: bytes | None) -> tuple[AliasChange | None, str]:
    """Return the stored change, None without one, and why it cannot be read; empty if it can."""
    try:
        return (None if content is None else AliasChange.from_json(content)), ""
    except ValueError as error:
        return None, f"cannot be read: {str(error).splitlines()[0]}"


def refuse_recorded_champion(store: ObjectStore, name: str) -> None:
    """Refuse to treat a model as one without a champion if a promotion is recorded.

    For callers that must not ask MLflow, or asked it a while ago.

    Raises:
        UnclearChampionError: the object store has a record of a promotion.
    """
    records = read_stored_record(store, name)
    has_record = records.change is not None or records.garbage
    if has_record and not records.is_forgotten():
        raise UnclearChampionError(
            f"no champion of {name} was found, but a promotion is recorded",
            evidence=records.lines()[-1],
            action=f"`perennial models {name}` shows both records; if they agree, the champion was "
            "promoted meanwhile: run the monitoring again",
        )


def read_stored_record(store: ObjectStore, name: str) -> "ChampionRecords":
    """Return the records of a model that MLflow is not asked about: the object store's alone."""
    key = record_key(name)
    return ChampionRecords(name, f"{store.uri}/{key}", "", *read_change(store.read(key)), {})


@dataclass(frozen=True)
class ChampionRecords:
    """Both records of one model's champion.

    Attributes:
        place: Address of the object store's record.
        alias: The version that MLflow's alias `champion` points to; empty without one.
        change: The object store's record; None without one.
        garbage: Why the object store's record cannot be read; empty if it can.
        versions: Number → version, for each version in MLflow.
        renamed: The model's original name and its name in MLflow, if somebody renamed it there.
    """

    name: str
    place: str
    alias: str
    change: AliasChange | None
    garbage: str
    versions: Mapping[str, ModelVersion]
    renamed: tuple[str, str] | None = None

    def champion(self) -> str:
        """Return the number of the champion; empty without one.

        An alias that a person moved in MLflow to another version is respected.

        Raises:
            UnclearChampionError: the records contradict each other, or one is damaged.
        """
        problem = self.problem()
        if problem:
            raise self._unclear(problem)
        return self.alias

    def problem(self) -> str:
        """Return what is wrong with the records as a sentence; empty if they agree."""
        name, change, alias = self.name, self.change, self.alias
        if self.renamed:
            former, present = self.renamed
            return f"{present} was registered as {former} until it was renamed in MLflow"
        if self.garbage:
            return f"the promotion record of {name} cannot be read"
        if alias and alias not in self.versions:
            return f"the alias `champion` of {name} points to version {alias}, which does not exist"
        if change is None:
            promoted = "".join(self.promoted_versions()[:1])
            return promoted and f"the record of the promotion of {name} {promoted} is missing"
        if self.is_forgotten():
            is_half_done = bool(alias) and not change.done
            return f"the repair of {name} that leaves no champion was interrupted" * is_half_done
        what = ""
        # The alias is a person's to move: what it left may even be deleted.
        replaced_by_hand = change.done and alias not in ("", change.champion)
        if change.champion not in self.versions and not replaced_by_hand:
            what = "does not exist"
        # An announced first promotion has no alias yet: it waits to be finished.
        elif not alias and (change.done or change.replaced):
            what = "has no alias"
        elif self.has_other_files():
            what = "does not have the files it was promoted with"
        recorded = f"{name} version {change.champion} is the recorded champion"
        return f"{recorded}, but {what}" if what else ""

    def replaced(self) -> str:
        """Return the version that a new champion replaces, even without alias; empty for none."""
        recorded = self.change.champion if self.change else ""
        return self.alias or (recorded if recorded in self.versions else "")

    def moved_by_hand(self) -> str:
        """Return a sentence if a person moved the alias in MLflow; empty otherwise."""
        change = self.change
        if change is None or not change.done or self.alias in ("", change.champion):
            return ""
        last = f"the last recorded promotion is that of version {change.champion}"
        return (
            f"version {self.alias} is champion by an alias that was moved by hand in MLflow; "
            f"{'a repair left the model without one' if self.is_forgotten() else last}"
        )

    def pending(self) -> str:
        """Return a sentence if a change of the champion was announced and not completed."""
        change = self.change
        if change is None or change.done or self.alias == change.champion:
            return ""
        instead = f" in place of version {change.replaced}" if change.replaced else ""
        return (
            f"version {change.champion} is announced as champion{instead}, and the next promotion, "
            "rollback or run completes it"
        )

    def promoted_versions(self) -> list[str]:
        """Return the versions that were ever promoted or restored, the latest first."""
        moments = {
            number: max(each.at for each in found if each)
            for number, version in self.versions.items()
            if any(
                found := [
                    VersionDecision.of(version.tags, event) for event in ("promoted", "restored")
                ]
            )
        }
        # Moments are to the second: of two equal ones, the higher number is the later version.
        return sorted(moments, key=lambda number: (moments[number], int(number)), reverse=True)

    def has_other_files(self) -> bool:
        """Whether the digest of the champion's files differs from that at its promotion."""
        version = self.versions.get(self.alias)
        return version is not None and version != self.as_promoted(version)

    def as_promoted(self, version: ModelVersion) -> ModelVersion:
        """Return the version with the digest of its files at its promotion, if known."""
        change = self.change
        if change is None or change.champion != version.version:
            return version
        known = {FILES_TAG: change.tags.get(change.champion, {}).get(FILES_TAG, "")}
        return replace(version, tags=version.tags | known) if all(known.values()) else version

    def lines(self) -> list[str]:
        """Return both records as lines for people."""
        found = [f"MLflow: {self._alias_line()}", f"{self.place}: {self._change_line()}"]
        if self.has_other_files():
            version = self.versions[self.alias]
            then, now = (
                each.tags.get(FILES_TAG, "missing") for each in (self.as_promoted(version), version)
            )
            found.append(f"digest of its files: {then} at promotion, tag {FILES_TAG}: {now}")
        return found

    def is_forgotten(self) -> bool:
        """Whether a person's repair left the model without a champion."""
        return self.change is not None and not self.change.champion

    def is_unusable(self) -> bool:
        """Whether the object store's record is corrupt or announces a version that is gone."""
        change, announced = self.change, self.change.champion if self.change else ""
        gone = change is not None and not change.done and announced not in ("", *self.versions)
        return bool(self.garbage) or gone

    def refuse_unusable(self) -> None:
        """Refuse a record that cannot be acted on."""
        if self.is_unusable():
            raise self._unclear(self.problem())

    def _alias_line(self) -> str:
        numbers = ", ".join(sorted(self.versions, key=int)) or "none"
        alias = f"alias `champion` → {self.alias}" if self.alias else "no alias `champion`"
        return f"{alias}; versions: {numbers}"

    def _change_line(self) -> str:
        change = self.change
        if change is None:
            return self.garbage or "no promotion recorded"
        decisions = [
            VersionDecision.of(change.tags.get(change.champion, {}), one)
            for one in ("promoted", "restored")
        ]
        if self.is_forgotten():
            return "no champion, by a repair"
        who = "".join(f", {each.at} UTC by {each.by}" for each in decisions if each)
        replaced = f" in place of {change.replaced}" if change.replaced else ""
        state = "" if change.done else " (announced, not done)"
        return f"version {change.champion} is champion{replaced}{state}{who}"

    def _unclear(self, problem: str) -> UnclearChampionError:
        action = f"`perennial models {self.name} --repair` shows both records and proposes a repair"
        if not self.is_unusable():
            action += f"; or set the champion: `perennial promote {self.name} N --force --reason …`"
        if self.renamed:
            action = rename_back(*self.renamed)
        return UnclearChampionError(
            f"{problem}; nothing was compared or promoted",
            evidence="; ".join(self.lines()),
            action=action,
        )
