"""Pictures, texts, sounds and pairs of the tenth list: ordinary ones, with noise that no model explains."""

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists

BYTES = pl.UInt8


def _pixels(values):
    return np.clip(np.rint(values), 0, 255).astype(np.uint8).ravel()


def _blur(field, times=1):
    for _ in range(times):
        wide = np.pad(field, 1, mode="edge")
        field = (wide[1:-1, 1:-1] * 2 + wide[:-2, 1:-1] + wide[2:, 1:-1]) / 4
        wide = np.pad(field, 1, mode="edge")
        field = (wide[1:-1, 1:-1] * 2 + wide[1:-1, :-2] + wide[1:-1, 2:]) / 4
    return field


def beetles():
    """Beetles from above in colour, 20 by 20: six species by form, spots and hue, which overlap."""
    rng = seeded(10001)
    y, x = np.mgrid[:20, :20] - 9.5
    species = ["amara", "carabus", "cicindela", "lucanus", "poecilus", "pterostichus"]
    hue = [(60, 70, 40), (50, 40, 70), (50, 110, 60), (80, 45, 30), (50, 90, 70), (45, 45, 50)]
    ratio, spots = [1.3, 1.9, 1.7, 1.5, 1.45, 1.7], [0, 0, 3, 0, 1, 0]
    photos, names = [], []
    for _ in range(1500):
        k = int(rng.integers(6))
        angle, size = rng.uniform(0, 2 * np.pi), rng.uniform(3.2, 4.8)
        u, v = x * np.cos(angle) + y * np.sin(angle), -x * np.sin(angle) + y * np.cos(angle)
        long = size * (ratio[k] + rng.normal(0, 0.12))
        body = (u / long) ** 2 + (v / size) ** 2 < 1
        picture = rng.uniform(130, 210) + rng.normal(0, 10, (20, 20, 3))
        picture[body] = np.array(hue[k]) + rng.normal(0, 12, 3) + rng.normal(0, 9, (body.sum(), 3))
        for _ in range(spots[k]):
            a, b = rng.uniform(-0.6, 0.6) * long, rng.uniform(-0.5, 0.5) * size
            picture[(u - a) ** 2 + (v - b) ** 2 < 1.6] = (215, 200, 120)
        photos.append(_pixels(picture * rng.uniform(0.85, 1.15)))
        names.append(species[k])
    return numbered(pl.DataFrame({"photo": lists(photos, BYTES), "species": names}))


def seedlings():
    """Trays of seedlings, 24 by 24 in green and brown: the stage from 0 to 5, noted by three people who differ."""
    rng = seeded(10003)
    y, x = np.mgrid[:24, :24] - 11.5
    trays, stages = [], []
    for _ in range(1800):
        age = rng.uniform(0, 6)
        picture = np.stack(
            [np.full((24, 24), 95.0), np.full((24, 24), 75.0), np.full((24, 24), 60.0)], 2
        )
        picture += rng.normal(0, 9, picture.shape)
        turn = rng.uniform(0, np.pi)
        for leaf in range(int(age) + 1):
            angle, long = turn + leaf * 2.4, 1.5 + 1.4 * age * rng.uniform(0.85, 1.1)
            u, v = x * np.cos(angle) + y * np.sin(angle), -x * np.sin(angle) + y * np.cos(angle)
            blade = ((u - long / 2) / (long / 2 + 0.6)) ** 2 + (v / (0.8 + 0.3 * age)) ** 2 < 1
            picture[blade] = np.array([60, 130, 50]) + rng.normal(0, 10, (blade.sum(), 3))
        trays.append(_pixels(picture * rng.uniform(0.75, 1.2)))
        stages.append(int(np.clip(np.floor(age + rng.normal(0, 0.35)), 0, 5)))
    return numbered(pl.DataFrame({"tray": lists(trays, BYTES), "stage": stages}))


