"""Datasets of the fifth list: honest synthetic ones in the shape of the best-known tables and notebooks."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid


def credit_cards():
    """Does a card's holder default next month? One in five, in the columns of the Taiwanese table."""
    rng = seeded(301)
    n = 6000
    limit, age = np.round(rng.lognormal(11.7, 0.7, n), -4) + 10000, rng.integers(21, 70, n)
    sex, school, married = rng.integers(1, 3, n), rng.integers(1, 5, n), rng.integers(1, 4, n)
    habit = rng.normal(size=n)
    late = [
        np.clip(np.round(habit + rng.normal(scale=0.7, size=n)), -2, 6).astype(int)
        for _ in range(3)
    ]
    bills = [np.round(limit * rng.beta(1.2, 2, n)) for _ in range(3)]
    paid = [np.round(b * sigmoid(-habit + rng.normal(size=n)) * 0.4) for b in bills]
    logit = -1.9 + 0.75 * late[0] + 0.3 * np.maximum(late[1], 0) - 0.35 * (np.log(limit) - 11.7)
    logit += 0.02 * (age - 40) - 0.25 * (school == 1) + 0.8 * (bills[0] / limit - 0.4)
    y = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    columns = {"LIMIT_BAL": limit, "AGE": age, "SEX": sex, "EDUCATION": school, "MARRIAGE": married}
    for k in range(3):
        columns |= {f"PAY_{k}": late[k], f"BILL_AMT{k}": bills[k], f"PAY_AMT{k}": paid[k]}
    return numbered(pl.DataFrame(columns | {"default": y}))


def telco():
    """Customers of a telephone company; strings everywhere, some missing; who left is Yes or No."""
    rng = seeded(303)
    n = 5000
    tenure, monthly = rng.integers(0, 73, n), np.round(rng.uniform(18, 119, n), 2)
    contract = rng.choice(["Month-to-month", "One year", "Two year"], n, p=[0.55, 0.21, 0.24])
    net = rng.choice(["DSL", "Fiber optic", "No"], n, p=[0.34, 0.44, 0.22])
    pay = rng.choice(["Electronic check", "Mailed check", "Bank transfer", "Credit card"], n)
    logit = -0.6 + 1.1 * (contract == "Month-to-month") - 1.0 * (contract == "Two year")
    logit += 0.8 * (net == "Fiber optic") - 0.7 * (net == "No") + 0.5 * (pay == "Electronic check")
    logit += -0.035 * (tenure - 32) + 0.01 * (monthly - 65)
    churn = np.where(rng.random(n) < sigmoid(logit), "Yes", "No")
    total = np.round(tenure * monthly * rng.uniform(0.95, 1.05, n), 2)
    hidden = rng.random((3, n)) < [[0.08], [0.05], [0.03]]
    frame = pl.DataFrame(
        {
            "tenure": tenure, "MonthlyCharges": monthly, "TotalCharges": total, "Contract": contract,
            "InternetService": net, "PaymentMethod": pay, "Churn": churn,
        }
    )  # fmt: skip
    masks = zip(["PaymentMethod", "InternetService", "TotalCharges"], hidden, strict=True)
    missing = [
        pl.when(pl.lit(pl.Series(h))).then(None).otherwise(pl.col(c)).alias(c) for c, h in masks
    ]
    return numbered(frame.with_columns(missing))


def store_sales():
    """Two years of a chain's daily takings by store, in money: what Rossmann's table looks like."""
    rng = seeded(305)
    rows = []
    for store in range(30):
        size, kind = rng.normal(8.7, 0.35), "abcd"[rng.integers(0, 4)]
        distance = float(np.round(rng.lognormal(7, 1), -1))
        for k in range(0, 730):
            if rng.random() < 0.6:
                continue
            day = date(2022, 1, 1) + timedelta(days=k)
            promo, holiday = int(rng.random() < 0.4), str(rng.choice(["0", "a"], p=[0.95, 0.05]))
            log = size + 0.1 * (kind == "b") + 0.28 * promo + 0.2 * (holiday == "a")
            log += [0.2, 0.05, 0.0, 0.0, 0.05, 0.0, -0.4][day.weekday()]
            log += 0.25 * (day.month == 12) - 0.05 * (day.month in (1, 2)) + rng.normal(scale=0.12)
            rows.append(
                (day, f"S{store:03}", kind, distance, promo, holiday, float(np.round(np.exp(log))))
            )
    names = ["Date", "Store", "StoreType", "CompetitionDistance", "Promo", "StateHoliday", "Sales"]
    frame = pl.DataFrame(rows, schema=names, orient="row").sort("Date", "Store")
    day = pl.col("Date").dt
    return numbered(frame.with_columns(DayOfWeek=day.weekday(), Month=day.month()))


