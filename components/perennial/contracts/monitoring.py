"""Results of `detect_drift` and `decide_retraining`."""

from datetime import datetime
from typing import ClassVar, Literal

from pydantic import JsonValue

from perennial.contracts.artifact import Artifact
from perennial.contracts.block import Block
from perennial.contracts.gate import BlockPerformance
from perennial.contracts.section import Section
from perennial.contracts.validation import BlockSketch


class ColumnDrift(Section):
    """Drift of one column in one window."""

    column: str
    statistic: Literal[
        "kolmogorov_smirnov",
        "total_variation",
        "null_share",
        "new_values",
        "dependence",
        "label_mean",
    ]
    effect: float
    """Effect size in [0, 1]."""
    z_score: float
    """The standard normal deviate that is as improbable between the reference's own blocks."""
    alarmed: bool


class WindowDrift(Block):
    """One window of new data against the reference."""

    end: datetime | None = None
    """Exclusive; None for files."""
    rows: int
    max_z_score: float = 0.0
    threshold: float = 0.0
    """Threshold of `max_z_score`, from the reference's own blocks; 0 where drift was not judged."""
    columns: tuple[ColumnDrift, ...] = ()
    """The largest effects first."""
    alarmed: bool = False
    loss: float | None = None
    """The champion's mean loss on the window's labelled rows."""
    loss_z_score: float | None = None
    decayed: bool = False


class Reference(Artifact):
    """Distribution of the champion's data, which drift and decay are measured against.

    File tree: `reference.json`, stored with the model version.
    """

    file_name: ClassVar[str] = "reference.json"

    snapshot_digest: str
    time_max: datetime | None
    """Time of the newest row, or of the registration if that row is of the future."""
    rows: int
    blocks: tuple[BlockSketch, ...]
    performance: tuple[BlockPerformance, ...]


class DriftReport(Artifact):
    """Drift of the stream from the champion's reference.

    File tree: `drift.json`.
    """

    file_name: ClassVar[str] = "drift.json"

    champion_version: str
    """Empty when there is no champion yet."""
    calibration: Literal["blocks", "fallback", "none"]
    """`none`: nothing was judged, for the reason in the first note. `fallback`: older reports."""
    windows: tuple[WindowDrift, ...] = ()
    drifted: bool = False
    """Enough windows in a row alarmed."""
    decayed: bool = False
    """Enough windows in a row lost performance."""
    new_rows: int
    new_days: float = 0.0
    notes: tuple[str, ...] = ()
    unchanged_since: datetime | None = None
    """When this was found, UTC, if snapshot, champion and settings have been the same since."""


class RetrainingDecision(Artifact):
    """Decision whether to retrain now.

    File tree: `decision.json`.
    """

    file_name: ClassVar[str] = "decision.json"

    retrain: bool
    trigger: Literal["none", "first_model", "drift", "performance", "new_data", "schedule"]
    summary: str
    reasons: tuple[str, ...]
    evidence: dict[str, JsonValue]
