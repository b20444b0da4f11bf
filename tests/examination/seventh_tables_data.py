"""Tables and recommendations of the seventh list: made ones, with noise that no model explains."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import sigmoid


def pay_slips():
    """Yearly pay; 120 employers from two staff to hundreds, each with a level of its own."""
    rng = seeded(701)
    n = 3600
    employer = np.minimum(rng.zipf(1.35, n), 120) - 1
    effect = rng.normal(scale=0.25, size=120)
    grade = rng.choice(["junior", "mid", "senior", "lead"], n, p=[0.3, 0.4, 0.22, 0.08])
    lift = {"junior": 0.0, "mid": 0.25, "senior": 0.5, "lead": 0.75}
    years = (rng.gamma(2.0, 4.0, n) + np.array([8 * lift[g] for g in grade])).clip(0, 42).round(1)
    region = rng.choice(["north", "south", "capital", "islands"], n, p=[0.35, 0.35, 0.22, 0.08])
    part_time = rng.random(n) < 0.2
    hours = np.where(part_time, rng.choice([16, 20, 24, 30], n), 38)
    log_pay = 10.2 + np.array([lift[g] for g in grade]) + 0.09 * np.log1p(years)
    log_pay = log_pay + 0.2 * (region == "capital") - 0.12 * (region == "islands")
    log_pay = log_pay + effect[employer] + np.log(hours / 38) + 0.13 * rng.standard_t(6, n)
    return numbered(
        pl.DataFrame(
            {
                "employer": [f"E{(41 * k) % 127:03}" for k in employer], "grade": grade,
                "years": years, "region": region, "hours": hours,
                "pay": np.round(np.exp(log_pay), -1),
            }
        )
    )  # fmt: skip


def first_orders():
    """New customers: what they spend in the year after the first order. Most nothing, a few very much."""
    rng = seeded(703)
    n = 6000
    channel = rng.choice(["search", "social", "friend", "newsletter"], n, p=[0.4, 0.33, 0.12, 0.15])
    shelf = rng.choice(["coffee", "tea", "machines", "gifts"], n, p=[0.45, 0.2, 0.1, 0.25])
    amount = rng.lognormal(3.3, 0.7, n) * np.where(shelf == "machines", 4, 1)
    items = 1 + rng.poisson(0.4 + 0.3 * np.log(amount).clip(0))
    discount = np.where(rng.random(n) < 0.35, rng.choice([5, 10, 20, 30], n), 0)
    days_looked = rng.geometric(0.25, n)
    again = -1.8 + 1.4 * (shelf == "coffee") - 1.3 * (shelf == "gifts") - 0.07 * discount
    again = again + 1.4 * (channel == "friend") + 0.9 * (channel == "newsletter") + 0.3 * items
    stays = rng.random(n) < sigmoid(again)
    spend = 1.6 + 0.8 * np.log(amount) + 0.15 * items + 0.5 * (shelf == "coffee")
    spend = np.exp(spend + rng.normal(scale=0.7, size=n))
    return numbered(
        pl.DataFrame(
            {
                "channel": channel, "shelf": shelf, "amount": amount.round(2), "items": items,
                "discount": discount, "days_looked": days_looked,
                "spent_after": np.where(stays, spend, 0).round(2),
            }
        )
    )  # fmt: skip


FLORA = {
    "salix": ["alba", "caprea", "viminalis", "fragilis", "aurita"],
    "quercus": ["robur", "petraea", "cerris"],
    "acer": ["campestre", "platanoides", "negundo", "ginnala"],
    "betula": ["pendula", "pubescens"],
    "prunus": ["avium", "padus", "spinosa", "mahaleb"],
}


def leaves():
    """Leaves by eight measures: five genera that lie apart, eighteen species that overlap, some rare."""
    rng = seeded(705)
    names = [f"{genus} {kind}" for genus, kinds in FLORA.items() for kind in kinds]
    genus_at = {genus: rng.normal(scale=1.3, size=8) for genus in FLORA}
    centre = {name: genus_at[name.split()[0]] + rng.normal(scale=0.8, size=8) for name in names}
    share = rng.dirichlet(np.full(len(names), 1.5))
    species = rng.choice(names, 3200, p=0.8 * share + 0.2 / len(names))
    mix = np.eye(8) + 0.35 * rng.normal(size=(8, 8))
    shape = np.stack([centre[name] for name in species]) + 0.75 * rng.normal(size=(3200, 8)) @ mix
    scale = np.array([0.3, 0.25, 0.1, 0.2, 0.15, 0.3, 0.1, 0.2])
    base = np.array([60, 35, 1.5, 12, 3.0, 900, 0.8, 25])
    measures = [
        "length_mm", "width_mm", "stalk_cm", "teeth", "lobes", "area_mm2", "gloss", "veins",
    ]  # fmt: skip
    values = base * np.exp(scale * shape)
    columns = {name: values[:, k].round(3) for k, name in enumerate(measures)}
    return numbered(pl.DataFrame(columns | {"species": species}))


def appointments():
    """A year of a clinic's appointments: who does not come? 900 patients, with what was known before."""
    rng = seeded(709)
    people = 900
    habit, age = rng.normal(scale=1.2, size=people), rng.integers(1, 90, people)
    distance, rows = rng.lognormal(1.5, 0.8, people).round(1), []
    start = datetime(2022, 1, 3)
    for patient in range(people):
        past = missed = 0
        for day in np.sort(rng.choice(364, rng.integers(2, 13), replace=False)):
            when = start + timedelta(days=int(day), hours=int(rng.integers(8, 18)))
            lead = rng.choice([0, 1, 3, 7, 14, 28, 56], p=[0.2, 0.1, 0.13, 0.2, 0.17, 0.12, 0.08])
            booked = when - timedelta(days=int(lead), minutes=int(rng.integers(30, 480)))
            sms = int(lead >= 3 and rng.random() < 0.5)
            logit = -2.3 + habit[patient] + 0.75 * np.log1p(lead) - 0.7 * sms
            logit += -0.015 * (age[patient] - 40) + 0.15 * (when.hour >= 16)
            absent = bool(rng.random() < sigmoid(logit))
            rows.append(
                (f"P{patient:04}", str(booked), str(when), when, int(age[patient]),
                 float(distance[patient]), sms, past, missed, "Yes" if absent else "No")
            )  # fmt: skip
            past, missed = past + 1, missed + absent
    names = [
        "patient", "booked_at", "slot", "starts_at", "age", "distance_km", "sms",
        "visits_before", "missed_before", "no_show",
    ]  # fmt: skip
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("starts_at", "patient"))


