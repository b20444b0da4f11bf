"""Tables, forecasts and recommendations of the ninth list: ordinary ones, with noise that no model explains."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import sigmoid


def listings():
    """Flats on offer: a description already turned into 24 numbers by another team's model, and a price."""
    rng = seeded(901)
    n = 2400
    topics = rng.normal(size=(n, 5))
    vector = topics @ rng.normal(size=(5, 24)) + 0.3 * rng.normal(size=(n, 24))
    rooms, area = rng.integers(1, 7, n), rng.gamma(9, 9, n).round(1)
    price = 6.2 + 0.75 * np.log(area) + 0.05 * rooms + 0.25 * topics[:, 0] - 0.2 * topics[:, 1]
    price = np.exp(price + 0.12 * rng.normal(size=n)).round(-1)
    return numbered(
        pl.DataFrame(
            {"vector": vector.round(4).tolist(), "rooms": rooms, "area": area, "price": price}
        )
    )


def tumour_markers():
    """Few patients, very many columns of counts, a sixth of which have something to do with the answer."""
    rng = seeded(903)
    n, k = 420, 600
    ill = rng.random(n) < 0.4
    level = rng.normal(3, 1, k)[None] + 0.6 * rng.normal(size=(n, 1))
    effect = np.where(rng.random(k) < 0.16, rng.normal(scale=0.7, size=k), 0)
    counts = rng.poisson(np.exp(level + ill[:, None] * effect + 0.4 * rng.normal(size=(n, k))))
    frame = pl.DataFrame(counts, schema=[f"marker {i:03}" for i in range(k)])
    return numbered(frame.with_columns(relapse=pl.Series(np.where(ill, "yes", "no"))))


def help_desk():
    """Tickets: product names with odd characters, gaps, and the team that solved each."""
    rng = seeded(905)
    n = 3600
    products = [
        "Café+",
        "naïve™",
        "Żółw 2.0",
        'the "big" one',
        "a,b;c",
        "𝛑-box",
        "日本語",
        "%s",
        "  ",
        "O'Neil\n",
    ]
    product = rng.integers(0, len(products), n)
    channel = rng.choice(["e-mail", "téléphone", "chat 💬"], n, p=[0.5, 0.3, 0.2])
    spoken = np.array(["pl", "de-CH", "fr", ""])[rng.integers(0, 4, n)]
    minutes = rng.lognormal(2.5, 1.0, n).round(1)
    teams = ["billing", "login / SSO", "hardware", "other…"]
    logits = 1.6 * rng.normal(size=(len(products), 4))[product]
    logits[:, 2] += 1.2 * (np.log(minutes) - 2.5)
    logits[:, 1] += 1.5 * (channel == "chat 💬")
    logits[:, 3] += 1.0 * (spoken == "")
    team = (logits + rng.gumbel(size=(n, 4))).argmax(1)
    gone = rng.random(n) < 0.07
    return numbered(
        pl.DataFrame(
            {
                "product": [None if g else products[k] for g, k in zip(gone, product, strict=True)],
                "channel": channel, "spoken": spoken, "minutes": minutes,
                "team": [teams[k] for k in team],
            }
        )
    )  # fmt: skip


def boilers():
    """Sensors of boilers, a third of the readings missing; a fault in the next week is rare."""
    rng = seeded(907)
    n = 6000
    state = rng.normal(size=(n, 3))
    x = state @ rng.normal(size=(3, 9)) + 0.5 * rng.normal(size=(n, 9))
    x = x * np.geomspace(0.01, 300, 9) + np.geomspace(1, 2000, 9)
    silent = rng.random((n, 9)) < 0.33
    fault = rng.random(n) < sigmoid(-4.2 + 1.7 * state[:, 0] + 0.9 * silent[:, 0])
    frame = pl.DataFrame(np.where(silent, np.nan, x), schema=[f"sensor_{i}" for i in range(9)])
    return numbered(frame.fill_nan(None).with_columns(fault=pl.Series(fault)))


def bakery():
    """Loaves of 25 branches per day: four weeks past, and the coming day; branches differ a hundredfold."""
    rng = seeded(909)
    rows = []
    week = np.array([0.9, 0.85, 0.9, 1.0, 1.25, 1.5, 0.4])
    for shop in range(25):
        level = np.exp(rng.uniform(2, 6.5))
        drift = np.cumsum(rng.normal(scale=0.05, size=240))
        y = rng.poisson(
            level * np.exp(drift - drift.mean()) * np.roll(week, shop % 3)[np.arange(240) % 7]
        )
        for i in range(28, 240):
            day = datetime(2024, 1, 1) + timedelta(days=i)
            rows.append(
                (f"branch {shop}", day, y[i - 28 : i].tolist(), bool(i % 7 == 6), float(y[i]))
            )
    names = ["branch", "day", "past", "sunday", "loaves"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("day", "branch"))


