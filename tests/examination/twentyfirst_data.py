"""Datasets of the twenty-first list: houses, hives, bicycles, museums, pools and chargers."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))


def heating_bills():
    """Houses and the energy that they used in up to three winters, from energy advisers' sheets."""
    rng = seeded(21001)
    systems = ["gas", "oil", "heat pump", "district", "wood"]
    factor = dict(zip(systems, [1.0, 1.15, 0.36, 0.9, 1.3], strict=True))
    rows = []
    for house in range(1200):
        built = int(np.clip(rng.normal(1972, 26), 1880, 2022))
        area = float(np.exp(rng.normal(4.85, 0.35)).round(1))
        insulation = str(rng.choice(["none", "partial", "full"], p=[0.3, 0.45, 0.25]))
        glazing = str(rng.choice(["single", "double", "triple"], p=[0.15, 0.6, 0.25]))
        system = str(rng.choice(systems, p=[0.45, 0.2, 0.15, 0.12, 0.08]))
        people, thermostat = int(1 + rng.poisson(1.4)), bool(rng.random() < 0.6)
        habit = rng.normal(0, 0.1)
        need = 95 * np.exp(-(max(built, 1950) - 1950) / 60)
        need *= {"none": 1.4, "partial": 1.0, "full": 0.62}[insulation]
        need *= {"single": 1.25, "double": 1.0, "triple": 0.85}[glazing] * (1 - 0.12 * thermostat)
        climate = float(rng.normal(2900, 350))
        for winter in range(int(rng.choice([1, 2, 3], p=[0.2, 0.4, 0.4]))):
            days = climate * (0.95, 1.06, 0.99)[winter] + rng.normal(0, 60)
            used = area**0.9 * need * days / 2000 + 650 * people
            used *= factor[system] * np.exp(habit + rng.normal(0, 0.1))
            rows.append(
                {
                    "house": f"H{house:04}",
                    "built": built if rng.random() < 0.9 else None,
                    "floor_area": area,
                    "insulation": insulation if rng.random() < 0.93 else None,
                    "glazing": glazing,
                    "system": system,
                    "people": people if rng.random() < 0.95 else None,
                    "thermostat": thermostat,
                    "degree_days": round(days),
                    "advance_eur": round(used * np.exp(rng.normal(0, 0.45)) * 0.011, -1),
                    "kwh": round(used),
                }
            )
    return numbered(pl.DataFrame(rows))


def hives_after_winter():
    """Bee colonies: a beekeeper's autumn record, and how strong the colony is in spring."""
    rng = seeded(21002)
    n = 3000
    yards = np.array(["Bach", "Garten", "Heide", "Hang", "Moor", "Raps", "Turm", "Wald"])
    luck = np.array([0.3, 0.6, -0.7, 0.2, -1.0, 0.8, 0.0, -0.2])
    races = np.array(["buckfast", "carnica", "dark", "unknown"])
    yard, race = rng.integers(8, size=n), rng.choice(4, n, p=[0.35, 0.4, 0.1, 0.15])
    mites = np.exp(rng.normal(0.8, 0.9, n))
    frames = np.clip(rng.normal(9, 2.5, n), 2, 18).round()
    stores, queen = np.clip(rng.normal(14, 4, n), 3, 28).round(1), rng.integers(0, 5, n)
    treated = rng.random(n) < 0.7
    z = 0.45 * (frames - 9) + 0.13 * (stores - 14) - 0.35 * queen + 1.4 * luck[yard]
    z -= 1.1 * np.log(mites) * np.where(treated, 0.5, 1.2)
    z += np.array([0.4, 0.2, -0.9, 0])[race] + rng.logistic(0, 0.7, n)
    strength = np.searchsorted([-2.6, -0.9, 0.9, 2.9], z)
    names = np.array(["dead", "weak", "fair", "strong", "very strong"])
    frame = pl.DataFrame(
        {
            "yard": yards[yard],
            "race": races[race],
            "mites_per_day": mites.round(2),
            "frames": frames,
            "stores_kg": stores,
            "queen_age": queen,
            "treated": np.where(treated, "yes", "no"),
            "spring": names[strength],
        }
    )
    unknown = {"mites_per_day": 0.2, "stores_kg": 0.1}
    frame = frame.with_columns(
        pl.when(pl.Series(rng.random(n) < share)).then(None).otherwise(pl.col(name)).alias(name)
        for name, share in unknown.items()
    )
    return numbered(frame)