def polymers():
    """Stiffness of blends in pascal, by recipe and process; viscosities span four decades."""
    rng = seeded(711)
    n = 2400
    glass, filler = rng.beta(2, 4, n) * 60, rng.beta(1.5, 5, n) * 40
    viscosity = rng.lognormal(6.5, 1.6, n)
    melt, mould = rng.normal(255, 18, n), rng.normal(75, 15, n)
    pressure = 40 + 0.25 * (melt - 255) + rng.gamma(3, 12, n)
    resin = rng.choice(["PA6", "PA66", "PBT", "PP"], n, p=[0.35, 0.3, 0.2, 0.15])
    base = {"PA6": 2.6, "PA66": 3.0, "PBT": 2.4, "PP": 1.5}
    stiff = np.array([base[r] for r in resin]) + 0.17 * glass + 0.04 * filler
    stiff = stiff - 0.0025 * glass * np.abs(melt - 262) / 3 + 0.9 * np.tanh(np.log(viscosity) - 6.5)
    stiff = stiff + 0.012 * (mould - 75) * (resin != "PP") + rng.normal(scale=0.55, size=n)
    return numbered(
        pl.DataFrame(
            {
                "resin": resin, "glass_pct": glass.round(1), "filler_pct": filler.round(1),
                "viscosity": viscosity.round(1), "melt_c": melt.round(1), "mould_c": mould.round(1),
                "pressure_bar": pressure.round(1), "modulus_pa": (stiff.clip(0.4) * 1e9).round(-5),
            }
        )
    )  # fmt: skip


