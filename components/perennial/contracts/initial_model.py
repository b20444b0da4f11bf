"""Pinned models: the weights that a training starts with, its teachers, and their origins."""

from datetime import date
from typing import ClassVar, Literal

from pydantic import Field, JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.data import ImportPath, TaskColumns
from perennial.contracts.section import Section, TaskState
from perennial.contracts.snapshot import Snapshot

FOLDER = "initial"
"""Where the object store keeps the files of initial models: `initial/SHA-256.safetensors`."""


class Origin(Section):
    """Origin of weights that were not trained in this run."""

    source: Literal["champion", "version", "safetensors", "huggingface"]
    uri: str
    """Where they were read."""
    model: str = ""
    """Name of the registered model, of a `version`."""
    version: str = ""
    """Number of the registered version."""
    revision: str = ""
    """Commit of the Hugging Face repository."""
    license: str = ""
    files: dict[str, str]
    """File → SHA-256."""
    trained_until: date | None = None
    """Newest day that they were trained on, where somebody named it."""
    seen: tuple[Snapshot, ...] = ()
    """Which rows the version, those that it started from and its teachers were trained and selected
    on: one snapshot without files for each split rule."""

    def describe(self) -> str:
        """Return the origin for people, in one line."""
        names = {
            "champion": f"champion version {self.version}",
            "version": f"{self.model} version {self.version}",
            "safetensors": self.uri,
            "huggingface": f"{self.uri} at {self.revision}",
        }
        digests = ", ".join(digest[:12] for digest in self.files.values())
        return f"{names[self.source]}, SHA-256 {digests}, licence {self.license or 'not recorded'}"


class FormerTask(Section):
    """The task of a registered version: what its inputs, outputs and parameters stand for."""

    task: ImportPath
    options: dict[str, JsonValue]
    columns: TaskColumns
    state: TaskState


class InitialModel(Artifact):
    """Weights for a training to start with, in the object store under their digests.

    Not handed on where training starts at random. File tree: `initial.json`.
    """

    file_name: ClassVar[str] = "initial.json"

    origin: Origin
    store_uri: str
    """The object store that holds the files."""
    new: tuple[str, ...] = ()
    unused: tuple[str, ...] = ()
    rename: dict[str, str] = Field(default_factory=dict)
    former: FormerTask | None = None

    def identity(self) -> dict[str, JsonValue]:
        """Return what determines the initial weights, wherever they are stored."""
        own = self.model_dump(mode="json", include={"new", "unused", "rename", "former"})
        return {"files": sorted(self.origin.files.values()), **own}


class Teachers(Artifact):
    """Registered versions whose predictions a training learns from, pinned as initial weights are.

    Not handed on without distillation. File tree: `teachers.json`.
    """

    file_name: ClassVar[str] = "teachers.json"

    asked: tuple[str, ...]
    """`training.distillation.teachers`, which the versions were found by."""
    members: tuple[InitialModel, ...]
    """Empty if the only one is a champion that does not exist yet."""

    @property
    def origins(self) -> tuple[Origin, ...]:
        """Return the origin of each."""
        return tuple(each.origin for each in self.members)

    def identity(self) -> dict[str, JsonValue]:
        """Return what determines their predictions, wherever they are stored."""
        return {"members": [each.identity() for each in self.members]}


class Champions(Artifact):
    """The last champions that an ensemble may have as members, pinned as initial weights are.

    Not handed on without `[model.ensemble]`. File tree: `champions.json`.
    """

    file_name: ClassVar[str] = "champions.json"

    members: tuple[InitialModel, ...]
    """The latest first; empty before there is one."""
    left_out: tuple[str, ...] = ()
    """Champions that may not be members, with the reason, for people."""