REPAIRS = ["brakes", "chain", "gears", "lights", "tyres", "wheel"]


def workshop_bicycles():
    """Bicycles brought to a workshop, and what had to be repaired: nothing, one thing or more."""
    rng = seeded(21003)
    n = 3200
    kinds = np.array(["cargo", "child", "city", "e-bike", "mountain", "racing", "trekking"])
    makers = np.array([f"M{k:02}" for k in range(18)])
    kind = rng.choice(7, n, p=[0.07, 0.1, 0.3, 0.2, 0.1, 0.08, 0.15])
    maker = rng.integers(18, size=n)
    km = np.exp(rng.normal(7.2, 0.9, n) + 0.4 * (kind == 3))
    age, outside = rng.gamma(2, 3, n), rng.random(n) < 0.4
    serviced = rng.exponential(14, n)
    hub = np.where(kind == 2, 0.7, 0.15) > rng.random(n)
    dynamo = rng.random(n) < np.array([0.9, 0.2, 0.85, 0.95, 0.1, 0.05, 0.9])[kind]
    worn = np.log(km) - 7.2
    by_kind, by_maker = rng.normal(0, 0.9, (7, 6)), rng.normal(0, 0.8, (18, 6))
    base = np.array([-0.6, -1.0, -1.3, -1.5, -0.7, -2.4])
    z = base + by_kind[kind] + by_maker[maker]
    z += worn[:, None] * np.array([0.9, 1.5, 0.8, 0.1, 1.1, 0.7])
    z += outside[:, None] * np.array([0.4, 1.3, 0.3, 0.9, 0.1, 0.0])
    z += (serviced[:, None] / 14 - 1) * np.array([0.9, 0.6, 0.6, 0.2, 0.3, 0.1])
    z += hub[:, None] * np.array([0, -0.6, -2.0, 0, 0, 0.2])
    z += dynamo[:, None] * np.array([0, 0, 0, -1.4, 0, 0])
    found = rng.random((n, 6)) < _sigmoid(1.3 * z)
    return numbered(
        pl.DataFrame(
            {
                "kind": kinds[kind],
                "maker": [str(m) if rng.random() < 0.94 else None for m in makers[maker]],
                "km": [float(v) if rng.random() < 0.85 else None for v in km.round(-1)],
                "age_years": age.round(1),
                "kept": np.where(outside, "outside", "inside"),
                "months_since_service": serviced.round(),
                "hub_gear": hub,
                "dynamo": dynamo,
                "repairs": [",".join(np.array(REPAIRS)[row]) for row in found],
            }
        )
    )


