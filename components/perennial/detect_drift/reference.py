"""Windows measured by the ordinary variation between reference blocks.

Rows of a real stream are not independent, so a test that counts them alarms on nearly every quiet
week. The unit here is the block: the variation between reference blocks defines how far a window
may deviate without an alarm.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from scipy import stats

from perennial.contracts.errors import join_names
from perennial.contracts.monitoring import ColumnDrift, WindowDrift
from perennial.contracts.triggers import TriggersSection
from perennial.contracts.validation import BlockSketch
from perennial.detect_drift.block_noise import Floats
from perennial.detect_drift.deviations import BlockDeviations, Calibration, new_value_profiles
from perennial.detect_drift.two_sample import Profile, profiles_of

MIN_BLOCKS = 5
"""Below it the variation over blocks is too uncertain. Rows are not an alternative: they are
correlated, and tests that count them alarm on nearly every quiet week."""
CERTAIN_BLOCKS = 10
"""Below it, up to 18% of the windows alarmed in streams with a correlation of 0.9."""
CERTAIN_ORDER = 8
"""Blocks that rise or fall by chance in one of 20,000 columns: 2 of 8! orders."""
HIGH_CORRELATION = 0.6
KEPT_COLUMNS = 20
"""Number of columns recorded per window in addition to those that alarmed."""


@dataclass(frozen=True)
class Measured:
    """Windows measured against a reference.

    Attributes:
        profiles: Profiles of the reference blocks, then of the windows.
        old: Slice of the reference blocks among the profiles' blocks.
        counters: Columns whose values were not compared.
    """

    windows: tuple[WindowDrift, ...]
    calibration: Calibration
    profiles: tuple[Profile, ...]
    old: slice
    counters: tuple[str, ...] = ()

    @property
    def notes(self) -> tuple[str, ...]:
        """Return the limits of the judgement as sentences."""
        count, correlation = self.old.stop, self.calibration.correlation
        notes = []
        if self.counters:
            notes.append(
                f"values not compared, because they rise or fall from block to block without "
                f"overlap, as counters and timestamps do: {join_names(self.counters)}"
            )
        if count < CERTAIN_BLOCKS:
            notes.append(
                f"{count} reference blocks are too few to estimate the correlation between blocks: "
                f"below {CERTAIN_BLOCKS}, slow changes of a quiet stream may alarm"
            )
        if correlation > HIGH_CORRELATION:
            alike = count * (1 - correlation) / (1 + correlation)
            notes.append(
                f"neighbouring reference blocks are correlated ({correlation:.1f}): {count} count "
                f"as {max(alike, 1):.0f} independent ones, and only large changes are detected"
            )
        return tuple(notes)


def measure_windows(
    reference: Sequence[BlockSketch],
    windows: Sequence[BlockSketch],
    triggers: TriggersSection,
    more: Sequence[Profile] = (),
) -> Measured:
    """Compare each window with the reference blocks together."""
    old, new = slice(0, len(reference)), slice(len(reference), None)
    counters = find_counters(reference, windows)
    profiles = [
        *(p for p in profiles_of([*reference, *windows]) if not _counts(p, counters)),
        *more,
    ]
    profiles += new_value_profiles(profiles, old)
    effects = np.array([profile.effects_against(new, old) for profile in profiles]).T
    blocks = BlockDeviations(profiles, old, triggers)
    calibration, z_scores = blocks.calibration, blocks.z_scores(effects)
    floors = np.array([_floor(profile, triggers) for profile in profiles])
    measured = [
        _judge_window(
            window,
            profiles,
            effects[index],
            z_scores[index],
            threshold=calibration.threshold,
            floors=floors,
        )
        for index, window in enumerate(unjudged_windows(windows))
    ]
    return Measured(tuple(measured), calibration, tuple(profiles), old, counters)


def find_counters(
    reference: Sequence[BlockSketch], windows: Sequence[BlockSketch]
) -> tuple[str, ...]:
    """Return the numeric columns whose values in each block lie beyond those of the block before.

    Such a column, a row number or a timestamp, has another distribution in every block, so that
    each window would alarm. Windows must continue a reference of few blocks: it may rise by chance.
    """
    found = []
    blocks = [*reference, *windows][: max(len(reference), CERTAIN_ORDER)]
    for column in reference[0].numeric:
        every = [block.numeric[column].quantiles for block in blocks if column in block.numeric]
        known = [quantiles for quantiles in every if quantiles]
        if len(known) <= MIN_BLOCKS:
            continue
        steps = list(pairwise(known))
        rises = all(before[-1] < after[0] for before, after in steps)
        if rises or all(before[0] > after[-1] for before, after in steps):
            found.append(column)
    return tuple(found)


def _counts(profile: Profile, counters: Sequence[str]) -> bool:
    return profile.statistic == "kolmogorov_smirnov" and profile.column in counters


def student_limit(num_blocks: int, level: float) -> float:
    """Return the z-score that a further block exceeds with probability `level` if normal."""
    quantile = float(stats.t.ppf(1 - level, num_blocks - 1))
    # Both the further block and the mean that it is compared with vary.
    return quantile * math.sqrt(1 + 1 / num_blocks)


def _floor(profile: Profile, triggers: TriggersSection) -> float:
    """Return the smallest relevant effect; a changed label is information only and has none."""
    if profile.statistic == "label_mean":
        return math.inf
    return triggers.new_values_floor if profile.statistic == "new_values" else triggers.effect_floor


def _judge_window(
    window: WindowDrift,
    profiles: Sequence[Profile],
    effects: Floats,
    z_scores: Floats,
    *,
    threshold: float,
    floors: Floats,
) -> WindowDrift:
    judged = np.nan_to_num(effects) >= floors
    alarms = judged & (np.nan_to_num(z_scores) > threshold)
    measured = [
        ColumnDrift(
            column=profile.column,
            statistic=profile.statistic,
            effect=float(effect),
            z_score=float(z_score),
            alarmed=bool(alarmed),
        )
        for profile, effect, z_score, alarmed in zip(
            profiles, effects, z_scores, alarms, strict=True
        )
        if not np.isnan(effect)
    ]
    measured.sort(key=lambda column: -column.effect)
    kept = (each for rank, each in enumerate(measured) if each.alarmed or rank < KEPT_COLUMNS)
    return window.model_copy(
        update={
            "max_z_score": float(np.max(np.nan_to_num(z_scores), where=judged, initial=0.0)),
            "threshold": threshold,
            "columns": tuple(kept),
            "alarmed": bool(alarms.any()),
        }
    )


def unjudged_windows(windows: Sequence[BlockSketch]) -> tuple[WindowDrift, ...]:
    """Return windows without a drift verdict, so that their loss can be judged."""
    return tuple(
        WindowDrift(start=each.start, end=each.end, files=each.files, rows=each.rows)
        for each in windows
    )
