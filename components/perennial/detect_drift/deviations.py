"""Deviations of windows from reference blocks, as standard normal deviates, and the threshold.

Distances lose the direction of a change, and with it most of the power if blocks vary anyway. A
score keeps the direction, so windows that move the same way add up.

Shapes: T blocks (the reference's, then the windows'), K scores.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from perennial.contracts.triggers import TriggersSection
from perennial.contracts.validation import OTHER
from perennial.detect_drift.block_noise import (
    CommonVariance,
    Floats,
    compare_means,
    estimate_correlations,
    find_common_variance,
)
from perennial.detect_drift.two_sample import Profile


def new_value_profiles(profiles: Sequence[Profile], old: slice) -> list[Profile]:
    """Return, for each text column, the share of a window's rows with values new to the reference.

    Identifiers and names are new in every block. The share that was new in one block of the
    reference's second half is expected in each window too, and subtracted. A column with more
    values than the sketches name is skipped: its new ones are among the others.
    """
    found = []
    for profile in profiles:
        if profile.statistic != "total_variation" or OTHER in profile.points:
            continue
        present = profile.values > 0
        size: int = old.stop
        first_half = max(size // 2, 1)
        arrivals = [
            profile.values[block][~present[:block].any(axis=0)].sum()
            for block in range(first_half, size)
        ]
        expected = max(arrivals, default=0.0)
        new = profile.values[:, ~present[old].any(axis=0)].sum(axis=1)
        windows = np.arange(1, len(new) - size + 1)
        shares = np.zeros(len(new))
        shares[size:] = np.maximum(new[size:] - expected * windows, 0.0)
        found.append(Profile(profile.column, "new_values", (), shares[:, None], profile.weights))
    return found


def new_value_z_scores(profile: Profile, old: slice) -> Floats:
    """Return standard normal deviates of each window's new values, shape [W].

    A value that was absent from n rows has a share below 3/n with 95% confidence; its rows in a
    window then follow Poisson's law.
    """
    rows = profile.weights[old.stop :]
    count = np.round(profile.values[old.stop :, 0] * rows)
    expected = rows * 3 / max(profile.weights[old].sum(), 1.0)
    tails = stats.poisson.sf(count - 1, expected)
    return np.asarray(stats.norm.isf(np.clip(tails, 1e-300, 0.999)), dtype=np.float64)


EXTREME_RANK = 0.005
"""Normal scores are clipped at this rank and its mirror (2.6 standard deviations), so that single
rows in heavy tails cannot decide."""
LEAST_SPREAD = 1e-6  # of normal scores; zero for a column that is constant in a block
FREQUENT = 0.2
"""Share of rows with one value from which a column has no spread of its own to judge."""
ONE_VALUED, TWO_VALUED = 0.8, 0.95
"""Share of rows with the most frequent value, and with the two most frequent ones, from which the
share of the first describes the column."""
SHARE_VARIANCE = 0.25  # of the arcsine of a share, for one row


@dataclass(frozen=True)
class Scores:
    """Scores of blocks.

    Attributes:
        values: Shape [T, K].
        kinds: Kind of each score; scores of one kind have one scale. Length K.
        profiles: Position of the profile behind each score, shape [K].
        row_variances: Variance that independent rows give to a score of one block, times the
            block's rows; shape [K].
    """

    values: Floats
    kinds: tuple[str, ...]
    profiles: NDArray[np.int64]
    row_variances: Floats


def score_blocks(profiles: Sequence[Profile], old: slice) -> Scores:
    """Return all scores of all blocks, without constant ones."""
    columns: list[tuple[Floats, str, int, float]] = []
    for index, profile in enumerate(profiles):
        if profile.statistic == "kolmogorov_smirnov" and len(profile.points) > 1:
            columns += _score_numbers(profile, old, index)
        elif profile.statistic in ("null_share", "label_mean"):
            angle = _share_angle(profile.values[:, 0])
            columns.append((angle, profile.statistic, index, SHARE_VARIANCE))
        elif profile.statistic == "dependence":
            columns.append((profile.values[:, 0], "dependence", index, 0.0))
    moving = [
        (np.where(profiles[index].weights > 0, values, np.nan), kind, index, variance)
        for values, kind, index, variance in columns
        if len(np.unique(values[profiles[index].weights > 0])) > 1
    ]
    num_blocks = len(profiles[0].weights)
    return Scores(
        np.array([values for values, _, _, _ in moving]).reshape(-1, num_blocks).T,
        tuple(kind for _, kind, _, _ in moving),
        np.array([index for _, _, index, _ in moving], dtype=np.int64),
        np.array([variance for _, _, _, variance in moving]),
    )


def _share_angle(shares: Floats) -> Floats:
    """Return the arcsine of shares, whose variance does not depend on the share."""
    return np.asarray(np.arcsin(np.sqrt(np.clip(shares, 0.0, 1.0))), dtype=np.float64)


def _score_numbers(
    profile: Profile, old: slice, index: int
) -> list[tuple[Floats, str, int, float]]:
    """Return scores of a column of numbers: values, kind, profile and variance for one row.

    Where few values are frequent, the mean fixes the spread, whose logarithm leaps as a share nears
    one: ratings, flags, amounts that are mostly zero. Location and distance judge them.
    """
    shares = _value_shares(profile, old)
    largest = float(shares.max())
    if largest >= ONE_VALUED or _has_two_values(profile, old):
        return [
            (_share_angle(own), "value_share", index, SHARE_VARIANCE)
            for own in _judged_shares(profile, shares)
        ]
    location, spread = _location_and_spread(profile, old)
    # Of n normal values, the mean has variance 1/n and the log of the spread 1/2n.
    found = [(location, "location", index, 1.0)]
    return found if largest >= FREQUENT else [*found, (spread, "spread", index, 0.5)]


def _judged_shares(profile: Profile, shares: Floats) -> list[Floats]:
    """Return the shares of values that describe a column, in each block: one or two of shape [T].

    The first is the most frequent value's. It stays where the second is exchanged for others, so
    where there is enough of both, the others' share comes with it.
    """
    before, after = np.split(profile.values, 2, axis=1)
    first, *others = np.argsort(-shares, kind="stable")
    own = after - before
    if len(others) == 0 or shares[others[0]] < 1 - TWO_VALUED:
        return [own[:, first]]
    rest = 1 - own[:, first] - own[:, others[0]]
    is_enough = np.max(rest, where=profile.weights > 0, initial=0.0) > 1 - TWO_VALUED
    return [own[:, first], rest] if is_enough else [own[:, first]]


def _value_shares(profile: Profile, old: slice) -> Floats:
    """Return the share of the reference's rows that has each value of the profile, shape [G]."""
    before, after = np.split(profile.pooled(old), 2)
    shares: Floats = after - before
    return shares


