"""Datasets of the sixth list: small made ones with real structure, for tasks in less usual forms."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid


def ward_months():
    """Infections per ward and month; bed days differ by a factor of forty and set the scale."""
    rng = seeded(401)
    n = 5000
    kind = rng.choice(["surgery", "icu", "medicine", "maternity"], n, p=[0.3, 0.15, 0.4, 0.15])
    bed_days = np.round(rng.lognormal(6.3, 0.8, n)).clip(40)
    nurses, catheters = rng.normal(1.2, 0.25, n), rng.beta(2, 5, n)
    month = rng.integers(1, 13, n)
    log_rate = (
        -5.0 + 1.1 * (kind == "icu") + 0.4 * (kind == "surgery") - 0.7 * (kind == "maternity")
    )
    log_rate += 2.2 * catheters - 1.3 * (nurses - 1.2) + 0.3 * np.cos(2 * np.pi * (month - 1) / 12)
    return numbered(
        pl.DataFrame(
            {
                "ward": kind, "month": month, "nurses_per_bed": nurses.round(3),
                "catheter_share": catheters.round(3), "bed_days": bed_days,
                "infections": rng.poisson(np.exp(log_rate) * bed_days),
            }
        )
    )  # fmt: skip


def office_energy():
    """Energy of office buildings per square metre; the year built is often unknown, mostly of old ones."""
    rng = seeded(403)
    n = 4000
    built = rng.integers(1900, 2021, n).astype(float)
    area, people = rng.lognormal(7.5, 0.7, n), rng.lognormal(3.5, 0.6, n)
    glazing, cold = rng.beta(3, 4, n), rng.normal(2800, 600, n)
    heating = rng.choice(["gas", "oil", "heat pump", "district"], n, p=[0.45, 0.2, 0.15, 0.2])
    use = 110 + 0.9 * np.maximum(1985 - built, 0) + 0.028 * (cold - 2800) + 70 * glazing
    use = use + 9 * np.log(people / area * 100) - 45 * (heating == "heat pump")
    use = use + 25 * (heating == "oil") + rng.normal(scale=14, size=n)
    built[rng.random(n) < np.where(built < 1960, 0.5, 0.1)] = np.nan
    people[rng.random(n) < 0.2] = np.nan
    frame = pl.DataFrame(
        {
            "year_built": built, "floor_area": area.round(), "occupants": people.round(),
            "glazing": glazing.round(3), "degree_days": cold.round(), "heating": heating,
            "kwh_per_m2": use.round(1),
        }
    )  # fmt: skip
    return numbered(frame.with_columns(pl.col("year_built", "occupants").fill_nan(None)))


def chargebacks():
    """Card payments that were disputed: 250 merchants of unequal trust, cards that come once or twice."""
    rng = seeded(405)
    n = 7000
    trust = rng.normal(scale=1.3, size=250)
    merchant = rng.zipf(1.3, 4 * n)
    merchant = merchant[merchant <= 250][:n] - 1
    issuers = np.array(["4026", "4571", "5100", "5399", "3714", "6011"])
    issuer = rng.integers(0, 6, n)
    amount, hour = rng.lognormal(3.5, 1.1, n), rng.integers(0, 24, n)
    logit = -2.2 - trust[merchant] + np.array([0.8, 0, -0.5, 0, 0.3, -0.8])[issuer]
    logit += 0.5 * (np.log(amount) - 3.5) + 0.7 * ((hour < 6) | (hour > 22))
    y = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    cards = [f"{issuers[i]}-{rng.integers(0, 900):04}" for i in issuer]
    return numbered(
        pl.DataFrame(
            {
                "merchant": [f"shop_{(37 * k) % 251:03}" for k in merchant], "card": cards,
                "amount": amount.round(2), "hour": hour, "disputed": y,
            }
        )
    )  # fmt: skip


def faces():
    """Drawn faces of 24 by 24, tilted and moved: where are left eye, right eye and mouth (x, y)?"""
    rng = seeded(407)
    y, x = np.mgrid[:24, :24].astype(float)
    images, points = [], []
    for _ in range(2400):
        cx, cy = rng.uniform(9, 14, 2)
        tilt, size = rng.normal(scale=0.25), rng.uniform(0.8, 1.15)
        turn = size * np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
        eyes = np.array([[-3.4, -2.2], [3.4, -2.2], [0.0, 4.0]]) @ turn.T + [cx, cy]
        image = 60 + 110 * (np.hypot(x - cx, y - cy) < 8 * size)
        for (px, py), wide in zip(eyes, (1.1, 1.1, 2.0), strict=True):
            image = image - 95 * np.exp(-(((x - px) / wide) ** 2 + (y - py) ** 2) / 1.6)
        image = image + rng.normal(scale=9, size=image.shape)
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel())
        points.append(eyes.ravel().round(2))
    return numbered(
        pl.DataFrame({"face": lists(images, pl.UInt8), "points": lists(points, pl.Float64)})
    )


def streets():
    """Street views of 16 by 24 in colour and their masks: 0 sky, 1 road, 2 car, 255 where unsure."""
    rng = seeded(409)
    y, x = np.mgrid[:16, :24]
    images, masks = [], []
    for _ in range(1600):
        horizon = rng.uniform(5, 10) + rng.normal(scale=0.15) * (x - 12)
        mask = (y > horizon).astype(int)
        if rng.random() < 0.6:
            left, wide, high = rng.integers(1, 18), rng.integers(3, 6), rng.integers(2, 4)
            top = int(np.clip(horizon.mean() + rng.uniform(0, 3), 1, 12))
            mask[top : top + high, left : left + wide] = 2
        light = rng.uniform(0.7, 1.2)
        colours = np.array([[120, 160, 215], [105, 105, 110], rng.integers(40, 230, 3)])
        image = colours[mask] * light + rng.normal(0, 22, (16, 24, 3))
        edge = np.zeros_like(mask, dtype=bool)
        edge[1:] = mask[1:] != mask[:-1]
        mask = np.where(edge & (rng.random(mask.shape) < 0.7), 255, mask)
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel())
        masks.append(mask.ravel())
    return numbered(
        pl.DataFrame({"photo": lists(images, pl.UInt8), "mask": lists(masks, pl.Int64)})
    )


def signatures():
    """Pairs of signatures as 24 pen positions (x, y): by one hand or by two?"""
    rng = seeded(411)
    t = np.linspace(0, 1, 24)
    spread = np.array([0.9, 0.6, 0.4, 0.3, 0.25])  # the slow strokes differ from day to day
    daily = np.array([0.8, 0.5, 0.3, 0.03, 0.03])  # the fast ones are the hand's own
    hands = rng.normal(size=(220, 2, 5)) * spread
    wave = np.stack([np.sin(np.pi * (k + 1) * t) for k in range(5)])

    def sign(hand):
        curve = (hands[hand] + rng.normal(size=(2, 5)) * daily) @ wave
        curve = curve * rng.uniform(0.7, 1.4) + rng.normal(scale=0.4, size=(2, 1))
        return (curve + rng.normal(scale=0.03, size=curve.shape)).ravel()

    left, right, same = [], [], []
    for _ in range(4000):
        one = int(rng.integers(0, 220))
        is_same = rng.random() < 0.5
        other = one if is_same else int((one + rng.integers(1, 220)) % 220)
        left.append(sign(one))
        right.append(sign(other))
        same.append(int(is_same))
    return numbered(
        pl.DataFrame({"signature_a": lists(left), "signature_b": lists(right), "same_hand": same})
    )


def voice_commands():
    """Commands to a house, the intent first and then a slot per word."""
    rng = seeded(413)
    rooms = ["kitchen", "bedroom", "garage", "cellar", "bathroom", "office", "hall", "attic"]
    music = ["jazz", "rock", "opera", "blues", "techno", "folk", "swing", "punk"]
    devices = ["lamp", "heater", "fan", "oven", "blind", "radio"]
    hours = ["six", "seven", "eight", "nine", "ten", "eleven", "noon"]
    names = ["Anna", "Bruno", "Clara", "Dario", "Elena", "Fabio", "Greta", "Hugo"]
    shapes = {
        "play": ["play {music}", "please play some {music} in the {room}", "put on {music} for {name}"],
        "switch": ["switch the {device} in the {room} off", "turn on the {device}", "{name} wants the {room} {device} on"],
        "remind": ["remind {name} at {hour}", "tell {name} in the {room} at {hour} about the {device}"],
        "ask": ["is the {device} in the {room} on", "when does {name} leave the {room}", "what does the {device} cost"],
    }  # fmt: skip
    before = [
        "",
        "",
        "hey house",
        "could you",
        "well",
        "right",
        "listen",
        "okay",
        "sorry but",
        "now",
    ]
    after = ["", "", "today", "for me", "right now", "if you can", "again", "at once", "as usual"]
    fill = {"room": rooms, "music": music, "device": devices, "hour": hours, "name": names}
    rows = []
    for _ in range(4000):
        intent = str(rng.choice(list(shapes), p=[0.35, 0.3, 0.2, 0.15]))
        words, tags = [], []
        said = f"{rng.choice(before)} {rng.choice(shapes[intent])} {rng.choice(after)}"
        for word in said.split():
            slot = word.strip("{}")
            words.append(str(rng.choice(fill[slot])) if slot != word else word)
            tags.append(slot if slot != word else "O")
            if slot == "name" and rng.random() < 0.3:  # a surname that is also a thing
                words.append(str(rng.choice(["Lamp", "Rock", "Hall"])))
                tags.append("name")
        tags = [tag if rng.random() > 0.06 else "O" for tag in tags]  # annotators tire
        rows.append((" ".join(words), [intent, *tags]))
    frame = pl.DataFrame(rows, schema=["utterance", "target"], orient="row")
    return numbered(frame.unique("utterance", maintain_order=True))


def hotel_reviews():
    """Reviews of hotels with commas and stops; praise is common, and `but` outweighs what precedes it."""
    rng = seeded(415)
    good = [
        "lovely",
        "clean",
        "quiet",
        "friendly",
        "generous",
        "comfortable",
        "spotless",
        "charming",
    ]
    bad = ["dirty", "noisy", "rude", "broken", "cold", "smelly", "cramped", "mouldy"]
    things = ["room", "staff", "breakfast", "bed", "shower", "view", "lift", "pool"]
    rows = []
    for _ in range(4000):
        mood = str(rng.choice(["positive", "negative", "mixed"], p=[0.68, 0.2, 0.12]))
        clauses = []
        for k in range(int(rng.integers(2, 5))):
            p = {"positive": 0.78, "negative": 0.3, "mixed": [0.9, 0.1][k % 2]}[mood]
            word = rng.choice(good if rng.random() < p else bad)
            clauses.append(f"{rng.choice(['The', 'Our', 'Their'])} {rng.choice(things)} was {word}")
        if mood == "mixed":
            clauses.append(f"but the {rng.choice(things)} made up for it")
        elif rng.random() < 0.35:
            end = "we come back" if mood == "positive" else "never again"
            clauses.append(f"but {rng.choice(['in the end', 'all in all'])} {end}")
        ends = [str(rng.choice([",", ".", "!"])) for _ in clauses]
        rows.append((" ".join(c + e for c, e in zip(clauses, ends, strict=True)), mood))
    return numbered(pl.DataFrame(rows, schema=["review", "mood"], orient="row"))


def glucose():
    """Blood glucose in mg/dl every five minutes with meals and insulin: two hours seen, half an hour ahead."""
    rng = seeded(417)
    rows = []
    for patient in range(25):
        n = 8000
        meal, dose = np.zeros(n), np.zeros(n)
        base, gain, force = rng.normal(120, 12), rng.uniform(1.6, 2.6), rng.uniform(5, 8)
        for day in range(0, n, 288):
            for hour in (7, 12, 19):
                k = min(day + int(hour * 12 + rng.normal(scale=8)), n - 1)
                meal[k] = rng.uniform(20, 80)
                dose[min(k + int(rng.integers(-2, 8)), n - 1)] = (
                    meal[k] / 10 * rng.uniform(0.7, 1.2)
                )
        rise = np.convolve(meal, np.exp(-np.arange(36) / 9) / 9)[:n] * gain
        fall = np.convolve(dose, np.exp(-np.arange(60) / 16) / 16)[:n] * force
        level, drift = np.full(n, base), 0.0
        for k in range(1, n):
            drift = 0.9 * drift + rng.normal(scale=0.35)
            back = 0.012 * (base - level[k - 1])
            now = level[k - 1] + rise[k] * 0.55 - fall[k] * 0.5 + back + drift
            level[k] = min(max(now, 45), 380)
        seen = level + rng.normal(scale=1.2, size=n)
        for k in range(24 + patient, n - 6, 27):
            window = np.stack([seen[k - 24 : k], meal[k - 24 : k], dose[k - 24 : k]])
            when = datetime(2023, 1, 1) + timedelta(minutes=5 * (k - 1))
            rows.append((f"p{patient:02}", when, *window.round(1).tolist(), round(seen[k + 5], 1)))
    names = ["patient", "taken_at", "glucose", "carbs", "insulin", "glucose_in_30min"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("taken_at", "patient"))


CUISINES = {
    "italian": "basil mozzarella risotto pesto gnocchi polenta oregano",
    "indian": "cumin paneer turmeric lentil naan cardamom ghee",
    "mexican": "tortilla jalapeno bean avocado lime corn coriander",
    "japanese": "miso nori tofu wasabi soba dashi sesame",
    "french": "butter shallot thyme brioche leek cream tarragon",
}


def recipes():
    """What a cook typed and the recipe that was opened; spelled with synonyms, so words rarely match."""
    rng = seeded(419)
    dishes = ["soup", "salad", "stew", "cake", "curry", "wrap"]
    asked = {
        "soup": "broth bowl warm", "salad": "fresh green cold", "stew": "slow hearty pot",
        "cake": "sweet baked treat", "curry": "spicy sauce rice", "wrap": "quick rolled lunch",
    }  # fmt: skip
    diets = {"vegan": "plant", "meat": "beef", "fish": "salmon"}
    rows = []
    for _ in range(4000):
        cuisine, dish, diet = (
            rng.choice(list(CUISINES)),
            rng.choice(dishes),
            rng.choice(list(diets)),
        )
        parts = rng.choice(CUISINES[cuisine].split(), 3, replace=False)
        recipe = [*parts, dish, diets[diet], "salt"]
        query = [cuisine, *rng.choice(asked[dish].split(), 2, replace=False), diet]
        query += [str(parts[0])] if rng.random() < 0.3 else []
        query += [str(rng.choice(["easy", "best", "for", "two"]))]
        rows.append((" ".join(rng.permutation(query)), " ".join(rng.permutation(recipe))))
    return numbered(pl.DataFrame(rows, schema=["query", "recipe"], orient="row"))


FIELDS = ["biology", "physics", "law", "music"]


def citations():
    """Papers with counts of 24 words, up to six cited papers' counts, and how many of them are of which field."""
    rng = seeded(421)
    n = 3000
    topic = rng.choice(4, n, p=[0.4, 0.25, 0.2, 0.15])
    words = rng.dirichlet(np.full(24, 0.8), 4) * 0.45 + 0.55 / 24
    bags = np.stack([rng.multinomial(9, words[k]) for k in topic])
    of = [np.flatnonzero(topic == k) for k in range(4)]
    own, near, known = [], [], []
    for k in range(n):
        count = int(rng.integers(1, 7))
        cited = [
            int(rng.choice(of[topic[k]])) if rng.random() < 0.6 else int(rng.integers(0, n))
            for _ in range(count)
        ]
        cited = [c for c in cited if c != k] or [(k + 1) % n]
        own.append(bags[k].tolist())
        near.append(bags[cited].ravel().tolist())
        tagged = [c for c in cited if rng.random() < 0.12]  # few papers are catalogued
        known.append(np.bincount(topic[tagged], minlength=4).tolist() if tagged else [0] * 4)
    ints = pl.List(pl.Int64)
    return numbered(
        pl.DataFrame(
            {
                "words": own,
                "cited_words": near,
                "cited_fields": known,
                "field": [FIELDS[k] for k in topic],
            },
            schema_overrides={"words": ints, "cited_words": ints, "cited_fields": ints},
        )
    )


