"""Datasets of the fourteenth list: members, loans, kiosks, moulded parts, policies, podcasts and visits to a shop."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import sigmoid


def _with_gaps(rng, values, share):
    """The values as a list, a share of them missing."""
    is_gone = rng.random(len(values)) < share
    return [
        None if gone else v
        for v, gone in zip(np.asarray(values).tolist(), is_gone.tolist(), strict=True)
    ]


def gym_members():
    """Members of a chain of gyms on a day of billing, and whether they had left two months later."""
    rng = seeded(14001)
    n = 7000
    people = 2600
    who = np.sort(rng.integers(0, people, n))
    club = rng.integers(0, 24, people)[who]
    plan = rng.choice(4, people, p=[0.45, 0.3, 0.2, 0.05])[who]
    channel = rng.choice(6, people, p=[0.4, 0.2, 0.15, 0.15, 0.07, 0.03])[who]
    age = np.clip(rng.gamma(7, 5.2, people), 16, 82).round()[who]
    zeal = rng.normal(0, 1, people)[who]
    months = rng.gamma(1.4, 11, n).round()
    day = rng.integers(0, 300, n)
    lately = rng.poisson(np.exp(1.3 + 0.7 * zeal))
    before = rng.poisson(np.exp(1.4 + 0.7 * zeal))
    never = (lately + before == 0) & (rng.random(n) < 0.6)
    days = np.where(lately > 0, rng.integers(0, 12, n), rng.integers(20, 120, n))
    price = np.array([19.9, 29.9, 39.9, 59.0])[plan] - 5 * (rng.random(n) < 0.2)
    z = -2.3 - 0.12 * lately + 0.10 * before + 1.1 * (days > 30) + 1.3 * never - 0.02 * months
    z += np.array([0.5, 0.0, -0.5, -1.1])[plan] + np.array([0, 0.1, 0.7, -0.3, 0, 0.5])[channel]
    z += rng.normal(0, 0.5, 24)[club] + 0.5 * (age < 26) + 0.3 * np.sin(day / 365 * 2 * np.pi)
    plans = np.array(["basic", "flex", "all-clubs", "family"])
    channels = np.array(["web", "walk-in", "promo-stand", "friend", "employer", "outlet"])
    frame = pl.DataFrame(
        {
            "billed_on": [date(2023, 3, 1) + timedelta(days=int(d)) for d in day],
            "member": [f"M{k:05}" for k in who],
            "club": [f"club-{k:02}" for k in club],
            "plan": plans[plan],
            "channel": _with_gaps(rng, channels[channel], 0.08),
            "age": _with_gaps(rng, age, 0.12),
            "months_joined": months,
            "visits_30d": lately,
            "visits_prev_30d": before,
            "days_since_visit": [None if x else int(d) for x, d in zip(never, days, strict=True)],
            "price": price.round(2),
            "churned": (rng.random(n) < sigmoid(z)).astype(int),
        }
    )
    again = frame.sample(60, seed=1)
    return numbered(pl.concat([frame, again]).sort("billed_on", "member"))


def loan_files():
    """Applications for small loans, and how they went: repaid, repaid late, or not."""
    rng = seeded(14002)
    n = 6000
    day = np.sort(rng.integers(0, 720, n))
    savings = rng.choice(5, n, p=[0.38, 0.25, 0.14, 0.08, 0.15])
    job = rng.choice(5, n, p=[0.06, 0.17, 0.34, 0.25, 0.18])
    purpose = rng.choice(7, n, p=[0.28, 0.22, 0.18, 0.12, 0.1, 0.07, 0.03])
    income = np.exp(rng.normal(7.6, 0.45, n) + 0.08 * job)
    months = rng.choice([6, 12, 18, 24, 36, 48, 60], n, p=[0.07, 0.22, 0.15, 0.24, 0.18, 0.1, 0.04])
    amount = np.exp(rng.normal(7.3, 0.6, n)) * (months / 12) ** 0.7
    age = np.clip(rng.gamma(9, 4.2, n), 19, 79).round()
    cards = rng.poisson(1.3, n)
    burden = amount / months / income
    z = 0.7 * np.log(burden / 0.06) - np.array([-0.5, 0.0, 0.4, 0.9, 0.2])[savings]
    z += np.array([0.6, 0.4, 0.0, -0.3, -0.4])[job] + 0.35 * (cards > 2)
    z += np.array([0.0, 0.2, -0.2, 0.1, 0.6, 0.3, 0.9])[purpose] - 0.015 * (age - 36)
    z += rng.logistic(0, 0.5, n)
    outcome = np.where(z > 1.6, "default", np.where(z > 0.75, "late", "repaid"))
    levels = np.array(["< 100", "100 to 500", "500 to 1000", ">= 1000", "no account"])
    jobs = np.array(["none", "< 1 year", "1 to 4 years", "4 to 7 years", ">= 7 years"])
    uses = ["car", "furniture", "tv", "repairs", "business", "education", "other"]
    return numbered(
        pl.DataFrame(
            {
                "applied_on": [date(2022, 1, 3) + timedelta(days=int(d)) for d in day],
                "sales_channel": rng.choice(["branch", "web", "app"], n, p=[0.4, 0.35, 0.25]),
                "savings": levels[savings],
                "employed_since": _with_gaps(rng, jobs[job], 0.05),
                "purpose": np.array(uses)[purpose],
                "income_per_month": _with_gaps(rng, income.round(-1), 0.1),
                "amount": amount.round(-1),
                "months": months,
                "age": age,
                "cards": cards,
                "outcome": outcome,
            }
        )
    )


def kiosk_days():
    """Bottles that kiosks sell a day, days ahead: what was sold until the day of issue, what is known of the target day."""
    rng = seeded(14003)
    kiosks, days = 30, 420
    start = date(2023, 1, 2)
    t = np.arange(days)
    warm = (
        12
        - 11 * np.cos((t - 20) / 365 * 2 * np.pi)
        + np.convolve(rng.normal(0, 3, days), [0.5, 0.3, 0.2], "same")
    )
    holiday = rng.random(days) < 0.03
    rows = []
    for k in range(kiosks):
        level, heat = rng.normal(2.2, 0.6), rng.normal(0.035, 0.01)
        week = rng.normal(0, 0.12, 7) + np.array([0, 0, 0, 0, 0.15, 0.45, -0.5]) * rng.choice(
            [1, -0.6], p=[0.8, 0.2]
        )
        promo = np.repeat(rng.random(days // 7 + 1) < 0.15, 7)[:days]
        drift = np.cumsum(rng.normal(0, 0.012, days))
        rate = level + heat * (warm - 12) + week[t % 7] + 0.5 * promo - 0.7 * holiday + drift
        sold = rng.poisson(np.exp(rate + rng.normal(0, 0.15, days)))
        sold = np.where(rng.random(days) < 0.01, 0, sold)
        for d in range(28 + k % 3, days - 14, 9):
            for h in (1, 2, 3, 7, 14):
                aim = d + h
                same = [sold[i] for i in range(aim - 7, 0, -7) if i <= d][:3]
                rows.append(
                    {
                        "issued_on": start + timedelta(days=d),
                        "kiosk": f"K{k:03}",
                        "horizon": h,
                        "promo": bool(promo[aim]),
                        "holiday": bool(holiday[aim]),
                        "temperature_forecast": float(np.round(warm[aim] + rng.normal(0, 0.8 + 0.15 * h), 1)),
                        "sold_today": float(sold[d]) if rng.random() > 0.02 else None,
                        "mean_7": round(float(sold[d - 6 : d + 1].mean()), 2),
                        "mean_28": round(float(sold[d - 27 : d + 1].mean()), 2),
                        "same_weekday": round(float(np.mean(same)), 2),
                        "sold": int(sold[aim]),
                    }
                )  # fmt: skip
    return numbered(pl.DataFrame(rows).sort("issued_on", "kiosk", "horizon"))


def moulded_parts():
    """Shots of injection moulding presses: settings and sensors, and the part's weight, length and warp."""
    rng = seeded(14004)
    n = 5000
    press = rng.integers(0, 6, n)
    shot = np.sort(rng.uniform(0, 90 * 24 * 60, n))
    hum = 50 + 12 * np.sin(shot / 1440 * 2 * np.pi) + rng.normal(0, 4, n)
    melt = 232 + rng.normal(0, 6, n) + np.array([0, 2, -3, 1, 4, -2])[press]
    mould = 58 + rng.normal(0, 4, n) + 3 * np.sin(shot / 9000)
    hold = rng.normal(620, 60, n)
    speed = rng.normal(75, 9, n)
    cool = rng.choice([12.0, 14.0, 16.0, 18.0], n, p=[0.2, 0.4, 0.3, 0.1]) + rng.normal(0, 0.2, n)
    material = rng.choice(3, n, p=[0.6, 0.3, 0.1])
    a, b, c, d = (melt - 232) / 6, (mould - 58) / 4, (hold - 620) / 60, (cool - 14.6) / 1.8
    weight = 46 + 0.35 * c - 0.12 * a + np.array([0, 0.6, -0.9])[material] + 0.1 * a * c
    weight += np.array([0, 0.2, -0.1, 0.3, 0.0, -0.2])[press] + rng.normal(0, 0.12, n)
    length = 181 + 0.09 * c - 0.07 * b + 0.05 * d - 0.04 * a + rng.normal(0, 0.03, n)
    length += np.array([0, -0.08, 0.06])[material]
    warp = 0.4 + 0.09 * np.abs(b + 0.5 * a) - 0.06 * d + 0.04 * np.maximum(c - 1, 0)
    warp += 0.002 * (hum - 50) + rng.normal(0, 0.03, n)
    start = datetime(2024, 2, 1)
    names = np.array(["PP-20", "PP-30", "recycled"])
    return numbered(
        pl.DataFrame(
            {
                "shot_at": [start + timedelta(minutes=float(m)) for m in shot],
                "press": [f"press-{k + 1}" for k in press],
                "material": names[material],
                "melt_temperature": _with_gaps(rng, melt.round(1), 0.03),
                "mould_temperature": mould.round(1),
                "holding_pressure": hold.round(0),
                "injection_speed": speed.round(1),
                "cooling_seconds": cool.round(2),
                "humidity": _with_gaps(rng, hum.round(0), 0.15),
                "quality": [[round(float(v), 3) for v in one] for one in zip(weight, length, warp.clip(0.05), strict=True)],
            }
        )
    )  # fmt: skip


