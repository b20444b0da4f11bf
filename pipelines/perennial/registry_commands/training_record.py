"""Training record: the complete, unaltered record of a version's training."""

from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

from perennial.clients.object_store import sha256_of_file
from perennial.contract import Contract
from perennial.contracts.errors import PerennialError
from perennial.contracts.lineage import Lineage
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.training import Challenger
from perennial.engine.export import WEIGHTS_FILE
from perennial.registry_commands.catalogue import Catalogue, VersionRecord


@dataclass(frozen=True)
class TrainingRecord:
    """Record needed to train a version again.

    Attributes:
        title: What people call the version.
        contract: The resolved contract.
        snapshot: The files it was trained on.
        challenger: Which checkpoint was taken, and the digest of its weights.
        lineage: Original code, packages and machine.
    """

    title: str
    contract: Contract
    snapshot: Snapshot
    challenger: Challenger
    lineage: Lineage

    @classmethod
    def of(cls, version_record: VersionRecord, weights_sha256: str) -> Self:
        """Return the training record of a version.

        Args:
            version_record: The version.
            weights_sha256: Of the weights' file as it lies there.

        Raises:
            PerennialError: something is missing, unreadable, or differs from what was registered.
        """
        contract, snapshot = readable_contract(version_record), version_record.snapshot
        challenger, lineage = version_record.challenger, version_record.lineage
        if contract is None or snapshot is None or challenger is None or lineage is None:
            found = (contract, snapshot, challenger, lineage)
            names = ("contract", "snapshot", "challenger", "lineage")
            raise _lacking(
                version_record,
                [name for name, one in zip(names, found, strict=True) if one is None],
            )
        digests = {
            "contract.json": (
                lineage.contract_digest,
                sha256(version_record.contract_text).hexdigest(),
            ),
            "snapshot.json": (lineage.snapshot_digest, snapshot.digest()),
            "weights": (challenger.weights_sha256, weights_sha256),
        }
        _refuse_altered(version_record, digests)
        return cls(version_record.title, contract, snapshot, challenger, lineage)

    def moved_to(self, uri: str) -> "TrainingRecord":
        """Return the record with another address of the dataset."""
        root, target = self.snapshot.data.uri.rstrip("/"), uri.rstrip("/")
        files = tuple(
            file.model_copy(update={"uri": f"{target}{file.uri.removeprefix(root)}"})
            for file in self.snapshot.files
        )
        data = self.snapshot.data.model_copy(update={"uri": target})
        moved = self.snapshot.model_copy(update={"data": data, "files": files})
        return replace(self, snapshot=moved)


def training_record(catalogue: Catalogue, version_record: VersionRecord) -> TrainingRecord:
    """Return the training record of a version, checked down to the weights.

    Raises:
        PerennialError: something is missing, unreadable, or differs from what was registered.
    """
    with TemporaryDirectory() as scratch:
        weights = catalogue.registry.download(version_record.version, Path(scratch)) / WEIGHTS_FILE
        found = sha256_of_file(weights) if weights.is_file() else ""
    return TrainingRecord.of(version_record, found)


def readable_contract(version_record: VersionRecord) -> Contract | None:
    """The contract, if it is there and this code reads it."""
    try:
        return (
            None
            if version_record.contract is None
            else Contract.from_json(version_record.contract_text)
        )
    except ValueError:
        return None


def _refuse_altered(version_record: VersionRecord, digests: dict[str, tuple[str, str]]) -> None:
    altered = [
        f"{name}: {then or 'none'} → {now or 'none'}"
        for name, (then, now) in digests.items()
        if then != now
    ]
    if altered:
        raise PerennialError(
            f"{version_record.title} differs from what was registered",
            evidence="SHA-256 of " + "; ".join(altered),
            action=f"put the original back: the files lie in {version_record.version.source}",
        )


def _lacking(version_record: VersionRecord, names: list[str]) -> PerennialError:
    return PerennialError(
        f"{version_record.title} cannot be reproduced: its record is incomplete",
        evidence=f"it lacks a readable {' and '.join(names)}",
        action="it was registered by other means, or by another version of Perennial: install "
        "that one (`perennial explain` names its commit)",
    )