def tenancies():
    """How many days tenants stayed, and whether they moved out or the records end: two numbers as label."""
    rng = seeded(423)
    n = 5000
    rent, size = rng.lognormal(6.8, 0.3, n), rng.normal(65, 20, n).clip(18)
    age, floor = rng.integers(20, 80, n), rng.integers(0, 8, n)
    lift, pets = rng.random(n) < 0.4, rng.random(n) < 0.25
    log = 6.6 + 0.035 * (age - 45) - 1.0 * (np.log(rent / size) - 2.75) + 0.5 * pets
    log = log - 0.14 * floor * ~lift
    stay = np.exp(log) * rng.weibull(1.4, n)
    watched = rng.uniform(90, 2500, n)
    days, left = np.minimum(stay, watched).round().clip(1), (stay <= watched).astype(float)
    return numbered(
        pl.DataFrame(
            {
                "rent": rent.round(), "square_metres": size.round(), "age": age, "floor": floor,
                "lift": lift, "pets": pets, "stay": lists(np.stack([days, left], 1)),
            }
        )
    )  # fmt: skip


def crashes():
    """How badly a person was hurt in a crash, in four grades of which the worst is rare."""
    rng = seeded(425)
    n = 5000
    speed = rng.gamma(6, 9, n).round()
    age = rng.integers(16, 90, n)
    belt, airbag, drunk = rng.random(n) < 0.85, rng.random(n) < 0.6, rng.random(n) < 0.08
    side = rng.choice(["front", "rear", "driver", "passenger"], n, p=[0.5, 0.25, 0.12, 0.13])
    state = rng.choice(["north", "south", "west"], n)
    score = 0.055 * (speed - 54) - 1.9 * belt - 0.8 * airbag + 0.025 * (age - 45) + 0.7 * drunk
    score = score + 1.2 * (side == "driver") - 0.9 * (side == "rear") + rng.logistic(size=n)
    grade = np.searchsorted([-2.0, 0.3, 2.3], score)
    names = np.array(["none", "minor", "serious", "fatal"])
    return numbered(
        pl.DataFrame(
            {
                "speed_kmh": speed, "age": age, "belt": belt, "airbag": airbag, "drunk": drunk,
                "side": side, "state": state, "injury": names[grade],
            }
        )
    )  # fmt: skip


