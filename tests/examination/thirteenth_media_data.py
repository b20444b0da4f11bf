"""Datasets of the thirteenth list: names, recipes, service notes, pictures, stamps and spoken words."""

import numpy as np
import polars as pl
from sklearn import datasets

from examination.data import numbered, seeded


def village_names():
    """Names of villages in five regions, each with syllables and endings of its own; some names in two regions."""
    rng = seeded(13101)
    starts = {
        "coast": ["ost", "wes", "nor", "sand", "mar", "hoo", "bru", "tos", "fed"],
        "hills": ["berg", "stein", "wald", "hohen", "lin", "kirch", "eich", "alt"],
        "lakes": ["lak", "see", "tve", "mor", "gru", "ven", "ahr", "pol"],
        "vale": ["val", "cast", "mont", "bel", "fon", "cor", "rip", "ser"],
        "marsh": ["moor", "fen", "wick", "hal", "thor", "grim", "nes"],
    }
    ends = {
        "coast": ["büll", "um", "siel", "koog"], "hills": ["dorf", "heim", "au", "ingen"],
        "lakes": ["ow", "itz", "in"], "vale": ["ella", "ano", "one", "ara"], "marsh": ["by", "thorpe", "ton"],
    }  # fmt: skip
    rows = []
    for _ in range(3600):
        region = str(rng.choice(list(starts), p=[0.3, 0.34, 0.16, 0.14, 0.06]))
        own = region if rng.random() < 0.95 else str(rng.choice(list(starts)))
        parts = rng.choice(starts[own], 1 + int(rng.random() < 0.25), replace=False)
        name = "".join(parts) + str(rng.choice(ends[own]))
        if rng.random() < 0.12:
            name = str(rng.choice(["Neu ", "Bad ", "St. "])) + name.capitalize()
        rows.append((region, name if " " in name else name.capitalize()))
    return numbered(pl.DataFrame(rows, schema=["region", "name"], orient="row"))


def recipe_lines():
    """Ingredients as cooks write them, and as a shop's list has them."""
    rng = seeded(13103)
    numbers = {"one": 1, "two": 2, "three": 3, "four": 4, "half a dozen": 6, "a dozen": 12}
    things = {"onion": "onions", "egg": "eggs", "tomato": "tomatoes", "carrot": "carrots", "lemon": "lemons",
              "potato": "potatoes", "pepper": "peppers", "apple": "apples", "leek": "leeks", "fig": "figs"}  # fmt: skip
    sizes, ways = (
        ["large", "small", "ripe", "medium", "organic"],
        ["chopped", "peeled", "sliced", "grated", "to taste"],
    )
    rows = []
    for _ in range(4200):
        number = str(rng.choice(list(numbers)))
        thing = str(rng.choice(list(things), p=np.array([9, 8, 7, 6, 5, 4, 3, 2, 1, 1]) / 46))
        size = str(rng.choice(sizes)) if rng.random() < 0.5 else ""
        way = str(rng.choice(ways)) if rng.random() < 0.45 else ""
        many = numbers[number] > 1
        written = number if rng.random() < 0.7 else str(numbers[number])
        words = [
            written,
            size,
            things[thing] if many else thing,
            *((",", "finely", way) if way == "chopped" else (",", way) if way else ()),
        ]
        line = " ".join(w for w in words if w)
        if rng.random() < 0.08:
            line = "about " + line
        if rng.random() < 0.05:
            line = line.upper()
        entry = f"{thing} x {numbers[number]}" + (
            f" ( {size} )" if size in ("large", "small", "medium") else ""
        )
        rows.append((line, entry))
    return numbered(pl.DataFrame(rows, schema=["line", "entry"], orient="row"))  # fmt: skip


