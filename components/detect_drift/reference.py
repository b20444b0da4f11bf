"""The reference's own blocks as a yardstick: which windows lie beyond their ordinary spread?

Rows of a real stream are not independent, so a test that counts them alarms on nearly every quiet
week. The unit here is the block: how far a reference block lies from the others says how far a
window may lie before it means anything.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from components.contracts.monitoring import ColumnDrift, WindowDrift
from components.contracts.triggers import TriggersSection
from components.contracts.validation import BlockSketch
from components.detect_drift.two_sample import Profile, profiles_of

MIN_BLOCKS = 10
"""Below it a spread over blocks says too little, and thresholds fall back on the iid null."""
MIN_Z_SCORE = 3.0
"""Three standard deviations, as in control charts; the reference's own blocks can only raise it."""
KEPT_COLUMNS = 20
"""Columns recorded per window beside those that alarmed."""


@dataclass(frozen=True)
class Yardstick:
    """What is ordinary between reference blocks.

    Attributes:
        calibration: `fallback` when there are too few blocks.
        means: Ordinary root of the effect of each profile, shape [J].
        spreads: Its standard deviation between blocks, shape [J].
        threshold: For a window's score.
        reference_scores: Score of each reference block, judged by the other blocks.
    """

    calibration: Literal["blocks", "fallback"]
    means: NDArray[np.float64]
    spreads: NDArray[np.float64]
    threshold: float
    reference_scores: tuple[float, ...]


@dataclass(frozen=True)
class Measured:
    """Windows measured against a reference.

    Attributes:
        windows: In time order.
        yardstick: What they were judged by.
        profiles: Of the reference blocks, then of the windows.
        old: The reference blocks among the profiles' blocks.
    """

    windows: tuple[WindowDrift, ...]
    yardstick: Yardstick
    profiles: tuple[Profile, ...]
    old: slice


def measure_windows(
    reference: Sequence[BlockSketch], windows: Sequence[BlockSketch], triggers: TriggersSection
) -> Measured:
    """Each window against the reference blocks together.

    Args:
        reference: Complete blocks of the champion's snapshot, at least one.
        windows: Complete blocks after it.
        triggers: Floor and level.
    """
    profiles = profiles_of([*reference, *windows])
    old, new = slice(0, len(reference)), slice(len(reference), None)
    yardstick = calibrate(profiles, old, triggers)
    effects = np.array([profile.effects_against(new, old) for profile in profiles]).T
    if yardstick.calibration == "blocks":
        z_scores = (np.sqrt(effects) - yardstick.means) / yardstick.spreads
    else:
        z_scores = _fallback_z_scores(profiles, old, new, effects, triggers)
    measured = [
        _window(
            window,
            profiles,
            effects[index],
            z_scores[index],
            threshold=yardstick.threshold,
            floor=triggers.effect_floor,
        )
        for index, window in enumerate(windows)
    ]
    return Measured(tuple(measured), yardstick, tuple(profiles), old)


def calibrate(profiles: Sequence[Profile], old: slice, triggers: TriggersSection) -> Yardstick:
    """Means, spreads and threshold from the reference's own blocks.

    Distances are skewed, so their square roots are what is standardised: on quiet synthetic
    streams that brought the share of windows alarmed from 0.10 down to the 0.05 asked for.

    The threshold is the larger of two. Student's: what the largest of as many z-scores as there are
    moving profiles exceeds with probability `false_alarm_level`, if blocks are independent and
    effects normal. The reference's own: each block is scored by the others as a window would be,
    and so is each run of `windows_in_a_row` blocks, by its lowest score; the quantile of the runs
    (conformal prediction) answers for heavy tails and for blocks that resemble their neighbours.
    Runs, because one extreme block, such as a blizzard's week, must not blind the yardstick.
    """
    effects = np.array([profile.effects_against_rest(old) for profile in profiles]).T
    roots = np.sqrt(effects)
    # A column that hardly moves between blocks must reach the effect floor, not merely move.
    least_spread = math.sqrt(triggers.effect_floor) / 10
    means, spreads = _mean_and_spread(roots, least_spread)
    num_blocks = len(effects)
    if num_blocks < MIN_BLOCKS:
        return Yardstick("fallback", means, spreads, 1.0, ())
    scores = []
    for block in range(num_blocks):
        others_means, others_spreads = _mean_and_spread(np.delete(roots, block, 0), least_spread)
        z_scores = (roots[block] - others_means) / others_spreads
        scores.append(_score(profiles, effects[block], z_scores, triggers.effect_floor))
    moving = max(1, int((np.nan_to_num(effects).max(axis=0) > 0).sum()))
    threshold = max(
        MIN_Z_SCORE,
        student_limit(num_blocks, triggers.false_alarm_level / moving),
        _run_limit(scores, triggers.windows_in_a_row, triggers.false_alarm_level),
    )
    return Yardstick("blocks", means, spreads, threshold, tuple(scores))