def museum_walks():
    """Walks through a museum by its audio guides: what was heard, who walks, what was next."""
    rng = seeded(21004)
    exhibits = [f"{hall}{k}" for hall in "ABCDEFGHIJ" for k in range(1, 7)]
    charm = rng.normal(0, 0.8, 60)
    kinds = rng.integers(4, size=10)  # what a hall shows
    groups = ["adult", "family", "school", "senior"]
    liking = rng.normal(0, 1.0, (4, 4))
    rows = []
    start = datetime(2024, 4, 2)
    for day in range(2400):
        who = int(rng.choice(4, p=[0.4, 0.25, 0.2, 0.15]))
        at, heard = int(rng.integers(60)), []
        for _ in range(int(rng.integers(3, 18))):
            heard.append(at)
            hall = np.arange(60) // 6
            z = charm + 1.2 * liking[who, kinds[hall]] - 1.5 * abs(hall - at // 6)
            z = z - 0.35 * abs(np.arange(60) - at) + 0.8 * (np.arange(60) == at + 1)
            z[heard] = -np.inf
            p = np.exp(z - z.max())
            at = int(rng.choice(60, p=p / p.sum()))
        rows.append(
            {
                "at": start + timedelta(hours=float(day * 0.9)),
                "visitors": groups[who],
                "guide_language": str(rng.choice(["de", "en", "fr", "pl"], p=[0.5, 0.3, 0.1, 0.1])),
                "heard": [exhibits[k] for k in heard],
                "next_exhibit": exhibits[at],
            }
        )
    return numbered(pl.DataFrame(rows))


def pool_days():
    """Visitors of ten open-air pools: four weeks behind, a week ahead with weather and holidays."""
    rng = seeded(21005)
    days, first = 420, date(2022, 5, 1)
    season = np.arange(days) % 140  # May to September of three years
    dates = [first + timedelta(days=int(365 * (d // 140) + d % 140)) for d in range(days)]
    weekday = np.array([d.weekday() for d in dates])
    holiday = (season > 60) & (season < 105)
    front = np.zeros(days)
    for d in range(1, days):
        front[d] = 0.75 * front[d - 1] + rng.normal(0, 2.4)
    warm = 22 - ((season - 75) / 30) ** 2 * 1.5 + front
    rows = []
    for pool in range(10):
        size, heat = rng.normal(5.6, 0.7), rng.uniform(0.08, 0.16)
        local = warm + rng.normal(0, 0.8, days)
        z = size + heat * (local - 22) - 0.03 * (24 - local).clip(0, None)
        slow = np.zeros(days)
        for d in range(1, days):
            slow[d] = 0.93 * slow[d - 1] + rng.normal(0, 0.17)
        z = (
            z
            + slow
            + 0.45 * (weekday >= 5)
            + 0.3 * (holiday & (weekday < 5))
            + rng.normal(0, 0.15, days)
        )
        counted = rng.poisson(np.exp(z)).astype(float)
        counted[rng.random(days) < 0.03] = np.nan  # a turnstile out of order
        forecast = local + rng.normal(0, 1.0, days)
        rows += [
            {
                "issued": dates[d],
                "pool": f"P{pool}",
                "visitors_past": [None if np.isnan(v) else v for v in counted[d - 28 : d]],
                "warm_past": local[d - 28 : d].round(1).tolist(),
                "warm_ahead": forecast[d : d + 7].round(1).tolist(),
                "weekday_ahead": weekday[d : d + 7].tolist(),
                "holiday_ahead": holiday[d : d + 7].tolist(),
                "visitors_ahead": counted[d : d + 7].tolist(),
            }
            for d in range(28, days - 7, 2)
            if d % 140 >= 28 and d % 140 <= 133 and not np.isnan(counted[d : d + 7]).any()
        ]
    return numbered(pl.DataFrame(rows).sort("issued", "pool"))


def charger_hours():
    """Car parks with chargers: half a day of watt-hours by the hour, and those of the next hour."""
    rng = seeded(21006)
    start, hours = datetime(2024, 2, 5), 24 * 7 * 9
    clock = np.arange(hours) % 24
    weekend = np.arange(hours) // 24 % 7 >= 5

    def bump(at, wide):
        return np.exp(-(((clock - at) / wide) ** 2))

    shapes = {
        "office": np.where(weekend, 0.08, 1.3 * bump(9, 2.2) + 0.5 * bump(13.5, 1.5) + 0.05),
        "shops": (1 + 0.5 * weekend) * (bump(12, 2) + 1.1 * bump(17.5, 2.2)) + 0.03,
        "homes": bump(19.5, 2.5) + 0.5 * bump(23, 2) + 0.5 * bump(0, 2) + 0.08,
    }
    rows = []
    for site in range(9):
        kind = ["office", "shops", "homes"][site % 3]
        slots, busy = int(rng.choice([6, 10, 16, 24])), rng.uniform(0.5, 0.9)
        slow = np.zeros(hours)
        for h in range(1, hours):
            slow[h] = 0.9 * slow[h - 1] + rng.normal(0, 0.12)
        cars = rng.poisson(slots * busy * shapes[kind] * np.exp(slow)).clip(0, slots)
        used = (cars * rng.uniform(3200, 5600, hours)).round()
        seen = np.where(rng.random(hours) < 0.03, np.nan, used)
        picked = range(24 + site, hours - 1, 4 if site % 2 else 3)
        rows += [
            {
                "hour": start + timedelta(hours=h),
                "site": f"S{site}",
                "kind": kind,
                "slots": slots,
                "wh_past": [None if np.isnan(v) else int(v) for v in seen[h - 12 : h]],
                "wh_next": int(used[h]),
            }
            for h in picked
        ]
    return numbered(pl.DataFrame(rows).sort("hour", "site"))