def expressions():
    """Tumours by the expression of 300 genes, 640 patients: a dozen genes tell, in blocks that move together."""
    rng = seeded(713)
    n, genes = 640, 300
    blocks = rng.normal(size=(n, 30))
    level = np.repeat(blocks, 10, axis=1) * 0.6 + rng.normal(size=(n, genes)) * 0.9
    weight = np.zeros(genes)
    weight[rng.choice(genes, 12, replace=False)] = rng.choice([-1.1, 0.9, 1.3], 12)
    y = rng.random(n) < sigmoid(level @ weight - 0.8)
    counts = np.exp2(rng.uniform(3, 9, genes) + level * 0.8)
    columns = {f"g{k:03}": counts[:, k].round(1) for k in range(genes)}
    return numbered(pl.DataFrame(columns | {"relapse": np.where(y, "yes", "no")}))


def small_loans():
    """Defaults within a year: what applicants state, a third of the job tenures unknown to the bank."""
    rng = seeded(715)
    n = 5500
    income = rng.lognormal(7.7, 0.5, n)
    amount = income * rng.uniform(0.5, 12, n)
    age, tenure = rng.integers(19, 75, n), rng.gamma(1.5, 4, n)
    enquiries, utilisation = rng.poisson(1.5, n), rng.beta(1.5, 2, n)
    home = rng.choice(["own", "rent", "mortgage", "other"], n, p=[0.25, 0.4, 0.3, 0.05])
    unknown = rng.random(n) < np.where(tenure < 3, 0.5, 0.15)
    logit = -2.9 + 0.15 * amount / income + 0.35 * enquiries + 1.8 * np.abs(utilisation - 0.3)
    logit = logit - 0.14 * tenure + 0.6 * (age < 26) + 0.3 * (age > 63) + 0.5 * (home == "rent")
    logit = logit + 1.4 * unknown
    y = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    frame = pl.DataFrame(
        {
            "income": income.round(), "amount": amount.round(-2), "age": age,
            "tenure_years": np.where(unknown, np.nan, tenure.round(1)), "enquiries": enquiries,
            "utilisation": utilisation.round(3), "home": home, "defaulted": y,
        }
    )  # fmt: skip
    return numbered(frame.with_columns(pl.col("tenure_years").fill_nan(None)))


def plant_output():
    """A power plant's output in megawatts by the weather, curved and with interactions."""
    rng = seeded(717)
    n = 2600
    heat = rng.normal(19, 7.5, n)
    vacuum = 54 + 1.3 * (heat - 19) + rng.normal(scale=6, size=n)
    pressure = 1013 - 0.35 * (heat - 19) + rng.normal(scale=5, size=n)
    damp = (73 - 0.9 * (heat - 19) + rng.normal(scale=12, size=n)).clip(25, 100)
    power = 455 - 1.7 * (heat - 19) - 0.3 * (vacuum - 54) - 0.12 * (damp - 73)
    power = power + 6 * np.sin(heat / 3.5) + 4 * np.cos(vacuum / 4) + 0.05 * (pressure - 1013)
    power = power + rng.normal(scale=3.2, size=n)
    return numbered(
        pl.DataFrame(
            {
                "AT": heat.round(2),
                "V": vacuum.round(2),
                "AP": pressure.round(2),
                "RH": damp.round(2),
                "PE": power.round(2),
            }
        )
    )


def school_grades():
    """Three grades of a term, 0 to 20: mathematics, language, sport; a quarter of them not given."""
    rng = seeded(719)
    n = 2200
    study, absences = rng.integers(1, 5, n), rng.negative_binomial(1, 0.15, n)
    failures = rng.choice(4, n, p=[0.78, 0.13, 0.06, 0.03])
    parents, goes_out = rng.integers(0, 5, n), rng.integers(1, 6, n)
    travel, female = rng.integers(1, 5, n), rng.integers(0, 2, n)
    gift = rng.normal(scale=1.2, size=n)
    mathematics = 9 + 0.9 * study - 1.9 * failures + 0.5 * parents - 0.5 * goes_out + 1.2 * gift
    language = 10.5 + 0.7 * study - 1.3 * failures + 0.6 * parents + 1.1 * female + gift
    sport = 14 + 0.5 * goes_out - 0.05 * absences - 0.4 * travel + rng.normal(scale=1.2, size=n)
    grades = np.stack([mathematics - 0.06 * absences, language - 0.04 * absences, sport], axis=1)
    grades = (grades + rng.normal(scale=1.5, size=(n, 3))).clip(0, 20).round()
    given = rng.random((n, 3)) > 0.25
    given[np.arange(n), rng.integers(0, 3, n)] = True
    cells = [
        [float(g) if ok else None for g, ok in zip(row, there, strict=True)]
        for row, there in zip(grades, given, strict=True)
    ]
    return numbered(
        pl.DataFrame(
            {
                "studytime": study, "absences": absences, "failures": failures, "parents": parents,
                "goout": goes_out, "traveltime": travel, "female": female,
                "grades": pl.Series(cells, dtype=pl.List(pl.Float64)),
            }
        )
    )  # fmt: skip


