"""Datasets of the seventeenth list: moths, concerts, matches, baskets, wells, diaries and more."""

from datetime import date, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def moth_headings():
    """Headings of tracked moths in degrees, with wind, moon, cloud and height, night by night."""
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


def concert_tickets():
    """Tickets sold for concerts, never more than the hall has seats: many are sold out."""
    rng = seeded(17002)
    n = 2800
    hall = rng.integers(0, 14, n)
    seats = np.round(np.exp(rng.normal(6.6, 0.7, 14)), -1)[hall]
    seats = np.where(rng.random(n) < 0.2, np.round(seats * 0.8), seats)
    genre = rng.choice(6, n, p=[0.28, 0.24, 0.2, 0.14, 0.1, 0.04])
    fame = rng.normal(0, 1.0, n)
    listeners = np.exp(10.5 + 1.1 * fame + rng.normal(0, 0.4, n)).round()
    price = np.exp(3.3 + 0.22 * fame + rng.normal(0, 0.3, n))
    day = np.sort(rng.integers(0, 1000, n))
    when = [date(2021, 3, 1) + timedelta(days=int(d)) for d in day]
    weekday = np.array([d.weekday() for d in when])
    lead = rng.gamma(3.0, 30.0, n).clip(7).round()
    posts = rng.poisson(np.exp(1.5 + 0.5 * fame))
    z = 6.35 + 0.75 * fame + np.array([0.3, 0.0, -0.2, 0.1, -0.4, 0.6])[genre]
    z += np.array([-0.25, -0.3, -0.2, 0.0, 0.3, 0.4, -0.1])[weekday]
    z -= 0.8 * (np.log(price) - 3.3 - 0.22 * fame) - 0.2 * np.log(lead / 90)
    z += rng.normal(0, 0.35, 14)[hall] + 0.06 * np.sqrt(posts)
    demand = np.exp(z + rng.normal(0, 0.35, n))
    sold = np.minimum(demand, seats).round().clip(1)
    return numbered(
        pl.DataFrame(
            {
                "concert_day": when,
                "hall": [f"H{h:02}" for h in hall],
                "seats": seats.astype(int),
                "genre": np.array(["pop", "rock", "folk", "jazz", "organ", "anime"])[genre],
                "monthly_listeners": [
                    None if g else int(v)
                    for v, g in zip(listeners, rng.random(n) < 0.07, strict=True)
                ],
                "price_eur": price.round(1),
                "days_on_sale": lead.astype(int),
                "posts": posts,
                "sold": sold.astype(int),
            }
        )
    )


def table_tennis_matches():
    """Matches of a league over three seasons, the first named at home; some end in a draw."""
    rng = seeded(17003)
    players = 60
    skill = rng.normal(0, 1.6, players)
    grip = rng.integers(0, 3, players)
    home_love = rng.normal(0.25, 0.15, players)
    found = []
    for day in range(0, 1050, 3):
        skill += rng.normal(0, 0.03, players)
        for _ in range(rng.integers(4, 11)):
            a, b = rng.choice(players, 2, replace=False)
            table = rng.choice(3, p=[0.6, 0.3, 0.1])
            rest_a, rest_b = rng.integers(1, 30, 2)
            strength = skill[a] - skill[b] + home_love[a]
            strength += [0.0, 0.5, -0.4][(grip[a] - grip[b]) % 3]
            strength += 0.2 * (np.log(rest_a) - np.log(rest_b)) * (table == 1)
            even = 0.7 + 0.3 * (table == 2)
            weights = np.exp([strength, 0.0, np.log(even) + strength / 2])
            winner = rng.choice(3, p=weights / weights.sum())
            found.append(
                (
                    date(2020, 9, 1) + timedelta(days=day),
                    f"p{a:02}",
                    f"p{b:02}",
                    ["wood", "steel", "outdoor"][table],
                    ["shake", "pen", "seemiller"][grip[a]],
                    ["shake", "pen", "seemiller"][grip[b]],
                    int(rest_a) if rng.random() > 0.05 else None,
                    int(rest_b) if rng.random() > 0.05 else None,
                    ["home", "away", "draw"][winner],
                )
            )
    names = [
        "played", "home", "away", "table", "home_grip", "away_grip", "home_rest", "away_rest",
        "result",
    ]  # fmt: skip
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


