"""Datasets of the eighth list: fields, small and noisy sets, sentences of sounds, physics, records with gaps."""

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid


def heated_plates():
    """Sources of heat on a plate of 16 by 16 with cold edges, and the temperature that they lead to."""
    rng = seeded(8001)
    k = np.arange(1, 17)
    basis = np.sin(np.pi * np.outer(k, k) / 17) * np.sqrt(2 / 17)
    decay = 2 * (1 - np.cos(np.pi * k / 17))
    y, x = np.mgrid[:16, :16]
    sources, fields = [], []
    for _ in range(900):
        source = np.zeros((16, 16))
        for _ in range(rng.integers(1, 4)):
            cy, cx = rng.uniform(2, 14, 2)
            width = rng.uniform(1, 6)
            source += rng.normal(0, 40) * np.exp(-((y - cy) ** 2 + (x - cx) ** 2) / width)
        spectrum = basis @ source @ basis
        field = basis @ (spectrum / (decay[:, None] + decay[None, :])) @ basis
        sources.append(source.round(3).ravel())
        fields.append(field.round(3).ravel())
    return numbered(pl.DataFrame({"source": lists(sources), "temperature": lists(fields)}))


def cracked_tiles():
    """Four hundred floor tiles from above, 20 by 20: one in seven is cracked, which is plain to see."""
    rng = seeded(8003)
    images, cracked = [], []
    for _ in range(400):
        tile = rng.uniform(120, 220) + rng.normal(0, 6, (20, 20))
        is_cracked = rng.random() < 0.15
        if is_cracked:
            at, slope = rng.uniform(4, 16), rng.uniform(-0.5, 0.5)
            for row in range(20):
                column = int(np.clip(at + slope * (row - 10) + rng.normal(0, 0.6), 0, 19))
                tile[row, column] -= rng.uniform(60, 110)
            if rng.random() < 0.5:
                tile = tile.T
        images.append(np.clip(tile, 0, 255).astype(np.uint8).ravel())
        cracked.append(int(is_cracked))
    return numbered(pl.DataFrame({"tile": lists(images, pl.UInt8), "cracked": cracked}))


SYLLABLES = {
    "coast": "la mi ro sel tan ve ru no",
    "hill": "kra mi gor tan ush ve dra no",
    "island": "a'o la hei mi nua pe ru ki",
    "town": "sel der ro bur gor lin ve ten",
    "desert": "qa ush zin ta hei dra pe ji",
}


def dialects():
    """Sentences of five dialects, each from syllables of its own and of its neighbours."""
    rng = seeded(8005)
    rows = []
    for _ in range(2000):
        dialect = str(rng.choice([*SYLLABLES]))
        words = [
            "".join(rng.choice(SYLLABLES[dialect].split(), int(rng.integers(2, 4))))
            for _ in range(rng.integers(4, 9))
        ]
        rows.append((" ".join(words).capitalize() + ".", dialect))
    return numbered(pl.DataFrame(rows, schema=["sentence", "dialect"], orient="row"))


def return_notes():
    """What a buyer wrote beside the order, and whether it was sent back: hardly more than a guess."""
    rng = seeded(8007)
    text = (
        "please leave at door thanks gift for birthday wife son size maybe small large hope fits "
        "urgent ring bell neighbour second floor second order colour blue black as photo not sure "
        "same as last time fast happy shop again new try first"
    )
    vocabulary = sorted(set(text.split()))
    pull = dict.fromkeys(vocabulary, 0.0)
    pull |= {"maybe": 0.5, "sure": 0.4, "size": 0.3, "hope": 0.35, "try": 0.4, "again": -0.5}
    pull |= {"last": -0.4, "thanks": -0.2}
    rows = []
    for _ in range(4000):
        note = [str(w) for w in rng.choice(vocabulary, int(rng.integers(2, 10)))]
        logit = -0.9 + sum(pull[w] for w in note)
        rows.append((" ".join(note), int(rng.random() < sigmoid(logit))))
    return numbered(pl.DataFrame(rows, schema=["note", "returned"], orient="row"))


def paired_microphones():
    """One call of a bird at two microphones, 96 samples each, from other distances and with other noise."""
    rng = seeded(8009)
    t = np.linspace(0, 1, 96)
    near, far = [], []
    for _ in range(1600):
        first, bend, beats = rng.uniform(3, 16), rng.uniform(-8, 8), rng.uniform(1, 5)
        loud = 0.6 + 0.4 * np.sin(2 * np.pi * beats * t + rng.uniform(0, 6))
        call = np.sin(2 * np.pi * (first * t + bend * t**2 / 2) + rng.uniform(0, 6)) * loud
        near.append((rng.uniform(0.8, 2) * call + rng.normal(0, 0.2, 96)).round(4))
        far.append((rng.uniform(0.2, 0.6) * call + rng.normal(0, 0.1, 96)).round(4))
    return numbered(pl.DataFrame({"near": lists(near), "far": lists(far)}))