def street_tiles():
    """Photographs with an up: sky above, houses with roofs and doors below, already turned by quarter turns."""
    rng = seeded(10005)
    tiles, turns = [], []
    for _ in range(2000):
        horizon = int(rng.integers(8, 15))
        picture = np.empty((20, 20))
        picture[:horizon] = np.linspace(rng.uniform(170, 235), rng.uniform(150, 200), horizon)[
            :, None
        ]
        picture[horizon:] = rng.uniform(60, 120)
        for _ in range(int(rng.integers(1, 3))):
            left, wide, high = (
                int(rng.integers(0, 13)),
                int(rng.integers(5, 8)),
                int(rng.integers(4, 8)),
            )
            bottom = min(20, horizon + 3)
            picture[bottom - high : bottom, left : left + wide] = rng.uniform(90, 160)
            for row in range(3):
                picture[
                    max(0, bottom - high - 1 - row), left + row : max(left + row, left + wide - row)
                ] = 50
            picture[bottom - 3 : bottom, left + wide // 2] = 30
        if rng.random() < 0.2:  # a close view of a wall has no up
            picture = np.full((20, 20), rng.uniform(90, 160))
        turn = int(rng.integers(4))
        tiles.append(_pixels(np.rot90(picture + rng.normal(0, 14, (20, 20)), turn)))
        turns.append(turn)
    return numbered(pl.DataFrame({"tile": lists(tiles, BYTES), "turns": turns}))


def gesture_clips():
    """Six frames of 16 by 16 of a hand: swiped left, right, up or down, opened, or kept still."""
    rng = seeded(10007)
    y, x = np.mgrid[:16, :16].astype(float)
    ways = {"left": (0, -1.1), "right": (0, 1.1), "up": (-1.1, 0), "down": (1.1, 0)}
    clips, gestures = [], []
    for _ in range(1600):
        gesture = str(rng.choice([*ways, "open", "still"]))
        dy, dx = np.array(ways.get(gesture, (0, 0))) * rng.uniform(0.5, 1.2)
        cy, cx, radius = rng.uniform(5, 10), rng.uniform(5, 10), rng.uniform(1.8, 2.8)
        grown = rng.uniform(0.25, 0.5) if gesture == "open" else 0.0
        ground, hand = rng.uniform(30, 110), rng.uniform(130, 220)
        frames = []
        for t in range(6):
            at = (
                cy + dy * (t - 2.5) + rng.normal(0, 0.35),
                cx + dx * (t - 2.5) + rng.normal(0, 0.35),
            )
            inside = np.hypot(y - at[0], x - at[1]) < radius + grown * t
            frames.append(np.where(inside, hand, ground) + rng.normal(0, 12, (16, 16)))
        clips.append(_pixels(np.stack(frames)))
        gestures.append(gesture)
    return numbered(pl.DataFrame({"clip": lists(clips, BYTES), "gesture": gestures}))


def lung_volumes():
    """Small volumes of a CT, 10 by 14 by 14 in Hounsfield units: one in eight has a nodule, vessels look alike."""
    rng = seeded(10009)
    z, y, x = np.mgrid[:10, :14, :14].astype(float)
    volumes, nodules, sites = [], [], []
    for _ in range(1100):
        volume = rng.normal(-820, 60) + rng.normal(0, 70, (10, 14, 14))
        for _ in range(int(rng.integers(1, 4))):  # vessels go through
            b, c, sy, sx = rng.uniform(0, 14), rng.uniform(0, 14), *rng.uniform(-0.6, 0.6, 2)
            volume[np.hypot(y - b - sy * z, x - c - sx * z) < rng.uniform(0.8, 1.6)] += rng.uniform(
                400, 800
            )
        is_nodule = rng.random() < 0.125
        if is_nodule:
            a, b, c = rng.uniform(3, 6), rng.uniform(4, 9), rng.uniform(4, 9)
            near = np.sqrt((z - a) ** 2 + (y - b) ** 2 + (x - c) ** 2)
            volume += rng.uniform(500, 900) * (near < rng.uniform(1.6, 3.2))
        volumes.append(np.clip(np.rint(volume), -1024, 400).astype(np.int16).ravel())
        nodules.append(int(is_nodule))
        sites.append(str(rng.choice(["north", "south", "west"])))
    return numbered(
        pl.DataFrame({"volume": lists(volumes, pl.Int16), "site": sites, "nodule": nodules})
    )


def ecg_leads():
    """Three leads of 160 samples, and four findings of which none or several may hold."""
    rng = seeded(10011)
    t = np.arange(160)
    rows, findings = [], []
    for _ in range(2000):
        fast, wide, uneven, low = rng.random(4) < [0.25, 0.2, 0.15, 0.3]
        gap = rng.uniform(18, 24) if fast else rng.uniform(30, 46)
        width = rng.uniform(2.2, 3.2) if wide else rng.uniform(0.9, 1.7)
        beats, at = [], rng.uniform(0, gap)
        while at < 160:
            beats.append(at)
            at += gap * (rng.uniform(0.6, 1.5) if uneven else rng.uniform(0.96, 1.04))
        wave = np.zeros(160)
        for beat in beats:
            wave += np.exp(-0.5 * ((t - beat) / width) ** 2)
            wave += 0.25 * np.exp(-0.5 * ((t - beat - 9) / 3) ** 2)
            wave -= 0.25 * low * ((t > beat + 3) & (t < beat + 8))
        gains = rng.uniform(0.6, 1.4, 3) * [1, 0.7, -0.5]
        drift = np.sin(2 * np.pi * t / rng.uniform(100, 400) + rng.uniform(0, 6))
        lead = gains[:, None] * wave + 0.15 * drift + rng.normal(0, 0.08, (3, 160))
        rows.append((lead * 1000).round().ravel())
        findings.append([int(f) for f in (fast, wide, uneven, low)])
    return numbered(
        pl.DataFrame({"microvolts": lists(rows), "findings": lists(findings, pl.Int64)})
    )


def pump_sounds():
    """A fifth of a second of a pump at 5 kHz: sound, worn, loose or dry; the hall is loud."""
    rng = seeded(10013)
    t = np.arange(1024) / 5000
    waves, states = [], []
    for _ in range(1400):
        state = str(rng.choice(["dry", "loose", "sound", "worn"], p=[0.15, 0.2, 0.45, 0.2]))
        turn = rng.uniform(45, 60)
        wave = sum(np.sin(2 * np.pi * k * turn * t + rng.uniform(0, 6)) / k for k in (1, 2, 3))
        depth = rng.uniform(0.25, 0.9)
        if state == "worn":
            wave += (
                depth
                * np.sin(2 * np.pi * rng.uniform(1300, 1700) * t)
                * (1 + np.sin(2 * np.pi * turn * t))
            )
        if state == "loose":
            wave += (
                1.6
                * depth
                * (np.sin(2 * np.pi * turn / 2 * t + rng.uniform(0, 6)) > 0.95)
                * rng.normal(0, 1, 1024)
            )
        if state == "dry":
            hiss = np.diff(rng.normal(0, 1, 1025))
            wave += 0.5 * depth * hiss
        wave = wave * rng.uniform(0.4, 1.3) + rng.normal(0, 0.25, 1024)
        waves.append(wave.round(3))
        states.append(state)
    return numbered(pl.DataFrame({"wave": lists(waves, pl.Float32), "state": states}))


def complaints():
    """What customers of a water company complain of: seven desks, some went to the wrong one."""
    rng = seeded(10015)
    topics = {
        "billing": "bill charged twice amount invoice refund euros direct debit wrong tariff",
        "burst": "burst street flooding pavement water running pipe road emergency gushing",
        "hardness": "limescale kettle hard softener white deposits dishwasher scale",
        "meter": "meter reading dial replaced number estimate broken display turning",
        "move": "moving house new address tenant final close account contract",
        "pressure": "pressure low shower weak trickle upstairs morning drops",
        "taste": "taste smell chlorine brown cloudy colour drinking metallic glass",
    }
    filler = "the since yesterday please my in and we have again week call is no answer at for to"
    rows = []
    desks = [*topics]
    shares = np.array([30, 8, 6, 20, 14, 12, 10]) / 100
    for _ in range(3200):
        desk = str(rng.choice(desks, p=shares))
        other = str(rng.choice(desks))
        words = [
            *rng.choice(topics[desk].split(), int(rng.integers(1, 5))),
            *rng.choice(topics[other].split(), int(rng.integers(0, 2))),
            *rng.choice(filler.split(), int(rng.integers(3, 10))),
        ]
        sent_to = desk if rng.random() < 0.93 else str(rng.choice(desks))
        rows.append((" ".join(rng.permutation(words)).capitalize(), sent_to))
    return numbered(pl.DataFrame(rows, schema=["complaint", "desk"], orient="row"))


def hands():
    """A hand's silhouette from above, 24 by 24: where its thumb's tip, its middle finger's tip and its wrist are."""
    rng = seeded(10017)
    y, x = np.mgrid[:24, :24].astype(float)

    def stroke(picture, a, b, width):
        along = np.clip(
            ((x - a[0]) * (b[0] - a[0]) + (y - a[1]) * (b[1] - a[1])) / ((b - a) @ (b - a)), 0, 1
        )
        near = np.hypot(x - a[0] - along * (b[0] - a[0]), y - a[1] - along * (b[1] - a[1]))
        picture[near < width] = 1

    pictures, joints = [], []
    for _ in range(1200):
        shape, palm = np.zeros((24, 24)), rng.uniform(9, 14, 2)
        up = rng.uniform(-0.6, 0.6) - np.pi / 2

        def point(angle, far, palm=palm):
            return palm + far * np.array([np.cos(angle), np.sin(angle)])

        wrist, middle = point(up + np.pi, rng.uniform(6, 8)), point(up, rng.uniform(6.5, 8.5))
        thumb = point(up - rng.uniform(1.1, 1.5), rng.uniform(5.5, 7))
        stroke(shape, palm, wrist, 2.0)
        stroke(shape, palm, middle, 1.1)
        stroke(shape, palm, thumb, 1.1)
        for aside in (-0.35, 0.35, 0.7):
            stroke(shape, palm, point(up + aside, rng.uniform(5, 6.5)), 1.0)
        stroke(shape, palm, palm + 0.01, 3.0)
        picture = rng.uniform(40, 100) + rng.uniform(60, 130) * shape + rng.normal(0, 12, (24, 24))
        pictures.append(_pixels(picture))
        joints.append(
            np.clip(np.concatenate([thumb, middle, wrist]) + rng.normal(0, 0.3, 6), 0, 23).round(2)
        )
    return numbered(pl.DataFrame({"hand": lists(pictures, BYTES), "joints": lists(joints)}))


def farmland():
    """Fields from the air in red, green and near infrared, 20 by 20, a crop per pixel; edges are not labelled (-1)."""
    rng = seeded(10019)
    colours = np.array(
        [[60, 90, 190], [110, 110, 120], [90, 120, 150], [40, 60, 60]]
    )  # the last is water
    photos, crops = [], []
    for _ in range(700):
        cuts = np.sort(rng.integers(4, 17, 2))
        crop = np.empty((20, 20), dtype=np.int64)
        kinds = rng.choice(4, 4, p=[0.4, 0.3, 0.2, 0.1])
        for k, part in enumerate(np.split(np.arange(20), cuts)):
            crop[:, part] = kinds[k]
        low = int(rng.integers(6, 15))
        crop[low:, : cuts[0]] = kinds[3]
        if rng.random() < 0.5:
            crop = crop.T
        photo = colours[crop] + rng.normal(0, 14, 3) + rng.normal(0, 22, (20, 20, 3))
        stripes = 18 * np.sin(np.arange(20) * 2.1)[None, :, None] * (crop == 2)[:, :, None]
        edge = np.zeros((20, 20), dtype=bool)
        edge[1:] |= crop[1:] != crop[:-1]
        edge[:, 1:] |= crop[:, 1:] != crop[:, :-1]
        photos.append(_pixels(photo + stripes))
        crops.append(np.where(edge, -1, crop).ravel())
    return numbered(pl.DataFrame({"photo": lists(photos, BYTES), "crop": lists(crops, pl.Int64)}))


def boats():
    """One boat per radar picture of 28 by 28 with waves and speckle: left, top, right and bottom in pixels."""
    rng = seeded(10021)
    y, x = np.mgrid[:28, :28].astype(float)
    scans, frames = [], []
    for _ in range(1400):
        wide, high = rng.uniform(4, 12), rng.uniform(3, 7)
        left, top = rng.uniform(0, 28 - wide), rng.uniform(0, 28 - high)
        sea = 70 + 18 * np.sin(
            x * rng.uniform(0.3, 1) + y * rng.uniform(0.3, 1) + rng.uniform(0, 6)
        )
        hull = ((x - left - wide / 2) / (wide / 2)) ** 4 + (
            (y - top - high / 2) / (high / 2)
        ) ** 4 < 1
        scan = (sea + rng.uniform(60, 120) * hull) * rng.gamma(12, 1 / 12, (28, 28))
        scans.append(_pixels(scan))
        frames.append(np.array([left, top, left + wide, top + high]).round(1))
    return numbered(pl.DataFrame({"scan": lists(scans, BYTES), "frame": lists(frames)}))


def blurred_stamps():
    """Stamps through a shaking lens, 20 by 20, and the same in focus."""
    rng = seeded(10023)
    y, x = np.mgrid[:20, :20].astype(float)
    blurred, sharp = [], []
    for _ in range(900):
        stamp = np.full((20, 20), rng.uniform(150, 220))
        stamp[2:18, 2:18] = rng.uniform(60, 140)
        for _ in range(int(rng.integers(2, 5))):
            angle, offset = rng.uniform(0, np.pi), rng.uniform(-5, 5)
            line = np.abs(
                (x - 9.5) * np.cos(angle) + (y - 9.5) * np.sin(angle) - offset
            ) < rng.uniform(0.6, 1.5)
            stamp[line] = rng.uniform(20, 240)
        blurred.append(_pixels(_blur(stamp, 2) + rng.normal(0, 3, (20, 20))))
        sharp.append(_pixels(stamp))
    return numbered(pl.DataFrame({"blurred": lists(blurred, BYTES), "sharp": lists(sharp, BYTES)}))


def parcel_addresses():
    """Addresses in free order with their parts, a BIO tag per word; some words were tagged in haste."""
    rng = seeded(10025)
    streets = ["mill", "church", "station", "long", "old harbour", "king george", "green", "north"]
    towns = ["ashford", "upper dean", "leith", "st ives", "marlow", "great barr", "hove", "deal"]
    names = ["ann", "bo", "carla", "dev", "ewan", "fay", "gus"]
    surnames = ["ash", "green", "marlow", "north", "old", "potts", "king"]
    rows = []
    for _ in range(2200):
        number = str(rng.integers(1, 240)) + str(rng.choice(["", "", "a", "b"]))
        street = f"{rng.choice(streets)} {rng.choice(['road', 'street', 'lane', 'st'])}"
        parts = [
            ("NAME", f"{rng.choice(names)} {rng.choice(surnames)}"), ("STREET", street), ("NO", number),
            ("TOWN", str(rng.choice(towns))),
        ]  # fmt: skip
        if rng.random() < 0.4:
            parts.append(("NO", f"flat {rng.integers(1, 30)}"))
        if rng.random() < 0.5:
            parts.append(
                ("O", str(rng.choice(["please ring", "leave with neighbour", "fragile", "c / o"])))
            )
        words, tags = [], []
        for k in rng.permutation(len(parts)):
            tag, text = parts[k]
            for i, word in enumerate(text.split()):
                words.append(word)
                tags.append("O" if tag == "O" else f"{'I' if i else 'B'}-{tag}")
        tags = [
            str(rng.choice(["O", "B-NAME", "B-TOWN"])) if rng.random() < 0.01 else t for t in tags
        ]
        rows.append((" ".join(words), " ".join(tags)))
    return numbered(pl.DataFrame(rows, schema=["address", "tags"], orient="row"))


def spoken_prices():
    """Prices as clerks write them, and as the till reads them aloud."""
    rng = seeded(10027)
    ones = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    ones = (ones + "seventeen eighteen nineteen").split()
    tens = ["-", "-", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]

    def spoken(n):
        if n < 20:
            return ones[n]
        return tens[n // 10] + (f" {ones[n % 10]}" if n % 10 else "")

    rows = []
    for _ in range(3000):
        euros, cents = (
            int(rng.integers(0, 100)),
            int(rng.choice([0, 5, 50, 95, 99, int(rng.integers(100))])),
        )
        unit = str(rng.choice(["EUR", "€", "eur"]))
        written = f"{euros}.{cents:02d}"
        written = f"{unit} {written}" if rng.random() < 0.5 else f"{written} {unit}"
        aloud = f"{spoken(euros)} euro" + (f" {spoken(cents)}" if cents else "")
        rows.append((written, aloud))
    return numbered(pl.DataFrame(rows, schema=["written", "aloud"], orient="row"))


def kitchen_notes():
    """Sentences of a small grammar of cooking, as a model that reads them would be trained on."""
    rng = seeded(10029)

    def pick(text):
        return str(rng.choice(text.split()))

    rows = []
    for _ in range(2500):
        thing, other = (
            pick("onion carrot leek potato turnip celery"),
            pick("butter oil stock cream wine"),
        )
        cut = pick("slice chop dice peel grate")
        heat = {
            "butter": "melt",
            "oil": "heat",
            "stock": "boil",
            "cream": "warm",
            "wine": "reduce",
        }[other]
        many = pick("two three four")
        first = f"{cut} {many} {thing}s" if rng.random() < 0.6 else f"{cut} the {thing}"
        minutes = {
            "butter": "five",
            "oil": "six",
            "stock": "twenty",
            "cream": "ten",
            "wine": "eight",
        }[other]
        rows.append(
            (
                f"{first} and {heat} the {other} then cook the {thing} in {other} for {minutes} minutes",
            )
        )
    return numbered(pl.DataFrame(rows, schema=["note"], orient="row"))


def dawn_chorus():
    """Sixty-four frames of twelve bands: which of three birds sings somewhere in it, perhaps none or two."""
    rng = seeded(10031)
    clips, singers = [], []
    for _ in range(1600):
        clip = rng.normal(0, 1, (64, 12)) * 0.6 + rng.normal(0, 0.3, 12)
        sings = rng.random(3) < [0.4, 0.3, 0.2]
        for bird in np.flatnonzero(sings):
            start, loud = int(rng.integers(0, 50)), rng.uniform(1.6, 3.2)
            for t in range(int(rng.integers(7, 13))):
                band = {0: 2 + t // 3, 1: 9 - t // 2, 2: 6 + 2 * (t % 2)}[int(bird)]
                clip[start + t, int(np.clip(band, 0, 11))] += loud
        clips.append(clip.round(3).ravel())
        singers.append([int(s) for s in sings])
    return numbered(pl.DataFrame({"bands": lists(clips), "singers": lists(singers, pl.Int64)}))


def manual_questions():
    """Questions, the page that answers, and a page that a word search found first and that does not."""
    rng = seeded(10033)
    parts = [
        "hinge",
        "drawer",
        "lamp",
        "sensor",
        "filter",
        "hose",
        "battery",
        "charger",
        "remote",
        "lid",
        "handle",
        "wheel",
    ]
    asks = {
        "broken": (
            "snapped cracked does not work fell off",
            "replace the damaged part order a spare",
        ),
        "clean": ("dirty stained smells greasy", "wash with warm water and let dry"),
        "fit": ("where goes how attach mount", "align push until it clicks tighten the screw"),
        "noise": ("squeaks rattles loud hum", "apply grease and tighten loose bolts"),
    }
    filler = [
        "the",
        "my",
        "a",
        "is",
        "on",
        "it",
        "of",
        "i",
        "have",
        "this",
        "can",
        "you",
        "please",
        "model",
        "after",
    ]
    rows = []

    def page(part, ask):
        words = [
            part,
            part,
            *rng.choice(asks[ask][1].split(), 4),
            *rng.choice(filler, int(rng.integers(2, 6))),
        ]
        return " ".join(rng.permutation(words))

    for _ in range(2400):
        part, ask = str(rng.choice(parts)), str(rng.choice([*asks]))
        question = [
            part,
            *rng.choice(asks[ask][0].split(), 2),
            *rng.choice(filler, int(rng.integers(1, 5))),
        ]
        wrong = str(rng.choice([a for a in asks if a != ask]))
        rows.append((" ".join(rng.permutation(question)), page(part, ask), page(part, wrong)))
    return numbered(pl.DataFrame(rows, schema=["question", "page", "hard_page"], orient="row"))


def keys():
    """Silhouettes of keys, 12 by 24: forty cuts, each photographed again and again, tilted and worn."""
    rng = seeded(10035)
    cuts = rng.integers(0, 5, (40, 7))
    keys, numbers = [], []
    for _ in range(2000):
        k = int(rng.integers(40))
        key = np.zeros((12, 24))
        key[2:8, :] = 1
        key[1:10, :5] = 1
        for i, depth in enumerate(cuts[k]):
            bottom = 8 - depth + int(rng.random() < 0.06)
            key[bottom:8, 6 + 2 * i : 8 + 2 * i] = 0
        key = np.roll(key, (int(rng.integers(-1, 3)), int(rng.integers(-1, 2))), (0, 1))
        light, dark = rng.uniform(140, 220), rng.uniform(20, 90)
        keys.append(_pixels(light + (dark - light) * key + rng.normal(0, 12, (12, 24))))
        numbers.append(f"K{k:02d}")
    return numbered(pl.DataFrame({"silhouette": lists(keys, BYTES), "key": numbers}))
