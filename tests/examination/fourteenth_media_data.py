"""Datasets of the fourteenth list: photos, walls, question pairs, tickets, orders and exercises."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def shop_photos():
    """Colour photos of 24 by 24, row by row with red, green and blue of each pixel: five kinds of product."""
    rng = seeded(14201)
    yy, xx = np.mgrid[:24, :24]
    kinds = ["mug", "lamp", "vase", "orange", "plum"]
    tints = {"orange": (232, 150, 40), "plum": (70, 60, 165)}
    photos, labels = [], []
    for _ in range(2600):
        kind = str(rng.choice(kinds, p=[0.36, 0.22, 0.1, 0.2, 0.12]))
        cy, cx, r = rng.uniform(10, 14), rng.uniform(10, 14), rng.uniform(4.5, 7.5)
        v, u = (yy - cy) / r, (xx - cx) / r
        if kind == "mug":
            side = rng.choice([-1, 1])
            ring = np.abs(np.hypot(v, u - side * 0.8) - 0.5) < 0.15
            shape = (np.abs(v) < 0.9) & (np.abs(u) < 0.65) | ring
        elif kind in ("lamp", "vase"):
            way = v if kind == "lamp" else -v
            shape = (np.abs(v) < 1) & (np.abs(u) < 0.2 + 0.35 * (way + 1))
        else:
            shape = np.hypot(v, u * rng.uniform(0.9, 1.2)) < rng.uniform(0.75, 1)
        tint = np.array(tints.get(kind, rng.uniform(40, 240, 3)))
        if rng.random() < 0.06:
            tint = rng.uniform(40, 240, 3)
        ground = rng.uniform(120, 245) + rng.normal(0, 8, 3)
        light = 1 + 0.15 * v[..., None] * rng.choice([-1, 1])
        photo = np.where(shape[..., None], tint * light, ground) * rng.uniform(0.75, 1.1)
        if rng.random() < 0.25:
            photo[:, int(rng.integers(24))] *= 0.6
        photo = np.clip(photo + rng.normal(0, 14, photo.shape), 0, 255).astype(np.uint8)
        photos.append(photo.ravel().tolist())
        labels.append(kind if rng.random() < 0.98 else str(rng.choice(kinds)))
    types = {"photo": pl.List(pl.UInt8)}
    return numbered(pl.DataFrame({"photo": photos, "kind": labels}, schema_overrides=types))


def avocado_photos():
    """Photos of 20 by 20 pixels as bytes, and the days until the fruit is soft: the skin goes from green to black."""
    rng = seeded(14203)
    yy, xx = np.mgrid[:20, :20]
    green, dark = np.array([92, 138, 58]), np.array([52, 38, 44])
    rows = []
    for _ in range(2400):
        days = float(np.clip(rng.gamma(3.0, 1.6), 0, 12))
        ripe = 1 / (1 + np.exp((days - 4.5) / 2.2))
        cy, cx, turn = rng.uniform(8, 12), rng.uniform(8, 12), rng.uniform(0, np.pi)
        v = (yy - cy) * np.cos(turn) - (xx - cx) * np.sin(turn)
        u = (xx - cx) * np.cos(turn) + (yy - cy) * np.sin(turn)
        fruit = (v / rng.uniform(6, 8)) ** 2 + (u / rng.uniform(4.5, 6)) ** 2 < 1
        spots = rng.normal(0, 1, (20, 20, 1)) * (4 + 10 * ripe)
        skin = green + (dark - green) * ripe + spots
        table = np.array([rng.uniform(90, 225)] * 3) + rng.normal(0, 6, 3)
        photo = np.where(fruit[..., None], skin, table) * rng.normal(1, 0.05)
        photo = np.clip(photo + rng.normal(0, 6, photo.shape), 0, 255).astype(np.uint8)
        noted = max(0.0, days + rng.normal(0, 0.5))
        rows.append((photo.tobytes(), round(noted, 1)))
    return numbered(pl.DataFrame(rows, schema=["photo", "days_left"], orient="row"))


def concrete_walls():
    """Grey tiles of 32 by 32 from the walls of forty bridges, with masks of their cracks as an editor saves them, soft at the edge."""
    rng = seeded(14205)
    yy, xx = np.mgrid[:32, :32]
    styles = [(r.uniform(110, 190), r.uniform(4, 12), r.uniform(0.1, 0.5)) for r in [rng] * 40]
    rows = []
    for _ in range(1500):
        bridge = int(rng.integers(40))
        tone, grain, wave = styles[bridge]
        tile = tone + 8 * np.sin(wave * xx + rng.uniform(0, 6)) + rng.normal(0, grain, (32, 32))
        mask = np.zeros((32, 32))
        for _ in range(int(rng.choice([0, 1, 2], p=[0.18, 0.6, 0.22]))):
            y, x, heading = rng.uniform(2, 30), rng.uniform(2, 30), rng.uniform(0, 2 * np.pi)
            width = rng.uniform(0.6, 1.1)
            for _ in range(int(rng.integers(12, 34))):
                mask = np.maximum(mask, np.exp(-((yy - y) ** 2 + (xx - x) ** 2) / (2 * width**2)))
                heading += rng.normal(0, 0.35)
                y, x = y + np.sin(heading), x + np.cos(heading)
        tile = tile - rng.uniform(35, 75) * mask
        if rng.random() < 0.3:  # a seam or a shadow is no crack
            edge = np.cos(a := rng.uniform(0, np.pi)) * xx + np.sin(a) * yy
            tile = tile - rng.uniform(20, 50) * (np.abs(edge - rng.uniform(5, 28)) < 2.5)
        pixels = np.clip(tile, 0, 255).astype(np.uint8).ravel().tolist()
        drawn = (255 * mask).astype(np.uint8).ravel().tolist()
        rows.append((f"bridge-{bridge:02}", pixels, drawn))
    types = {"tile": pl.List(pl.UInt8), "mask": pl.List(pl.UInt8)}
    frame = pl.DataFrame(rows, ["bridge", "tile", "mask"], schema_overrides=types, orient="row")
    return numbered(frame)


def asked_twice():
    """Pairs of questions, and whether they ask the same; the order of words matters in some."""
    rng = seeded(14207)
    things = ["python", "java", "laptop", "router", "phone", "guitar", "piano", "visa", "passport",
              "loan", "mortgage", "garden", "kitchen", "bicycle", "tablet", "camera", "excel", "word"]  # fmt: skip
    asked = {
        "learn": ["how do i learn {a}", "what is the best way to learn {a} ?", "where can one study {a} quickly"],
        "repair": ["how can i repair my {a}", "my {a} is broken , what now ?", "how to fix a {a} at home"],
        "cost": ["how much does a {a} cost", "what is the price of a {a} ?", "is a {a} expensive in your city"],
        "sell": ["where do i sell my {a}", "who buys a used {a} ?", "how to get rid of an old {a} for money"],
        "better": ["is {a} better than {b}", "should i prefer {a} over {b} ?", "why choose {a} and not {b}"],
        "first": ["should i get {a} before {b}", "do people get {a} first and then {b} ?"],
    }  # fmt: skip

    def write(intent, a, b):
        text = str(rng.choice(asked[intent])).format(a=a, b=b)
        if rng.random() < 0.25:
            text = str(rng.choice(["hello , ", "quick one : ", "sorry if asked before , "])) + text
        if rng.random() < 0.2:
            text = text + str(rng.choice([" thanks in advance", " any help is welcome", " ?"]))
        words = text.split()
        if rng.random() < 0.06:
            words[int(rng.integers(len(words)))] = "".join(rng.choice(list("aeioprst"), 6))
        return " ".join(words) if rng.random() > 0.005 else ""

    rows = []
    for _ in range(3600):
        intent = str(rng.choice(list(asked)))
        a, b = (str(t) for t in rng.choice(things, 2, replace=False))
        other = (intent, a, b)
        same = int(rng.random() < 0.4)
        if not same:
            change = rng.random()
            if change < 0.4 and intent in ("better", "first"):
                other = (intent, b, a)
            elif change < 0.75:
                other = (str(rng.choice([i for i in asked if i != intent])), a, b)
            else:
                other = (intent, *(str(t) for t in rng.choice(sorted({*things} - {a}), 2, False)))
        label = same if rng.random() > 0.03 else 1 - same
        rows.append((write(intent, a, b), write(*other), label))
    return numbered(pl.DataFrame(rows, ["question1", "question2", "is_duplicate"], orient="row"))


def support_tickets():
    """Tickets of two years: a mail with what mail clients put before it, plan, channel and numbers; six teams."""
    rng = seeded(14209)
    topics = {
        "billing": ["invoice shows the wrong amount", "charged twice this month", "refund has not arrived"],
        "access": ["cannot log in since today", "password reset mail never comes", "account is locked"],
        "network": ["connection drops every hour", "upload is very slow", "vpn does not connect"],
        "bugs": ["export button does nothing", "page shows an error", "report is empty after the update"],
        "sales": ["want to add ten seats", "which plan fits us", "need a quote for next year"],
    }  # fmt: skip
    openers = ["dear team , i hope this mail finds you well and that you had a good weekend .",
               "hi , this is a follow up to what i wrote to you the other day , sorry for that .",
               "hello , we are customers since many years and usually very happy with your service ."]  # fmt: skip
    past = ["last time it was about {} but that is solved .", "not about {} this time ."]
    rows, at = [], datetime(2023, 1, 2, 8)
    for _ in range(3200):
        at += timedelta(minutes=float(rng.exponential(320)))
        topic = str(rng.choice(list(topics), p=[0.34, 0.24, 0.2, 0.14, 0.08]))
        plan = str(rng.choice(["free", "basic", "pro", "enterprise"], p=[0.35, 0.35, 0.22, 0.08]))
        channel = str(rng.choice(["mail", "form", "chat"], p=[0.5, 0.35, 0.15]))
        parts = []
        if channel != "chat" and rng.random() < 0.6:
            parts.append(str(rng.choice(openers)))
        if rng.random() < 0.35:
            former = str(rng.choice([t for t in topics if t != topic]))
            parts.append(str(rng.choice(past)).format(str(rng.choice(topics[former]))))
        parts.append(str(rng.choice(["the ", "", "our "])) + str(rng.choice(topics[topic])) + " .")
        if rng.random() < 0.3:
            parts.append(str(rng.choice(["please help", "thanks", "this is urgent !"])))
        mail = "" if rng.random() < 0.01 else " ".join(parts)
        team = "key accounts" if plan == "enterprise" and topic != "bugs" else topic
        team = team if rng.random() > 0.04 else str(rng.choice(list(topics)))
        silent = None if rng.random() < 0.2 else float(rng.gamma(1.2, 40))
        rows.append((at, mail, plan, channel, int(rng.poisson(0.6)), silent, team))
    names = ["created_at", "mail", "plan", "channel", "attachments", "hours_silent", "team"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def order_messages():
    """Orders as customers write them, split into words, with a BIO tag for each word."""
    rng = seeded(14211)
    colours, goods = (
        ["blue", "red", "Berlin", "large", "plain"],
        ["gloves", "chairs", "boxes", "paper", "toner"],
    )
    places = ["Hamburg", "Berlin", "Bad Homburg", "Ulm", "New York", "May Creek", "Linz", "Rome"]
    days = ["friday", "May 4", "next week", "tomorrow", "4 June", "monday morning"]
    numbers = ["two", "20", "4", "100", "a dozen", "15"]
    rows = []
    for _ in range(2400):
        words, tags = [], []

        def add(text, kind="", words=words, tags=tags):
            for place, word in enumerate(text.split()):
                words.append(word)
                tags.append(f"{'I' if place else 'B'}-{kind}" if kind else "O")

        add(
            str(rng.choice(["please send", "we need", "hi , could you deliver", "send", "order :"]))
        )
        for item in range(int(rng.geometric(0.6))):
            add("and" if item else "")
            add(str(rng.choice(numbers)), "QTY")
            if rng.random() < 0.3:
                add(str(rng.choice(["packs of", "pieces of"])))
            colour = str(rng.choice(colours)) + " " if rng.random() < 0.6 else ""
            add(colour + str(rng.choice(goods)), "ITEM")
        if rng.random() < 0.7:
            add(str(rng.choice(["to", "to our site in", "for"])))
            add(str(rng.choice(places)), "PLACE")
        if rng.random() < 0.5:
            add(str(rng.choice(["by", "before", "until"])))
            add(str(rng.choice(days)), "DATE")
        if rng.random() < 0.3:
            add(str(rng.choice(["thanks", "our number is 20 4", "regards from Rome"])))
        if rng.random() < 0.2:
            place = int(rng.integers(len(words)))
            words[place] = words[place][::-1]
        if rng.random() < 0.06:
            words = [word.upper() for word in words]
        if rng.random() < 0.25:  # an annotator's slip
            tags[int(rng.integers(len(tags)))] = "O"
        rows.append((words, tags))
    return numbered(pl.DataFrame(rows, schema=["words", "tags"], orient="row"))


def gym_windows():
    """Windows of 64 readings from a sensor at the wrist, half overlapping; twenty athletes, five exercises."""
    rng = seeded(14213)
    axes = ["acc_x", "acc_y", "acc_z", "gyr_x", "gyr_y", "gyr_z"]
    exercises = ["row", "press", "curl", "jump", "rest"]
    gains = {"row": (1.0, 0.3, 0.2, 0.1, 0.7, 0.1), "press": (1.0, 0.3, 0.2, 0.1, 0.7, 0.1),
             "curl": (0.4, 0.9, 0.2, 1.0, 0.2, 0.2), "jump": (0.3, 0.4, 1.6, 0.2, 0.3, 0.3),
             "rest": (0.1, 0.1, 0.1, 0.1, 0.1, 0.1)}  # fmt: skip
    rows, session = [], 0
    for athlete in range(20):
        habit = rng.lognormal(0, 0.5, (5, 6)) * rng.choice([1.0, 1.0, 1.0, -0.5], (5, 6))
        worn, pace = rng.normal(0, 0.3, 6), rng.uniform(0.12, 0.3)
        for _ in range(int(rng.integers(14, 22))):
            kind = int(rng.choice(5, p=[0.28, 0.22, 0.2, 0.12, 0.18]))
            length = 64 + 32 * int(rng.integers(3, 8))
            phase = np.cumsum(pace * rng.normal(1, 0.15, length)) + rng.uniform(0, 6)
            # a row is pulled fast and let go slowly, a press the other way round
            skew = {"row": 0.7, "press": -0.7}.get(exercises[kind], 0.0)
            wave = np.sin(phase + skew * np.sin(phase)) + 0.5 * skew * np.cos(2 * phase)
            gain = np.array(gains[exercises[kind]]) * habit[kind]
            track = wave[:, None] * gain + worn + rng.normal(0, 0.45, (length, 6))
            track[:, 2] += 1.0
            for start in range(0, length - 63, 32):
                window = track[start : start + 64].round(3).T.tolist()
                rows.append((f"athlete-{athlete:02}", session, *window, exercises[kind]))
            session += 1
    types = {axis: pl.List(pl.Float32) for axis in axes}
    names = ["athlete", "session", *axes, "exercise"]
    frame = pl.DataFrame(rows, schema=names, schema_overrides=types, orient="row")
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=14213))