def springs():
    """Two masses on three springs, one of them stiffening: where they are, how fast, and what changes."""
    rng = seeded(8011)
    q, p = rng.normal(0, 1, (2000, 2)), rng.normal(0, 1, (2000, 2))
    stretch = q[:, 1] - q[:, 0]
    force = np.stack([-q[:, 0] + stretch + 0.5 * stretch**3, -q[:, 1] - stretch - 0.5 * stretch**3])
    change = np.concatenate([p / [1.0, 1.5], force.T], axis=1) + rng.normal(0, 0.03, (2000, 4))
    state = np.concatenate([q, p], axis=1)
    return numbered(
        pl.DataFrame({"state": lists(state.round(4)), "change": lists(change.round(4))})
    )


def hospital_visits():
    """A scan, words of the admission and a few numbers, each of which may lack; the costs have heavy tails."""
    rng = seeded(8013)
    y, x = np.mgrid[:10, :10] - 4.5
    phrases = ["fell at home", "chest pain", "short of breath", "planned operation", "fever"]
    dear = dict(zip(phrases, [0.3, 0.5, 0.8, 0.0, -0.3], strict=True))
    rows = []
    for _ in range(2400):
        age, spot = int(rng.integers(20, 92)), rng.uniform(0, 4)
        phrase = str(rng.choice(phrases))
        scan = 60 + 90 * (np.hypot(y - rng.normal(), x - rng.normal()) < spot)
        scan = np.clip(scan + rng.normal(0, 10, (10, 10)), 0, 255).astype(np.uint8)
        worth = 7.5 + 0.25 * spot + dear[phrase] + 0.01 * (age - 50) + 0.25 * rng.standard_t(2.2)
        seen, told = rng.random() < 0.7, rng.random() < 0.8
        pulse = round(float(rng.normal(80, 12)), 1) if rng.random() < 0.9 else None
        rows.append(
            (
                scan.ravel().tolist() if seen else None, phrase if told else None, age, pulse, 1.0,
                round(float(np.exp(np.clip(worth, 4, 14))), 2),
            )
        )  # fmt: skip
    schema = {
        "scan": pl.List(pl.UInt8), "admission": pl.String, "age": pl.Int64, "pulse": pl.Float64,
        "site": pl.Float64, "cost": pl.Float64,
    }  # fmt: skip
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def lab_series():
    """Irregular measurements of a substance after doses, and its value at a later hour."""
    rng = seeded(8015)
    rows = []
    for _ in range(2200):
        n = int(rng.integers(3, 11))
        hours = np.sort(rng.uniform(0, 24, n)).round(2)
        asked = round(float(hours[-1] + rng.uniform(0.5, 10)), 2)
        rate, floor, level = rng.uniform(0.05, 0.35), rng.uniform(0, 2), rng.uniform(3, 10)
        values = floor + level * np.exp(-rate * np.append(hours, asked))
        values = values + rng.normal(0, 0.15, n + 1)
        rows.append((hours.tolist(), values[:-1].round(3).tolist(), asked, float(values[-1])))
    names = ["hours", "values", "asked_hour", "value_then"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def detector_hits():
    """The energy of a particle's beam, and four readings that depend on it and on each other in curves."""
    rng = seeded(8017)
    a, b = rng.normal(0, 1, 3000), rng.normal(0, 1, 3000)
    side = np.where(rng.random(3000) < 0.35, 2.0, -1.0)
    hits = np.stack(
        [
            30 + 12 * a, 5 + 2 * (0.6 * b + 0.7 * a**2), 100 * (side + 0.4 * rng.normal(size=3000)),
            0.01 * (a * b + 0.3 * rng.normal(size=3000)),
        ],
        axis=1,
    )  # fmt: skip
    energy = np.exp(0.5 * a + 0.3 * rng.normal(size=3000))
    hit = lists(hits.round(5))
    return numbered(pl.DataFrame({"energy": energy.round(4), "hit": hit, "target": hit}))


def answered_questions():
    """A question, one found paragraph, and whether it answers: one in five does, some marks are slips."""
    rng = seeded(8019)
    parts = ["pump", "valve", "filter", "motor", "belt", "sensor"]
    faults = {"leaks": ["drips", "wet"], "stops": ["dead", "restart"], "hot": ["cooling", "fan"]}
    faults |= {"noisy": ["rattles", "grease"]}
    common = "the a to of unit see page first then when if check turn before after"
    filler = common.split()
    rows = []
    for _ in range(4000):
        part, fault = str(rng.choice(parts)), str(rng.choice([*faults]))
        p = part if rng.random() < 0.6 else str(rng.choice(parts))
        f = fault if rng.random() < 0.5 else str(rng.choice([*faults]))
        marked = (p == part and f == fault) != (rng.random() < 0.03)
        question = [part, fault, *rng.choice(filler, 3)]
        text = [p, *faults[f], *rng.choice(filler, int(rng.integers(3, 9)))]
        rows.append(
            (" ".join(rng.permutation(question)), " ".join(rng.permutation(text)), int(marked))
        )
    return numbered(pl.DataFrame(rows, schema=["question", "paragraph", "answers"], orient="row"))
