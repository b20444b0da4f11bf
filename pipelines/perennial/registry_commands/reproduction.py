"""Reproduction: trains a registered version again from its record, and compares the weights."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.version_control import commit_of, place_in_repository
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.registry.package import trace_lineage
from perennial.registry_commands.addresses import set_addresses
from perennial.registry_commands.comparison import differences
from perennial.registry_commands.training_record import TrainingRecord
from perennial.runs import Home, code_digest
from perennial.select_checkpoint.step import select_checkpoint_step
from perennial.train_model.step import train_model_step

CAUSES = ("code_digest", "packages", "python", "platform", "image_digest")
"""Fields of the lineage that can change weights although contract, data and seed are equal.

Not the commit: it also moves when nothing of the code did."""


@dataclass(frozen=True)
class Reproduction:
    """A version and its second training.

    Attributes:
        registered: The version's own record.
        again: Of the second training.
        causes: Differences between the original training and this one; empty when none is recorded.
    """

    registered: Challenger
    again: Challenger
    causes: tuple[str, ...]

    @property
    def is_identical(self) -> bool:
        """Whether every weight has the same bits."""
        return self.registered.weights_sha256 == self.again.weights_sha256

    def lines(self) -> Iterator[str]:
        """Yield the result for people."""
        sha = self.registered.weights_sha256
        if self.is_identical:
            yield f"identical: the weights have SHA-256 {sha} again"
        else:
            yield "different weights"
            yield f"  SHA-256: {sha} → {self.again.weights_sha256}"
            for name in ("chosen_step", "chosen_averaged", "chosen_members"):
                then, now = getattr(self.registered, name), getattr(self.again, name)
                if then != now:
                    yield f"  {name}: {then} → {now}"
        yield "differences between the original training and this one:"
        yield from (f"  {cause}" for cause in self.causes or ("nothing that is recorded",))


def reproduce(record: TrainingRecord, code_folder: Path, *, anyway: bool) -> Reproduction:
    """Train and select again in a home that is thrown away, on exactly the original files.

    Args:
        record: What the version carries.
        code_folder: Where the task's module lies.
        anyway: Train though it is known before that code, packages or machine differ.

    Raises:
        BadDataError: a data file is gone or has changed.
        PerennialError: something differs, and `anyway` is false.
    """
    Dataset(record.snapshot)  # reads every file once, before anything is trained
    with TemporaryDirectory() as scratch:
        home = Home(Path(scratch))
        place = Environment(
            store_uri=str(home.path / "store"),
            tracking_uri=f"sqlite:///{home.path / 'mlflow.db'}",
            run_id="reproduction",
            run_folder=None,
            code_digest=code_digest(record.contract, [code_folder]),
            commit=commit_of(code_folder),
            tracking_run_id="",
            code_place=place_in_repository(code_folder),
        )
        causes = _causes(record, place)
        if causes and not anyway:
            raise _known_to_differ(record, causes)
        set_addresses(place)
        # The training's own processes look for the task there.
        os.environ["PYTHONPATH"] = os.pathsep.join(
            [str(code_folder.resolve()), *filter(None, [os.environ.get("PYTHONPATH")])]
        )
        again = _train(home.path, record)
    return Reproduction(record.challenger, again, tuple(causes))


def _train(folder: Path, record: TrainingRecord) -> Challenger:
    contract = record.contract.to_json()
    record.snapshot.write(folder / "snapshot")
    folders = {"snapshot": str(folder / "snapshot"), "training": str(folder / "training")}
    train_model_step(
        contract=contract, **folders,
        report=str(folder / "training.html"), metrics=str(folder / "training-metrics"),
    )  # fmt: skip
    select_checkpoint_step(
        contract=contract, **folders, challenger=str(folder / "challenger"),
        report=str(folder / "selection.html"), metrics=str(folder / "selection-metrics"),
    )  # fmt: skip
    return Challenger.read(folder / "challenger")


def _causes(record: TrainingRecord, place: Environment) -> list[str]:
    """Return the differences that are known before anything is trained."""
    now = trace_lineage(
        place, contract=record.contract.to_json(), trigger="{}",
        snapshot_digest=record.snapshot.digest(), tracking_run_id="", parent_version="",
    )  # fmt: skip
    before, after = (
        one.model_dump(mode="json", include=set(CAUSES)) for one in (record.lineage, now)
    )
    return [line for line in differences(before, after) if line != "the same"]


def _known_to_differ(record: TrainingRecord, causes: list[str]) -> PerennialError:
    return PerennialError(
        f"{record.title} would be trained differently; nothing has been trained",
        evidence="\n            ".join(causes),
        action="train where these are equal (sources: without --code they are checked out "
        "of the repository); --anyway trains here all the same and compares",
    )