def birds():
    """480 ringed birds of four kinds by bill, wing and mass; the measures of some were not taken."""
    rng = seeded(721)
    kinds = rng.choice(["dunlin", "knot", "sanderling", "ruff"], 480, p=[0.4, 0.3, 0.2, 0.1])
    centres = {
        "dunlin": [33, 120, 48, 25], "knot": [34, 134, 52, 30],
        "sanderling": [30.5, 125, 51, 27], "ruff": [35, 130, 56, 33],
    }  # fmt: skip
    size = rng.normal(size=(480, 1))
    noise = 0.6 * size + 0.8 * rng.normal(size=(480, 4))
    values = np.array([centres[k] for k in kinds]) + noise * np.array([2.0, 6.0, 4.5, 3.0])
    values[rng.random((480, 4)) < 0.12] = np.nan
    names = ["bill_mm", "wing_mm", "mass_g", "tarsus_mm"]
    sex = [None if rng.random() < 0.3 else str(rng.choice(["f", "m"])) for _ in kinds]
    frame = pl.DataFrame(values.round(1), schema=names).with_columns(sex=pl.Series(sex), kind=kinds)
    return numbered(frame.with_columns(pl.col(names).fill_nan(None)))


def steel_faults():
    """Faults of steel plates in seven classes, from half of all to one in sixty, by ten measures."""
    rng = seeded(723)
    share = [0.48, 0.25, 0.13, 0.06, 0.04, 0.025, 0.015]
    fault = rng.choice(7, 4500, p=share)
    centre = rng.normal(scale=0.62, size=(7, 10))
    x = centre[fault] + rng.normal(size=(4500, 10)) @ (np.eye(10) + 0.2 * rng.normal(size=(10, 10)))
    x[:, 3:6] = np.exp(0.7 * x[:, 3:6])
    columns = {f"m{k}": x[:, k].round(3) for k in range(10)}
    return numbered(pl.DataFrame(columns | {"fault": fault}))


def wages():
    """A survey of hourly wages in which villages and old people are drawn more often than they live."""
    rng = seeded(725)
    n = 5000
    village = rng.random(n) < 0.8  # a fifth of the people, four fifths of the answers
    age = rng.integers(18, 66, n)
    school = rng.choice([9, 10, 12, 13, 16, 18], n, p=[0.12, 0.25, 0.2, 0.2, 0.15, 0.08])
    woman = rng.integers(0, 2, n)
    tenure = (rng.beta(1, 3, n) * (age - 17)).round()
    log_wage = 2.5 + 0.07 * (school - 12) * np.where(village, -0.2, 1.2) + 0.03 * (age - 18)
    log_wage = log_wage - 0.0004 * (age - 18) ** 2 - 0.12 * woman + 0.008 * tenure - 0.3 * village
    log_wage = log_wage + rng.normal(scale=0.3, size=n)
    weight = np.where(village, 0.25, 4.0) * rng.lognormal(0, 0.15, n)
    return numbered(
        pl.DataFrame(
            {
                "age": age, "schooling": school, "woman": woman, "tenure": tenure,
                "interviewer": rng.integers(100, 160, n), "weight": weight.round(3),
                "wage": np.exp(log_wage).round(2),
            }
        )
    )  # fmt: skip


