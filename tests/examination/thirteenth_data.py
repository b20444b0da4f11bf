"""Datasets of the thirteenth list: tables, series, clicks, exercises, and their neighbours."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import sigmoid


def _gaps(rng, values, share):
    """The values as a list, a share of them missing."""
    return [
        None if gone else v for v, gone in zip(values, rng.random(len(values)) < share, strict=True)
    ]


def _long_tail(rng, count, size, exponent=1.1):
    """Indexes below `count`, the first of them most frequent."""
    p = 1 / np.arange(1, count + 1) ** exponent
    return rng.choice(count, size, p=p / p.sum())


def household_incomes():
    """A census: question marks, capital gains that are mostly zero, countries of few rows, rows that repeat."""
    rng = seeded(13001)
    n = 6000
    education = rng.choice(10, n, p=[0.02, 0.04, 0.06, 0.32, 0.22, 0.08, 0.16, 0.06, 0.02, 0.02])
    occupation = _long_tail(rng, 14, n, 0.6)
    country = _long_tail(rng, 32, n, 2.2)
    age = np.clip(rng.gamma(9, 4.3, n), 17, 90).round()
    hours = np.clip(rng.normal(40, 9, n) + 8 * (rng.random(n) < 0.08), 3, 99).round()
    married = rng.random(n) < sigmoid((age - 30) / 8)
    status = np.where(married, "Married", rng.choice(["Never-married", "Divorced", "Widowed"], n))
    gain = np.where(rng.random(n) < 0.08, np.exp(rng.normal(8.3, 1.2, n)), 0).clip(0, 99999).round()
    pay = rng.normal(0, 0.6, 14)[occupation]
    z = -4.6 + 0.36 * education + 1.6 * married + 0.03 * (hours - 40) + 1.4 * pay
    z += 0.9 * np.exp(-(((age - 48) / 14) ** 2)) + 2.5 * (gain > 5000) - 0.6 * (country > 4)
    kinds = ["Private", "Self-emp", "Local-gov", "State-gov", "Federal-gov", "Without-pay"]
    frame = pl.DataFrame(
        {
            "age": age,
            "workclass": _gaps(rng, rng.choice(kinds, n, p=[0.7, 0.11, 0.07, 0.06, 0.055, 0.005]), 0.06),
            "education": [f"level-{k}" for k in education],
            "marital_status": status,
            "occupation": ["?" if rng.random() < 0.055 else f"occupation-{k}" for k in occupation],
            "native_country": [f"country-{k}" for k in country],
            "capital_gain": gain,
            "hours_per_week": hours,
            "income": np.where(rng.random(n) < sigmoid(z), ">50K", "<=50K"),
        }
    )  # fmt: skip
    again = frame.sample(180, seed=1)
    return numbered(pl.concat([frame, again]).sample(fraction=1.0, shuffle=True, seed=2))


def repair_claims():
    """What repairs of cars cost: a long tail, prices that rise over the years, mileage often unknown."""
    rng = seeded(13003)
    n = 5000
    day = np.sort(rng.integers(0, 900, n))
    make = _long_tail(rng, 40, n, 0.9)
    level = rng.normal(0, 0.35, 40)[make]
    age = np.clip(rng.gamma(2.2, 3.1, n), 0, 30)
    damage = rng.choice(["glass", "parking", "rear-end", "front", "hail", "total"], n,
                        p=[0.3, 0.26, 0.2, 0.16, 0.06, 0.02])  # fmt: skip
    base = {"glass": 6.1, "parking": 6.9, "rear-end": 7.5, "front": 7.9, "hail": 7.3, "total": 9.2}
    panels = rng.poisson(1.2, n) + 1
    log_cost = np.array([base[d] for d in damage]) + level + 0.25 * np.log(panels)
    log_cost += 0.0004 * day - 0.02 * age + rng.standard_t(5, n) * 0.22
    start = datetime(2022, 1, 3, 8)
    return numbered(
        pl.DataFrame(
            {
                "reported_at": [start + timedelta(days=int(d), hours=int(h)) for d, h in zip(day, rng.integers(0, 10, n), strict=True)],
                "make": [f"make-{k}" for k in make],
                "damage": _gaps(rng, damage, 0.01),
                "car_age": age.round(1),
                "mileage": _gaps(rng, (age * rng.gamma(6, 2300, n)).round(-2), 0.3),
                "panels": panels,
                "cost": np.exp(log_cost).clip(40, 60000).round(2),
            }
        )
    )  # fmt: skip


def clinic_stays():
    """Stays in a clinic, several of some patients: days in bed, and whether the patient came back within a month."""
    rng = seeded(13005)
    people = 2600
    frailty = rng.normal(0, 1, people)
    who = np.repeat(np.arange(people), rng.geometric(0.55, people))
    n = len(who)
    age = np.clip(rng.normal(64, 14, people)[who] + 6 * frailty[who], 18, 101).round()
    ward = rng.choice(["surgery", "cardiology", "medicine", "orthopaedics", "neurology"], n)
    emergency = rng.random(n) < 0.45
    comorbid = rng.poisson(np.exp(0.4 + 0.35 * frailty[who]), n)
    albumin = rng.normal(39, 4, n) - 2.2 * frailty[who]
    days = np.exp(
        1.0 + 0.25 * (ward == "neurology") + 0.35 * emergency + 0.1 * comorbid
        - 0.03 * (albumin - 39) + rng.normal(0, 0.45, n)
    )  # fmt: skip
    z = -2.6 + 0.38 * comorbid + 0.7 * emergency - 0.07 * (albumin - 39) + 0.02 * (age - 64)
    back = rng.random(n) < sigmoid(z)
    return numbered(
        pl.DataFrame(
            {
                "patient": [f"P{k:05}" for k in who],
                "age": age,
                "ward": ward,
                "admission": np.where(emergency, "emergency", "planned"),
                "comorbidities": comorbid,
                "albumin": _gaps(rng, albumin.round(1), 0.25),
                "sodium": _gaps(rng, rng.normal(139, 3, n).round(0), 0.1),
                "outcome": [[round(float(d), 1), float(b)] for d, b in zip(days.clip(0.3, 90), back, strict=True)],
            }
        ).sample(fraction=1.0, shuffle=True, seed=4)
    )  # fmt: skip


def air_stations():
    """Hours of four pollutants at three stations, with failures of the sensors, and fine dust six hours later."""
    rng = seeded(13007)
    hours, rows = 24 * 200, []
    t = np.arange(hours)
    weather = np.zeros(hours)
    for h in range(1, hours):
        weather[h] = 0.985 * weather[h - 1] + rng.normal(0, 0.17)
    start = datetime(2023, 1, 1)
    for station, level in (("north", 0.0), ("ring road", 0.45), ("park", -0.3)):
        rush = np.exp(-(((t % 24) - 8) ** 2) / 5) + np.exp(-(((t % 24) - 18) ** 2) / 8)
        traffic = rush * np.where((t // 24) % 7 < 5, 1.0, 0.35)
        season = 0.4 * np.cos(2 * np.pi * t / (24 * 365))
        log_dust = 2.6 + level + 0.5 * weather + 0.5 * np.roll(traffic, 5) + season
        log_dust += rng.normal(0, 0.1, hours)
        dust, nitrogen = np.exp(log_dust), np.exp(3 + level + 0.8 * traffic + 0.3 * weather)
        ozone = (
            60 + 30 * np.sin(2 * np.pi * (t - 9) / 24) - 0.5 * nitrogen + rng.normal(0, 4, hours)
        )
        wind = np.exp(1 - 0.5 * weather + rng.normal(0, 0.2, hours))
        series = np.stack([dust, nitrogen * rng.lognormal(0, 0.1, hours), ozone, wind])
        for first in rng.integers(0, hours - 8, 60):
            series[rng.integers(1, 4), first : first + int(rng.integers(1, 8))] = np.nan
        for end in range(72, hours - 6, 5):
            past = [
                [None if np.isnan(v) else round(float(v), 2) for v in s]
                for s in series[:, end - 72 : end]
            ]
            rows.append(
                (start + timedelta(hours=end), station, *past, round(float(dust[end + 5]), 2))
            )
    names = ["at", "station", "dust", "nitrogen", "ozone", "wind", "dust_in_6h"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("at", "station"))  # fmt: skip


def bike_docks():
    """Four weeks at a dock and what is known of the next: forecasts of the weather, holidays."""
    rng = seeded(13009)
    days, rows = 520, []
    t = np.arange(days)
    start = datetime(2022, 3, 1)
    temperature = 11 + 9 * np.sin(2 * np.pi * (t - 50) / 365) + rng.normal(0, 3, days)
    rain = rng.random(days) < 0.28
    holiday = rng.random(days) < 0.03
    for dock in range(8):
        commuters = rng.uniform(0.1, 0.9)
        weekend = t % 7 >= 5
        log_rides = rng.normal(4.2, 0.5) + 0.03 * temperature - 0.35 * rain + 0.0006 * t
        log_rides += np.where(weekend | holiday, -1.1 * commuters + 0.35, 0.0)
        rides = rng.poisson(np.exp(log_rides + rng.normal(0, 0.1, days)))
        rides = np.where(rng.random(days) < 0.01, 0, rides)
        forecast = temperature + rng.normal(0, 1, days)
        for end in range(28, days - 7, 2):
            ahead = slice(end, end + 7)
            rows.append((
                start + timedelta(days=end), f"dock-{dock}", rides[end - 28 : end].tolist(),
                temperature[end - 28 : end].round(1).tolist(), forecast[ahead].round(1).tolist(),
                rain[ahead].astype(int).tolist(), holiday[ahead].astype(int).tolist(),
                (t[ahead] % 7).tolist(), rides[ahead].tolist(),
            ))  # fmt: skip
    names = [
        "day",
        "dock",
        "rides",
        "temperature",
        "forecast",
        "rain",
        "holiday",
        "weekday",
        "next_week",
    ]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("day", "dock"))


def ad_requests():
    """Clicks on advertisements: sites and towns of a long tail, the visitor's interests as a list, few clicks."""
    rng = seeded(13011)
    n = 15000
    day = np.sort(rng.uniform(0, 21, n))
    site, town, ad = _long_tail(rng, 250, n), _long_tail(rng, 600, n), _long_tail(rng, 60, n, 0.8)
    device = rng.choice(["phone", "desktop", "tablet", "tv"], n, p=[0.62, 0.3, 0.075, 0.005])
    taste = rng.normal(0, 1, (20, 4))
    wanted = rng.normal(0, 1, (60, 4))
    interests = [rng.choice(20, int(rng.integers(0, 7)), replace=False).tolist() for _ in range(n)]
    match = np.array([
        (taste[i].mean(0) @ wanted[a] / 2) if i else -0.3 for i, a in zip(interests, ad, strict=True)
    ])  # fmt: skip
    shown = rng.negative_binomial(1, 0.2, n)
    z = -2.3 + 1.6 * match + rng.normal(0, 1.0, 250)[site] + rng.normal(0, 0.6, 60)[ad]
    z += 0.35 * (device == "phone") - 0.25 * np.log1p(shown) + 0.02 * day
    start = datetime(2024, 5, 6)
    return numbered(
        pl.DataFrame(
            {
                "at": [start + timedelta(days=float(d)) for d in day],
                "site": [f"s{k}" for k in site],
                "town": _gaps(rng, [f"t{k}" for k in town], 0.08),
                "ad": [f"a{k}" for k in ad],
                "device": device,
                "interests": [[f"i{k}" for k in each] for each in interests],
                "times_shown": shown,
                "seconds_since_visit": _gaps(rng, rng.lognormal(7, 2.2, n).round(), 0.35),
                "clicked": (rng.random(n) < sigmoid(z)).astype(int),
            }
        )
    )


