"""Values of text columns that no reference block had."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from perennial.detect_drift.two_sample import OTHER, Profile


def new_value_profiles(profiles: Sequence[Profile], old: slice) -> list[Profile]:
    """Return, for each text column, the share of a window's rows with values new to the reference.

    Identifiers and names are new in every block. The share that was new in one block of the
    reference's second half is expected in each window too, and subtracted. A column with more
    values than the sketches name is skipped: its new ones are among the others.

    Args:
        profiles: Profiles of the reference blocks, then of the windows.
        old: Slice of the reference blocks.
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


def new_value_z_scores(profile: Profile, old: slice) -> NDArray[np.float64]:
    """Return standard normal deviates of each window's new values, shape [W].

    A value that was absent from n rows has a share below 3/n with 95% confidence; its rows in a
    window then follow Poisson's law.
    """
    rows = profile.weights[old.stop :]
    count = np.round(profile.values[old.stop :, 0] * rows)
    expected = rows * 3 / max(profile.weights[old].sum(), 1.0)
    tails = stats.poisson.sf(count - 1, expected)
    return np.asarray(stats.norm.isf(np.clip(tails, 1e-300, 0.999)), dtype=np.float64)
