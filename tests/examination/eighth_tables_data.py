"""Tables, forecasts, recommendations and odd ones of the eighth list: very small, wide, rare, noisy or exact."""

from datetime import datetime, timedelta
from itertools import combinations

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid

LINES = [(0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6)]


def final_boards():
    """Every way in which a game of noughts and crosses can end: 958 boards, no noise at all."""
    boards = []
    for crosses in combinations(range(9), 5):
        boards.append(["x" if k in crosses else "o" for k in range(9)])
    for taken in range(5, 9):
        for used in combinations(range(9), taken):
            for crosses in combinations(used, (taken + 1) // 2):
                boards.append(
                    ["x" if k in crosses else "o" if k in used else "b" for k in range(9)]
                )
    rows = []
    for board in boards:
        won = {p for p in "xo" for line in LINES if all(board[k] == p for k in line)}
        moves = 9 - board.count("b")
        last = "x" if moves % 2 else "o"
        if (moves == 9 and won != {"x", "o"} and "o" not in won) or (moves < 9 and won == {last}):
            rows.append([*board, "positive" if "x" in won else "negative"])
    names = [f"{row}_{column}" for row in ("top", "mid", "low") for column in ("l", "m", "r")]
    frame = pl.DataFrame(rows, schema=[*names, "x_wins"], orient="row")
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=81))


def letters_answered():
    """Who answers a charity's letter: nine columns that tell next to nothing (AUC 0.6 at best)."""
    rng = seeded(801)
    n = 5000
    age, gifts = rng.integers(18, 92, n), rng.poisson(2.5, n)
    months, region = rng.gamma(2, 9, n).round(), rng.choice(list("NESW"), n)
    average, opened = rng.lognormal(3, 0.8, n).round(2), rng.binomial(6, 0.3, n)
    logit = -1.0 + 0.18 * (gifts - 2.5) - 0.012 * (months - 18) + 0.006 * (age - 55) + 0.1 * opened
    y = rng.random(n) < sigmoid(logit)
    return numbered(
        pl.DataFrame(
            {
                "age": age, "gifts": gifts, "months_since": months, "region": region,
                "average_gift": average, "opened": opened, "household": rng.integers(1, 6, n),
                "street_number": rng.integers(1, 200, n), "answered": y,
            }
        )
    )  # fmt: skip


def gut_samples():
    """Counts of 900 bacteria in 260 samples, most of them zero, and whether the person is ill."""
    rng = seeded(803)
    n, taxa = 260, 900
    ill = rng.random(n) < 0.45
    base = rng.normal(-2.5, 1.8, taxa)
    effect = np.zeros(taxa)
    effect[rng.choice(np.flatnonzero(base > -2), 60, replace=False)] = rng.normal(0, 1.3, 60)
    level = base + rng.normal(0, 1.2, (n, taxa)) + ill[:, None] * effect
    p = np.exp(level) / np.exp(level).sum(1, keepdims=True)
    depth = rng.integers(4000, 30000, n)
    counts = np.stack([rng.multinomial(d, q) for d, q in zip(depth, p, strict=True)])
    columns = {f"otu_{k:04}": counts[:, k] for k in range(taxa)}
    return numbered(pl.DataFrame(columns | {"status": np.where(ill, "case", "control")}))


def claim_costs():
    """What a claim costs: gamma with heavy tails. One country, so its column is constant."""
    rng = seeded(805)
    n = 4500
    power, age = rng.integers(4, 15, n), rng.integers(18, 85, n)
    value, fuel = rng.lognormal(9.6, 0.6, n).round(-2), rng.choice(["diesel", "petrol"], n)
    where = rng.choice(
        ["front", "rear", "side", "glass", "total"], n, p=[0.3, 0.3, 0.2, 0.15, 0.05]
    )
    lift = {"front": 0.3, "rear": 0.0, "side": 0.1, "glass": -1.2, "total": 2.0}
    mu = 6.9 + np.array([lift[w] for w in where]) + 0.4 * (np.log(value) - 9.6) + 0.03 * (power - 7)
    mu = mu + 0.2 * (age < 25)
    cost = np.exp(mu) * rng.gamma(0.8, 1 / 0.8, n)
    return numbered(
        pl.DataFrame(
            {
                "country": ["FR"] * n, "power": power, "driver_age": age, "car_value": value,
                "fuel": fuel, "damage": where, "cost": (cost + 20).round(2),
            }
        )
    )  # fmt: skip


