"""Datasets of the fourth list: honest synthetic ones, small enough to be made in a second."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid


def bank_calls():
    """Does a customer subscribe to a deposit when the bank calls? One in five does."""
    rng = seeded(201)
    n = 6000
    jobs = ["admin", "blue-collar", "entrepreneur", "retired", "services", "student", "technician"]
    job, outcome = (
        rng.choice(jobs, n),
        rng.choice(["failure", "success", "unknown"], n, p=[0.15, 0.1, 0.75]),
    )
    age, balance = rng.integers(18, 80, n), np.round(rng.lognormal(6.5, 1.2, n) - 300)
    campaign, month = rng.geometric(0.4, n), rng.choice(["apr", "jun", "may", "nov", "oct"], n)
    liking = {"student": 0.9, "retired": 0.7, "blue-collar": -0.6, "services": -0.3}
    logit = -1.9 + np.array([liking.get(j, 0.0) for j in job]) + 2.0 * (outcome == "success")
    logit += 0.9 * np.isin(month, ["apr", "oct"]) - 0.25 * (campaign - 1)
    logit += 0.5 * np.tanh(balance / 2000) * np.where(job == "retired", 2, 1)
    logit += 0.0006 * (age - 42) ** 2
    y = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    return numbered(
        pl.DataFrame(
            {
                "age": age, "job": job, "balance": balance, "month": month,
                "campaign": campaign, "poutcome": outcome, "y": y,
            }
        )
    )  # fmt: skip


def crops():
    """Which crop suits a field, by nutrients and weather."""
    rng = seeded(203)
    centres = {
        "rice": (80, 48, 40, 23.7, 82, 6.4, 236), "maize": (78, 48, 20, 22.4, 65, 6.2, 85),
        "chickpea": (40, 68, 80, 18.9, 17, 7.3, 80), "lentil": (19, 68, 19, 24.5, 65, 6.9, 46),
        "cotton": (118, 46, 20, 24.0, 80, 6.9, 80), "jute": (78, 47, 40, 25.0, 80, 6.7, 175),
    }  # fmt: skip
    spread = np.array([22, 12, 8, 3.0, 9, 0.6, 32])
    rows = []
    for crop, centre in centres.items():
        x = np.array(centre) + rng.normal(size=(600, 7)) * spread
        rows += [(*np.round(one, 2).tolist(), crop) for one in x]
    names = ["N", "P", "K", "temperature", "humidity", "ph", "rainfall", "crop"]
    return numbered(
        pl.DataFrame(rows, schema=names, orient="row").sample(fraction=1.0, shuffle=True, seed=1)
    )


def anglers():
    """Fish caught by groups of visitors to a park; many did not fish at all."""
    rng = seeded(205)
    n = 4000
    persons, child = rng.integers(1, 5, n), rng.integers(0, 4, n)
    camper, hours = rng.integers(0, 2, n), np.round(rng.gamma(2, 1.5, n), 1)
    fished = rng.random(n) < sigmoid(0.3 - 0.9 * child + 0.8 * camper + 0.3 * persons)
    count = rng.poisson(np.exp(-0.6 + 0.35 * persons + 0.4 * camper + 0.2 * hours)) * fished
    return numbered(
        pl.DataFrame(
            {"persons": persons, "child": child, "camper": camper, "hours": hours, "count": count}
        )
    )


def loans():
    """Who falls behind by ninety days: one in nine."""
    rng = seeded(207)
    n = 7000
    income, debt = rng.lognormal(8.5, 0.6, n), rng.beta(2, 4, n)
    use, late, age = rng.beta(1.2, 2.5, n), rng.poisson(0.4, n), rng.integers(21, 80, n)
    logit = -3.4 + 2.2 * use + 1.6 * debt + 1.1 * np.minimum(late, 4)
    logit -= 1.4 * (np.log(income) - 8.5) + 0.02 * (age - 45)
    bad = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    return numbered(
        pl.DataFrame(
            {
                "utilization": use, "debt_ratio": debt, "times_late": late,
                "monthly_income": income.round(), "age": age, "delinquent": bad,
            }
        )
    )  # fmt: skip


def boxes():
    """One bright rectangle on a noisy ground of 24 by 24: x, y, width and height of its box in shares."""
    rng = seeded(209)
    rows = []
    for _ in range(2500):
        w, h = rng.integers(4, 11, 2)
        x, y = rng.integers(0, 24 - w), rng.integers(0, 24 - h)
        image = rng.normal(70, 25, (24, 24))
        image[y : y + h, x : x + w] += rng.uniform(60, 120)
        box = [(x + w / 2) / 24, (y + h / 2) / 24, w / 24, h / 24]
        rows.append((np.clip(image, 0, 255).astype(np.uint8).ravel().tolist(), box))
    return numbered(
        pl.DataFrame(
            rows, schema={"image": pl.List(pl.UInt8), "box": pl.List(pl.Float64)}, orient="row"
        )
    )


def textures():
    """Cloth of five weaves in any two colours, 16 by 16 RGB, row by row."""
    rng = seeded(211)
    y, x = np.mgrid[:16, :16]
    rows = []
    for k in range(3000):
        weave, shift, step = k % 5, rng.integers(0, 8), rng.integers(3, 5)
        lines = [
            y + shift, x + shift, x + y + shift, x - y + shift, (x // step + y // step) * step + shift,
        ][weave]  # fmt: skip
        mask = (lines % (2 * step)) < step
        one, other = rng.integers(0, 256, 3), rng.integers(0, 256, 3)
        image = np.where(mask[..., None], one, other) + rng.normal(0, 18, (16, 16, 3))
        rows.append((np.clip(image, 0, 255).astype(np.uint8).ravel().tolist(), weave))
    frame = pl.DataFrame(
        rows, schema={"pixels": pl.List(pl.UInt8), "weave": pl.Int64}, orient="row"
    )
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=2))


def opinions():
    """Opinions on films, of a few clauses each; what counts is the last one."""
    rng = seeded(213)
    good, bad = (
        ["great", "moving", "funny", "clever", "superb"],
        ["dull", "weak", "noisy", "slow", "poor"],
    )
    things = ["plot", "cast", "music", "ending", "camera", "dialogue", "pacing", "score"]
    rows = []
    for _ in range(4000):
        clauses = [bool(rng.integers(0, 2)) for _ in range(rng.integers(1, 5))]
        said = [
            f"The {rng.choice(things)} is {'rather ' * int(rng.random() < 0.3)}{rng.choice(good if up else bad)}"
            for up in clauses
        ]
        rows.append((" but ".join(said) + ".", "positive" if clauses[-1] else "negative"))
    return numbered(pl.DataFrame(rows, schema=["review", "sentiment"], orient="row"))


def messages():
    """Short messages, wanted or not; numbers and spellings never repeat."""
    rng = seeded(215)
    spam = ["claim your prize now", "free entry in weekly draw", "urgent call this number", "you have won cash",
            "cheap loans approved today", "text stop to end", "exclusive ringtone offer"]  # fmt: skip
    ham = ["see you at lunch", "call me when free", "running late sorry", "did you win the match",
           "the number is on the door", "can you text mum today", "cash or card for the loan of the van"]  # fmt: skip
    names = ["anna", "bob", "chen", "dina", "emil", "fay", "gus", "hana"]
    rows = []
    for _ in range(4000):
        is_spam = rng.random() < 0.3
        pool, other = (spam, ham) if is_spam else (ham, spam)
        parts = list(rng.choice(pool, 2, replace=False))
        if rng.random() < 0.25:
            parts[1] = str(rng.choice(other))
        tail = f"{rng.choice(names)} {rng.integers(100, 99999)}"
        rows.append((" ".join([*parts, tail]), "spam" if is_spam else "ham"))
    return numbered(pl.DataFrame(rows, schema=["sms", "kind"], orient="row"))


def passages():
    """Who did what where: a passage of twelve words, a question, and the place of its answer."""
    rng = seeded(217)
    people = ["anna", "bob", "chen", "dina", "emil", "fay"]
    places = ["old town", "north harbour", "green park", "city hall", "river bank"]
    rows = []
    for _ in range(4000):
        who = rng.choice(people, 3, replace=False)
        words, spans = [], []
        for person in who:
            place = str(rng.choice(places)).split()
            words += [str(person), "went", "to"]
            place = place if rng.random() < 0.6 else place[1:]
            spans.append([len(words), len(words) + len(place) - 1])
            words += place
        asked = rng.integers(0, 3)
        rows.append((" ".join(words), f"where is {who[asked]}", spans[asked]))
    return numbered(pl.DataFrame(rows, schema=["context", "question", "span"], orient="row"))


def named_entities():
    """Tags of ten words each: O, B-PER, I-PER, B-LOC, I-LOC as 0 to 4."""
    rng = seeded(219)
    first, last = (
        ["anna", "carl", "dora", "erik", "jordan", "paris"],
        ["berg", "stone", "york", "lind"],
    )
    town, plain = (
        ["new york", "oslo", "paris", "san jose", "jordan"],
        ["ran", "saw", "the", "old", "big", "house", "and"],
    )
    rows = []
    for _ in range(3000):
        words, tags = [], []
        while len(words) < 10:
            draw = rng.random()
            if draw < 0.2:
                words += ["mr", str(rng.choice(first)), str(rng.choice(last))]
                tags += [0, 1, 2]
            elif draw < 0.4:
                parts = str(rng.choice(town)).split()
                words += ["in", *parts]
                tags += [0, 3, *[4] * (len(parts) - 1)]
            else:
                words.append(str(rng.choice(plain)))
                tags.append(0)
        rows.append((" ".join(words[:10]), tags[:10]))
    return numbered(pl.DataFrame(rows, schema=["sentence", "tags"], orient="row"))


def sentence_pairs():
    """How alike are two sentences, 0 to 5: by how many of their five facts agree."""
    rng = seeded(221)
    slots = [["a man", "a girl", "a dog"], ["runs", "sleeps", "sings"], ["slowly", "loudly", "alone"],
             ["in a park", "at home", "on stage"], ["at noon", "at night", "today"]]  # fmt: skip
    rows = []
    for _ in range(4000):
        a = [int(rng.integers(0, 3)) for _ in slots]
        keep = rng.random(5) < rng.random()
        b = [x if k else int(rng.integers(0, 3)) for x, k in zip(a, keep, strict=True)]
        same = float(sum(x == y for x, y in zip(a, b, strict=True)))
        texts = [" ".join(slot[i] for slot, i in zip(slots, one, strict=True)) for one in (a, b)]
        rows.append((*texts, float(np.clip(same + rng.normal(scale=0.4), 0, 5))))
    return numbered(pl.DataFrame(rows, schema=["sentence1", "sentence2", "score"], orient="row"))


def ad_histories():
    """Six goods looked at, newest last, and one advertised: clicked or not? Goods come in kinds."""
    rng = seeded(223)
    rows = []
    for _ in range(6000):
        likes = rng.choice(12, 2, replace=False)
        length = rng.integers(2, 7)
        past = [int(rng.choice(likes) * 8 + rng.integers(0, 8)) + 1 for _ in range(length)]
        ad = (
            int(
                (rng.choice(likes) if rng.random() < 0.5 else rng.integers(0, 12)) * 8
                + rng.integers(0, 8)
            )
            + 1
        )
        share = np.mean([(p - 1) // 8 == (ad - 1) // 8 for p in past])
        rows.append(
            ([0] * (6 - length) + past, ad, int(rng.random() < sigmoid(-1.8 + 3.6 * share)))
        )
    return numbered(pl.DataFrame(rows, schema=["history", "ad", "click"], orient="row"))


def promoted_sales():
    """A shop's daily sales: four weeks of them with their promotions, and the week ahead, whose promotions are planned."""
    rng = seeded(225)
    rows = []
    for store in range(12):
        size, week = np.exp(rng.normal(3.5, 0.3)), rng.normal(scale=0.2, size=7)
        days = 620
        promo = (rng.random(days) < 0.25).astype(float)
        level = np.cumsum(rng.normal(scale=0.02, size=days))
        level -= np.linspace(0, level[-1], days)
        sales = size * np.exp(
            level + week[np.arange(days) % 7] + 0.6 * promo + rng.normal(scale=0.08, size=days)
        )
        for k in range(28 + store % 4, days - 7, 4):
            rows.append(
                (f"store{store:02}", datetime(2022, 1, 1) + timedelta(days=k - 1), sales[k - 28 : k].tolist(),
                 promo[k - 28 : k].tolist(), promo[k : k + 7].tolist(), sales[k : k + 7].tolist())
            )  # fmt: skip
    names = ["store", "day", "sold", "promo_seen", "promo_ahead", "ahead"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("day", "store"))