def bike_sharing():
    """Bicycles rented per hour over a year and a half, in the Washington table's columns."""
    rng = seeded(307)
    n = 13000
    t = np.arange(n)
    hour, day = t % 24, t // 24
    season = np.sin(2 * np.pi * (day - 110) / 365)
    temp = np.clip(
        0.5
        + 0.28 * season
        + 0.08 * np.sin(2 * np.pi * (hour - 9) / 24)
        + rng.normal(scale=0.05, size=n),
        0,
        1,
    )
    hum, wind = np.clip(rng.normal(0.62, 0.17, n), 0, 1), np.clip(rng.gamma(3, 0.065, n), 0, 1)
    sky = np.repeat(rng.choice(["clear", "mist", "rain"], n // 6 + 1, p=[0.65, 0.26, 0.09]), 6)[:n]
    start = datetime(2021, 1, 1)
    when = [start + timedelta(hours=int(k)) for k in t]
    free = np.array([w.weekday() >= 5 for w in when])
    rush = np.exp(-((hour - 8) ** 2) / 3) + np.exp(-((hour - 17.5) ** 2) / 5)
    ease = 0.8 * np.exp(-((hour - 14) ** 2) / 22)
    level = 40 + 420 * np.where(free, ease, rush + 0.25 * ease)
    level = level * (0.35 + 1.2 * temp) * (1 - 0.35 * hum) * np.where(sky == "rain", 0.5, 1.0)
    count = rng.poisson(level * rng.gamma(12, 1 / 12, n))
    keep = np.sort(rng.permutation(n)[:6000])
    frame = pl.DataFrame(
        {
            "dteday": when, "hr": hour, "weekday": [w.weekday() for w in when], "weathersit": sky,
            "temp": temp, "hum": hum, "windspeed": wind, "cnt": count,
        }
    )  # fmt: skip
    return numbered(frame[keep])


def heart():
    """303 patients of a heart clinic, as in the structured-data tutorial; one in four is ill."""
    rng = seeded(309)
    n = 303
    age, sex, cp = rng.integers(30, 78, n), rng.integers(0, 2, n), rng.integers(0, 5, n)
    pressure, chol = rng.integers(95, 190, n), rng.integers(140, 400, n)
    rate, peak = rng.integers(90, 200, n), np.round(rng.exponential(1.0, n), 1)
    thal = rng.choice(["normal", "fixed", "reversible"], n, p=[0.55, 0.08, 0.37])
    logit = (
        -2.6 + 1.0 * sex + 0.9 * (cp == 4) + 0.9 * peak - 0.03 * (rate - 150) + 0.03 * (age - 54)
    )
    logit += 1.6 * (thal == "reversible") + 0.004 * (chol - 240)
    y = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    return numbered(
        pl.DataFrame(
            {
                "age": age, "sex": sex, "cp": cp, "trestbps": pressure, "chol": chol, "thalach": rate,
                "oldpeak": peak, "thal": thal, "target": y,
            }
        )
    )  # fmt: skip


def districts():
    """Median house values by block, up to half a million and cut there, as in the Californian table."""
    rng = seeded(311)
    rows = []
    for district in range(150):
        lat, lon = rng.uniform(32.5, 42), rng.uniform(-124, -114)
        coast = np.exp(-(((lon + 124) + 0.4 * (lat - 32.5) - 2) ** 2) / 6)
        base = rng.normal(scale=0.12)
        for _ in range(rng.integers(15, 50)):
            income, age = rng.lognormal(1.2, 0.45), float(rng.integers(1, 53))
            rooms, people = rng.normal(5.3, 1.0), rng.lognormal(7, 0.8)
            near = str(rng.choice(["NEAR OCEAN", "<1H OCEAN"])) if coast > 0.5 else "INLAND"
            log = (
                11.2
                + 0.16 * income
                + 0.45 * coast
                + 0.1 * (near == "NEAR OCEAN")
                + 0.003 * age
                + base
            )
            value = np.clip(np.exp(log + rng.normal(scale=0.18)), 15000, 500001)
            spot = rng.normal(scale=0.05, size=2)
            rows.append(
                (
                    f"D{district:03}",
                    lon + spot[0],
                    lat + spot[1],
                    age,
                    max(rooms, 1.0),
                    people,
                    income,
                    near,
                    float(np.round(value)),
                )
            )
    names = ["district", "longitude", "latitude", "housing_median_age", "rooms", "population", "median_income",
             "ocean_proximity", "median_house_value"]  # fmt: skip
    return numbered(
        pl.DataFrame(rows, schema=names, orient="row").sample(fraction=1.0, shuffle=True, seed=3)
    )


def adult_noisy():
    """Six answers of a survey and a plan that was chosen; one answer in five was noted wrongly."""
    rng = seeded(313)
    n = 5000
    x = rng.normal(size=(n, 6))
    region = rng.choice(["north", "south", "east", "west"], n)
    scores = np.stack(
        [
            1.5 * x[:, 0] + 0.8 * (region == "north"),
            1.5 * x[:, 1] - x[:, 0] + 0.8 * (region == "south"),
            1.2 * x[:, 2] * np.sign(x[:, 3]) + 0.6,
        ],
        1,
    )
    plan = np.array(["basic", "family", "premium"])[
        (2 * scores + rng.gumbel(size=(n, 3))).argmax(1)
    ]
    wrong = rng.random(n) < 0.2
    plan = np.where(wrong, rng.choice(["basic", "family", "premium"], n), plan)
    columns = {f"q{k + 1}": np.round(10 + 3 * x[:, k], 2) for k in range(6)}
    return numbered(pl.DataFrame(columns | {"region": region, "plan": plan}))


def _shape(kind, rng, size=20):
    y, x = np.mgrid[:size, :size] - (size - 1) / 2
    y, x = y - rng.uniform(-2.5, 2.5), x - rng.uniform(-2.5, 2.5)
    r = rng.uniform(4.5, 7)
    if kind == "sun":
        return y**2 + x**2 < r**2
    if kind == "ring":
        return np.abs(np.sqrt(y**2 + x**2) - r) < 1.5
    if kind == "house":
        return ((np.abs(x) < r * 0.8) & (y > 0) & (y < r)) | (
            (y <= 0) & (y > -r) & (np.abs(x) < r + y)
        )
    if kind == "tree":
        return ((np.abs(x) < 1.2) & (y > 0) & (y < r)) | (
            (y <= 1) & (y > -r) & (np.abs(x) < 0.7 * (r + y) * 0.8)
        )
    return (np.abs(y) < 2.0) & (np.abs(x) < r)


def objects():
    """Photographs of five kinds of things, 20 by 20 in colour; each kind prefers a hue."""
    rng = seeded(315)
    kinds = ["sun", "ring", "house", "tree", "boat"]
    hues = {
        "sun": (230, 190, 40),
        "ring": (160, 160, 170),
        "house": (180, 70, 50),
        "tree": (40, 150, 60),
        "boat": (60, 90, 190),
    }
    rows = []
    for k in range(3000):
        kind = kinds[k % 5]
        mask = _shape(kind, rng)
        hue = np.array(hues[kind] if rng.random() < 0.6 else rng.integers(0, 256, 3))
        ground = rng.integers(0, 256, 3) * 0.6
        image = np.where(mask[..., None], hue, ground) + rng.normal(0, 25, (20, 20, 3))
        rows.append((np.clip(image, 0, 255).astype(np.uint8).ravel().tolist(), kind))
    frame = pl.DataFrame(
        rows, schema={"pixels": pl.List(pl.UInt8), "kind": pl.String}, orient="row"
    )
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=4))