def learner_histories():
    """Exercises of a learner in order, their skills, and which were solved: abilities grow with practice."""
    rng = seeded(13013)
    skills, rows = 24, []
    hardness = rng.normal(0, 0.9, skills)
    start = datetime(2023, 9, 4, 8)
    for learner in range(2600):
        able, speed = rng.normal(0.2, 1.0), rng.gamma(2, 0.12)
        n = int(np.clip(rng.geometric(0.045) + 4, 5, 90))
        asked, solved, practised = [], [], np.zeros(skills)
        skill = int(rng.integers(skills))
        for _ in range(n):
            if rng.random() < 0.35:
                skill = int(rng.integers(skills))
            z = able - hardness[skill] + speed * practised[skill]
            asked.append(f"skill-{skill}")
            solved.append(int(rng.random() < 0.1 + 0.88 * sigmoid(1.6 * z)))
            practised[skill] += 1
        rows.append((start + timedelta(minutes=171 * learner), asked, solved))
    frame = pl.DataFrame(rows, schema=["started_at", "skills", "solved"], orient="row")
    return numbered(frame)


def merchants():
    """Merchants who share devices with others: their figures, those of up to ten neighbours, and whether they were closed for fraud."""
    rng = seeded(13015)
    n = 4200
    ring = rng.random(n) < 0.09
    turnover = np.exp(rng.normal(9.5, 1.4, n) - 0.9 * ring)
    refunds = rng.beta(1.4, 14, n) + 0.09 * ring
    night = rng.beta(2, 9, n) + 0.1 * ring
    days = rng.gamma(1.3, 260, n) * np.where(ring, 0.4, 1)
    x = np.stack([turnover, refunds, night, days], 1).round(4)
    bad, good = np.flatnonzero(ring), np.flatnonzero(~ring)
    rows = []
    for k in range(n):
        count = int(min(rng.geometric(0.28) - 1, 10))
        picked = [
            int(rng.choice(bad if rng.random() < (0.6 if ring[k] else 0.05) else good))
            for _ in range(count)
        ]
        closed = int(rng.random() < (0.88 if ring[k] else 0.02))
        rows.append(
            (
                *x[k].tolist(),
                [x[j].tolist() for j in picked],
                [float(rng.integers(1, 9)) for _ in picked],
                closed,
            )
        )
    names = [
        "turnover",
        "refund_share",
        "night_share",
        "days_open",
        "neighbours",
        "shared_devices",
        "closed",
    ]
    types = {"neighbours": pl.List(pl.List(pl.Float64)), "shared_devices": pl.List(pl.Float64)}
    return numbered(pl.DataFrame(rows, schema=names, schema_overrides=types, orient="row"))  # fmt: skip