def clinic_visits():
    """Laboratory values of visits and which of six diagnoses were made; two of them are rare."""
    rng = seeded(427)
    n = 5000
    x = rng.normal(size=(n, 8))
    sex = rng.choice(["f", "m"], n)
    scores = np.stack(
        [
            1.6 * x[:, 0] - 0.3,
            1.8 * x[:, 1] + x[:, 0] - 1.2,
            1.5 * (x[:, 2] + x[:, 3]) - 2.2 + 0.6 * (sex == "f"),
            2.0 * np.abs(x[:, 4]) - 2.6,
            2.2 * x[:, 5] + 1.2 * x[:, 6] - 5.6,
            2.5 * x[:, 7] - 5.8 + 1.2 * (sex == "m"),
        ],
        axis=1,
    )
    made = (rng.random(scores.shape) < sigmoid(2 * scores)).astype(int)
    units = np.array([1.0, 12, 40, 5, 0.3, 100, 9, 2])
    lab = {f"lab_{'abcdefgh'[k]}": (units[k] * (6 + x[:, k])).round(3) for k in range(8)}
    return numbered(pl.DataFrame(lab | {"sex": sex, "diagnoses": lists(made, pl.Int64)}))


def wind_farm():
    """Power of a wind farm by speed and direction (degrees); one hour in five a part of it stands still."""
    rng = seeded(429)
    n = 6000
    speed, direction = rng.weibull(2.0, n) * 8, rng.uniform(0, 360, n)
    wake = 1 - 0.45 * np.exp(-(((direction - 230 + 180) % 360 - 180) ** 2) / 900)
    wake = wake - 0.3 * np.exp(-(((direction - 40 + 180) % 360 - 180) ** 2) / 1600)
    full = 100 * sigmoid((speed * wake - 8) / 1.5)
    power = np.where(rng.random(n) < 0.2, 0.45 * full, full) + rng.normal(scale=2.5, size=n)
    return numbered(
        pl.DataFrame(
            {
                "wind_speed": speed.round(2), "wind_direction": direction.round(),
                "temperature": rng.normal(9, 6, n).round(1), "power": power.round(2),
            }
        )
    )  # fmt: skip


