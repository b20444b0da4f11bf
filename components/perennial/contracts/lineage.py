"""Lineage: the origin of a model, sufficient to reproduce it."""

from pydantic import Field, JsonValue

from perennial.contracts.adapter import Adapter
from perennial.contracts.initial_model import Origin
from perennial.contracts.section import Section
from perennial.contracts.training import TrainedPart

LINEAGE_FILE = "lineage.json"
CONTRACT_FILE = "contract.json"
DIFF_FILE = "uncommitted.diff"


class Lineage(Section):
    """Origin of a model."""

    contract_digest: str
    snapshot_digest: str
    code_digest: str
    """Digest of the sources that trained the model: the image's digest on a cluster, a hash of the
    files on a laptop."""
    commit: str = ""
    """Version-control commit; ends in `-dirty` when the working tree differed."""
    code_place: str = ""
    """The folder of the task's sources in the repository of the commit, `.` at its top; empty
    outside one, or if nobody recorded it."""
    diff_digest: str = ""
    """SHA-256 of what the working tree had besides the commit, `uncommitted.diff`; else empty."""
    image_digest: str = ""
    """The container image that registered the model; empty on a laptop."""
    python: str = ""
    platform: str = ""
    """Operating system and processor: other ones may round differently."""
    packages: dict[str, str]
    """Installed version of each package that enters the numbers."""
    seed: int
    parts: tuple[TrainedPart, ...] = ()
    """How the training was divided over processes, in order: it may have been resumed on others."""
    run_id: str
    """The pipeline run."""
    tracking_run_id: str = ""
    """The MLflow run."""
    trigger: dict[str, JsonValue]
    """Reason of this training, with its evidence."""
    initial: Origin | None = None
    """Weights that the training started with; None for random ones."""
    adapter: Adapter | None = None
    """The adapter that was trained on them; None where all weights were."""
    teachers: tuple[Origin, ...] = ()
    """Registered versions whose predictions the training learned from."""
    members: tuple[Origin, ...] = ()
    """Former champions that are part of the model; empty unless it is an ensemble."""
    parent_version: str = ""
    """The champion that was beaten; empty for a first model."""
    study: dict[str, JsonValue] = Field(default_factory=dict)
    """The study of hyperparameters that the contract's values come from, `registry.study`; empty
    without one."""