def tissue():
    """Patches of stained tissue, 24 by 24 in grey: is there a tumour's crowd of nuclei at the centre?"""
    rng = seeded(317)
    y, x = np.mgrid[:24, :24]
    rows = []
    for _ in range(2600):
        ill = int(rng.random() < 0.4)
        image = rng.normal(185, 14, (24, 24))
        for _ in range(rng.poisson(9)):
            cy, cx = rng.uniform(0, 24, 2)
            image -= 70 * np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / 3)
        for _ in range(rng.integers(4, 8) if ill else 0):
            cy, cx = rng.normal(11.5, 2.6, 2)
            image -= 85 * np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / rng.uniform(3, 7))
        image = (image - 128) * rng.uniform(0.8, 1.2) + 128
        patient = f"P{rng.integers(0, 90):03}"
        rows.append((np.clip(image, 0, 255).astype(np.uint8).ravel().tolist(), patient, ill))
    schema = {"patch": pl.List(pl.UInt8), "patient": pl.String, "tumor": pl.Int64}
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def scenes():
    """Any of four things in a picture of 28 by 28: a list of zeros and ones says which."""
    rng = seeded(319)
    y, x = np.mgrid[:28, :28]
    rows = []
    for _ in range(3000):
        there = (rng.random(4) < [0.5, 0.35, 0.3, 0.2]).astype(int)
        image = rng.normal(90, 18, (28, 28))
        cy, cx = rng.uniform(6, 22, (2, 4))
        r = np.hypot(y[..., None] - cy, x[..., None] - cx)
        if there[0]:
            image[r[..., 0] < 4] += 80
        if there[1]:
            image[np.abs(r[..., 1] - 5) < 1] += 90
        if there[2]:
            image[(np.abs(y - cy[2]) < 1.2) & (np.abs(x - cx[2]) < 6)] += 90
        if there[3]:
            image[(np.abs(x - cx[3]) < 1.2) & (np.abs(y - cy[3]) < 6)] += 90
        rows.append((np.clip(image, 0, 255).astype(np.uint8).ravel().tolist(), there.tolist()))
    schema = {"image": pl.List(pl.UInt8), "tags": pl.List(pl.Int64)}
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