def home_policies():
    """Policies of home insurance: what is insured, for how much of a year, and how many claims came."""
    rng = seeded(14005)
    n = 8000
    kind = rng.choice(4, n, p=[0.45, 0.3, 0.2, 0.05])
    region = rng.choice(15, n, p=rng.dirichlet(np.full(15, 4.0)))
    built = np.clip(rng.normal(1975, 25, n), 1880, 2023).round()
    area = np.exp(rng.normal(4.5, 0.4, n)).round()
    bonus = rng.choice(8, n, p=[0.3, 0.18, 0.14, 0.11, 0.09, 0.08, 0.06, 0.04])
    exposure = np.where(rng.random(n) < 0.4, 1.0, rng.uniform(0.03, 1.0, n)).round(3)
    z = -1.75 + np.array([0, 0.35, 0.5, 0.9])[kind] + rng.normal(0, 0.35, 15)[region]
    z += 0.5 * np.log(area / 90) + 0.16 * bonus + 0.35 * (built < 1950) - 0.3 * (built > 2005)
    alarm = rng.random(n) < 0.25
    rate = np.exp(z - 0.35 * alarm) * rng.gamma(2.5, 1 / 2.5, n)
    kinds = np.array(["flat", "terraced", "detached", "farm"])
    frame = pl.DataFrame(
        {
            "building": kinds[kind],
            "region": [f"R{k:02}" for k in region],
            "built": _with_gaps(rng, built, 0.1),
            "living_area": area,
            "bonus_class": bonus,
            "alarm": np.where(alarm, "yes", "no"),
            "exposure": exposure,
            "claims": rng.poisson(rate * exposure),
        }
    )
    return numbered(frame)