def bearings():
    """Vibrations of bearings at unlike loads; one in eight has a fault that rings at one of three tones."""
    rng = seeded(431)
    t = np.arange(128)
    waves, faults = [], []
    for _ in range(3500):
        load = rng.uniform(0.6, 1.6)
        wave = load * np.sin(2 * np.pi * 0.05 * t + rng.uniform(0, 6))
        wave = wave + 0.5 * load * np.sin(2 * np.pi * 0.11 * t + rng.uniform(0, 6))
        is_faulty = rng.random() < 1 / 8
        if is_faulty:
            tone = rng.choice([0.23, 0.31, 0.4])
            wave = wave + rng.uniform(0.35, 0.6) * np.sin(2 * np.pi * tone * t + rng.uniform(0, 6))
        waves.append((wave + rng.normal(scale=0.45, size=128)).round(4))
        faults.append(int(is_faulty))
    return numbered(pl.DataFrame({"vibration": lists(waves), "fault": faults}))


def fruit():
    """Photographs of fruit, 16 by 16 in colour: mouldy, ripe or unripe, which is a matter of colour."""
    rng = seeded(433)
    y, x = np.mgrid[:16, :16]
    colours = {"unripe": (95, 150, 70), "ripe": (170, 80, 75), "mouldy": (90, 80, 155)}
    images, states = [], []
    for _ in range(2400):
        state = str(rng.choice(list(colours), p=[0.3, 0.5, 0.2]))
        radius, (cy, cx) = rng.uniform(4, 6.5), rng.uniform(6, 10, 2)
        colour = np.array(colours[state]) + rng.normal(scale=22, size=3)
        inside = (np.hypot(y - cy, x - cx) < radius)[..., None]
        ground = rng.uniform(60, 220) + rng.normal(scale=12, size=3)
        image = np.where(inside, colour, ground) * rng.uniform(0.75, 1.2)
        image = image + rng.normal(0, 14, (16, 16, 3))
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel())
        states.append(state)
    return numbered(pl.DataFrame({"photo": lists(images, pl.UInt8), "state": states}))


