"""Datasets of the twenty-second list: apples, containers, potholes, milk, libraries and others."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def _blank(frame, rng, shares):
    """Lose a share of the values of some columns."""
    return frame.with_columns(
        pl.when(pl.Series(rng.random(frame.height) < share))
        .then(None)
        .otherwise(pl.col(name))
        .alias(name)
        for name, share in shares.items()
    )


def packed_apples():
    """Crates of apples at a packing house: what the scanner measured, and how they were sold."""
    rng = seeded(22001)
    varieties = np.array(["Boskoop", "Braeburn", "Elstar", "Gala", "Jonagold", "Topaz"])
    usual = np.array(
        [
            [210, 11.8, 7.9],
            [180, 11.9, 8.0],
            [165, 12.3, 6.6],
            [160, 12.0, 7.2],
            [225, 12.9, 6.3],
            [170, 12.6, 7.4],
        ]
    )
    orchards = np.array([f"O{k:02}" for k in range(45)])
    care = rng.normal(0, 0.8, 45)
    rows = []
    for lot in range(700):
        orchard = min(int(rng.exponential(9)), 44)
        v = int(rng.choice(6, p=[0.05, 0.2, 0.25, 0.2, 0.2, 0.1]))
        stored, net = rng.gamma(2, 30), rng.random() < 0.5
        hail = rng.exponential(6) * (0.3 if net else 1)
        for _ in range(int(rng.integers(3, 9))):
            weight = usual[v, 0] * np.exp(rng.normal(0, 0.16))
            brix = usual[v, 1] + rng.normal(0, 0.9)
            firm = usual[v, 2] - 0.012 * stored + rng.normal(0, 0.7)
            red = np.clip(rng.beta(5, 3) + 0.05 * care[orchard], 0, 1)
            marks = rng.poisson(hail * 0.5)
            z = care[orchard] + 0.9 * (firm - usual[v, 2] + 0.8) + 0.6 * (brix - usual[v, 1])
            z += 4.5 * (red - 0.6) - 0.75 * marks - 7 * (np.log(weight / usual[v, 0]) - 0.04) ** 2
            z += 1.6 + rng.logistic(0, 0.45)
            rows.append(
                {
                    "lot": f"L{lot:04}",
                    "orchard": orchards[orchard],
                    "variety": varieties[v],
                    "weight_g": round(weight, 1),
                    "brix": round(brix, 1),
                    "firmness": round(firm, 2),
                    "red_share": round(red, 3),
                    "marks": int(marks),
                    "days_stored": round(stored),
                    "hail_net": net,
                    "sold_as": "premium" if z > 1.2 else "standard" if z > -2.6 else "juice",
                }
            )
    return numbered(_blank(pl.DataFrame(rows), rng, {"firmness": 0.12, "brix": 0.07}))


def container_dwell():
    """Containers that a terminal discharged, and the hours until a lorry or train took them."""
    rng = seeded(22002)
    n = 6000
    lines = np.array(["APL", "CMA", "COS", "EVG", "HLC", "HMM", "MAE", "MSC", "ONE", "PIL", "ZIM"])
    line = rng.choice(11, n, p=np.array([6, 16, 12, 9, 11, 4, 15, 17, 6, 2, 2]) / 100)
    habit, free = rng.normal(0, 0.3, 11), rng.choice([3, 5, 7], 11)
    kind = rng.choice(4, n, p=[0.3, 0.25, 0.33, 0.12])
    mode = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    cargo = rng.choice(5, n, p=[0.35, 0.2, 0.2, 0.15, 0.1])
    kg = np.where(kind == 0, 17500, 22500) + rng.normal(0, 3200, n)
    held = rng.random(n) < np.array([0.08, 0.15, 0.25, 0.1, 0.3])[cargo]
    late = np.maximum(rng.normal(4, 22, n), -20)
    at = np.sort(rng.uniform(0, 24 * 280, n)).round()
    weekday, hour = (at // 24 % 7).astype(int), (at % 24).astype(int)
    km = np.exp(rng.normal(5, 0.9, n))
    z = 4.0 + habit[line] + 0.09 * (free[line] - 5) + np.array([0, 0.05, 0.1, -0.7])[kind]
    z += np.array([0, 0.3, 0.55])[mode] + 0.6 * held + 0.3 * np.isin(weekday, [4, 5])
    z += np.array([0, -0.3, 0.2, 0.1, -0.1])[cargo] - 0.006 * late + 0.1 * (np.log(km) - 5)
    z += 0.04 * (kg - 20500) / 3200 + rng.normal(0, 0.33, n)
    frame = pl.DataFrame(
        {
            "discharged": [datetime(2024, 1, 8) + timedelta(hours=float(h)) for h in at],
            "line": lines[line],
            "kind": np.array(["20", "40", "40HC", "reefer"])[kind],
            "mode": np.array(["lorry", "rail", "barge"])[mode],
            "cargo": np.array(["parts", "food", "textiles", "chemicals", "mixed"])[cargo],
            "gross_kg": kg.round(),
            "customs_hold": held,
            "vessel_late_h": late.round(1),
            "free_days": free[line],
            "weekday": weekday,
            "hour": hour,
            "hinterland_km": km.round(),
            "yard_moves": rng.poisson(1.2, n),
            "dwell_h": np.exp(z).round(1),
        }
    )
    return numbered(_blank(frame, rng, {"hinterland_km": 0.15, "cargo": 0.06}))


def street_potholes():
    """Sections of a city's streets in a winter, and the potholes that were reported there."""
    rng = seeded(22003)
    n = 4000
    districts = np.array([f"D{k:02}" for k in range(24)])
    soil = rng.normal(0, 0.55, 24)
    share = rng.dirichlet(np.full(24, 3.0))
    district = rng.choice(24, n, p=share)
    winter = rng.integers(4, size=n)
    surface = rng.choice(4, n, p=[0.62, 0.2, 0.1, 0.08])
    km, age = np.exp(rng.normal(-0.9, 0.75, n)), rng.gamma(2.2, 7, n)
    cars, heavy = np.exp(rng.normal(8, 1, n)), rng.beta(1.6, 18, n)
    frost = np.array([16, 34, 8, 25])[winter] + rng.normal(0, 4, n)
    blocked = rng.random(n) < 0.2
    z = 0.2 + soil[district] + 0.035 * (age - 15) + 0.3 * (np.log(cars) - 8) + 6 * (heavy - 0.08)
    z += 0.03 * (frost - 20) + np.array([0, 0.4, -0.9, -1.4])[surface] + 0.5 * blocked
    frame = pl.DataFrame(
        {
            "section": [f"S{k:05}" for k in rng.permutation(n)],
            "district": districts[district],
            "winter": np.array([2019, 2020, 2021, 2022])[winter],
            "surface": np.array(["asphalt", "thin asphalt", "concrete", "setts"])[surface],
            "length_km": km.round(3).clip(0.02),
            "age_years": age.round(1),
            "cars_per_day": cars.round(-1),
            "heavy_share": heavy.round(3),
            "frost_days": frost.round(),
            "drain_blocked": blocked,
            "potholes": rng.poisson(km * np.exp(z + rng.normal(0, 0.3, n))),
        }
    )
    return numbered(_blank(frame, rng, {"heavy_share": 0.2, "age_years": 0.1}))


