"""Datasets of the nineteenth list: passengers, rides, beans, parcels, demand, songs and posts."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def ship_passengers():
    """Passengers of a ship that hit an anomaly: group and place, cabin, sleep, what they spent."""
    rng = seeded(19001)
    homes, decks = ["Earth", "Europa", "Mars"], "ABCDEFG"
    rows, group = [], 0
    while len(rows) < 3600:
        group += int(rng.integers(1, 3))
        size = int(rng.choice([1, 2, 3, 4], p=[0.6, 0.22, 0.11, 0.07]))
        home = int(rng.choice(3, p=[0.54, 0.25, 0.21]))
        at = rng.choice(7, p=[[0, 0, 0, 0, 0.2, 0.35, 0.45], [0.15, 0.35, 0.35, 0.05, 0.1, 0, 0],
                              [0, 0, 0, 0.2, 0.2, 0.6, 0]][home])  # fmt: skip
        side, number = "PS"[int(rng.integers(2))], int(rng.integers(0, 1800))
        for place in range(size):
            asleep = rng.random() < [0.3, 0.44, 0.39][home]
            age = float(np.clip(rng.gamma(5, 6), 0, 79).round())
            scale = [5.0, 6.4, 5.4][home]
            spent = np.exp(rng.normal(scale, 1.3, 5)).round() * (rng.random(5) < 0.45)
            if asleep or age < 13:
                spent = np.zeros(5)
            z = -0.75 + 2.1 * asleep + [0.0, 1.1, 0.35][home] + 0.5 * (side == "S")
            z += 0.7 * (age < 13) + 0.5 * (at in (1, 2)) - 0.4 * (at == 4)
            z += [0.25, 0.28, -0.42, -0.42, -0.4] @ np.log1p(spent) * 0.5
            lost = rng.random(10) < 0.025
            rows.append(
                {
                    "party": f"{group:04}",
                    "passenger_id": f"{group:04}_{place + 1:02}",
                    "home_planet": None if lost[0] else homes[home],
                    "cryo_sleep": None if lost[1] else bool(asleep),
                    "cabin": None if lost[2] else f"{decks[at]}/{number}/{side}",
                    "age": None if lost[3] else age,
                    "vip": bool(rng.random() < 0.02 + 0.03 * (home == 1)),
                    **{
                        name: None if lost[4 + k] else float(spent[k])
                        for k, name in enumerate(["room", "food", "shop", "spa", "deck"])
                    },
                    "transported": bool(rng.random() < 1 / (1 + np.exp(-z))),
                }
            )
    return numbered(pl.DataFrame(rows, infer_schema_length=None))


def yellow_rides():
    """Rides of yellow taxis: where and when they began and ended, passengers, the fare."""
    rng = seeded(19002)
    n = 3800
    start = datetime(2023, 1, 2)
    hour = rng.choice(24, n, p=np.array([2, 1, 1, 1, 1, 1, 2, 4, 5, 5, 5, 5,
                                         5, 5, 5, 5, 5, 6, 7, 7, 6, 6, 5, 5]) / 100)  # fmt: skip
    day = rng.integers(0, 360, n)
    when = [start + timedelta(days=int(d), hours=int(h), minutes=int(m))
            for d, h, m in zip(day, hour, rng.integers(0, 60, n), strict=True)]  # fmt: skip
    plane = rng.random(n)
    spots = {"jfk": (40.645, -73.785), "lga": (40.774, -73.873)}
    lat0, lon0 = 40.755 + rng.normal(0, 0.022, n), -73.98 + rng.normal(0, 0.016, n)
    lat1, lon1 = lat0 + rng.normal(0, 0.02, n), lon0 + rng.normal(0, 0.016, n)
    for low, high, key in ((0.0, 0.06, "jfk"), (0.06, 0.12, "lga")):
        there = (plane >= low) & (plane < high)
        lat1 = np.where(there, spots[key][0] + rng.normal(0, 0.003, n), lat1)
        lon1 = np.where(there, spots[key][1] + rng.normal(0, 0.003, n), lon1)
    swap = rng.random(n) < 0.4
    lat0, lat1 = np.where(swap, lat1, lat0), np.where(swap, lat0, lat1)
    lon0, lon1 = np.where(swap, lon1, lon0), np.where(swap, lon0, lon1)
    north, east = (lat1 - lat0) * 111.2, (lon1 - lon0) * 84.3
    km = np.hypot(north, east) * 0.6 + (abs(north) + abs(east)) * 0.45
    weekend = np.array([w.weekday() >= 5 for w in when])
    rush = ((hour >= 8) & (hour < 19) & ~weekend).astype(float)
    minutes = km / (24 - 10 * rush + rng.normal(0, 2, n)).clip(7) * 60 + 2
    fare = 3.0 + 1.55 * km + 0.35 * minutes + 1.0 * ((hour >= 20) | (hour < 6)) + 2.5 * rush
    fare = np.where((plane < 0.06) & (lon0 < -73.9), 62.0, fare)
    fare = np.exp(np.log(fare) + rng.normal(0, 0.08, n))
    nowhere = rng.random(n) < 0.015
    return numbered(
        pl.DataFrame(
            {
                "pickup_datetime": when,
                "pickup_lat": np.where(nowhere, 0.0, lat0).round(5),
                "pickup_lon": np.where(nowhere, 0.0, lon0).round(5),
                "dropoff_lat": lat1.round(5),
                "dropoff_lon": lon1.round(5),
                "passengers": rng.choice([0, 1, 2, 3, 5], n, p=[0.01, 0.7, 0.15, 0.06, 0.08]),
                "fare": fare.round(2),
            }
        ).sort("pickup_datetime")
    )


def dry_beans():
    """Seven kinds of beans by what a camera measures of each; perimeters sometimes fail."""
    rng = seeded(19003)
    kinds = ["Barbunya", "Bombay", "Cali", "Dermason", "Horoz", "Seker", "Sira"]
    n = 3200
    kind = rng.choice(7, n, p=[0.1, 0.04, 0.12, 0.26, 0.14, 0.15, 0.19])
    size = np.array([11.15, 12.06, 11.23, 10.37, 10.89, 10.59, 10.71])[kind]
    area = np.exp(size + rng.normal(0, 0.13, n))
    aspect = np.array([1.54, 1.58, 1.73, 1.49, 2.03, 1.24, 1.57])[kind] + rng.normal(0, 0.075, n)
    aspect = aspect.clip(1.02)
    minor = np.sqrt(4 * area / np.pi / aspect) * (1 + rng.normal(0, 0.008, n))
    major = minor * aspect
    rough = np.array([1.08, 1.03, 1.06, 1.02, 1.04, 1.012, 1.025])[kind] + rng.normal(0, 0.012, n)
    h = ((major - minor) / (major + minor)) ** 2
    perimeter = np.pi * (major + minor) / 2 * (1 + h / 4) * rough.clip(1.0)
    perimeter = np.where(rng.random(n) < 0.03, np.nan, perimeter)
    solidity = (1.0 - 0.012 * rough - rng.gamma(2, 0.001, n)).clip(0.9, 1)
    bright = np.array([0.42, 0.3, 0.55, 0.62, 0.5, 0.78, 0.58])[kind] + rng.normal(0, 0.09, n)
    tray = rng.integers(1, 25, n)
    frame = pl.DataFrame(
        {
            "area": area.round(),
            "perimeter": perimeter.round(2),
            "major_axis": major.round(2),
            "minor_axis": minor.round(2),
            "eccentricity": np.sqrt(1 - (minor / major).clip(0, 1) ** 2).round(5),
            "convex_area": (area / solidity).round(),
            "extent": rng.normal(0.75, 0.045, n).clip(0.4, 0.9).round(4),
            "brightness": bright.clip(0, 1).round(3),
            "tray": [f"T{k:02}" for k in tray],
            "variety": np.array(kinds)[kind],
        }
    )
    return numbered(frame.with_columns(pl.col("perimeter").fill_nan(None)))
