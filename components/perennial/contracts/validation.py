"""Results of `validate_data`: facts of one pass, their judgement, sketches of blocks."""

from datetime import datetime
from typing import ClassVar, Literal, TypeAlias

from perennial.contracts.artifact import Artifact
from perennial.contracts.block import Block
from perennial.contracts.section import Section

FactValue: TypeAlias = int | float | str | bool | None

Severity = Literal["critical", "warning", "info"]


class Expectation(Section):
    """One expectation and how the data met it."""

    name: str
    """Great Expectations' name of it, such as `expect_column_values_to_not_be_null`."""
    subject: str
    """The column, or the fact, that it is about."""
    severity: Severity
    outcome: Literal["passed", "failed", "not_evaluated"]
    expected: str
    observed: str
    hint: str = ""
    """Remedy when it fails."""
    basis: str = ""
    """For an expectation of the team's own suite: the rows that it was judged on."""


class NumericSketch(Section):
    """The distribution of a numeric column in one block."""

    quantiles: tuple[float, ...]
    """Evenly spaced quantiles from minimum to maximum of the finite values; empty when none."""
    nulls: int


class CategoricalSketch(Section):
    """The distribution of a categorical column in one block."""

    counts: dict[str, int]
    nulls: int


OTHER = "(other)"
"""The category of all values other than the most frequent ones."""
ESCAPE = "'"
"""Stands behind the name of a value that itself begins as `OTHER`."""


def value_of(category: str) -> str:
    """Return the value that a category is named after."""
    return category.removesuffix(ESCAPE) if category.startswith(OTHER) else category


class BlockSketch(Block):
    """One block of a snapshot, small enough to be kept permanently instead of its rows."""

    end: datetime | None = None
    """Exclusive; None for files."""
    rows: int
    label_mean: float | None
    """Mean of a numeric or binary label; None when every label is missing."""
    numeric: dict[str, NumericSketch]
    categorical: dict[str, CategoricalSketch]


class ValidationReport(Artifact):
    """Validation of a snapshot: facts, judgement, and sketches of its blocks.

    Handed on with `suite` (the Great Expectations suite that
    judged it).
    """

    file_name: ClassVar[str] = "validation.json"

    snapshot_digest: str
    facts: dict[str, FactValue]
    expectations: tuple[Expectation, ...]
    blocks: tuple[BlockSketch, ...]
    """In time order, on a fixed calendar grid of `data.block_days`, so that the blocks of two
    snapshots of one dataset line up. Without a time column every partition file is a block."""

    @property
    def failures(self) -> tuple[Expectation, ...]:
        """The critical expectations that were not met; any of them stops the run."""
        return tuple(
            expectation
            for expectation in self.expectations
            if expectation.severity == "critical" and expectation.outcome != "passed"
        )