def strain_gauges():
    """A bridge's strain as the sensor reports it, 64 readings with noise and spikes, and as a better one does."""
    rng = seeded(435)
    t = np.arange(64)
    clean, noisy = [], []
    for _ in range(3000):
        true = 0.6 * np.sin(2 * np.pi * t / rng.uniform(30, 80) + rng.uniform(0, 6))
        for _ in range(rng.integers(1, 4)):  # vehicles
            true = true + rng.uniform(0.6, 2) * np.exp(
                -(((t - rng.uniform(0, 64)) / rng.uniform(2, 5)) ** 2)
            )
        seen = true + rng.normal(scale=0.35, size=64)
        seen = seen + (rng.random(64) < 0.06) * rng.normal(scale=3, size=64)
        clean.append(true.round(4))
        noisy.append(seen.round(4))
    return numbered(pl.DataFrame({"sensor": lists(noisy), "reference": lists(clean)}))


MONTHS = "january february march april may june july august september october november december"


def written_dates():
    """Dates as people write them, and as eight digits: year, month, day."""
    rng = seeded(437)
    months = MONTHS.split()
    rows = []
    for _ in range(5000):
        year, month, day = rng.integers(1950, 2030), rng.integers(1, 13), rng.integers(1, 29)
        name, short = months[month - 1], months[month - 1][:3]
        shapes = [
            f"{name} {day}, {year}", f"{day} {name} {year}", f"{short} {day:02} {year}",
            f"{day}. {short} {year}", f"{year}, {name} {day}", f"the {day}th of {name}, {year}",
        ]  # fmt: skip
        rows.append((str(rng.choice(shapes)), f"{year}{month:02}{day:02}"))
    frame = pl.DataFrame(rows, schema=["written", "digits"], orient="row")
    return numbered(frame.unique("written", maintain_order=True))