def _has_two_values(profile: Profile, old: slice) -> bool:
    """Whether one share describes a column of numbers, which its distance only repeats."""
    if profile.statistic != "kolmogorov_smirnov" or len(profile.points) < 2:
        return False
    return bool(np.sort(_value_shares(profile, old))[-2:].sum() >= TWO_VALUED)


def _location_and_spread(profile: Profile, old: slice) -> tuple[Floats, Floats]:
    """Return mean and log standard deviation of each block's normal scores, shapes [T].

    A value's normal score is the normal quantile of its rank in the reference.
    """
    points = len(profile.points)
    before, after = profile.values[:, :points], profile.values[:, points:]
    pooled = profile.pooled(old)
    ranks = (pooled[:points] + pooled[points:]) / 2
    scores = stats.norm.ppf(np.clip(ranks, EXTREME_RANK, 1 - EXTREME_RANK))
    atoms, between = after - before, before[:, 1:] - after[:, :-1]
    means, squares = (
        atoms @ values + between @ ((values[1:] + values[:-1]) / 2)
        for values in (scores, scores**2)
    )
    return means, np.log(np.maximum(squares - means**2, LEAST_SPREAD)) / 2


MIN_Z_SCORE = 3.0
"""Three standard deviations, as in control charts; the reference's own blocks can only raise it."""
SAME_SIDE = 0.8
"""Standard deviations by which each window of a run must be on one side: a single extreme window
must not make its neighbours alarm."""
LEAST_VARIANCE = 1e-4  # of scores: a hundredth of a standard deviation does not count as variation
LARGEST_Z_SCORE = 37.0  # above it the probability underflows a double
ONE_SIDED = ("dependence",)  # blocks that are separated less well than usual have not drifted