TOPICS = {
    "sport": "match team goal coach league season player win final cup stadium referee",
    "economy": "market bank price shares growth rate trade profit company investor tax budget",
    "science": "study cells planet data theory energy species experiment climate genome orbit physics",
    "culture": "film music novel actor stage award gallery singer festival painter album theatre",
}
COMMON = [
    "the",
    "a",
    "of",
    "in",
    "on",
    "with",
    "after",
    "new",
    "first",
    "said",
    "year",
    "people",
    "report",
    "time",
    "week",
    "over",
    "more",
    "two",
    "last",
    "also",
]


def headlines():
    """News of four desks: a dozen or two of words, some of which other desks use too."""
    rng = seeded(321)
    own = {topic: words.split() for topic, words in TOPICS.items()}
    every = [word for words in own.values() for word in words]
    rows = []
    for _ in range(4000):
        topic = str(rng.choice(list(own), p=[0.4, 0.3, 0.2, 0.1]))
        words = []
        for _ in range(rng.integers(8, 25)):
            draw = rng.random()
            words.append(
                str(rng.choice(own[topic] if draw < 0.16 else every if draw < 0.32 else COMMON))
            )
        rows.append((" ".join(words), topic))
    return numbered(pl.DataFrame(rows, schema=["text", "category"], orient="row"))


def tickets():
    """Messages to a help desk and whether they are urgent; what counts is what follows `not` or `now`."""
    rng = seeded(323)
    things, states = (
        ["server", "printer", "login", "invoice", "parcel", "router", "account", "screen"],
        ["down", "broken", "late", "lost", "slow"],
    )
    fine = ["works", "is fine", "arrived", "was replaced"]
    chat = [
        "hello team",
        "thanks for your help",
        "best regards",
        "i wrote last week",
        "see the attachment",
        "kind wishes from the office",
    ]
    rows = []
    for _ in range(4000):
        parts = [str(rng.choice(chat)) for _ in range(rng.integers(0, 4))]
        urgent = int(rng.random() < 0.35)
        thing, state, other = rng.choice(things), rng.choice(states), rng.choice(things)
        if urgent:
            said = [
                f"the {thing} is {state} again",
                f"the {other} {rng.choice(fine)} but not the {thing}",
            ][rng.integers(0, 2)]
        else:
            said = [
                f"the {thing} is not {state} again",
                f"not the {other} but the {thing} {rng.choice(fine)}",
            ][rng.integers(0, 2)]
        parts.insert(int(rng.integers(0, len(parts) + 1)), said)
        rows.append((" ".join(parts), urgent if rng.random() > 0.05 else 1 - urgent))
    frame = pl.DataFrame(rows, schema=["message", "urgent"], orient="row")
    return numbered(frame.unique("message", maintain_order=True))