def meter():
    """A household's power every hour: a day and a half seen, six hours ahead."""
    rng = seeded(227)
    n = 9000
    t = np.arange(n)
    noise = np.zeros(n)
    for k in range(1, n):
        noise[k] = 0.8 * noise[k - 1] + rng.normal(scale=0.12)
    load = (
        1.2
        + 0.6 * np.sin(2 * np.pi * (t - 15) / 24)
        + 0.35 * np.sin(4 * np.pi * (t - 7) / 24)
        + noise
    )
    at = np.arange(36, n - 6, 3)
    return numbered(
        pl.DataFrame(
            {
                "hour": [datetime(2022, 1, 1) + timedelta(hours=int(k) - 1) for k in at],
                "seen": lists([load[k - 36 : k] for k in at]),
                "ahead": lists([load[k : k + 6] for k in at]),
            }
        )
    )


def engines():
    """Windows of four sensors of a hundred engines until they fail; cycles left, at most 100."""
    rng = seeded(229)
    rows = []
    for engine in range(100):
        life = int(rng.integers(120, 220))
        offset, rate = rng.normal(scale=0.4, size=4), rng.uniform(0.8, 1.2, 4)
        cycle = np.arange(life)
        wear = np.exp((cycle - life) / 40)
        sensors = (
            offset
            + np.outer(wear, np.array([2.0, -1.5, 1.0, 2.5]) * rate)
            + rng.normal(scale=0.25, size=(life, 4))
        )
        for k in range(20, life, 5):
            rows.append(
                (
                    f"e{engine:03}",
                    k,
                    sensors[k - 20 : k].ravel().tolist(),
                    float(min(life - k, 100)),
                )
            )
    return numbered(
        pl.DataFrame(rows, schema=["engine", "cycle", "window", "cycles_left"], orient="row")
    )