def wafer_probes():
    """Chips by 24 probes: two in a hundred fail, most of them far from the middle in a few probes."""
    rng = seeded(807)
    n = 8000
    fails = rng.random(n) < 0.025
    mix = np.eye(24) + 0.15 * rng.normal(size=(24, 24))
    x = rng.standard_t(5, (n, 24)) @ mix
    direction = rng.normal(size=24) * (rng.random(24) < 0.4)
    x = x + fails[:, None] * direction * rng.gamma(4, 0.45, (n, 1))
    scale, centre = 10 ** rng.uniform(-4, 3, 24), rng.normal(size=24) * 3
    values = (x + centre) * scale
    columns = {f"probe_{k:02}": values[:, k] for k in range(24)}
    return numbered(pl.DataFrame(columns | {"failed": fails.astype(np.int64)}))


def olive_oils():
    """120 oils from four coasts by seven fatty acids in hundredths of a per cent."""
    rng = seeded(809)
    coasts = rng.choice(["liguria", "puglia", "sardinia", "umbria"], 120, p=[0.3, 0.3, 0.2, 0.2])
    names = sorted(set(coasts))
    base = np.array([1200, 120, 230, 7300, 980, 35, 60])
    spread = np.array([110, 30, 25, 260, 160, 9, 12])
    centre = {name: rng.normal(scale=1.3, size=7) for name in names}
    values = base + spread * (np.stack([centre[c] for c in coasts]) + rng.normal(size=(120, 7)))
    acids = ["palmitic", "palmitoleic", "stearic", "oleic", "linoleic", "linolenic", "arachidic"]
    columns = {acid: values[:, k].round() for k, acid in enumerate(acids)}
    return numbered(pl.DataFrame(columns | {"coast": coasts}))


def concretes():
    """Compressive strength of concrete in megapascal by recipe and age."""
    rng = seeded(811)
    n = 1030
    cement, slag = rng.uniform(100, 540, n), rng.choice([0, 1], n) * rng.uniform(20, 300, n)
    ash, water = rng.choice([0, 1], n) * rng.uniform(60, 200, n), rng.normal(181, 21, n)
    plast, coarse = rng.gamma(1.2, 5, n), rng.normal(973, 78, n)
    age = rng.choice([1, 3, 7, 14, 28, 56, 90, 180, 365], n)
    binder = cement + 0.7 * slag + 0.4 * ash
    strength = 26 * np.log1p(binder / water) * (0.25 + 0.2 * np.log(age)) + 0.4 * plast
    strength = strength + 0.01 * (coarse - 973) + rng.normal(scale=3.5, size=n)
    return numbered(
        pl.DataFrame(
            {
                "cement": cement.round(1), "slag": slag.round(1), "ash": ash.round(1),
                "water": water.round(1), "plasticizer": plast.round(1), "coarse": coarse.round(),
                "age_days": age, "strength": strength.clip(2).round(2),
            }
        )
    )  # fmt: skip


def hospital_stays():
    """Days in hospital: smooth in age and blood values, by ward and way of admission."""
    rng = seeded(813)
    n = 3200
    age, sodium = rng.normal(62, 17, n).clip(18, 99), rng.normal(139, 4, n)
    creatinine, haemoglobin = rng.lognormal(0, 0.4, n), rng.normal(13, 2, n)
    ward = rng.choice(["cardiology", "surgery", "neurology", "medicine"], n)
    way = rng.choice(["emergency", "planned", "transfer"], n, p=[0.5, 0.4, 0.1])
    days = 4 + 0.002 * (age - 45) ** 2 + 0.12 * (sodium - 139) ** 2 / 2
    days = days + 2.5 * np.log(creatinine).clip(0) + 0.5 * (12 - haemoglobin).clip(0)
    days = days + np.select([ward == "neurology", ward == "surgery"], [3, 1.5], 0)
    days = days + np.select([way == "emergency", way == "transfer"], [1.5, 4], 0)
    days = (days + rng.normal(scale=2.0, size=n)).clip(0.5)
    return numbered(
        pl.DataFrame(
            {
                "age": age.round(), "sodium": sodium.round(), "creatinine": creatinine.round(2),
                "haemoglobin": haemoglobin.round(1), "ward": ward, "admission": way,
                "days": days.round(1),
            }
        )
    )  # fmt: skip