TAGS = ["python", "pandas", "javascript", "css", "sql", "git"]


def questions():
    """Titles of programmers' questions and their tags, some of which come together."""
    rng = seeded(325)
    words = {
        "python": "list dict loop import class decorator pip", "pandas": "dataframe groupby merge column index csv",
        "javascript": "promise callback dom event react async", "css": "flexbox margin grid selector font div",
        "sql": "join query table select index where", "git": "commit branch merge rebase push remote",
    }  # fmt: skip
    vocabulary = {tag: each.split() for tag, each in words.items()}
    filler = [
        "how",
        "to",
        "why",
        "does",
        "a",
        "the",
        "in",
        "with",
        "my",
        "not",
        "when",
        "using",
        "is",
        "get",
        "error",
        "from",
    ]
    rows = []
    for _ in range(4000):
        tags = {str(rng.choice(TAGS, p=[0.3, 0.12, 0.22, 0.12, 0.14, 0.1]))}
        if "pandas" in tags or rng.random() < 0.15:
            tags.add("python")
        if "css" in tags and rng.random() < 0.5:
            tags.add("javascript")
        title = [
            str(rng.choice(vocabulary[tag]))
            for tag in sorted(tags)
            for _ in range(rng.integers(1, 4))
        ]
        title += [str(rng.choice(filler)) for _ in range(rng.integers(3, 8))]
        rng.shuffle(title)
        noted = {tag for tag in tags if rng.random() > 0.1}
        rows.append((" ".join(title), [int(tag in noted) for tag in TAGS]))
    return numbered(pl.DataFrame(rows, schema=["title", "tags"], orient="row"))


def town_names():
    """Invented names of towns by the syllables of three languages: for a generator of characters."""
    rng = seeded(327)
    parts = [
        (
            ["ober", "nieder", "alt", "neu", "gross"],
            ["hau", "wald", "stein", "lin", "berg"],
            ["dorf", "heim", "stadt", "ingen", "au"],
        ),
        (
            ["saint ", "le ", "mont", "ville", "beau"],
            ["pier", "mar", "jo", "lou", "cler"],
            ["mont", "court", "ville", "ac", "sur mer"],
        ),
        (
            ["san ", "santa ", "monte", "villa", "castel"],
            ["ro", "ma", "lu", "ve", "gio"],
            ["nese", "rino", "dola", "tico", "vanni"],
        ),
    ]
    rows = []
    for _ in range(3000):
        style = parts[rng.integers(0, 3)]
        first, middle, last = style
        rows.append(("".join(str(rng.choice(part)) for part in (first, middle, middle, last)),))
    return numbered(pl.DataFrame(rows, schema=["name"], orient="row").unique(maintain_order=True))


def viewings():
    """Who watched which film, as MovieLens has it: user, age group and film with its title's words."""
    rng = seeded(329)
    genres, letters = ["war", "love", "space", "crime", "family"], list("abcdefgh")
    films = [f"{genres[k % 5]} {rng.choice(letters)}{k}" for k in range(150)]
    rows = []
    for user in range(400):
        likes = rng.dirichlet(np.full(5, 0.15))
        age = int(np.clip(rng.normal(20 + 10 * likes.argmax(), 6), 15, 75))
        for _ in range(20):
            genre = rng.choice(5, p=likes)
            rows.append((f"u{user:03}", age, films[int(rng.choice(30) * 5 + genre)]))
    frame = pl.DataFrame(rows, schema=["user_id", "age", "movie_title"], orient="row")
    frame = frame.unique(maintain_order=True)
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=5))


