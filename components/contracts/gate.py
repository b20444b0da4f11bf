"""What `evaluate_model` decided and what `register_model` put on record."""

from datetime import datetime
from typing import ClassVar, Literal

from components.contracts.artifact import Artifact
from components.contracts.section import Section


class Interval(Section):
    """An estimate with its confidence interval."""

    estimate: float
    low: float
    high: float


class Comparison(Section):
    """Challenger against champion on one metric; positive means that the challenger is better."""

    metric: str
    challenger: float
    champion: float | None
    improvement: Interval | None
    """None without a champion."""
    incomparable: str = ""
    """Why the champion's figure says nothing beside the challenger's, and what to do about it;
    empty where the two compare, or there is no champion."""


class SliceComparison(Section):
    """Challenger against champion on the gate's metric, on the test rows of one slice."""

    column: str
    value: str
    rows: int
    challenger: float
    champion: float
    improvement: Interval
    regressed: bool
    """Clearly worse than the gate allows, counting how many slices were looked at."""


class GateReason(Section):
    """One condition of the gate and whether it held."""

    condition: str
    held: bool
    detail: str


class BlockPerformance(Section):
    """Mean loss on the held-out rows of one block of time."""

    start: datetime
    rows: int
    loss: float


class Verdict(Artifact):
    """May the challenger become champion?

    File tree: `verdict.json`.
    """

    file_name: ClassVar[str] = "verdict.json"

    promote: bool
    summary: str
    """The decision and its main reason, in a sentence."""
    reasons: tuple[GateReason, ...]
    comparisons: tuple[Comparison, ...]
    """The gate's metric first."""
    slices: tuple[SliceComparison, ...] = ()
    notes: tuple[str, ...] = ()
    """What to know about the comparison, such as test rows that the champion was trained on."""
    baselines: dict[str, dict[str, float]]
    champion_version: str = ""
    """The version compared with; empty when there was none."""
    test_rows: int
    test_blocks: int
    """Independent blocks that the intervals rest on."""
    performance_reference: tuple[BlockPerformance, ...]
    """The challenger on held-out rows, block by block: what later decay is measured against."""


class Registration(Artifact):
    """A model version on record.

    File tree: `registration.json`.
    """

    file_name: ClassVar[str] = "registration.json"

    name: str
    version: str
    aliases: tuple[Literal["champion", "challenger"], ...]
    weights_sha256: str
    tracking_run_id: str
    replaced_version: str = ""