@dataclass(frozen=True)
class Calibration:
    """Ordinary variation between reference blocks.

    Attributes:
        threshold: Threshold of a window's score, a standard normal deviate.
        correlation: Correlation from block to block, mean over columns.
        reference_scores: Score of each reference block, judged by the other blocks.
    """

    threshold: float
    correlation: float
    reference_scores: tuple[float, ...]


class BlockDeviations:
    """Variation between reference blocks, and windows measured by it.

    Three measures of each column: its signed scores (location, spread, missing values), where
    windows that move the same way add up; its distance, which detects every other change; values
    that the reference never had. All become standard normal deviates, compared with one threshold.
    """

    def __init__(self, profiles: Sequence[Profile], old: slice, triggers: TriggersSection) -> None:
        self.profiles, self.old = profiles, old
        self.size: int = old.stop
        self.runs = sorted({1, triggers.windows_in_a_row})
        rows = np.max([profile.weights for profile in profiles], axis=0)
        # The harmonic mean, because the variance of their noise goes with 1 / rows.
        usual = 1 / np.mean(1 / np.maximum(rows[old], 1))
        self.thinness = np.maximum(usual / np.maximum(rows[old.stop :], 1), 1.0)
        self.scores = score_blocks(profiles, old)
        self._measure_scores(usual)
        self._measure_distances(triggers.effect_floor)
        self.calibration = self._calibrate(triggers)

    def z_scores(self, effects: Floats) -> Floats:
        """Return the largest deviate of each window and profile, shape [W, P]."""
        found = self._distance_z_scores(effects)
        signed = self._signed_z_scores(len(effects))
        for position, profile in enumerate(self.scores.profiles):
            found[:, profile] = np.fmax(found[:, profile], signed[:, position])
        for index, profile_ in enumerate(self.profiles):
            if profile_.statistic == "new_values":
                found[:, index] = new_value_z_scores(profile_, self.old)
        return np.clip(found, -LARGEST_Z_SCORE, LARGEST_Z_SCORE)

    def _measure_scores(self, usual_rows: float) -> None:
        """Measure mean, moderated variance and correlation of each score over the reference."""
        values = self.scores.values[self.old]
        self.means = np.nan_to_num(np.nanmean(values, axis=0)) if values.size else np.zeros(0)
        known = np.where(np.isnan(values), self.means, values)
        variances = known.var(axis=0, ddof=1) if values.size else np.zeros(0)
        noise = self.scores.row_variances / usual_rows
        # At most half: rows of one block may be spread more evenly than independent ones.
        self.row_shares = np.clip(noise / np.maximum(variances, 1e-300), 0.0, 0.5)
        self.correlations = np.zeros(len(variances))
        self.common: dict[str, CommonVariance] = {}
        self.variances, self.borrowed = variances.copy(), np.zeros(len(variances))
        for kind in set(self.scores.kinds):
            chosen = np.array([other == kind for other in self.scores.kinds])
            self.correlations[chosen] = estimate_correlations(
                known[:, chosen], self.row_shares[chosen]
            )
            common = find_common_variance(variances[chosen], self.size - 1)
            self.common[kind] = common
            moderated = common.moderate(variances[chosen], self.size - 1)
            self.variances[chosen] = np.maximum(moderated, LEAST_VARIANCE)
            self.borrowed[chosen] = common.degrees

    def _measure_distances(self, floor: float) -> None:
        """Measure mean and moderated variance of the distances' roots between reference blocks.

        Distances are skewed, their square roots hardly. A column that hardly varies between blocks
        must reach the effect floor, not only deviate.
        """
        effects = np.array([profile.effects_against_rest(self.old) for profile in self.profiles])
        self.reference_effects = effects.T
        self.roots = np.sqrt(self.reference_effects)
        known = ~np.isnan(self.roots)
        count = np.maximum(known.sum(axis=0), 1)
        self.root_means = np.where(known, self.roots, 0.0).sum(axis=0) / count
        squares = np.where(known, (self.roots - self.root_means) ** 2, 0.0).sum(axis=0)
        variances = np.maximum(squares / np.maximum(count - 1, 1), floor / 100)
        self.is_distance = np.array(
            [
                p.statistic in ("kolmogorov_smirnov", "total_variation")
                and not _has_two_values(p, self.old)
                for p in self.profiles
            ]
        )
        self.common_root = find_common_variance(variances[self.is_distance], self.size - 1)
        self.root_variances = self.common_root.moderate(variances, self.size - 1)

    def _calibrate(self, triggers: TriggersSection) -> Calibration:
        """Return the threshold that the largest of all deviates exceeds with the required level.

        Or the reference's own, if higher: each block is scored by the others as a window would be,
        and each run of `windows_in_a_row` blocks by its lowest score; the quantile of the runs
        (conformal prediction) covers tails heavier than a normal's. Runs, because one extreme
        block, such as a blizzard's week, must not raise the threshold permanently.
        """
        moving = np.nan_to_num(self.reference_effects).max(axis=0) > 0
        one_sided = int((moving & self.is_distance).sum())
        one_sided += sum(p.statistic == "new_values" for p in self.profiles)
        features = sum(kind != "label_mean" for kind in self.scores.kinds)
        # Bonferroni: both sides of each score for each length of run, one side of each distance.
        tests = max(2 * features * len(self.runs) + one_sided, 1)
        scores = self._reference_scores(triggers)
        lowest = _run_limit(scores, triggers.windows_in_a_row, triggers.false_alarm_level)
        chance = float(stats.norm.isf(triggers.false_alarm_level / tests))
        correlation = float(np.mean(self._column_correlations()))
        return Calibration(max(MIN_Z_SCORE, chance, lowest), correlation, tuple(scores))

    def _signed_z_scores(self, num_windows: int) -> Floats:
        """Return each score's largest deviate over runs that end with a window, shape [W, K]."""
        deviations = np.nan_to_num(self.scores.values[self.size :] - self.means)
        relative = deviations / np.sqrt(np.maximum(self.variances, 1e-300))
        found = np.zeros_like(deviations)
        for window in range(num_windows):
            for length in self.runs:
                run = tuple(range(window - length + 1, window + 1))
                if run[0] < 0:
                    continue
                z_scores = self._run_z_scores(run, deviations[list(run)].mean(axis=0))
                if length > 1:
                    sides = np.sign(relative[list(run)]).sum(axis=0)
                    together = np.abs(sides) == length
                    together &= np.abs(relative[list(run)]).min(axis=0) >= SAME_SIDE
                    z_scores = np.where(together, z_scores, 0.0)
                found[window] = np.maximum(found[window], z_scores)
        return found

    def _run_z_scores(self, run: tuple[int, ...], deviation: Floats) -> Floats:
        """Return the deviates of one run's mean, shape [K]."""
        thinness = float(self.thinness[list(run)].max())
        found = np.zeros(len(deviation))
        for score, (correlation, row_share) in enumerate(
            zip(self.correlations.round(2), self.row_shares.round(1), strict=True)
        ):
            factor, degrees = compare_means(float(correlation), float(row_share), self.size, run)
            rows = 1 + (thinness - 1) * self.row_shares[score]
            error = math.sqrt(self.variances[score] * factor * rows)
            signed = deviation[score]
            if self.scores.kinds[score] not in ONE_SIDED:
                signed = abs(signed)
            found[score] = _as_deviate(np.array(signed / error), degrees + self.borrowed[score])
        return found

    def _distance_z_scores(self, effects: Floats) -> Floats:
        """Return the deviates of the distances, shape [W, P].

        Correlation between blocks and few rows in a window make distances larger.
        """
        found = np.zeros_like(effects)
        independent = 1 + 1 / self.size
        correlations = self._column_correlations()
        for window, row in enumerate(effects):
            for index in np.flatnonzero(self.is_distance):
                factor, degrees = compare_means(correlations[index], 0.0, self.size, (window,))
                wider = math.sqrt(max(factor / independent, 1.0) * self.thinness[window])
                deviate = math.sqrt(row[index] / wider) - self.root_means[index]
                error = math.sqrt(self.root_variances[index] * independent)
                degrees += self.common_root.degrees
                found[window, index] = _as_deviate(np.array(deviate / error), degrees)
        return found

    def _column_correlations(self) -> list[float]:
        """Return each profile's correlation: its location's, or the mean of all locations.

        The location of a column with one frequent value is the share of that value.
        """
        scores = zip(self.scores.profiles, self.correlations, self.scores.kinds, strict=True)
        by_profile = dict[int, float]()
        for profile, correlation, kind in scores:
            if kind in ("location", "value_share"):
                by_profile.setdefault(int(profile), float(correlation))
        usual = float(np.mean([*by_profile.values()])) if by_profile else 0.0
        return [round(by_profile.get(index, usual), 2) for index in range(len(self.profiles))]

    def _reference_scores(self, triggers: TriggersSection) -> list[float]:
        """Return each reference block's score, judged by the other blocks."""
        judged = np.nan_to_num(self.reference_effects) >= triggers.effect_floor
        features = np.array([profile.statistic != "label_mean" for profile in self.profiles])
        z_scores = np.where(
            self.is_distance, self._left_out(self.roots, self.root_means, self.common_root), 0.0
        )
        values = np.where(
            np.isnan(self.scores.values[self.old]), self.means, self.scores.values[self.old]
        )
        for score, profile in enumerate(self.scores.profiles):
            common = self.common[self.scores.kinds[score]]
            own = self._left_out(values[:, [score]], self.means[[score]], common)
            signed = own[:, 0] if self.scores.kinds[score] in ONE_SIDED else np.abs(own[:, 0])
            z_scores[:, profile] = np.fmax(z_scores[:, profile], signed)
        highest = np.max(z_scores, axis=1, where=judged & features, initial=0.0)
        return [float(score) for score in highest]

    def _left_out(self, values: Floats, means: Floats, common: CommonVariance) -> Floats:
        """Return each block's deviate from the others by their variance, shaped as `values`."""
        size = self.size
        residuals = np.nan_to_num(values - means)
        total = (residuals**2).sum(axis=0)
        # Without one of B values the mean moves too: the squared residual counts B / (B - 1) times.
        others = np.maximum(total - residuals**2 * size / (size - 1), 0.0) / (size - 2)
        variances = np.maximum(common.moderate(others, size - 2), 1e-12)
        # From the others' mean it is B / (B - 1) times larger, and so is the square of its error.
        deviates = residuals * math.sqrt(size / (size - 1)) / np.sqrt(variances)
        return _as_deviate(deviates, size - 2 + common.degrees)


def _as_deviate(t_values: Floats, degrees: float) -> Floats:
    """Convert values of Student's t to standard normal deviates of the same probability."""
    tails = np.maximum(stats.t.sf(np.abs(t_values), degrees), 1e-300)
    deviates: Floats = np.sign(t_values) * stats.norm.isf(tails)
    return deviates


def _run_limit(scores: Sequence[float], length: int, level: float) -> float:
    """Return the quantile of runs' lowest scores that a further run exceeds with this level."""
    lowest = sorted(min(scores[i : i + length]) for i in range(len(scores) - length + 1))
    rank = math.ceil((len(lowest) + 1) * (1 - level))
    return lowest[min(rank, len(lowest)) - 1] if lowest else 0.0
