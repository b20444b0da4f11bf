"""The `[expectations]` section: what the data must look like before anything is trained on it."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from perennial.contracts.data import ColumnName, ModelSection
from perennial.contracts.section import Advanced, Section
from perennial.contracts.validation import FactValue, Severity

Share = Annotated[float, Field(ge=0.0, le=1.0)]
PINNED = re.compile(r"(?P<store>\w+://.+)/(?P<key>[^/#]+)#sha256=(?P<digest>[0-9a-f]{64})")
"""An address in an object store, with the digest of what lies there."""
Auc = Annotated[float, Field(ge=0.5, le=1.0)]
AS_THE_PAST = 0.8
"""What is this much closer to 1 than the label's value before is no leak: rows without a label, or
at the beginning, lack that value."""
LEAK_ERRORS = 2.0
CONTENT_AUC = 0.999
"""Above it, a statistic of contents holds the label. Measured on healthy tasks: the spread of
pixels of cracked tiles 0.997, the spread of a broken compressor's vibration 0.982."""


class ColumnExpectation(Section):
    """Limits on one column; missing values never count as bad."""

    min: float | None = None
    """Smallest possible value of a numeric column. Give physical limits, not what was seen so far:
    slow changes are the business of drift monitoring."""
    max: float | None = None
    """Largest possible value of a numeric column."""
    allowed: tuple[str | int | float | bool, ...] = ()
    """All values the column may take; empty means any. List them when a new one is a mistake."""
    matches: str = ""
    """Regular expression that every text value must match from start to end; empty means any."""
    max_bad_share: Share = 0.0
    """Share of rows that may break `min`, `max`, `allowed` or `matches`; raise it for columns with
    known rare errors."""
    max_missing_share: Share | None = None
    """Share of rows that may lack a value; None means the section's `max_missing_share` for
    features and no limit for other columns."""
    severity: Severity = "critical"
    """`critical` stops the run. Choose `warning` for limits that you are not sure of."""

    @model_validator(mode="after")
    def _is_possible(self) -> Self:
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min = {self.min} is above max = {self.max}: swap them")
        try:
            re.compile(self.matches)
        except re.error as error:
            raise ValueError(
                f"matches = {self.matches!r} is not a regular expression: {error}"
            ) from error
        return self