def podcast_offers():
    """Podcasts that an app offered: who listened to which, with two offers of chance for each that was played."""
    rng = seeded(14006)
    people, shows, k = 130, 80, 3
    taste, style = rng.normal(0, 1, (people, k)), rng.normal(0, 1, (shows, k))
    category = style[:, :2].argmax(1) * 3 + rng.integers(0, 3, shows)
    publisher = rng.integers(0, 25, shows)
    minutes = np.exp(rng.normal(3.4, 0.5, shows)).round()
    country = rng.integers(0, 9, people)
    age = np.clip(rng.normal(35, 11, people), 15, 80).round()
    popular = np.log(1 / np.arange(1, shows + 1) ** 0.6)
    wish = 1.2 * taste @ style.T + popular + 0.5 * (country[:, None] == publisher[None, :] % 9)
    likely = np.exp(wish - wish.max(1, keepdims=True))
    likely /= likely.sum(1, keepdims=True)
    names = ["news", "crime", "comedy", "sport", "science", "history"]
    start, rows = datetime(2024, 1, 1), []
    for u in range(people):
        for _ in range(int(rng.integers(8, 29))):
            played = int(rng.choice(shows, p=likely[u]))
            at = start + timedelta(minutes=float(rng.uniform(0, 150 * 1440)))
            for s, y in [(played, 1), *[(int(x), 0) for x in rng.integers(0, shows, 2)]]:
                if y == 0 and s == played:
                    continue
                rows.append(
                    {
                        "offered_at": at,
                        "listener": f"u{u:04}",
                        "country": f"C{country[u]}",
                        "age": None if u % 7 == 0 else float(age[u]),
                        "show": f"show-{s:03}",
                        "category": names[category[s]],
                        "publisher": f"pub-{publisher[s]:02}",
                        "minutes": float(minutes[s]),
                        "played": y,
                    }
                )
    return numbered(pl.DataFrame(rows).sort("offered_at", "listener", "show"))


