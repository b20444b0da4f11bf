"""Reproduction: trains a registered version again from what it carries; are the weights equal?"""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from components.clients.environment import Environment
from components.contracts.errors import PerennialError
from components.contracts.lineage import Lineage
from components.contracts.snapshot import Snapshot
from components.contracts.training import Challenger
from components.register_model.package import trace_lineage
from components.select_checkpoint.step import select_checkpoint_step
from components.snapshot_data.sections import cut_sections
from components.train_model.step import train_model_step
from pipelines.contract import Contract
from pipelines.registry.addresses import set_addresses
from pipelines.registry.catalogue import Dossier
from pipelines.registry.comparison import differences
from pipelines.runs import Home, code_digest, commit_of

CAUSES = ("code_digest", "commit", "packages", "python", "platform", "image_digest")
"""What of the lineage can change a weight though contract, data and seed are the same."""


@dataclass(frozen=True)
class Reproduction:
    """A version, and the same training done once more.

    Attributes:
        registered: The version's own record.
        again: Of the second training.
        causes: What differs between then and now; empty when nothing that is recorded does.
    """

    registered: Challenger
    again: Challenger
    causes: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        """Whether every weight has the same bits."""
        return self.registered.weights_sha256 == self.again.weights_sha256

    def lines(self) -> Iterator[str]:
        """For people."""
        sha = self.registered.weights_sha256
        if self.is_identical:
            yield f"identical: the weights have SHA-256 {sha} again"
        else:
            yield "different weights"
            yield f"  SHA-256: {sha} → {self.again.weights_sha256}"
            for name in ("chosen_step", "chosen_averaged"):
                then, now = getattr(self.registered, name), getattr(self.again, name)
                if then != now:
                    yield f"  {name}: {then} → {now}"
        yield "what differs between then and now:"
        yield from (f"  {cause}" for cause in self.causes or ("nothing that is on record",))


def reproduce(dossier: Dossier, code_folder: Path) -> Reproduction:
    """Train and select again in a home that is thrown away, on exactly the files of then.

    Args:
        dossier: The version.
        code_folder: Where the task's module lies.

    Raises:
        PerennialError: the version does not carry what is needed, or a data file has changed.
    """
    contract, snapshot, challenger, lineage = _needed(dossier)
    with TemporaryDirectory() as scratch:
        home = Home(Path(scratch))
        place = Environment(
            store_uri=str(home.path / "store"),
            tracking_uri=f"sqlite:///{home.path / 'mlflow.db'}",
            run_id="reproduction",
            run_folder=None,
            code_digest=code_digest(Contract.from_json(contract), [code_folder]),
            commit=commit_of(code_folder),
            tracking_run_id="",
        )
        set_addresses(place)
        # The training's own processes look for the task there.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(code_folder.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        again = _train(home.path, contract, snapshot)
        now = trace_lineage(
            place, contract=contract, trigger="{}", snapshot_digest=snapshot.digest(),
            tracking_run_id="", parent_version="",
        )  # fmt: skip
    return Reproduction(challenger, again, tuple(_causes(lineage, now)))


def _train(folder: Path, contract: str, snapshot: Snapshot) -> Challenger:
    sections = cut_sections(json.loads(contract))
    snapshot.write(folder / "snapshot")
    told = {"snapshot": str(folder / "snapshot"), "training": str(folder / "training")}
    train_model_step(
        config=sections["training"], **told,
        report=str(folder / "training.html"), metrics=str(folder / "training-metrics"),
    )  # fmt: skip
    select_checkpoint_step(
        config=sections["selection"], **told, challenger=str(folder / "challenger"),
        report=str(folder / "selection.html"), metrics=str(folder / "selection-metrics"),
    )  # fmt: skip
    return Challenger.read(folder / "challenger")


def _causes(then: Lineage, now: Lineage) -> list[str]:
    before, after = (one.model_dump(mode="json", include=set(CAUSES)) for one in (then, now))
    return [line for line in differences(before, after) if line != "the same"]


def _needed(dossier: Dossier) -> tuple[str, Snapshot, Challenger, Lineage]:
    found = (dossier.contract, dossier.snapshot, dossier.challenger, dossier.lineage)
    contract, snapshot, challenger, lineage = found
    if contract is None or snapshot is None or challenger is None or lineage is None:
        names = ("contract", "snapshot", "challenger", "lineage")
        lacking = [name for name, one in zip(names, found, strict=True) if one is None]
        raise PerennialError(
            f"{dossier.title} cannot be reproduced from what it carries",
            evidence=f"it lacks a readable {' and '.join(lacking)}: it was registered by another "
            "version of Perennial",
            action="check out the commit in its lineage (`perennial explain`) and use that one",
        )
    return json.dumps(contract), snapshot, challenger, lineage
