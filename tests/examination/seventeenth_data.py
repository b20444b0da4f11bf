"""Datasets of the seventeenth list: moths, concerts, matches, baskets, wells, diaries and more."""

from datetime import date, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def moth_headings():
    """Headings of tracked moths in degrees, with wind, moon and the bearing they were released to."""
    rng = seeded(17001)
    n = 2600
    night = rng.integers(0, 90, n)
    species = rng.choice(4, n, p=[0.45, 0.3, 0.2, 0.05])
    wind_to = rng.uniform(0, 360, 90)[night] + rng.normal(0, 12, n)
    speed = rng.gamma(2.5, 1.6, 90)[night] * np.exp(rng.normal(0, 0.15, n))
    moon = rng.uniform(0, 100, 90)[night].round()
    cloud = rng.beta(0.7, 0.7, 90)[night]
    height = rng.gamma(3.0, 60.0, n) + 20
    goal = np.deg2rad(np.array([172.0, 205.0, 348.0, 120.0]))[species]
    pull = 1.2 + 1.3 * (moon / 100) * (1 - cloud)
    drift = 0.32 * speed * np.array([0.8, 1.0, 1.3, 0.6])[species] * (height / 200) ** 0.3
    toward = np.deg2rad(wind_to)
    east = pull * np.sin(goal) + drift * np.sin(toward)
    north = pull * np.cos(goal) + drift * np.cos(toward)
    kappa = 1.2 + 1.6 * np.hypot(east, north)
    heading = np.rad2deg(np.arctan2(east, north) + rng.vonmises(0, kappa)) % 360
    return numbered(
        pl.DataFrame(
            {
                "released": [date(2023, 7, 1) + timedelta(days=int(d)) for d in night],
                "species": np.array(["gamma", "hawk", "underwing", "burnet"])[species],
                "wind_from": ((wind_to + 180) % 360).round(),
                "wind_ms": speed.round(1),
                "moon_pct": [
                    None if g else v for v, g in zip(moon, rng.random(n) < 0.06, strict=True)
                ],
                "cloud_oktas": (cloud * 8).round().astype(int),
                "height_m": height.round(),
                "tag": [f"T{k:04}" for k in rng.permutation(n)],
                "heading": (heading.round() % 360).astype(int),
            }
        )
    )