def book_ratings():
    """Readers' ratings of books from 1 to 10, with biases and tastes; some readers rate little."""
    rng = seeded(331)
    readers, books, k = 400, 150, 3
    p, q = rng.normal(size=(readers, k)) * 0.75, rng.normal(size=(books, k)) * 0.75
    b, c = rng.normal(scale=0.7, size=readers), rng.normal(scale=0.8, size=books)
    u, i = rng.integers(0, readers, 14000), rng.integers(0, books, 14000)
    r = 6.8 + b[u] + c[i] + (p[u] * q[i]).sum(1) + rng.normal(scale=0.7, size=len(u))
    frame = pl.DataFrame(
        {
            "reader": (u * 7 + 1001).tolist(),
            "isbn": [f"978-{int(x):04}" for x in i],
            "rating": np.clip(np.round(r), 1, 10),
        }
    ).unique(["reader", "isbn"], maintain_order=True)
    return numbered(frame)


def electricity():
    """A town's hourly load with its temperature: two days seen, the next hour's load to come."""
    rng = seeded(333)
    n = 9000
    t = np.arange(n)
    noise, weather = np.zeros(n), np.zeros(n)
    for k in range(1, n):
        noise[k] = 0.85 * noise[k - 1] + rng.normal(scale=25)
        weather[k] = 0.97 * weather[k - 1] + rng.normal(scale=0.8)
    temp = 12 + 4 * np.sin(2 * np.pi * (t - 9) / 24) + weather
    load = 1500 + 260 * np.sin(2 * np.pi * (t - 8) / 24) + 130 * np.sin(4 * np.pi * (t - 6) / 24)
    load = load + 14 * np.abs(temp - 16) + noise
    at = np.arange(48, n - 1, 2)
    return numbered(
        pl.DataFrame(
            {
                "datetime": [datetime(2022, 1, 1) + timedelta(hours=int(k) - 1) for k in at],
                "load_48h": lists([load[k - 48 : k] for k in at]),
                "temp_48h": lists([temp[k - 48 : k] for k in at]),
                "load_next": load[at],
            }
        )
    )


def web_traffic():
    """Daily visits of forty pages, heavy-tailed: five weeks seen, the week ahead to come."""
    rng = seeded(335)
    rows = []
    for page in range(40):
        size, week = rng.normal(6, 1.0), rng.normal(scale=0.25, size=7)
        level = np.zeros(640)
        for k in range(1, 640):
            level[k] = 0.97 * level[k - 1] + rng.normal(scale=0.06)
        shock = (rng.random(640) < 0.015) * rng.exponential(0.8, 640)
        visits = np.round(
            np.exp(
                size + level + week[np.arange(640) % 7] + shock + rng.normal(scale=0.1, size=640)
            )
        )
        for k in range(35 + page % 5, 633, 5):
            rows.append(
                (
                    f"page{page:02}",
                    date(2022, 1, 1) + timedelta(days=k - 1),
                    visits[k - 35 : k].tolist(),
                    visits[k : k + 7].tolist(),
                )
            )
    frame = pl.DataFrame(rows, schema=["page", "date", "visits", "next_week"], orient="row")
    return numbered(
        frame.sort("date", "page").with_columns(weekday=pl.col("date").dt.weekday() - 1)
    )


def ecg_beats():
    """Normal heartbeats of 60 readings, and the same as the target, for an anomaly detector."""
    rng = seeded(337)
    t = np.linspace(0, 1, 60)
    rows = []
    for _ in range(2500):
        shift, size = rng.normal(scale=0.03), rng.uniform(0.7, 1.3)
        beat = 0.15 * np.exp(-(((t - 0.2 - shift) / 0.04) ** 2)) - 0.12 * np.exp(
            -(((t - 0.36 - shift) / 0.015) ** 2)
        )
        beat += size * np.exp(-(((t - 0.4 - shift) / 0.018) ** 2)) - 0.25 * np.exp(
            -(((t - 0.44 - shift) / 0.02) ** 2)
        )
        beat += rng.uniform(0.2, 0.4) * np.exp(
            -(((t - 0.66 - 1.5 * shift) / 0.06) ** 2)
        ) + rng.normal(scale=0.02, size=60)
        beat = np.round(1000 * beat + 40)
        rows.append((beat.tolist(), beat.tolist()))
    return numbered(pl.DataFrame(rows, schema=["ecg", "target"], orient="row"))