ROADS = [(0, 1), (1, 2), (2, 3), (3, 4), (4, 5), (5, 6), (6, 7), (2, 6)]


def traffic():
    """Speeds at eight points of a road network: six readings, and each point's next; jams travel upstream."""
    rng = seeded(231)
    n = 5000
    pressure = np.zeros((n, 8))
    for k in range(1, n):
        step = 0.55 * pressure[k - 1] + rng.normal(scale=0.3, size=8)
        for a, b in ROADS:
            step[a] += 0.4 * pressure[k - 1, b]
        pressure[k] = step + (rng.random(8) < 0.02) * 3
    speed = 60 - 6 * np.tanh(pressure / 3) * 3
    at = np.arange(6, n)
    return numbered(
        pl.DataFrame(
            {
                "time": [datetime(2022, 3, 1) + timedelta(minutes=20 * int(k) - 20) for k in at],
                "speeds": lists([speed[k - 6 : k].ravel() for k in at]),
                "next": lists(speed[at]),
            }
        )
    )


def movements():
    """Two seconds of a phone's three axes in the pockets of forty people: walk, stairs, sit, lie."""
    rng = seeded(233)
    t = np.arange(40) / 20
    rows = []
    for person in range(40):
        pace, tilt = rng.uniform(1.6, 2.2), rng.normal(scale=0.12, size=3)
        for _ in range(70):
            act, phase = int(rng.integers(0, 4)), rng.uniform(0, 6.28)
            beat = 2 * np.pi * pace * t + phase
            base = np.array([[0, 0, 1], [0, 0.2, 1], [0, 1, 0.1], [1, 0, 0]][act]) + tilt
            signal = np.tile(base, (40, 1)) + rng.normal(scale=0.08, size=(40, 3))
            if act < 2:
                signal[:, 2] += (0.5 if act == 0 else 0.3) * np.sin(beat)
                signal[:, 1] += (0.1 if act == 0 else 0.35) * np.sin(beat / 2)
            rows.append(
                (f"p{person:02}", signal.ravel().tolist(), ["walk", "stairs", "sit", "lie"][act])
            )
    return numbered(pl.DataFrame(rows, schema=["person", "accel", "activity"], orient="row"))
