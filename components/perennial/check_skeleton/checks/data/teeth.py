"""Numbers that wrap around: a modulo, or a type of too few bits."""

import numpy as np

from perennial.check_skeleton.checks.data.signals import Numbers


def sawtooth(values: Numbers, inputs: Numbers) -> float:
    """Return the period of numbers that rise evenly and fall back; 0 for others."""
    steps, rises = np.diff(values), np.diff(inputs)
    slopes = rises / steps
    slope = float(np.median(slopes))
    falls = slopes * np.sign(slope) < 0
    if slope == 0 or not falls.any() or falls.mean() > 0.2:
        return 0.0
    even = np.isclose(slopes[~falls], slope, rtol=1e-2)
    if even.mean() < 0.9:
        return 0.0
    back = steps[falls] - rises[falls] / slope
    period = float(np.round(back.min()))
    is_regular = period > 1 and np.allclose(back / period, np.round(back / period), atol=0.05)
    return period if is_regular else 0.0