class ExpectationsSection(Section):
    """Limits on every snapshot; shares are of rows, between 0 and 1."""

    min_rows: Annotated[int, Field(ge=1)] = 500
    """Fewest rows worth training on. With 500, the default test split holds 125, and an accuracy
    measured there has a standard error of up to 4.5 points: lower it only for trying things out."""
    label_kind: Literal["auto", "classes", "number"] = "auto"
    """`auto`: text, booleans and at most 100 different whole numbers are classes. Set `number` for
    a count or a grade that is predicted as an amount, and `classes` for more than 20 numbers that
    are: classes without a training row then fail. A label of free text is neither."""
    min_class_rows: Advanced[Annotated[int, Field(ge=1)]] = 10
    """Fewest rows of any class in any split. Below ten, a metric of that class is noise; raise it
    when decisions rest on a rare class."""
    max_missing_label_share: Share = 0.0
    """Share of rows that may lack the label: they are in no split but are watched for drift. Raise
    it when labels arrive later than rows."""
    max_missing_share: Share = 0.9
    """Share of rows in which a feature may lack its value before a warning; one that lacks it in
    all rows is always critical. A guard against columns that a source stopped filling: set it per
    column under `columns` where the usual share is known."""
    max_distinct_share: Advanced[Share] = 0.5
    """Share of different values above which a text feature looks like an identifier, which a model
    can only memorise. Raise it for free text."""
    max_duplicate_share: Share = 0.01
    """Share of rows that may repeat an earlier row, or its `data.ids`. Set it to 0 when the source
    delivers exactly once."""
    max_repeated_share: Advanced[Share] = 0.05
    """Share of pictures, lists or texts that may repeat an earlier one before a warning: the same
    content under another id. Raise it for short texts, which people do repeat."""
    max_overlap_share: Advanced[Share] = 0.01
    """Share of validation and test rows whose features and label, or ids, also occur in training,
    beyond the share by which training rows repeat each other by chance."""
    max_conflict_share: Advanced[Share] = 0.05
    """Share of rows with equal features but different labels before a warning: mislabelled copies,
    or a feature that is missing. Not judged where most rows share features and label with others,
    as under a few coarse features. Raise it when labels are known to be noisy."""
    max_group_overlap_share: Share | None = None
    """Share of validation and test rows whose group also occurs in training. None does not judge
    it; set it when the model must serve groups that it has never seen."""
    leakage_auc_fail: Advanced[Auc] = 0.95
    """A feature that alone ranks the label this well, and better than all others together and than
    the label's value before (with `data.time`), was most likely recorded after it. Measured on
    flights of 2013: arrival delay 1.00, legitimate features at most 0.61. In easy problems the
    others reach as much: on tumours measured under a microscope the best feature 0.96, those below
    0.95 together 0.98."""
    leakage_auc_warn: Advanced[Auc] = 0.85
    """Look at such a feature; departure delay, known too late for its use, reached 0.90."""
    leakage_allow: tuple[ColumnName, ...] = ()
    """Features that may predict the label alone, because you know how they come about."""
    columns: dict[ColumnName, ColumnExpectation] = Field(default_factory=dict)
    """Limits on single columns; physical limits belong here."""
    suite: str = ""
    """Your own suite of Great Expectations 1.x: the path of its JSON, from the contract's folder,
    or `s3://…/suite.json#sha256=…`. What counts answer is judged on all rows, the rest on a random
    sample. `perennial profile` drafts one from the data."""
    suite_sample_rows: Advanced[Annotated[int, Field(ge=1_000, le=10_000_000)]] = 100_000
    """Most rows on which Great Expectations itself judges what counts do not answer; each takes
    its memory on pandas. Raise it to find rarer faults: of one row in N, 3 N rows find 95%."""
    suite_sample_seed: Advanced[int] = 0
    """Chooses the sampled rows; equal seeds choose equal rows, in any order of the partitions."""

    @model_validator(mode="after")
    def _pins_its_suite(self) -> Self:
        if "://" in self.suite and not self.suite.startswith("{") and not PINNED.match(self.suite):
            raise ValueError(
                f"suite = {self.suite!r} does not pin its content: append #sha256= and the "
                "SHA-256 of the file, 64 hexadecimal digits"
            )
        return self

    @model_validator(mode="after")
    def _warns_before_failing(self) -> Self:
        if self.leakage_auc_warn > self.leakage_auc_fail:
            raise ValueError(
                f"leakage_auc_warn = {self.leakage_auc_warn} is above leakage_auc_fail = "
                f"{self.leakage_auc_fail}: the warning would never be seen; lower it"
            )
        return self

    def leakage_limits(
        self, facts: Mapping[str, FactValue], *, is_content: bool
    ) -> tuple[float, float]:
        """Return the AUCs above which a feature warns, and fails as a leak.

        No less than what the others reach together, and the label's own past; a leak also by more
        than the error of few rows. What a statistic of contents says, such as a picture's
        brightness, models are to learn: only copies of the label fail.
        """
        past = 1 - AS_THE_PAST * (1 - float(facts.get("persistence_auc") or 0.0))
        sure = self.leakage_auc_fail + LEAK_ERRORS * float(facts.get("leakage_error") or 0.0)
        others = float(facts.get("joint_auc") or 0.0)
        known = max(self.leakage_auc_fail, others, past)
        leak = max(known, min(sure, CONTENT_AUC))
        return (known, CONTENT_AUC) if is_content else (max(self.leakage_auc_warn, past), leak)


class ValidateDataConfig(Section):
    """Configuration of the step."""

    model: ModelSection
    expectations: ExpectationsSection = ExpectationsSection()