def garden_baskets():
    """What customers of a garden centre bought before, oldest first, and what they bought next."""
    rng = seeded(17004)
    items, themes, n = 140, 12, 3900
    theme_of = rng.integers(0, themes, items)
    second = rng.integers(0, themes, items)
    popular = np.exp(rng.normal(0, 0.6, items))
    found = []
    for k in range(n):
        liked = rng.dirichlet(np.full(themes, 0.1))
        turn = rng.dirichlet(np.full(themes, 0.06))
        size = int(min(3 + rng.geometric(0.16), 25))
        basket = []
        for place in range(size + 1):
            taste = liked if place < size * 0.6 else 0.15 * liked + 0.85 * turn
            weight = popular * (0.75 * taste[theme_of] + 0.25 * taste[second] + 0.001)
            weight[basket] = 0.0
            basket.append(int(rng.choice(items, p=weight / weight.sum())))
        found.append(
            (
                f"C{k % 3600:05}",
                date(2023, 1, 1) + timedelta(days=int(rng.integers(0, 500))),
                ["till", "app", "web"][rng.choice(3, p=[0.6, 0.25, 0.15])],
                basket[:-1],
                basket[-1],
            )
        )
    names = ["customer", "bought_on", "channel", "bought_before", "bought_next"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


def groundwater_wells():
    """Weekly levels of wells, metres below the ground: forty weeks with gaps, rain, next week."""
    rng = seeded(17005)
    weeks, window = 330, 40
    start = date(2016, 1, 4)
    t = np.arange(weeks)
    season = 1 + 0.5 * np.cos(2 * np.pi * (t - 2) / 52.2)
    region = rng.gamma(1.1, 16.0, weeks) * season
    found = []
    for k in range(9):
        rain = (region * rng.gamma(6.0, 1 / 6.0, weeks)).round(1)
        keep_slow, keep_fast = rng.uniform(0.95, 0.985), rng.uniform(0.5, 0.8)
        gain_slow, gain_fast = rng.uniform(0.004, 0.009), rng.uniform(0.008, 0.02)
        base, hand = rng.uniform(4, 30), k % 3 == 0
        slow = fast = 0.0
        level = np.zeros(weeks)
        for i in range(weeks):
            effective = rain[i] - 14 * (2 - season[i])
            slow = keep_slow * slow + gain_slow * effective + rng.normal(0, 0.02)
            fast = keep_fast * fast + gain_fast * effective + rng.normal(0, 0.05)
            level[i] = base - slow - fast
        read = level + rng.normal(0, 0.15 if hand else 0.02, weeks)
        lost = rng.random(weeks) < (0.35 if hand else 0.08)
        if k == 4:
            lost[120:150] = True
        for i in range(window, weeks):
            if lost[i]:
                continue
            past = [
                None if g else round(float(v), 2)
                for v, g in zip(read[i - window : i], lost[i - window : i], strict=True)
            ]
            if sum(v is not None for v in past) < 6:
                continue
            found.append(
                (
                    start + timedelta(weeks=i),
                    f"W-{k:02}",
                    "tape" if hand else "logger",
                    past,
                    rain[i - window : i + 1].tolist(),
                    round(float(read[i]), 2),
                )
            )
    names = ["week", "well", "instrument", "levels", "rain_mm", "level"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


def time_diaries():
    """Diaries of a day in minutes of sleep, work, care, leisure and travel, from households."""
    rng = seeded(17006)
    households = 1300
    kids_of = rng.choice(4, households, p=[0.55, 0.2, 0.18, 0.07])
    region_of = rng.integers(0, 8, households)
    home = np.repeat(np.arange(households), rng.integers(1, 4, households))
    n = len(home)
    age = rng.integers(15, 88, n)
    kids = np.where(age > 65, 0, kids_of[home])
    status = rng.choice(5, n, p=[0.5, 0.16, 0.06, 0.12, 0.16])
    status = np.where(age > 66, 4, np.where((status == 4) & (age < 55), 0, status))
    weekend = rng.random(n) < 0.4
    commute = np.where(status < 2, rng.gamma(2.0, 11.0, n), 0.0)
    works = np.array([1.0, 0.55, 0.15, 0.7, 0.12])[status] * np.where(weekend, 0.28, 1.0)
    z = np.zeros((n, 5))
    z[:, 0] = 6.25 + 0.10 * weekend + 0.002 * np.abs(age - 45)
    z[:, 1] = 3.4 + 2.7 * works
    z[:, 2] = 4.3 + 0.45 * kids + 0.15 * weekend + 0.007 * (age - 40)
    z[:, 3] = 5.2 + 0.40 * weekend + 0.011 * (age - 40) - 0.12 * kids
    z[:, 4] = 3.6 + 0.45 * np.log1p(commute) * ~weekend + 0.1 * weekend
    mixing = np.linalg.cholesky(0.10 * np.eye(5) + 0.05)
    z += rng.normal(0, 0.2, (households, 5))[home] * [0.2, 0.6, 1, 1, 0.8]
    z += rng.normal(0, 1.0, (n, 5)) @ mixing.T * [0.25, 1.3, 1.2, 0.8, 1.2]
    share = np.exp(z) / np.exp(z).sum(axis=1, keepdims=True)
    minutes = np.round(share * 144) * 10
    minutes[:, 0] += 1440 - minutes.sum(axis=1)
    weight = np.exp(rng.normal(0, 0.35, n)) * np.where(age < 30, 1.8, 1.0)
    return numbered(
        pl.DataFrame(
            {
                "household": [f"F{h:05}" for h in home],
                "age": age,
                "children": kids,
                "status": np.array(["full", "part", "seeking", "study", "retired"])[status],
                "day": np.where(weekend, "weekend", "weekday"),
                "commute_min": [
                    None if s > 1 or g else round(v)
                    for v, s, g in zip(commute, status, rng.random(n) < 0.08, strict=True)
                ],
                "region": [f"R{r}" for r in region_of[home]],
                "survey_weight": weight.round(3),
                "minutes": minutes.astype(int).tolist(),
            }
        )
    )


def alloy_hardness():
    """Hardness of alloys by their elements, the balance being left open as in data sheets."""
    rng = seeded(17007)
    symbols = ["Al", "Co", "Cr", "Cu", "Fe", "Mn", "Mo", "Nb", "Ni", "Si", "Ti", "V", "W", "Zr"]
    size = np.array([1.43, 1.25, 1.28, 1.28, 1.26, 1.27, 1.39, 1.46, 1.24, 1.15, 1.46, 1.34,
                     1.39, 1.60])  # fmt: skip
    electrons = np.array([3, 9, 6, 11, 8, 7, 6, 5, 10, 4, 4, 5, 6, 4])
    stiff = np.array([70, 209, 279, 130, 211, 198, 329, 105, 200, 130, 116, 128, 411, 88])
    common = np.array([6, 7, 8, 3, 7, 3, 3, 2, 8, 1, 4, 2, 1.0, 0.7])
    n = 2200
    paper = rng.integers(0, 260, n)
    habit = rng.normal(0, 0.04, 260)
    found = []
    for k in range(n):
        # a laboratory varies one base system in each of its papers
        local = np.random.default_rng(17007 + int(paper[k]))
        count = int(local.integers(3, 8))
        base = local.choice(14, count, replace=False, p=common / common.sum())
        parts = rng.dirichlet(np.full(count, 5.0))
        parts = (np.round(parts, 3) + 0.005) / (np.round(parts, 3) + 0.005).sum()
        mean = parts @ size[base]
        misfit = np.sqrt(parts @ (1 - size[base] / mean) ** 2)
        vec = parts @ electrons[base]
        mixing = parts @ np.log(parts)
        state = int(rng.choice(4, p=[0.45, 0.25, 0.2, 0.1]))
        kelvin = float(rng.integers(10, 28) * 50) if state in (1, 2) else None
        z = 5.2 + 9 * misfit + 0.9 / (1 + np.exp(2.2 * (vec - 7.4))) - 0.15 * mixing
        z += 0.0016 * (parts @ stiff[base] - 180) + [0.0, -0.12, 0.1, 0.3][state]
        z -= 0.0004 * ((kelvin or 900) - 900) + habit[paper[k]]
        hv = np.exp(z) + rng.laplace(0, 12)
        amounts = (100 * parts).round(1).tolist()
        if rng.random() < 0.4:
            amounts[int(np.argmax(parts))] = None
        found.append(
            (
                f"doc{paper[k]:03}",
                [symbols[e] for e in base],
                amounts,
                ["cast", "annealed", "aged", "sputtered"][state],
                kelvin,
                round(float(max(hv, 40.0))),
            )
        )
    names = ["paper", "elements", "atomic_pct", "state", "kelvin", "hardness_hv"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


def graded_kernels():
    """Kernels of maize, each graded by one to three of 18 graders, who do not grade alike."""
    rng = seeded(17008)
    kernels, graders = 1500, 18
    spoilt = rng.gamma(1.2, 1.0, kernels)
    long = rng.normal(10.5, 1.2, kernels)
    wide = 0.72 * long + rng.normal(0, 0.5, kernels)
    light = 72 - 4.5 * spoilt + rng.normal(0, 2.0, kernels)
    yellow = 38 - 2 * spoilt + rng.normal(0, 3.0, kernels)
    cracks = rng.poisson(0.35 * spoilt + 0.2)
    density = 1.27 - 0.02 * cracks - 0.012 * spoilt + rng.normal(0, 0.012, kernels)
    z = 1.1 * spoilt + 0.5 * cracks - 0.35 * (long - 10.5) - 12 * (density - 1.25)
    grade = np.digitize(z, np.quantile(z, [0.4, 0.7, 0.9]))
    confusion = np.zeros((graders, 4, 4))
    for g in range(graders):
        shift = [0.0, 0.0, 0.9, -0.9, 0.4, -0.4][g % 6]
        sharp = [2.6, 1.4, 2.0][g % 3]
        at = np.arange(4)
        logits = -sharp * np.abs(at[None] - np.clip(at[:, None] + shift, 0, 3))
        confusion[g] = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    confusion[17] = np.full((4, 4), 0.1) + 0.6 * np.eye(4)[[2, 2, 2, 2]]  # grades all alike
    often = rng.dirichlet(np.full(graders, 3.0))
    found = []
    for k in range(kernels):
        for g in rng.choice(graders, rng.integers(1, 4), replace=False, p=often):
            answer = int(rng.choice(4, p=confusion[g][grade[k]] / confusion[g][grade[k]].sum()))
            lost = rng.random() < 0.04
            found.append(
                (
                    f"K{k:05}",
                    f"L{k // 60:02}",
                    f"grader-{g:02}",
                    round(float(long[k]), 2),
                    round(float(wide[k]), 2),
                    round(float(light[k]), 1),
                    round(float(yellow[k]), 1),
                    int(cracks[k]),
                    None if lost else round(float(density[k]), 3),
                    ["I", "II", "III", "sample"][answer],
                )
            )
    names = [
        "kernel", "lot", "grader", "length_mm", "width_mm", "lightness", "yellow", "cracks",
        "density", "grade",
    ]  # fmt: skip
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


def district_infections():
    """Reported infections of districts: three weeks of days, some missing, and three to come."""
    rng = seeded(17009)
    days, window, ahead = 330, 21, 3
    start = date(2022, 8, 1)
    delay = np.arange(1, 15)
    serial = delay**1.6 * np.exp(-delay / 2.0)
    serial /= serial.sum()
    report = np.array([1.25, 1.15, 1.05, 1.0, 0.95, 0.6, 0.45])
    holiday = np.zeros(days + ahead, dtype=bool)
    for begin, length in ((75, 12), (144, 14), (245, 14)):
        holiday[begin : begin + length] = True
    t = np.arange(days + ahead)
    warmth = 10 - 9 * np.sin(2 * np.pi * (t - 100) / 365) + rng.normal(0, 2.5, days + ahead)
    found = []
    for k in range(11):
        people = float(np.exp(rng.normal(11.5, 0.6)))
        crowd = rng.normal(0, 0.12)
        true = np.full(days + ahead, people * 4e-4)
        left = 1.0
        slow = 0.0
        for i in range(14, days + ahead):
            slow = 0.93 * slow + rng.normal(0, 0.05)
            r = np.exp(0.12 + crowd + slow - 0.025 * (warmth[i] - 10) - 0.35 * holiday[i]) * left
            force = true[i - 14 : i][::-1] @ serial
            true[i] = rng.poisson(max(r * force, 0.0) + people * 2e-5)
            left = min(1.0, left * (1 - 2.5 * true[i] / people) + 0.004)
        weekday = np.array([(start + timedelta(days=int(i))).weekday() for i in t])
        mean = true * report[weekday] * np.where(holiday, 0.9, 1.0)
        seen = rng.negative_binomial(30, 30 / (30 + mean + 1e-6))
        lost = (rng.random(days + ahead) < 0.03) & (t > 20)
        for i in range(window + 14, days):
            if lost[i : i + ahead].any():
                continue
            past = [
                None if g else int(v)
                for v, g in zip(seen[i - window : i], lost[i - window : i], strict=True)
            ]
            found.append(
                (
                    start + timedelta(days=i),
                    f"district {k + 1}",
                    round(people),
                    past,
                    warmth[i : i + ahead].round(1).tolist(),
                    holiday[i : i + ahead].tolist(),
                    seen[i : i + ahead].tolist(),
                )
            )
    names = ["day", "district", "people", "past", "warmth", "holiday", "reported"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


def meadow_cover():
    """Cover of grasses in plots of a meadow survey, in percent: often none, sometimes all."""
    rng = seeded(17010)
    plots, n = 800, 3600
    height = rng.uniform(250, 2300, plots)
    slope = rng.gamma(2.0, 8.0, plots).clip(0, 60)
    aspect = rng.uniform(0, 360, plots)
    ph = rng.normal(6.2, 0.9, plots).clip(3.8, 8.4)
    use = rng.choice(4, plots, p=[0.35, 0.35, 0.2, 0.1])
    plot_habit = rng.normal(0, 0.3, plots)
    species = 26
    optimum = rng.uniform(300, 2100, species)
    breadth = rng.uniform(250, 700, species)
    likes_ph = rng.normal(0, 0.7, species)
    likes_use = rng.normal(0, 0.7, (species, 4))
    common = rng.normal(0.2, 0.9, species)
    plot = rng.integers(0, plots, n)
    kind = rng.choice(species, n, p=rng.dirichlet(np.full(species, 2.0)))
    year = rng.integers(2012, 2024, n)
    observer = rng.integers(0, 9, n)
    south = np.cos(np.deg2rad(aspect[plot] - 180)) * np.sin(np.deg2rad(slope[plot]))
    z = common[kind] - 0.5 * ((height[plot] - optimum[kind]) / breadth[kind]) ** 2
    z += likes_ph[kind] * (ph[plot] - 6.2) + likes_use[kind, use[plot]] + 0.8 * south
    z += plot_habit[plot] + 0.03 * (year - 2018)
    mean = 1 / (1 + np.exp(-(z - 0.4)))
    keen = rng.normal(0, 0.5, 9)[observer]
    none = rng.random(n) < 1 / (1 + np.exp(1.6 * z + 1.2 + keen))
    full = ~none & (rng.random(n) < 1 / (1 + np.exp(-(2.2 * z - 4.5))))
    inside = rng.beta(9 * mean, 9 * (1 - mean)).clip(0.005, 0.995)
    cover = np.where(none, 0.0, np.where(full, 100.0, (100 * inside).round(1)))
    return numbered(
        pl.DataFrame(
            {
                "plot": [f"P{p:04}" for p in plot],
                "species": [f"Gramen {chr(97 + k)}." for k in kind],
                "altitude": height[plot].round(),
                "slope": slope[plot].round(),
                "aspect": [
                    None if s < 3 else round(a)
                    for a, s in zip(aspect[plot], slope[plot], strict=True)
                ],
                "ph": [
                    None if g else round(v, 1)
                    for v, g in zip(ph[plot], rng.random(n) < 0.12, strict=True)
                ],
                "use": np.array(["mown", "grazed", "both", "none"])[use[plot]],
                "year": year,
                "observer": [f"obs{o}" for o in observer],
                "cover_pct": cover,
            }
        )
    )