def milk_spectra():
    """Milk samples on plates of 96: an infrared spectrum, the cow, and three values by the lab."""
    rng = seeded(22004)
    bands = np.linspace(0, 1, 60)

    def peak(at, wide):
        return np.exp(-(((bands - at) / wide) ** 2))

    pure = np.stack(
        [
            peak(0.2, 0.03) + 0.8 * peak(0.62, 0.04),
            peak(0.35, 0.05) + 0.5 * peak(0.66, 0.05),
            peak(0.8, 0.04) + 0.4 * peak(0.37, 0.04),
        ]
    )
    breeds = np.array(["Angler", "Fleckvieh", "Holstein", "Jersey"])
    usual = np.array([[4.7, 3.6, 4.8], [4.2, 3.5, 4.8], [4.0, 3.3, 4.7], [5.4, 4.0, 4.8]])
    rows = []
    for cow in range(820):
        b, parity = int(rng.choice(4, p=[0.1, 0.3, 0.5, 0.1])), int(1 + rng.poisson(1.5))
        own, day = rng.normal(0, [0.4, 0.2, 0.12]), int(rng.integers(8, 90))
        for _ in range(int(rng.integers(2, 6))):
            late = np.log(day / 100)
            values = usual[b] + own + late * np.array([0.25, 0.2, -0.06])
            values = values + rng.normal(0, [0.35, 0.14, 0.08])
            light = values @ pure * 0.2 + 0.25 * peak(0.5, 0.4)
            light = light * np.exp(rng.normal(0, 0.12)) + rng.normal(0, 0.08)
            light = light + rng.normal(0, 0.1) * bands + rng.normal(0, 0.012, 60)
            rows.append(
                {
                    "cow": f"C{cow:04}",
                    "breed": str(breeds[b]) if rng.random() < 0.9 else None,
                    "parity": parity,
                    "days_in_milk": day,
                    "absorbance": light.round(4).tolist(),
                    "fat_protein_lactose": (values + rng.normal(0, 0.02, 3)).round(2).tolist(),
                }
            )
            day += int(rng.integers(28, 40))
    order = rng.permutation(len(rows))
    frame = pl.DataFrame([rows[k] for k in order])
    place = pl.int_range(frame.height)
    return numbered(frame.with_columns(plate=place // 96, well=place % 96))


def library_loans():
    """Loans of a city's libraries, and whether the reader brought the thing back too late."""
    rng = seeded(22005)
    n, readers = 6500, 900
    branches = np.array(["Altstadt", "Bahnhof", "Hafen", "Nord", "Schule", "West"])
    kinds = np.array(["audio", "book", "comic", "film", "game", "map"])
    reader = rng.choice(readers, n, p=rng.dirichlet(np.full(readers, 1.2)))
    careless = rng.normal(0, 1.1, readers)
    group, home = rng.choice(4, readers, p=[0.25, 0.2, 0.4, 0.15]), rng.integers(6, size=readers)
    branch = np.where(rng.random(n) < 0.8, home[reader], rng.integers(6, size=n))
    kind = rng.choice(6, n, p=[0.1, 0.55, 0.13, 0.12, 0.08, 0.02])
    day = np.sort(rng.uniform(0, 500, n))
    items, holds = 1 + rng.poisson(2.5, n), rng.poisson(0.6, n)
    km, mailed = np.exp(rng.normal(0.7, 0.7, n)), rng.random(n) < 0.6
    summer = (day % 365 > 190) & (day % 365 < 235)
    z = -1.5 + careless[reader] + np.array([0.5, 0.0, -0.4, -0.3])[group[reader]]
    z += np.array([0, 0, 0.2, 0.9, 0.7, -0.2])[kind] + 0.22 * (items - 3.5) - 0.8 * mailed
    z += 0.5 * (np.log(km) - 0.7) + 0.4 * summer + np.array([0, 0.4, 0, -0.3, 0.2, 0])[branch]
    late = rng.random(n) < 1 / (1 + np.exp(-1.3 * z))
    seen, bad, share, before = np.zeros(readers), np.zeros(readers), [], []
    for r, is_late in zip(reader, late, strict=True):
        share.append((bad[r] + 0.6) / (seen[r] + 3))
        before.append(int(seen[r]))
        seen[r] += 1
        bad[r] += is_late
    frame = pl.DataFrame(
        {
            "lent_at": [datetime(2023, 2, 1) + timedelta(days=float(d)) for d in day],
            "reader": [f"R{r:05}" for r in reader],
            "reader_group": np.array(["child", "student", "adult", "senior"])[group[reader]],
            "branch": branches[branch],
            "kind": kinds[kind],
            "items": items,
            "holds": holds,
            "distance_km": km.round(2),
            "reminders_by_mail": mailed,
            "summer_break": summer,
            "loans_before": before,
            "late_share_before": np.round(share, 4),
            "late": np.where(late, "late", "in time"),
        }
    )
    return numbered(_blank(frame, rng, {"distance_km": 0.12, "reader_group": 0.05}))


def tram_riders():
    """Riders of tram stops by the hour: two days behind, the next six hours ahead."""
    rng = seeded(22006)
    hours, start = 24 * 7 * 11, datetime(2024, 3, 4)
    clock, weekend = np.arange(hours) % 24, np.arange(hours) // 24 % 7 >= 5

    def bump(at, wide):
        return np.exp(-(((clock - at) / wide) ** 2))

    work = bump(7.5, 1.4) + 0.4 * bump(13, 2.5) + 0.8 * bump(17, 1.8)
    free = 0.7 * bump(14, 4) + 0.35 * bump(21, 2)
    rain = np.zeros(hours)
    for h in range(1, hours):
        rain[h] = 0.93 * rain[h - 1] + rng.normal(0, 0.12)
    rows = []
    for stop in range(14):
        size, part = np.exp(rng.normal(5, 0.6)), rng.uniform(0.3, 1)
        z = np.where(weekend, free, part * work + (1 - part) * free) + 0.04
        slow = np.zeros(hours)
        for h in range(1, hours):
            slow[h] = 0.95 * slow[h - 1] + rng.normal(0, 0.09)
        riders = rng.poisson(size * z * np.exp(slow + 0.35 * rain)).astype(float)
        past = np.where(rng.random(hours) < 0.02, np.nan, riders)
        rows += [
            {
                "now": start + timedelta(hours=h),
                "stop": f"T{stop:02}",
                "riders_past": [None if np.isnan(v) else v for v in past[h - 48 : h]],
                "hour": int(clock[h]),
                "weekend": bool(weekend[h]),
                "rain_ahead": (rain[h : h + 6] + rng.normal(0, 0.1, 6)).round(2).tolist(),
                "riders_ahead": riders[h : h + 6].tolist(),
            }
            for h in range(48 + stop, hours - 6, 9)
        ]
    return numbered(pl.DataFrame(rows).sort("now", "stop"))


def snow_depths():
    """Snow at mountain stations: two weeks behind, three days ahead with the forecast."""
    rng = seeded(22007)
    days, first = 5 * 180, date(2019, 11, 1)
    season = np.arange(days) % 180
    dates = [first + timedelta(days=int(365 * (d // 180) + d % 180)) for d in range(days)]
    front, wet = np.zeros(days), np.zeros(days)
    for d in range(1, days):
        front[d] = 0.8 * front[d - 1] + rng.normal(0, 2.2)
        wet[d] = 0.6 * wet[d - 1] + rng.normal(0, 1)
    rows = []
    for station in range(12):
        height, lee = rng.uniform(500, 2200), np.exp(rng.normal(0, 0.3))
        warm = 6 - 0.0055 * (height - 500) - 5 * np.sin(season / 180 * np.pi) + front
        warm = warm + rng.normal(0, 0.8, days)
        rain = np.exp(0.9 * wet + rng.normal(0, 0.4, days)) * (wet > 0.2) * 3.5 * lee
        depth = np.zeros(days)
        for d in range(1, days):
            snow = rain[d] * 1.1 / (1 + np.exp(1.8 * (warm[d] - 0.8)))
            melt = (2.2 + 0.12 * rain[d]) * max(warm[d] + 0.5, 0)
            settled = (depth[d - 1] * 0.985 + snow - melt) if season[d] else 0.0
            depth[d] = max(settled, 0) + (rng.normal(0, 0.4) if settled > 1 else 0)
        depth = depth.clip(0).round()
        seen = np.where(rng.random(days) < 0.03, np.nan, depth)
        forecast = warm + rng.normal(0, 0.7, days)
        told_rain = (rain * np.exp(rng.normal(0, 0.25, days))).round(1)
        rows += [
            {
                "issued": dates[d],
                "station": f"B{station:02}",
                "height_m": round(height),
                "depth_past": [None if np.isnan(v) else v for v in seen[d - 14 : d]],
                "warm_past": warm[d - 14 : d].round(1).tolist(),
                "rain_past": rain[d - 14 : d].round(1).tolist(),
                "warm_ahead": forecast[d : d + 3].round(1).tolist(),
                "rain_ahead": told_rain[d : d + 3].tolist(),
                "depth_ahead": depth[d : d + 3].tolist(),
            }
            for d in range(14, days - 3, 3)
            if 14 <= season[d] <= 176 and (depth[d - 3 : d + 3] > 0).any()
        ]
    return numbered(pl.DataFrame(rows).sort("issued", "station"))


def theatre_sales():
    """Tickets of a production sold by the day: three weeks behind, a week ahead."""
    rng = seeded(22008)
    houses, genres = ["Keller", "Oper", "Stadttheater", "Volksbuehne"], ["comedy", "dance", "drama"]
    size, start = [40, 320, 180, 110], date(2022, 9, 5)
    rows = []
    for production in range(150):
        house, genre = int(rng.integers(4)), int(rng.choice(3, p=[0.4, 0.2, 0.4]))
        opening, length = int(rng.integers(600)), int(rng.integers(40, 90))
        appeal = rng.normal(0, 0.5) + np.array([0.2, 0.1, -0.1])[genre]
        day = np.arange(length)
        weekday = (opening + day) % 7
        plays = np.isin(weekday, [3, 4, 5] if house else [4, 5]) & (rng.random(length) < 0.9)
        plays[-1] = True
        until = np.array([np.flatnonzero(plays[d:])[0] for d in day])
        slow = np.zeros(length)
        for d in range(1, length):
            slow[d] = 0.85 * slow[d - 1] + rng.normal(0, 0.16)
        z = np.log(size[house] * 0.4) + appeal + slow - 0.35 * until + 0.9 * (until == 0)
        z = z + 0.25 * (weekday >= 5) - 0.008 * day
        sold = rng.negative_binomial(8, 8 / (8 + np.exp(z))).astype(float)
        rows += [
            {
                "today": start + timedelta(days=opening + d),
                "production": f"P{production:03}",
                "house": houses[house],
                "genre": genres[genre] if rng.random() < 0.95 else None,
                "sold_past": sold[d - 21 : d].tolist(),
                "plays_past": plays[d - 21 : d].tolist(),
                "plays_ahead": plays[d : d + 7].tolist(),
                "until_ahead": until[d : d + 7].tolist(),
                "weekday": int(weekday[d]),
                "sold_ahead": sold[d : d + 7].tolist(),
            }
            for d in range(21, length - 7, 2)
        ]
    return numbered(pl.DataFrame(rows).sort("today", "production"))


def board_games():
    """What members of a game club played, and what they took home next."""
    rng = seeded(22009)
    games = [f"game {k:03}" for k in rng.permutation(160)]
    taste = rng.normal(0, 1, (160, 5))
    charm = 0.8 * rng.normal(0, 1, 160)
    ages = ["teen", "adult", "parent", "senior"]
    of_age = rng.normal(0, 0.7, (4, 5))
    rows = []
    for day in range(6500):
        who = int(rng.choice(4, p=[0.15, 0.45, 0.3, 0.1]))
        likes = of_age[who] + rng.normal(0, 1.1, 5)
        z = 1.4 * taste @ likes + charm
        p = np.exp(z - z.max())
        picked = rng.choice(160, int(rng.integers(3, 14)), replace=False, p=p / p.sum())
        picked = rng.permutation(picked)
        rows.append(
            {
                "at": datetime(2024, 1, 2) + timedelta(hours=float(day * 0.9)),
                "age_group": ages[who],
                "players": int(rng.choice([1, 2, 3, 4, 5, 6], p=[0.1, 0.3, 0.2, 0.25, 0.1, 0.05])),
                "played": [games[k] for k in picked[:-1]],
                "next_game": games[picked[-1]],
            }
        )
    return numbered(pl.DataFrame(rows))