STEPS = ("view", "search", "cart", "remove", "pay", "leave")


def shop_visits():
    """Visits to a web shop up to a moment: what was done, on which kind of page, with which pauses, and what is done next."""
    rng = seeded(14007)
    table = np.array([[5, 2, 1.6, 0, 0.1, 0.5], [6, 2, 0.4, 0, 0, 0.4], [3, 1, 1, 0.8, 0.9, 0.2],
                      [3, 1.5, 0.6, 0.3, 0.3, 0.9]])  # fmt: skip
    pages = ["home", "shoes", "coats", "sale", "bags", "help"]
    rows = []
    for v in range(2400):
        start = datetime(2024, 3, 1) + timedelta(minutes=float(rng.uniform(0, 60 * 1440)))
        kinds, where, pauses, page = [0], [0], [0.0], 0
        in_cart, aim = 0, rng.normal(0, 1)
        for _ in range(int(rng.integers(6, 40))):
            p = table[kinds[-1]].copy()
            p[4] *= np.exp(0.8 * aim) * (2.5 * min(in_cart, 2) if in_cart else 0)
            p[3] *= in_cart > 0
            p[2] *= np.exp(0.3 * aim) * (1 + (page == 3))
            p[5] *= np.exp(-0.2 * aim) * (2.5 if pauses[-1] > 90 else 0.7)
            step = int(rng.choice(6, p=p / p.sum()))
            if step > 3:
                kinds.append(step)
                break
            page = int(rng.choice(6)) if rng.random() < 0.35 else page
            in_cart += (step == 2) - (step == 3)
            kinds.append(step)
            where.append(page)
            pauses.append(float(np.round(np.exp(rng.normal(2.8 + 0.6 * (page == 5), 1.1)), 1)))
        cuts = {len(kinds) - 1, int(rng.integers(1, len(kinds))), int(rng.integers(1, len(kinds)))}
        for cut in sorted(cuts):
            rows.append(
                {
                    "at": start + timedelta(seconds=sum(pauses[:cut])),
                    "visitor": f"v{int(v * 0.8):05}",
                    "device": ["phone", "desktop", "tablet"][v % 7 % 3],
                    "steps": [STEPS[s] for s in kinds[:cut]],
                    "pages": [pages[s] for s in where[:cut]],
                    "pauses": pauses[:cut],
                    "next_step": STEPS[kinds[cut]],
                }
            )
    return numbered(pl.DataFrame(rows).sort("at", "visitor"))