def tide_gauges():
    """Water levels in centimetres: four days by the hour, and the twelve hours after them."""
    rng = seeded(815)
    rows, start = [], datetime(2023, 1, 1)
    for gauge in range(5):
        hours = np.arange(24 * 330)
        level = 200 + 40 * gauge + 0.0
        level = level + 110 * np.cos(2 * np.pi * hours / 12.42 + gauge)
        level = level + 35 * np.cos(2 * np.pi * hours / 12.0 + 2 * gauge)
        level = level + 20 * np.cos(2 * np.pi * hours / 23.93)
        surge = np.zeros(len(hours))
        for t in range(1, len(hours)):
            surge[t] = 0.97 * surge[t - 1] + rng.normal(scale=3.0)
        level = level + surge + rng.normal(scale=2.0, size=len(hours))
        for end in range(96, len(hours) - 12, 15):
            rows.append(
                (f"gauge{gauge}", start + timedelta(hours=int(end)),
                 level[end - 96 : end].round(1).tolist(), level[end : end + 12].round(1).tolist())
            )  # fmt: skip
    frame = pl.DataFrame(rows, schema=["gauge", "issued", "past", "ahead"], orient="row")
    return numbered(frame.sort("issued", "gauge"))


def hotline_calls():
    """Calls of a hotline per half hour, more scattered than Poisson: a day's counts, then the next one."""
    rng = seeded(817)
    start, slots = datetime(2023, 3, 1), 48 * 200
    when = np.arange(slots)
    of_day, weekday = when % 48, (when // 48 + 2) % 7
    rate = 3 + 22 * np.exp(-(((of_day - 22) / 8) ** 2)) * np.where(weekday < 5, 1.0, 0.35)
    drift = np.zeros(slots)
    for t in range(1, slots):
        drift[t] = 0.98 * drift[t - 1] + rng.normal(scale=0.06)
    mean = rate * np.exp(drift)
    calls = rng.negative_binomial(6, 6 / (6 + mean))
    rows = [
        (start + timedelta(minutes=30 * int(t)), int(of_day[t]), 1 + int(weekday[t]),
         calls[t - 48 : t].tolist(), int(calls[t]))
        for t in range(48, slots, 2)
    ]  # fmt: skip
    names = ["slot", "half_hour", "weekday", "last_day", "calls"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def place_visits():
    """Where people go next: their last eight visits, short ones padded by nothing, 70 places."""
    rng = seeded(819)
    places = 70
    follows = rng.dirichlet(np.full(places, 0.04), places)
    rows = []
    for _ in range(600):
        stay, trail = rng.dirichlet(np.full(places, 0.1)), [int(rng.integers(places))]
        for _ in range(int(rng.integers(6, 16))):
            p = 0.7 * follows[trail[-1]] + 0.15 * stay + 0.1 * follows[trail[0]] + 0.05 / places
            trail.append(int(rng.choice(places, p=p)))
        for end in range(2, len(trail)):
            rows.append(
                ([f"p{(29 * k) % 71:02}" for k in trail[max(0, end - 8) : end]],
                 f"p{(29 * trail[end]) % 71:02}")
            )  # fmt: skip
    frame = pl.DataFrame(rows, schema=["trail", "next_place"], orient="row")
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=83))


def play_counts():
    """How often each of 200 people played each of 120 artists: counts, and zero where offered in vain."""
    rng = seeded(821)
    people, artists, n = 200, 120, 7000
    taste, style = rng.gamma(0.5, 1.0, (people, 5)), rng.gamma(0.5, 1.0, (artists, 5))
    fame, activity = rng.lognormal(0, 0.6, artists), rng.lognormal(0, 0.5, people)
    pairs = rng.choice(people * artists, n, replace=False)
    who, what = pairs // artists, pairs % artists
    mean = 1.6 * (taste[who] * style[what]).sum(1) * fame[what] * activity[who]
    return numbered(
        pl.DataFrame(
            {
                "person": [f"user_{k:03}" for k in who], "artist": [f"artist_{k:03}" for k in what],
                "plays": rng.poisson(mean).clip(0, 60),
            }
        )
    )  # fmt: skip


