"""Datasets of the sixteenth list: street lamps, ferries and orchards."""

from datetime import date, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def street_lamps():
    """Street lamps since their installation: months observed, and whether they failed by the survey."""
    rng = seeded(16001)
    n = 2400
    maker = rng.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])
    watts = rng.choice([36, 60, 90, 150], n)
    height = rng.choice([5.0, 8.0, 10.0, 12.0], n)
    coast = rng.gamma(1.5, 8.0, n)
    burning = rng.normal(11, 1.5, n).clip(6, 16)
    age_days = rng.integers(100, 2900, n)
    district = rng.integers(0, 12, n)
    z = 4.1 + np.array([0.0, 0.6, -0.7, 0.3])[maker] - 0.5 * np.log(watts / 60)
    z += 0.35 * np.log(coast / 10 + 0.1) - 0.09 * (burning - 11) - 0.02 * (height - 8)
    z += rng.normal(0, 0.2, 12)[district]
    life = np.exp(z) * rng.weibull(2.2, n)
    observed = age_days / 30.4
    months = np.minimum(life, observed).clip(0.1).round(1)
    failed = (life <= observed).astype(float)
    visits = rng.poisson(1.5 * observed / 60)
    return numbered(
        pl.DataFrame(
            {
                "installed": [date(2024, 1, 1) - timedelta(days=int(d)) for d in age_days],
                "maker": np.array(["Lumo", "Orrin", "Tesk", "Vega"])[maker],
                "watts": watts,
                "height_m": height,
                "coast_km": [None if g else round(v, 2) for v, g in zip(coast, rng.random(n) < 0.08, strict=True)],
                "hours_per_night": burning.round(1),
                "district": [f"D{d:02}" for d in district],
                "street_faults": visits,
                "outcome": [[a, b] for a, b in zip(months.tolist(), failed.tolist(), strict=True)],
            }
        )
    )  # fmt: skip


def ferry_passengers():
    """Passengers of four ferries each day, with the four weeks before and the forecast wind."""
    rng = seeded(16002)
    days = 620
    start = date(2021, 1, 1)
    found = []
    week = np.array([0.85, 0.8, 0.85, 0.95, 1.25, 1.5, 1.3])
    for k, name in enumerate(["Arden", "Brel", "Corran", "Dunmor"]):
        t = np.arange(days)
        weekday = np.array([(start + timedelta(days=int(i))).weekday() for i in t])
        season = 1 + 0.45 * np.sin(2 * np.pi * (t - 110) / 365.25)
        holiday = rng.random(days) < 0.04
        wind = rng.gamma(3.0, 2.6, days)
        slow = np.zeros(days)
        for i in range(1, days):
            slow[i] = 0.9 * slow[i - 1] + rng.normal(0, 0.09)
        shape = week if k < 2 else week[[4, 5, 6, 3, 1, 0, 2]]
        mean = [900, 260, 520, 130][k] * shape[weekday] * season * np.exp(slow)
        mean *= np.where(holiday, 1.5, 1.0) / (1 + np.exp((wind - 15) / 2))
        seen = rng.poisson(mean * np.exp(rng.normal(0, 0.06, days))).astype(float)
        lost = rng.random(days) < 0.03
        logged = np.where(lost, np.nan, seen)
        for i in range(28, days):
            past = [None if np.isnan(v) else v for v in logged[i - 28 : i].tolist()]
            found.append(
                (
                    start + timedelta(days=i),
                    name,
                    past,
                    bool(holiday[i]),
                    round(float(wind[i]), 1),
                    seen[i],
                )
            )
    names = ["day", "route", "past", "holiday", "wind_forecast", "passengers"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))  # fmt: skip


def orchard_yields():
    """Apples of orchard blocks, tonnes a hectare, with outliers after hail that nobody wrote down."""
    rng = seeded(16003)
    n = 2400
    grower = rng.integers(0, 20, n)
    variety = rng.choice(5, n, p=[0.3, 0.25, 0.2, 0.15, 0.1])
    age = rng.integers(2, 30, n)
    trees = rng.normal(2400, 700, n).clip(600, 4000)
    frost = rng.poisson(1.5, n)
    rain = rng.normal(420, 110, n).clip(80)
    blossom = rng.normal(5, 1.8, n).clip(1, 9)
    area = rng.gamma(2.0, 0.9, n) + 0.2
    z = 3.0 + np.array([0.2, 0.0, -0.3, 0.1, -0.1])[variety] - ((age - 13) / 14) ** 2 * 0.6
    z += (
        0.25 * (trees - 2400) / 1000
        - 0.14 * frost
        + 0.12 * (blossom - 5)
        - ((rain - 430) / 300) ** 2 * 0.5
    )
    z += rng.normal(0, 0.15, 20)[grower]
    tonnes = np.exp(z) + rng.standard_t(3, n) * (0.8 + 0.8 * frost)
    soil = [None if g else round(v) for v, g in zip(rain, rng.random(n) < 0.1, strict=True)]
    return numbered(
        pl.DataFrame(
            {
                "grower": [f"G{g:02}" for g in grower],
                "variety": np.array(["Alva", "Boskop", "Cora", "Delbar", "Elan"])[variety],
                "planted_years": age,
                "trees": (trees * area).round(),
                "hectares": area.round(2),
                "frost_nights": frost,
                "rain_mm": soil,
                "blossom": blossom.round(1),
                "tonnes_per_ha": tonnes.clip(0.1).round(2),
            }
        )
    )