def student_limit(num_blocks: int, level: float) -> float:
    """What one further block's z-score exceeds with probability `level` under normality."""
    quantile = float(stats.t.ppf(1 - level, num_blocks - 1))
    # The further block varies, and so does the mean that it is compared with.
    return quantile * math.sqrt(1 + 1 / num_blocks)


def _run_limit(scores: Sequence[float], length: int, level: float) -> float:
    """The quantile of the runs' lowest scores that a further run exceeds with the given level."""
    lowest = sorted(min(scores[i : i + length]) for i in range(len(scores) - length + 1))
    rank = math.ceil((len(lowest) + 1) * (1 - level))
    return lowest[min(rank, len(lowest)) - 1] if lowest else 0.0


def _mean_and_spread(
    roots: NDArray[np.float64], least_spread: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Per profile over blocks, NaN left out; shapes [B, J] → [J] and [J]."""
    known = ~np.isnan(roots)
    count = np.maximum(known.sum(axis=0), 1)
    means = np.where(known, roots, 0.0).sum(axis=0) / count
    squares = np.where(known, (roots - means) ** 2, 0.0).sum(axis=0)
    return means, np.maximum(np.sqrt(squares / np.maximum(count - 1, 1)), least_spread)


def _judged(
    profiles: Sequence[Profile], effects: NDArray[np.float64], floor: float
) -> NDArray[np.bool_]:
    """Which profiles may alarm: relevant in size; a moving label alone is information only."""
    features = np.array([profile.statistic != "label_mean" for profile in profiles])
    return features & (np.nan_to_num(effects) >= floor)


def _score(
    profiles: Sequence[Profile],
    effects: NDArray[np.float64],
    z_scores: NDArray[np.float64],
    floor: float,
) -> float:
    """The largest z-score among the effects of relevant size; 0 when there is none."""
    judged = _judged(profiles, effects, floor)
    return float(np.max(z_scores, where=judged, initial=0.0))


def _fallback_z_scores(
    profiles: Sequence[Profile],
    old: slice,
    new: slice,
    effects: NDArray[np.float64],
    triggers: TriggersSection,
) -> NDArray[np.float64]:
    """(effect - floor) in units of the iid noise allowance: above 1, the difference is relevant."""
    level = triggers.false_alarm_level / len(profiles)
    scores = np.zeros_like(effects)
    for column, profile in enumerate(profiles):
        reference_rows = profile.weights[old].sum()
        for row, rows in enumerate(profile.weights[new]):
            if rows > 0 and reference_rows > 0:
                allowance = profile.noise_allowance(rows, reference_rows, level)
                scores[row, column] = (effects[row, column] - triggers.effect_floor) / allowance
    return scores


def _window(
    window: BlockSketch,
    profiles: Sequence[Profile],
    effects: NDArray[np.float64],
    z_scores: NDArray[np.float64],
    *,
    threshold: float,
    floor: float,
) -> WindowDrift:
    alarms = _judged(profiles, effects, floor) & (np.nan_to_num(z_scores) > threshold)
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
    return WindowDrift(
        start=window.start,
        end=window.end,
        rows=window.rows,
        max_z_score=_score(profiles, effects, z_scores, floor),
        threshold=threshold,
        columns=tuple(
            column for rank, column in enumerate(measured) if column.alarmed or rank < KEPT_COLUMNS
        ),
        alarmed=bool(alarms.any()),
    )
