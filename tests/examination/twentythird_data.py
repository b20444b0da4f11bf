"""Datasets of the twenty-third list: letters to donors, coffee, pianos, fines and others."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def _chance(z):
    return 1 / (1 + np.exp(-z))


def donor_mailings():
    """Who gave after a mailing of a charity; one in three donors got no letter, by lot."""
    rng = seeded(23001)
    regions = np.array(["north", "east", "south", "west", "abroad"])
    liking = rng.normal(0, 0.5, 5)
    rows = []
    for donor in range(1500):
        region, generous = int(rng.choice(5, p=[0.3, 0.25, 0.2, 0.2, 0.05])), rng.normal()
        age = rng.choice(["18-34", "35-54", "55-74", "75+"], p=[0.2, 0.3, 0.35, 0.15])
        by_mail = rng.random() < (0.75 if age in ("55-74", "75+") else 0.35)
        gifts = int(rng.poisson(np.exp(0.5 + 0.6 * generous)))
        now = datetime(2025, 1, 1) + timedelta(days=int(rng.integers(0, 60)))
        last = now - timedelta(days=int(1 + rng.gamma(1.4, 160)))
        for _ in range(int(rng.integers(2, 6))):
            letter = rng.random() < 0.67
            opened = rng.binomial(6, _chance(0.4 * generous - 0.5))
            since = (now - last).days
            z = -2.3 + 0.8 * generous + liking[region] - 1.0 * np.log(since / 100)
            z += 0.35 * (opened - 2) + (letter * (2.2 if by_mail else 0.1))
            gave = rng.random() < _chance(z)
            rows.append(
                {
                    "donor": f"D{donor:04}",
                    "mailed_at": now + timedelta(hours=9),
                    "letter": "Y" if letter else "N",
                    "last_gift": last.date(),
                    "gifts_before": gifts,
                    "usual_gift": round(float(np.exp(3 + 0.3 * generous + rng.normal(0, 0.5))), 2),
                    "age_group": age if rng.random() > 0.1 else None,
                    "prefers": "post" if by_mail else "email",
                    "region": regions[region],
                    "emails_opened": int(opened),
                    "gave": bool(gave),
                }
            )
            if gave:
                last, gifts = now + timedelta(days=4), gifts + 1
            now = now + timedelta(days=int(rng.integers(40, 90)))
    frame = pl.DataFrame(rows).filter(pl.col("mailed_at") < datetime(2026, 1, 1))
    return numbered(frame.sort("mailed_at", "donor"))


def coffee_lots():
    """Lots of green coffee: a cupping score of each, and defects where these were counted."""
    rng = seeded(23002)
    lands = ["Brazil", "Colombia", "Ethiopia", "Guatemala", "Kenya", "Peru"]
    height = np.array([1000, 1600, 1900, 1500, 1750, 1400])
    cup, bad = np.array([-0.8, 0.3, 1.2, 0.2, 1.0, -0.3]), np.array([1.9, 1.4, 1.7, 1.5, 1.0, 2.0])
    rows = []
    for _ in range(900):
        k = int(rng.choice(6, p=[0.3, 0.22, 0.16, 0.12, 0.08, 0.12]))
        metres = height[k] + rng.normal(0, 170)
        way = int(rng.choice(3, p=[0.55, 0.3, 0.15]))
        days, moist = rng.gamma(9, 1.7), rng.normal(11.2, 0.8)
        screen, rain = rng.normal(16, 0.8), rng.gamma(4, 25)
        z = cup[k] + 0.0042 * (metres - height[k]) + np.array([0.5, -0.2, 0.1])[way]
        z += -0.7 * np.abs(moist - 11) + 0.35 * (screen - 16) - 0.05 * np.abs(days - 15)
        rate = np.exp(bad[k] + 0.008 * (rain - 100) + np.array([-0.5, 0.5, 0.1])[way])
        defects = int(rng.poisson(rate * np.exp(0.25 * (moist - 11.2))))
        counted = rng.random() < 0.45
        rows.append(
            {
                "land": lands[k],
                "altitude": round(metres),
                "process": ["washed", "natural", "honey"][way],
                "drying_days": round(days, 1),
                "moisture": round(moist, 2),
                "screen": round(screen, 1),
                "harvest_rain": round(rain, 1),
                "score_defects": [
                    round(82 + 1.5 * (z + rng.normal(0, 0.45)), 2),
                    float(defects) if counted else None,
                ],
            }
        )
    return numbered(pl.DataFrame(rows))


def piano_drift():
    """How far pianos had drifted when the tuner came, in cents; more uneven where rooms change."""
    rng = seeded(23003)
    n = 3200
    makers = np.array(["Bl", "Bo", "Fa", "Gr", "Ka", "Pe", "Sa", "Sc", "St", "Ya"])
    hold = rng.normal(0, 0.25, 10)
    maker, kind = rng.integers(0, 10, n), rng.choice(3, n, p=[0.55, 0.35, 0.1])
    tuner = rng.choice(5, n, p=[0.3, 0.25, 0.2, 0.15, 0.1])
    months, age = rng.gamma(2.4, 4.5, n) + 0.5, rng.gamma(2, 16, n)
    before, after = rng.uniform(28, 72, n), rng.uniform(28, 72, n)
    swing, hours = np.abs(rng.normal(0, 9, n)), rng.gamma(1.3, 7, n)
    mean = 0.28 * (after - before) * np.array([1.0, 0.7, 0.4])[kind]
    mean -= 0.75 * np.sqrt(months) * np.exp(hold[maker]) * (1 + age / 90) + 0.05 * hours
    spread = 0.7 + 0.16 * swing + 0.012 * age
    return numbered(
        pl.DataFrame(
            {
                "tuner": np.array([f"T{k}" for k in range(5)])[tuner],
                "maker": makers[maker],
                "kind": np.array(["upright", "grand", "spinet"])[kind],
                "months_since": months.round(1),
                "age_years": age.round(),
                "humidity_then": before.round(1),
                "humidity_now": after.round(1),
                "humidity_swing": swing.round(1),
                "hours_a_week": hours.round(1),
                "drift_cents": (mean + spread * rng.normal(0, 1, n)).round(2),
            }
        )
    )


def parking_fines():
    """What became of a parking fine: paid, paid after a reminder, contested or cancelled."""
    rng = seeded(23004)
    n = 6500
    streets = np.array([f"S{k:03}" for k in range(80)])
    signs = rng.normal(0, 0.9, 80)
    street = np.minimum(rng.exponential(18, n), 79).astype(int)
    plate = rng.choice(["city", "country", "abroad"], n, p=[0.55, 0.35, 0.1])
    reason = rng.choice(
        ["no ticket", "expired", "kerb", "disabled bay"], n, p=[0.4, 0.35, 0.2, 0.05]
    )
    fee = np.select([reason == "disabled bay", reason == "kerb"], [70.0, 35.0], 20.0)
    minute = rng.integers(7 * 60, 21 * 60, n)
    day = rng.integers(0, 365, n)
    over = np.where(reason == "expired", rng.gamma(1.5, 25, n), np.nan)
    firm = rng.random(n) < 0.22
    before = rng.poisson(0.9, n)
    late = np.cos((minute / 60 - 20) * np.pi / 6)
    z = np.stack(
        [
            1.3 - 0.012 * fee + 0.6 * firm + 0.0 * before,
            0.2 + 1.3 * (plate == "abroad") + 0.45 * before - 0.5 * firm,
            -2.0 + 0.03 * fee + 1.7 * signs[street] + 1.0 * late - 0.9 * (plate == "abroad"),
            -2.4 + 1.5 * signs[street] + 1.3 * (np.nan_to_num(over, nan=40) < 12) + 0.8 * late,
        ],
        axis=1,
    )
    z += rng.gumbel(0, 0.75, z.shape)
    names = np.array(["paid", "reminded", "contested", "cancelled"])
    start = datetime(2025, 1, 1)
    at = [start + timedelta(days=int(d), minutes=int(m)) for d, m in zip(day, minute, strict=True)]
    return numbered(
        pl.DataFrame(
            {
                "fined_at": at,
                "street": streets[street],
                "plate": plate,
                "reason": reason,
                "fee": fee,
                "minutes_over": pl.Series(over.round(), nan_to_null=True),
                "company_car": firm,
                "fines_before": before,
                "outcome": names[z.argmax(axis=1)],
            }
        ).sort("fined_at")
    )


def ice_rinks():
    """Hourly power of ice rinks: two days that are over, and the twelve hours to come."""
    rng = seeded(23005)
    span = 24 * 364
    rows = []
    hours = np.arange(span)
    warm = 11 + 10 * np.sin((hours / 24 - 110) * 2 * np.pi / 365)
    warm += 4 * np.sin((hours % 24 - 9) * np.pi / 12)
    slow = np.cumsum(rng.normal(0, 0.35, span))
    warm += slow - np.convolve(slow, np.ones(241) / 241, mode="same")
    for rink in range(10):
        base, slope = rng.uniform(40, 400), rng.uniform(0.012, 0.035)
        lamps, weekly = rng.uniform(0.25, 0.7), rng.random((7, 24)) < 0.0
        for day in range(7):
            first, last = rng.integers(6, 12), rng.integers(17, 23)
            weekly[day, first:last] = rng.random(last - first) < 0.85
        is_open = weekly[(hours // 24) % 7, hours % 24]
        is_open = is_open ^ (rng.random((span // 24, 1)) < 0.08).repeat(24, axis=0).ravel()
        noise = np.zeros(span)
        shock = rng.normal(0, 0.04, span)
        for t in range(1, span):
            noise[t] = 0.85 * noise[t - 1] + shock[t]
        power = base * np.exp(slope * (warm - 11) + lamps * is_open + noise)
        for _ in range(380):
            t = int(rng.integers(48, span - 12))
            rows.append(
                {
                    "now": datetime(2025, 1, 1) + timedelta(hours=t),
                    "rink": f"R{rink}",
                    "power_past": power[t - 48 : t].round(1).tolist(),
                    "open_past": is_open[t - 48 : t].astype(int).tolist(),
                    "open_ahead": is_open[t : t + 12].astype(int).tolist(),
                    "warm_ahead": (warm[t : t + 12] + rng.normal(0, 0.7, 12)).round(1).tolist(),
                    "warm_now": round(float(warm[t - 1]), 1),
                    "power_ahead": power[t : t + 12].round(1).tolist(),
                }
            )
    return numbered(pl.DataFrame(rows).sort("now", "rink"))


def brook_turbidity():
    """Turbidity of brooks every three hours: three days that are over and the next five values."""
    rng = seeded(23006)
    span = 8 * 364
    rows = []
    for brook in range(8):
        base, wash, fall = rng.uniform(0.6, 2.2), rng.uniform(0.25, 0.6), rng.uniform(0.72, 0.9)
        rain = np.where(rng.random(span) < 0.09, rng.gamma(1.2, 2.4, span), 0)
        rain = rain + np.roll(rain, 1) * 0.6
        level = np.zeros(span)
        for t in range(1, span):
            level[t] = fall * level[t - 1] + wash * rain[t - 1] * 0.5 + rng.normal(0, 0.05)
        seen = base + level + rng.standard_t(2, span) * 0.06
        lost = rng.random(span) < 0.06
        for _ in range(420):
            t = int(rng.integers(24, span - 5))
            past = np.where(lost[t - 24 : t], np.nan, seen[t - 24 : t])
            rows.append(
                {
                    "now": datetime(2025, 1, 1) + timedelta(hours=3 * t),
                    "brook": f"B{brook}",
                    "log_ntu_past": [None if np.isnan(v) else round(float(v), 3) for v in past],
                    "rain_past": rain[t - 24 : t].round(1).tolist(),
                    "rain_ahead": rain[t : t + 5].round(1).tolist(),
                    "log_ntu_ahead": seen[t : t + 5].round(3).tolist(),
                }
            )
    return numbered(pl.DataFrame(rows).sort("now", "brook"))


def gym_bookings():
    """Classes that members of a gym booked, oldest first, and the one that they book next."""
    rng = seeded(23007)
    kinds = ["yoga", "spin", "box", "dance", "swim", "core", "lift", "walk"]
    classes = [f"{kind}-{k}" for kind in kinds for k in range(5)]
    follows = rng.dirichlet(np.full(8, 0.25), 8)
    stays = rng.dirichlet(np.full(5, 0.35), (8, 5))
    rows = []
    for member in range(360):
        taste = rng.dirichlet(np.full(8, 0.5))
        kind, k = int(rng.choice(8, p=taste)), int(rng.integers(5))
        booked = []
        for _ in range(int(rng.integers(10, 44))):
            booked.append(classes[kind * 5 + k])
            p = 0.75 * follows[kind] + 0.25 * taste
            kind = int(rng.choice(8, p=p / p.sum()))
            k = int(rng.choice(5, p=stays[kind, k]))
        at = datetime(2025, 1, 1) + timedelta(days=float(rng.uniform(0, 300)))
        for n in range(3, len(booked), 2):
            rows.append(
                {
                    "member": f"M{member:03}",
                    "at": at + timedelta(days=1.3 * n),
                    "booked": booked[:n],
                    "books_next": booked[n],
                }
            )
    return numbered(pl.DataFrame(rows).sort("at", "member"))


def event_tips():
    """Events that an app proposed to its users, and whether they looked closer."""
    rng = seeded(23008)
    n = 12000
    sizes = {"user": 90, "event": 60, "genre": 8, "district": 12, "weekday": 7, "device": 3}
    genre_of, district_of = rng.integers(0, 8, 60), rng.integers(0, 12, 60)
    home, likes = rng.integers(0, 12, 90), rng.normal(0, 1.6, (90, 8))
    near = np.exp(-((np.subtract.outer(np.arange(12), np.arange(12))) ** 2) / 6)
    appeal, busy = rng.normal(0, 0.4, 60), rng.normal(0, 1.2, (8, 7))
    user = np.minimum(rng.exponential(40, n), 89).astype(int)
    event, weekday = rng.integers(0, 60, n), rng.integers(0, 7, n)
    device, genre = rng.integers(0, 3, n), genre_of[event]
    z = -2.9 + likes[user, genre] + appeal[event] + busy[genre, weekday] + 0.4 * (device == 1)
    z += 1.8 * near[home[user], district_of[event]]
    looked = rng.random(n) < _chance(z)
    codes = {
        "user": user, "event": event, "genre": genre, "district": district_of[event],
        "weekday": weekday, "device": device,
    }  # fmt: skip
    start = datetime(2025, 1, 1)
    at = [start + timedelta(minutes=float(m)) for m in np.sort(rng.uniform(0, 525000, n))]
    columns = {c: [f"{c[:2]}{v}" for v in codes[c]] for c in sizes}
    return numbered(pl.DataFrame({"shown_at": at, **columns, "looked": looked}))


def typing_sessions():
    """How fast words were typed, key by key, in milliseconds; and which of ten typists did."""
    rng = seeded(23009)
    keys = "etaoinshrdlu "
    hold, gap = rng.normal(4.5, 0.2, (10, 13)), rng.normal(4.9, 0.28, (10, 13))
    hand = rng.normal(0, 0.2, (10, 2, 2))
    rows = []
    for session in range(420):
        who = int(rng.choice(10, p=np.array([18, 15, 14, 12, 10, 9, 8, 6, 5, 3]) / 100))
        tired, board = rng.normal(0, 0.25, 2), rng.normal(0, 0.22, 13)
        system = rng.choice(["linux", "mac", "windows"], p=[0.3, 0.3, 0.4])
        for _ in range(int(rng.integers(5, 12))):
            typed = rng.integers(0, 13, int(rng.integers(9, 30)))
            turn = hand[who, typed % 2, np.roll(typed, 1) % 2]
            held = np.exp(
                hold[who, typed] + board[typed] + tired[0] + rng.normal(0, 0.3, len(typed))
            )
            wait = np.exp(gap[who, typed] + turn + tired[1] + rng.normal(0, 0.4, len(typed)))
            rows.append(
                {
                    "session": f"K{session:03}",
                    "system": system,
                    "keys": "".join(keys[k] for k in typed),
                    "held_ms": held.round(1).tolist(),
                    "wait_ms": wait.round(1).tolist(),
                    "typist": f"typist {who}",
                }
            )
    return numbered(pl.DataFrame(rows))