def lift_log():
    """A lift's idle moves: the state, which of four floors it waited at, and the discounted waits after."""
    rng = seeded(823)
    n = 5000
    hour, at = rng.uniform(6, 22, n), rng.integers(0, 4, n)
    crowd = rng.dirichlet([2, 1, 1, 1], n)
    crowd[:, 0] += np.exp(-((hour - 8.5) ** 2))
    crowd[:, 3] += np.exp(-((hour - 17.5) ** 2))
    crowd = crowd / crowd.sum(1, keepdims=True)
    action = np.where(rng.random(n) < 0.5, rng.integers(0, 4, n), at)
    distance = np.abs(np.arange(4)[None] - action[:, None])
    wait = 6 + 9 * (crowd * distance).sum(1) + 1.5 * np.abs(action - at) + rng.gamma(2, 1.5, n)
    seen = (crowd * 40 + rng.normal(scale=1.5, size=(n, 4))).clip(0).round(1)
    return numbered(
        pl.DataFrame(
            {
                "hour": hour.round(2), "at_floor": at, "recent_calls": lists(seen),
                "action_and_return": lists(np.column_stack([action, -wait.round(2)])),
            }
        )
    )  # fmt: skip


def spring_states():
    """States of two coupled springs with friction-free motion, and their measured derivatives."""
    rng = seeded(825)
    n = 3000
    q, p = rng.normal(scale=0.9, size=(n, 2)), rng.normal(scale=0.9, size=(n, 2))
    pull = 1.5 * (q[:, 0] - q[:, 1])
    dp = np.stack([-q[:, 0] - 0.6 * q[:, 0] ** 3 - pull, -1.4 * q[:, 1] + pull], 1)
    change = np.concatenate([p / [1.0, 1.6], dp], 1) + rng.normal(scale=0.08, size=(n, 4))
    columns = {"q1": q[:, 0], "q2": q[:, 1], "p1": p[:, 0], "p2": p[:, 1]}
    return numbered(
        pl.DataFrame(
            {k: v.round(4) for k, v in columns.items()} | {"change": lists(change.round(4))}
        )
    )


def transplants():
    """After a transplant: graft lost, or died of something else, or neither until the last visit (years)."""
    rng = seeded(827)
    n = 2800
    age, match = rng.normal(50, 14, n).clip(18, 80), rng.integers(0, 7, n)
    hours, diabetes = rng.gamma(4, 4, n), (rng.random(n) < 0.25).astype(int)
    log_loss = -3.0 + 0.3 * (6 - match) / 2 + 0.05 * (hours - 16) + 0.3 * diabetes
    log_death = -3.6 + 0.06 * (age - 50) + 0.7 * diabetes
    lost, died = rng.exponential(np.exp(-log_loss)), rng.exponential(np.exp(-log_death))
    left = rng.uniform(1, 15, n)
    time = np.minimum(np.minimum(lost, died), left)
    cause = np.select([time == lost, time == died], [1, 2], 0)
    return numbered(
        pl.DataFrame(
            {
                "age": age.round(), "hla_match": match, "cold_hours": hours.round(1),
                "diabetes": diabetes, "outcome": lists(np.column_stack([time.round(2), cause])),
            }
        )
    )  # fmt: skip


def phishing_sites():
    """Sites by thirty signs that are -1, 0 or 1, as a rule of thumb scored them."""
    rng = seeded(829)
    n = 3600
    bad = rng.random(n) < 0.45
    tell = rng.normal(scale=0.45, size=30) * (rng.random(30) < 0.7)
    hidden = np.where(bad, 1, -1)[:, None] * tell + rng.normal(size=(n, 30))
    signs = np.select([hidden > 0.4, hidden < -0.2], [1, -1], 0)
    columns = {f"sign_{k:02}": signs[:, k] for k in range(30)}
    return numbered(pl.DataFrame(columns | {"result": np.where(bad, "phishing", "legitimate")}))


def soil_cores():
    """Sand, silt and clay of a soil as shares of one, by 16 bands of its reflectance and its depth."""
    rng = seeded(831)
    n = 1500
    texture = rng.dirichlet([3, 2.5, 1.8], n)
    depth, moist = rng.choice([5, 15, 30, 60, 100], n), rng.beta(2, 4, n)
    waves = np.linspace(0, 3, 16)
    curves = np.stack([np.sin(waves) + 1, np.cos(waves * 1.3) + 1.2, 0.4 * waves + 0.5])
    bands = texture @ curves * (1 - 0.45 * moist[:, None]) + 0.03 * rng.normal(size=(n, 16))
    columns = {f"b{500 + 120 * k}": bands[:, k].round(4) for k in range(16)}
    return numbered(pl.DataFrame(columns | {"depth_cm": depth, "texture": lists(texture.round(3))}))
