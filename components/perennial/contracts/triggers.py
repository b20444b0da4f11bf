"""The `[triggers]` section: when a model is trained again; read by the two monitoring steps."""

from typing import Annotated

from pydantic import Field

from perennial.contracts.data import Fraction, ModelSection
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.section import Advanced, Layout, Section


class TriggersSection(Section):
    """Triggers of a retraining, and limits on them.

    Durations are in *data time*: between newest rows, never between runs. So replaying or
    backfilling a year in an hour decides as the year itself would have.
    """

    drift: bool = True
    """Retrain when the features leave the champion's reference. Switch it off for streams that are
    known to wander without hurting the model; the report goes on showing the drift."""
    performance: bool = True
    """Retrain when the champion's loss on new labelled rows rises beyond its reference. Switch it
    off when labels are missing or too late to act on."""
    new_rows: Annotated[int, Field(ge=1)] | None = None
    """Retrain after this many rows since the last training, promoted or not: rows of partitions
    that it did not have, rewritten ones included. Set it when more data is known to help, as
    learning curves show; None never retrains for new rows alone."""
    max_age_days: Annotated[int, Field(ge=1)] | None = None
    """Retrain when the last training is this many days of data old. Set it when the model must
    not grow old whatever the monitors see; None sets no limit. Needs `data.time`."""
    windows_in_a_row: Annotated[int, Field(ge=1)] = 2
    """The newest this many windows must all alarm. One alarm is a warning in the report; raise it
    when short disturbances start needless trainings, at the price of one window's delay each."""
    effect_floor: Fraction = 0.05
    """Smallest relevant difference: a column alarms only when at least this share of its
    distribution moved. Raise it when alarms are true but do not matter to the model."""
    new_values_floor: Advanced[Fraction] = 0.02
    """Smallest relevant share of rows with values of a text column that the reference never had.
    Raise it where new names are ordinary and the task maps them to one unknown value."""
    false_alarm_level: Advanced[Annotated[float, Field(gt=0.0, le=0.5)]] = 0.05
    """Share of quiet windows that may alarm, before `windows_in_a_row`. Kept below 1 in 13 on made
    streams of 13 reference blocks or more: blocks that differ by themselves or resemble their
    neighbours (correlation up to 0.9, with 500 rows a block), a yearly season, heavy tails, flags
    and ratings, 20 rows a block, files of unequal size. Not claimed for such correlation in blocks
    of 40 rows (1 in 10), for amounts that are mostly zero (1 in 12), nor below ten blocks. Not
    judged below five blocks or 20 rows a block: change `data.block_days` there or, without a time
    column, `files_in_a_block`."""
    files_in_a_block: Annotated[int, Field(ge=1)] = 1
    """Without a time column: how many partition files, in order of arrival, make one block. Raise
    it until a block covers one full cycle of the stream, holds at least 20 rows, and blocks are of
    similar size: one with less than half of the usual rows is not judged."""
    season_days: Annotated[int, Field(ge=1)] | None = None
    """Length of the stream's longest season, such as 365. Drift is not judged until the champion's
    reference covers it, since nothing tells a season that was never seen from drift. Set it where
    the time of year moves the features and no retraining is wanted for that; performance is judged
    all the same. Needs `data.time`: without it drift is then not judged."""
    decay_floor: Annotated[float, Field(ge=0.0)] = 0.05
    """Smallest relevant rise of the champion's loss, relative to its reference. Raise it when a
    retraining costs more than the loss it can win back."""
    min_labelled_rows: Annotated[int, Field(ge=1)] = 500
    """A window with fewer labelled rows gives no verdict on performance. Raise it for noisy
    losses; lower it for small streams."""
    min_label_coverage: Advanced[Annotated[float, Field(gt=0.0, le=1.0)]] = 0.8
    """Nor does a window with a smaller share of labelled rows: early labels are often of one kind.
    Lower it only when labels are missing at random."""
    cooldown_days: Annotated[int, Field(ge=0)] = 14
    """Days of data after a training in which no retraining starts, promoted or not. Make it cover
    `windows_in_a_row` blocks, so that the next decision rests on windows of its own. Without a
    time column drift and decay wait for `windows_in_a_row` new windows instead."""
    max_retrainings: Annotated[int, Field(ge=1)] = 6
    """Retrainings that monitoring starts within `budget_days` at most. Raise it when the budget
    stops trainings whose challengers do get promoted."""
    budget_days: Annotated[int, Field(ge=1)] = 90
    """Days of data that `max_retrainings` is counted over; needs `data.time`."""


class MonitoringConfig(Section):
    """The sections of the contract that `detect_drift` and `decide_retraining` read."""

    model: ModelSection
    triggers: TriggersSection = TriggersSection()
    scoring: Layout[ScoringSection] = ScoringSection()