def service_notes():
    """Notes of a workshop in a small language, of very different lengths."""
    rng = seeded(13105)
    parts = [
        "brake",
        "clutch",
        "pump",
        "belt",
        "valve",
        "filter",
        "sensor",
        "bearing",
        "gasket",
        "hose",
    ]
    faults = {"brake": "squeals", "clutch": "slips", "pump": "leaks", "belt": "slips", "valve": "sticks",
              "filter": "clogs", "sensor": "drifts", "bearing": "hums", "gasket": "leaks", "hose": "leaks"}  # fmt: skip
    rows = []
    for _ in range(2600):
        words = []
        for _ in range(int(rng.geometric(0.4))):
            part = str(rng.choice(parts))
            side = str(rng.choice(["left", "right", "front", "rear"]))
            fault = faults[part] if rng.random() < 0.85 else str(rng.choice(list(faults.values())))
            words += ["the", side, part, fault]
            if rng.random() < 0.5:
                words += ["when", str(rng.choice(["cold", "warm", "wet"]))]
            words += [
                "so",
                "we",
                str(rng.choice(["replaced", "cleaned", "checked"])),
                "the",
                part,
                ".",
            ]
        if rng.random() < 0.1:
            words += ["customer", "waits", "."]
        rows.append((" ".join(words),))
    return numbered(pl.DataFrame(rows, schema=["note"], orient="row"))


def drawn_glyphs():
    """Grey pictures of 16 by 16: rings, crosses and arcs of several widths on paper that is not white."""
    rng = seeded(13107)
    yy, xx = np.mgrid[:16, :16]
    pictures = []
    for _ in range(3000):
        cy, cx = rng.uniform(5.5, 9.5, 2)
        r, w, kind = rng.uniform(3, 5.5), rng.uniform(0.7, 1.3), rng.integers(3)
        distance, angle = np.hypot(yy - cy, xx - cx), np.arctan2(yy - cy, xx - cx)
        ring = np.exp(-(((distance - r) / w) ** 2))
        turn = rng.uniform(0, np.pi)
        u, v = (
            (xx - cx) * np.cos(turn) + (yy - cy) * np.sin(turn),
            (yy - cy) * np.cos(turn) - (xx - cx) * np.sin(turn),
        )
        cross = np.maximum(np.exp(-((u / w) ** 2)), np.exp(-((v / w) ** 2))) * (distance < r + 1)
        ink = (ring, cross, ring * (np.abs(np.angle(np.exp(1j * (angle - turn)))) < 2.0))[kind]
        pictures.append(
            np.clip(255 * (0.06 + 0.9 * ink) + rng.normal(0, 5, (16, 16)), 0, 255)
            .astype(np.uint8)
            .ravel()
            .tolist()
        )
    frame = pl.DataFrame({"glyph": pictures}, schema_overrides={"glyph": pl.List(pl.UInt8)})
    return numbered(frame.with_columns(pl.col("glyph").alias("glyph_again")))  # fmt: skip


def station_halls():
    """Views of a hall from above: people as small bright spots, larger when near, and where each head is."""
    rng = seeded(13109)
    yy, xx = np.mgrid[:32, :32]
    views, heads = [], []
    for _ in range(2400):
        n = int(min(rng.negative_binomial(2, 0.18), 40))
        ground = (
            rng.uniform(30, 90) + 12 * np.sin(xx / rng.uniform(3, 9)) + rng.normal(0, 6, (32, 32))
        )
        spots = rng.uniform(1, 31, (n, 2)).round(2)
        for y, x in spots:
            size = 0.8 + 0.6 * y / 32
            ground = ground + rng.uniform(60, 120) * np.exp(
                -((yy - y) ** 2 + (xx - x) ** 2) / (2 * size**2)
            )
        views.append(np.clip(ground, 0, 255).astype(np.uint8).ravel().tolist())
        heads.append(spots.ravel().tolist())
    types = {"view": pl.List(pl.UInt8), "heads": pl.List(pl.Float64)}
    return numbered(pl.DataFrame({"view": views, "heads": heads}, schema_overrides=types))