def stars_of_dishes():
    """One to five stars of diners for dishes; most give four or five."""
    rng = seeded(911)
    n = 12000
    diner, dish = rng.integers(0, 400, n), rng.integers(0, 160, n)
    u, v = rng.normal(size=(400, 3)), rng.normal(size=(160, 3))
    z = 0.5 * rng.normal(size=400)[diner] + 0.7 * rng.normal(size=160)[dish]
    z = z + 0.5 * (u[diner] * v[dish]).sum(1) + 0.5 * rng.logistic(size=n)
    frame = pl.DataFrame(
        {"diner": diner, "dish": dish, "stars": 1 + np.digitize(z, [-2.2, -1.4, -0.6, 0.8])}
    )
    return numbered(frame.unique(["diner", "dish"], maintain_order=True))


def hotel_searches():
    """Two to eight hotels of a search, each with price, stars and distance, and which was booked."""
    rng = seeded(913)
    rows = []
    for _ in range(3200):
        k = int(rng.integers(2, 9))
        price, stars, far = rng.lognormal(4.5, 0.5, k), rng.integers(1, 6, k), rng.exponential(3, k)
        nights = int(rng.integers(1, 8))
        worth = -2.2 * np.log(price / 90) * (1 + 0.15 * nights) + 0.7 * stars - 0.35 * far
        booked = int((worth + rng.gumbel(size=k)).argmax())
        rows.append(
            (nights, price.round(2).tolist(), stars.tolist(), far.round(2).tolist(), booked)
        )
    names = ["nights", "price", "stars", "km", "booked"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def raters():
    """Comments described by ten numbers; five raters each chose one of three labels: shares."""
    rng = seeded(915)
    x = rng.normal(size=(2600, 10))
    logits = np.tanh(x @ rng.normal(size=(10, 8))) @ rng.normal(size=(8, 3))
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    votes = np.stack([rng.multinomial(5, row) for row in p]) / 5
    frame = pl.DataFrame(x.round(4), schema=[f"x{i}" for i in range(10)])
    return numbered(frame.with_columns(votes=pl.Series(votes.tolist())))


def turbines():
    """Operating points of turbines, strongly correlated, and the heat rate."""
    rng = seeded(917)
    state = rng.uniform(-1, 1, size=(2800, 3))
    x = np.concatenate([state, state**2, state[:, :1] * state[:, 1:]], 1)
    x = x @ rng.normal(size=(8, 12)) + 0.1 * rng.normal(size=(2800, 12))
    heat = 9100 + 320 * state[:, 0] - 180 * state[:, 1] * state[:, 2] + 60 * rng.normal(size=2800)
    frame = pl.DataFrame(x.round(4), schema=[f"tag{i:02}" for i in range(12)])
    return numbered(frame.with_columns(heat_rate=pl.Series(heat.round(1))))


def parcels():
    """Parcels of 40 depots: days each was insured, and whether it was damaged; few were."""
    rng = seeded(919)
    n = 7000
    depot = rng.integers(0, 40, n)
    days = rng.choice([1, 2, 3, 5, 10, 30], n, p=[0.3, 0.25, 0.2, 0.1, 0.1, 0.05])
    weight, fragile = rng.lognormal(0.5, 0.9, n).round(2), rng.random(n) < 0.25
    rate = -2.6 + 0.8 * rng.normal(size=40)[depot] + 1.6 * fragile + 0.5 * np.log(weight)
    return numbered(
        pl.DataFrame(
            {
                "depot": [f"D-{k:02}" for k in depot.tolist()], "kg": weight, "fragile": fragile,
                "days": days, "damaged": (rng.random(n) < sigmoid(rate)).astype(np.int64),
            }
        )
    )  # fmt: skip


def pollen():
    """A year and a half of daily pollen counts, and tomorrow's warning: none, low, high."""
    rng = seeded(921)
    rows = []
    for town in range(8):
        t = np.arange(1100)
        season = 3.2 * np.cos(2 * np.pi * (t - 120 - 4 * town) / 365.25)
        wet = np.zeros(1100)
        for i in range(1, 1100):
            wet[i] = 0.85 * wet[i - 1] + rng.normal(scale=0.5)
        y = rng.poisson(np.exp(0.8 + season - 0.7 * wet))
        for i in range(500, 1099, 2):
            level = int(np.digitize(y[i], [3, 30]))
            rows.append(
                (
                    f"town{town}",
                    datetime(2021, 1, 1) + timedelta(days=i),
                    y[i - 500 : i].tolist(),
                    ["none", "low", "high"][level],
                )
            )
    frame = pl.DataFrame(rows, schema=["town", "day", "counts", "warning"], orient="row")
    return numbered(frame.sort("day", "town"))


def car_parks():
    """The share of a car park that is taken, by hour, weekday and rain."""
    rng = seeded(923)
    n = 4000
    hour, weekday, rain = rng.integers(0, 24, n), rng.integers(0, 7, n), rng.random(n) < 0.2
    park = rng.integers(0, 12, n)
    z = -0.5 + 1.5 * np.sin((hour - 8) / 24 * 2 * np.pi) - 1.0 * (weekday > 4) + 0.5 * rain
    p = sigmoid(z + 0.8 * rng.normal(size=12)[park])
    share = rng.beta(14 * p, 14 * (1 - p)).round(3).clip(0, 1)
    return numbered(
        pl.DataFrame({"park": park, "hour": hour, "weekday": weekday, "rain": rain, "share": share})
    )


def invoices():
    """Invoices: amounts as decimals, dates, an ordered category, and the days until they were paid."""
    rng = seeded(925)
    n = 3000
    amount, size = rng.lognormal(6, 1.2, n).round(2), rng.integers(0, 3, n)
    issued = [datetime(2024, 1, 1) + timedelta(days=int(d)) for d in rng.integers(0, 360, n)]
    end = np.array([day.day > 24 for day in issued])
    days = np.exp(
        2.6 + 0.15 * np.log(amount / 400) + 0.35 * size - 0.3 * end + 0.3 * rng.standard_t(4, n)
    )
    return numbered(
        pl.DataFrame(
            {
                "issued": issued, "amount": amount,
                "size": pl.Series([["small", "medium", "large"][k] for k in size]).cast(pl.Categorical),
                "days_to_pay": np.ceil(days).clip(1, 400).astype(np.int32),
            }
        ).with_columns(pl.col("issued").dt.date(), pl.col("amount").cast(pl.Decimal(12, 2)))
    )  # fmt: skip


def kilns():
    """A hundred and sixty firings: seven settings, and whether the tile cracked."""
    rng = seeded(927)
    x = rng.normal(size=(160, 7))
    cracked = rng.random(160) < sigmoid(2.2 * x[:, 0] - 1.5 * x[:, 3] - 0.4)
    frame = pl.DataFrame(x.round(2), schema=[f"setting_{c}" for c in "abcdefg"])
    return numbered(frame.with_columns(cracked=pl.Series(cracked.astype(np.int8))))


def feeders():
    """A feeder's load, two days past and the six hours to come, some of which were not metered."""
    rng = seeded(929)
    t = np.arange(5200)
    y = (
        40
        + 12 * np.sin(2 * np.pi * t / 24)
        + 5 * np.sin(4 * np.pi * t / 24 + 1)
        - 6 * (t // 24 % 7 > 4)
    )
    noise = np.zeros(5200)
    for i in range(1, 5200):
        noise[i] = 0.9 * noise[i - 1] + rng.normal()
    y = (y + noise).round(2)
    rows = []
    for i in range(48, 5190, 2):
        ahead = [None if rng.random() < 0.15 else v for v in y[i : i + 6].tolist()]
        rows.append((datetime(2023, 1, 1) + timedelta(hours=i), y[i - 48 : i].tolist(), ahead))
    return numbered(pl.DataFrame(rows, schema=["at", "load", "ahead"], orient="row"))


def shop_orders():
    """What a shop knows before an order is sent, and which of six kinds of trouble came of it, if any."""
    rng = seeded(931)
    n = 4000
    x = rng.normal(size=(n, 8))
    country = rng.choice(["DE", "FR", "NL", "PL", None], n, p=[0.4, 0.25, 0.15, 0.1, 0.1])
    w = rng.normal(size=(8, 6))
    trouble = rng.random((n, 6)) < sigmoid(x @ w + np.array([-3, -4, -2, -2.5, -3, -1.5]))
    frame = pl.DataFrame(x.round(3), schema=[f"s{k}" for k in range(8)])
    return numbered(
        frame.with_columns(
            country=pl.Series(country.tolist()), trouble=pl.Series(trouble.astype(int).tolist())
        )
    )


def courses():
    """What learners took before, of ninety courses, and whether they finished the one at hand."""
    rng = seeded(933)
    topic = rng.integers(0, 9, 90)
    rows = []
    for _ in range(12000):
        liked = rng.choice(9, 2, replace=False)
        pool = np.flatnonzero(np.isin(topic, liked)) if rng.random() < 0.8 else np.arange(90)
        taken = rng.choice(pool, min(len(pool), int(rng.integers(0, 9))), replace=False)
        course = int(rng.integers(90))
        z = -1.2 + 2.4 * np.isin(topic[course], liked) + 0.1 * len(taken)
        rows.append(
            (
                [f"c{k}" for k in taken],
                f"c{course}",
                "done" if rng.random() < sigmoid(z) else "left",
            )
        )
    return numbered(pl.DataFrame(rows, schema=["taken", "course", "outcome"], orient="row"))