def melodies():
    """Folk tunes as text, a note a word: a scale, a motif that comes back a third higher, a final note."""
    rng = seeded(439)
    notes = [f"{name}{octave}" for octave in "456" for name in "CDEFGAB"]
    rows = []
    for _ in range(3000):
        start = int(rng.integers(4, 9))
        motif = np.cumsum(rng.choice([-2, -1, 1, 2], int(rng.integers(3, 6))))
        tune = [start, *(start + motif)]
        tune += [*(np.array(tune) + 2), *tune[: int(rng.integers(1, 4))], start]
        rows.append((" ".join(notes[int(np.clip(k, 0, 20))] for k in tune),))
    frame = pl.DataFrame(rows, schema=["tune"], orient="row")
    return numbered(frame.unique(maintain_order=True))


def taxi_zones():
    """Rides per zone and hour with the time in seconds since 1970; six hours seen, the next hour to come."""
    rng = seeded(441)
    rows = []
    first = 1_672_531_200  # 2023-01-01, UTC
    for zone in range(12):
        size, n = rng.lognormal(3.6, 0.7), 24 * 75
        hour = np.arange(n) % 24
        day = np.arange(n) // 24 % 7
        peak = rng.choice([8, 18, 23])
        shape = 0.25 + np.exp(2.2 * np.cos(2 * np.pi * (hour - peak) / 24)) / 6
        shape = shape * np.where(day >= 5, 0.7, 1.0)
        mood = np.zeros(n)
        for k in range(1, n):
            mood[k] = 0.8 * mood[k - 1] + rng.normal(scale=0.12)
        rides = rng.poisson(size * shape * np.exp(mood))
        for k in range(6 + zone % 3, n, 3):
            at = datetime(2023, 1, 1) + timedelta(hours=k)
            epoch = first + 3600 * k
            rows.append((at, f"Z{zone:02}", epoch, rides[k - 6 : k].tolist(), int(rides[k])))
    names = ["requested_at", "zone", "epoch", "last_hours", "rides"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("requested_at", "zone"))