def house_plates():
    """Digits on plates of 20 by 20 that hang askew, somewhere on the wall, with scratches."""
    rng = seeded(13111)
    pixels, digit = datasets.load_digits(return_X_y=True)
    yy, xx = np.mgrid[:20, :20]
    plates, numbers = [], []
    for _ in range(3200):
        k = int(rng.integers(len(digit)))
        picture, turn = pixels[k].reshape(8, 8), rng.uniform(-0.6, 0.6)
        scale, cy, cx = rng.uniform(0.55, 0.9), rng.uniform(7, 12), rng.uniform(7, 12)
        dy, dx = (yy - cy) * scale, (xx - cx) * scale
        u, v = (
            dx * np.cos(turn) + dy * np.sin(turn) + 3.5,
            dy * np.cos(turn) - dx * np.sin(turn) + 3.5,
        )
        iu, iv = np.rint(u).astype(int), np.rint(v).astype(int)
        inside = (iu >= 0) & (iu < 8) & (iv >= 0) & (iv < 8)
        ink = np.where(inside, picture[iv.clip(0, 7), iu.clip(0, 7)], 0) * 12
        ink = ink + rng.normal(18, 8, (20, 20))
        if rng.random() < 0.2:
            ink[int(rng.integers(20))] += 60
        plates.append(np.clip(ink, 0, 255).astype(np.uint8).ravel().tolist())
        numbers.append(int(digit[k]))
    frame = pl.DataFrame(
        {"plate": plates, "digit": numbers}, schema_overrides={"plate": pl.List(pl.UInt8)}
    )
    return numbered(frame)  # fmt: skip


def stamp_pairs():
    """Two photographs of stamps, and whether both show one design: other light, other margin, other ink."""
    rng = seeded(13113)
    yy, xx = np.mgrid[:12, :12]

    def design(number):
        own = np.random.default_rng(500 + number)
        waves = [
            np.sin(own.uniform(0.3, 1.1) * yy + own.uniform(0.3, 1.1) * xx + own.uniform(0, 6))
            for _ in range(2)
        ]
        return np.sum(waves, axis=0)

    def photograph(number):
        dy, dx = rng.integers(-1, 2, 2)
        seen = np.roll(designs[number], (dy, dx), (0, 1)) * rng.uniform(25, 45) + rng.uniform(
            90, 160
        )
        return np.clip(seen + rng.normal(0, 12, (12, 12)), 0, 255).astype(np.uint8).ravel().tolist()

    designs = [design(k) for k in range(30)]
    rows = []
    for _ in range(4000):
        same = int(rng.random() < 0.4)
        a = int(rng.integers(30))
        b = a if same else int(rng.choice([k for k in range(30) if k != a]))
        rows.append((photograph(a), photograph(b), same))
    types = {"left": pl.List(pl.UInt8), "right": pl.List(pl.UInt8)}
    return numbered(pl.DataFrame(rows, schema=["left", "right", "same"], schema_overrides=types, orient="row"))  # fmt: skip


def spoken_commands():
    """Short recordings of ten speakers: five words as rising or falling tones, other words, and silence."""
    rng = seeded(13115)
    words = {
        "up": (300, 700),
        "down": (700, 300),
        "left": (500, 500),
        "right": (350, 350),
        "stop": (900, 650),
    }
    pitch = rng.uniform(0.8, 1.25, 24)
    sounds, labels, speakers = [], [], []
    for _ in range(2400):
        speaker = int(rng.integers(24))
        label = str(rng.choice([*words, "_unknown_", "_silence_"], p=[0.15] * 5 + [0.17, 0.08]))
        ends = words.get(label, tuple(rng.uniform(250, 1000, 2)))
        begin, long = int(rng.integers(0, 500)), int(rng.integers(700, 1000))
        frequency = pitch[speaker] * np.linspace(ends[0], ends[1], long)
        sound = rng.normal(0, 0.05 + 0.1 * rng.random(), 1600)
        if label != "_silence_":
            tone = np.sin(2 * np.pi * np.cumsum(frequency) / 4000) * np.hanning(long)
            sound[begin : begin + long] += rng.uniform(0.3, 1.0) * (tone + 0.4 * tone**2)
        sounds.append((sound * np.exp(rng.normal(0, 0.3))).round(4).tolist())
        labels.append(label)
        speakers.append(f"speaker-{speaker}")
    types = {"sound": pl.List(pl.Float32)}
    columns = {"speaker": speakers, "sound": sounds, "word": labels}
    return numbered(pl.DataFrame(columns, schema_overrides=types))