def video_feed():
    """What a feed showed: clicked, and watched to the end? 120 people, 90 videos, topics, clickbait."""
    rng = seeded(727)
    people, videos, n = 120, 90, 6000
    taste, topic = rng.normal(size=(people, 4)), rng.normal(size=(videos, 4))
    bait, length = rng.normal(size=videos), rng.lognormal(4.5, 0.7, videos)
    who, what = rng.integers(0, people, n), np.minimum(rng.zipf(1.2, 3 * n), 10**6)
    what = what[what <= videos][:n] - 1
    who = who[: len(what)]
    n = len(what)
    hour, phone = rng.integers(0, 24, n), rng.random(n) < 0.7
    match = (taste[who] * topic[what]).sum(1)
    click = rng.random(n) < sigmoid(-0.7 + 0.7 * match + 0.9 * bait[what] + 0.3 * phone)
    ends = -0.4 + 0.6 * match - 1.1 * bait[what] - 0.8 * (np.log(length[what]) - 4.5)
    finish = click & (rng.random(n) < sigmoid(ends))
    return numbered(
        pl.DataFrame(
            {
                "person": [f"u{(53 * k) % 127}" for k in who],
                "video": [f"v{(29 * k) % 97}" for k in what],
                "seconds": length[what].round(), "hour": hour,
                "device": np.where(phone, "phone", "tv"),
                "outcome": np.stack([click, finish], axis=1).astype(int).tolist(),
            }
        )
    )  # fmt: skip


def listens():
    """Which of 100 records people took home: 240 people, records in a few styles, some famous."""
    rng = seeded(729)
    people, records = 240, 100
    fame = 0.8 * rng.normal(size=records)
    likes, style = 1.4 * rng.normal(size=(people, 4)), rng.normal(size=(records, 4))
    rows = []
    for person in range(people):
        p = np.exp(likes[person] @ style.T + fame)
        count = int(np.clip(rng.poisson(20), 6, 40))
        for record in rng.choice(records, count, replace=False, p=p / p.sum()):
            rows.append((f"listener{person:03}", f"lp-{(17 * record) % 101:03}"))
    frame = pl.DataFrame(rows, schema=["listener", "record"], orient="row")
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=3))


def baskets():
    """Groceries: what a household bought last time, and what it put into the basket first this time."""
    rng = seeded(731)
    goods, homes = 60, 120
    follows = rng.dirichlet(np.full(goods, 0.03), goods)
    habit = rng.dirichlet(np.full(goods, 0.08), homes)
    rows = []
    for _ in range(5500):
        home = int(rng.integers(0, homes))
        size = int(rng.integers(1, 6))
        last = rng.choice(goods, size, replace=False, p=0.7 * habit[home] + 0.3 / goods)
        p = 0.6 * follows[last].mean(0) + 0.3 * habit[home] + 0.1 / goods
        rows.append((f"h{home}", [f"sku{1000 + 7 * k}" for k in last], f"sku{1000 + 7 * int(rng.choice(goods, p=p))}"))  # fmt: skip
    return numbered(pl.DataFrame(rows, schema=["household", "last_basket", "first"], orient="row"))


def book_stars():
    """Stars of 350 readers for 150 books, with the books that a reader had on the shelf before."""
    rng = seeded(733)
    readers, books = 350, 150
    taste, theme = rng.normal(size=(readers, 3)), rng.normal(size=(books, 3))
    strict, good = 0.45 * rng.normal(size=readers), 0.4 * rng.normal(size=books)
    rows = []
    for reader in range(readers):
        score = taste[reader] @ theme.T
        p = np.exp(1.1 * score)
        owned = rng.choice(books, int(rng.integers(6, 30)), replace=False, p=p / p.sum())
        rest = rng.permutation(np.setdiff1d(np.arange(books), owned))[: int(rng.integers(6, 26))]
        for book in rest:
            stars = 3.5 + strict[reader] + good[book] + 0.45 * score[book] + 0.6 * rng.normal()
            shelf = [f"b{5 * k}" for k in rng.permutation(owned)]
            rows.append((f"r{reader}", f"b{5 * book}", shelf, float(np.clip(round(stars), 1, 5))))
    frame = pl.DataFrame(rows, schema=["reader", "book", "shelf", "stars"], orient="row")
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=5))
