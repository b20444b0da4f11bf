"""Datasets of the third list: honest synthetic ones, small enough to be made in a second."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def lists(values, dtype=pl.Float64):
    return pl.Series(np.asarray(values).tolist(), dtype=pl.List(dtype))


def movie_genres():
    """Which of five genres a film has, by what the studio knows of it."""
    rng = seeded(101)
    n = 4000
    budget, runtime = np.exp(rng.normal(3, 1, n)), rng.normal(105, 18, n)
    rating = rng.choice(["G", "PG", "PG-13", "R"], n, p=[0.1, 0.2, 0.4, 0.3])
    effects, songs = rng.poisson(np.log1p(budget) * 40), rng.poisson(6, n)
    adult = np.array([{"G": -2, "PG": -1, "PG-13": 0.5, "R": 1.5}[r] for r in rating])
    logits = np.stack(
        [
            0.02 * (effects - 120) - 0.5,
            -0.9 * adult + 0.3 * (songs - 6) - 1.0,
            1.0 * adult - 0.03 * (runtime - 105) - 1.5,
            0.05 * (runtime - 105) - 0.2 * (songs - 6) - 0.5,
            0.5 * (songs - 8) - 2.0,
        ],
        1,
    )
    genres = (rng.random((n, 5)) < sigmoid(logits)).astype(np.int64)
    return pl.DataFrame(
        {
            "film": np.arange(n), "budget": budget, "runtime": runtime, "rating": rating,
            "effects": effects, "songs": songs, "genres": lists(genres, pl.Int64),
        }
    )  # fmt: skip


def commutes():
    """Minutes of a way to work, whose spread grows with its length and the rain."""
    rng = seeded(103)
    n = 4000
    km, hour = rng.gamma(3, 4, n), rng.integers(5, 23, n)
    rain, weekday = rng.random(n) < 0.3, rng.integers(0, 7, n)
    rush = np.exp(-((hour - 8) ** 2) / 4) + np.exp(-((hour - 17) ** 2) / 4)
    centre = 4 + km * (1.5 + 1.2 * rush * (weekday < 5))
    spread = 1 + 0.12 * centre * (1 + rain)
    minutes = np.maximum(centre + spread * (rng.gamma(2, 0.7, n) - 1.4), 1.0)
    return numbered(
        pl.DataFrame({"km": km, "hour": hour, "rain": rain, "weekday": weekday, "minutes": minutes})
    )


def used_cars():
    """Asking prices; one in twenty is a slip of the seller's pen."""
    rng = seeded(105)
    n = 4000
    km, age, power = rng.gamma(2, 50, n) * 1000, rng.integers(0, 20, n), rng.normal(95, 25, n)
    brand = rng.choice(["vw", "bmw", "fiat", "skoda", "volvo"], n)
    worth = np.array([{"vw": 0, "bmw": 6, "fiat": -4, "skoda": -1, "volvo": 3}[b] for b in brand])
    price = 14 + worth + 0.08 * power - 0.9 * age - km / 40000 + rng.normal(scale=1.5, size=n)
    slip = rng.random(n) < 0.05
    price = np.where(slip, price * rng.choice([0.1, 5], n), price)
    return numbered(
        pl.DataFrame({"km": km, "age": age, "power": power, "brand": brand, "price_k": price})
    )


def machines():
    """Weeks until a machine fails, at most twelve; negative where it was sold before."""
    rng = seeded(107)
    n = 4000
    x = rng.normal(size=(n, 4))
    hazard = sigmoid(-2.3 + x @ [0.9, -0.6, 0.4, 0.0] + 0.5 * (x[:, 0] > 1))
    fails, sold = rng.geometric(hazard), rng.integers(4, 30, n)
    end = np.minimum(np.minimum(fails, sold), 12)
    weeks = np.where((fails <= sold) & (fails <= 12), end, -end)
    frame = pl.DataFrame(x, schema=["heat", "oil", "load_z", "shift"])
    return numbered(frame.with_columns(weeks=pl.Series(weeks.astype(np.int64))))


def claims():
    """Cost of a year's insurance: mostly nothing."""
    rng = seeded(109)
    n = 9000
    age, power = rng.integers(18, 85, n), rng.integers(4, 13, n)
    area, exposure = rng.choice(list("ABCDE"), n), rng.uniform(0.3, 1, n)
    place = np.array([{"A": -0.4, "B": -0.2, "C": 0, "D": 0.3, "E": 0.6}[a] for a in area])
    rate = np.exp(-1.3 + 0.7 * (age < 26) + 0.08 * (power - 7) + place) * exposure
    count = rng.poisson(rate)
    cost = np.array(
        [rng.gamma(2, 0.5 + 0.06 * p, c).sum() for p, c in zip(power, count, strict=False)]
    )
    return numbered(
        pl.DataFrame(
            {"DrivAge": age, "VehPower": power, "Area": area, "Exposure": exposure, "Cost": cost}
        )
    )


def rents():
    """Rent per square metre in a town whose quarters alternate along both axes."""
    rng = seeded(111)
    n = 5000
    east, north = rng.uniform(0, 10, n), rng.uniform(0, 10, n)
    rooms, size = rng.integers(1, 6, n), rng.normal(70, 20, n).clip(20)
    rent = 12 + 3 * np.sin(1.5 * east) * np.cos(1.1 * north) + 0.5 * rooms - 0.03 * (size - 70)
    rent += rng.normal(scale=0.7, size=n)
    return numbered(
        pl.DataFrame({"east": east, "north": north, "rooms": rooms, "size": size, "rent": rent})
    )


def molecules():
    """Up to ten atoms and their bonds, as lists; is an oxygen bound to a nitrogen?"""
    rng = seeded(113)
    atoms, bonds, poisonous = [], [], []
    for _ in range(4000):
        size = int(rng.integers(5, 11))
        kinds = rng.choice(4, size, p=[0.5, 0.2, 0.2, 0.1])
        matrix = np.zeros((10, 10), dtype=np.int64)
        for k in range(1, size):
            j = int(rng.integers(max(0, k - 3), k))
            matrix[k, j] = matrix[j, k] = 1
        pairs = np.argwhere(matrix)
        found = any({kinds[a], kinds[b]} == {1, 2} for a, b in pairs)
        atoms.append([*kinds.tolist(), *[-1] * (10 - size)])
        bonds.append(matrix.ravel().tolist())
        poisonous.append(int(found))
    return numbered(pl.DataFrame({"atoms": atoms, "bonds": bonds, "poisonous": poisonous}))


def stars():
    """One bright star on a noisy plate; where is it?"""
    rng = seeded(115)
    yy, xx = np.mgrid[:16, :16]
    where = rng.uniform(2, 13, size=(3000, 2))
    plates = [
        180 * np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / 3) + rng.normal(40, 12, (16, 16))
        for x, y in where
    ]
    pixels = np.clip(np.array(plates).reshape(3000, -1), 0, 255).astype(np.uint8)
    return numbered(pl.DataFrame({"plate": lists(pixels, pl.UInt8), "where": lists(where)}))


def dots():
    """How many single bright pixels are on a slide?"""
    rng = seeded(117)
    slides, counts = [], rng.poisson(5, 3000)
    for count in counts:
        slide = rng.normal(30, 8, 256)
        slide[rng.permutation(256)[:count]] = rng.uniform(160, 250, count)
        slides.append(np.clip(slide, 0, 255).astype(np.uint8))
    return numbered(
        pl.DataFrame({"slide": lists(slides, pl.UInt8), "cells": counts.astype(np.int64)})
    )


def spoken_words():
    """A quarter of a second of sound: up, down, hum or pulse, at any loudness and phase."""
    rng = seeded(119)
    t = np.linspace(0, 1, 256)
    waves, words = [], []
    for _ in range(2400):
        word = str(rng.choice(["up", "down", "hum", "pulse"]))
        low, phase = rng.uniform(8, 14), rng.uniform(0, 2 * np.pi)
        turns = {
            "up": low * t + 14 * t**2, "down": (low + 28) * t - 14 * t**2,
            "hum": (low + 14) * t, "pulse": (low + 14) * t,
        }[word]  # fmt: skip
        wave = np.sin(2 * np.pi * turns + phase)
        if word == "pulse":
            wave *= 0.5 + 0.5 * np.sign(np.sin(2 * np.pi * 4 * t + phase))
        waves.append(rng.uniform(0.2, 1.4) * wave + rng.normal(scale=0.1, size=256))
        words.append(word)
    return numbered(pl.DataFrame({"wave": lists(waves, pl.Float32), "word": words}))


def machine_sounds():
    """Half a second at a fan, a pump or a valve, which is a tone, two tones or clicks."""
    rng = seeded(121)
    t = np.arange(512)
    clips, kinds = [], []
    for _ in range(2000):
        kind = str(rng.choice(["fan", "pump", "valve"], p=[0.5, 0.3, 0.2]))
        f, phase = rng.uniform(0.05, 0.12), rng.uniform(0, 6)
        clip = np.sin(2 * np.pi * f * t + phase)
        if kind == "pump":
            clip = 0.7 * clip + 0.7 * np.sin(2 * np.pi * 2.5 * f * t)
        if kind == "valve":
            clip = 0.5 * clip + 2.0 * (rng.random(512) < 0.03)
        clips.append(clip + rng.normal(scale=0.3, size=512))
        kinds.append(kind)
    return numbered(pl.DataFrame({"clip": lists(clips, pl.Float32), "kind": kinds}))


def heartbeats():
    """Ninety-six samples around a beat: normal, early or wide."""
    rng = seeded(123)
    t = np.arange(96)
    beats, kinds = [], []
    for _ in range(3000):
        kind = str(rng.choice(["normal", "early", "wide"], p=[0.7, 0.2, 0.1]))
        at = rng.normal(48, 2) - 18 * (kind == "early")
        width = 2.5 + 3.5 * (kind == "wide")
        beat = np.exp(-((t - at) ** 2) / (2 * width**2)) + 0.3 * np.exp(-((t - at - 22) ** 2) / 50)
        beats.append(rng.uniform(0.8, 1.2) * beat + rng.normal(scale=0.07, size=96))
        kinds.append(kind)
    return numbered(pl.DataFrame({"beat": lists(beats), "kind": kinds}))


def comments():
    """Comments of a forum with four tags, of which several may hold."""
    rng = seeded(125)
    parts = {
        "rude": ["you idiot", "shut up", "what a moron", "this is garbage"],
        "spam": ["buy cheap pills", "visit my site", "free money now", "click this link"],
        "question": ["how do i install it", "why does it fail", "where is the manual"],
        "praise": ["great work", "thank you so much", "love this tool"],
    }
    filler = [
        "the",
        "new",
        "release",
        "was",
        "on",
        "my",
        "machine",
        "when",
        "i",
        "tried",
        "it",
        "after",
        "lunch",
        "with",
        "our",
        "data",
    ]
    shares = [0.1, 0.06, 0.35, 0.3]
    texts, tags = [], []
    for _ in range(3000):
        has = rng.random(4) < shares
        words = [
            str(rng.choice(said)) for said, one in zip(parts.values(), has, strict=True) if one
        ]
        words += [" ".join(rng.choice(filler, int(rng.integers(2, 6)))) for _ in range(2)]
        texts.append(" ".join(rng.permutation(words)))
        tags.append(has.astype(int).tolist())
    return numbered(pl.DataFrame({"comment": texts, "tags": tags}))


def premises():
    """Does the first sentence entail the second, contradict it, or neither?"""
    rng = seeded(127)
    who, does = ["dog", "cat", "man", "girl", "bird"], ["runs", "sleeps", "eats", "sings", "jumps"]
    colour, place = ["red", "old", "small", "wet"], ["park", "house", "street", "garden"]
    rows = []
    for _ in range(5000):
        w, d, c, p = (str(rng.choice(words)) for words in (who, does, colour, place))
        verdict = str(rng.choice(["entailment", "neutral", "contradiction"]))
        other = str(rng.choice([x for x in does if x != d]))
        second = {
            "entailment": f"a {w} {d}", "neutral": f"a {w} {d} in the {p}",
            "contradiction": f"a {w} {other}",
        }[verdict]  # fmt: skip
        rows.append((f"the {c} {w} {d} " + rng.choice(["today", "again", "now"]), second, verdict))
    return numbered(pl.DataFrame(rows, schema=["premise", "hypothesis", "verdict"], orient="row"))


def faqs():
    """Questions and their answers on sixty subjects, each in words of its own."""
    rng = seeded(129)
    makers, takers = (
        ["ba", "ke", "li", "mo", "nu", "ra", "so", "ti", "vu", "we"],
        ["dan", "fer", "gol", "him", "jas", "kup"],
    )
    subjects = [a + b for a in makers for b in takers]
    ask = ["how to reset a {}", "my {} does not start", "price of the {}", "is {} allowed here"]
    tell = [
        "hold the button until the {} blinks", "first check the cable of the {}",
        "you find what a {} costs on page two", "our rules permit any {} before noon",
    ]  # fmt: skip
    rows = []
    for _ in range(4000):
        kind, one, other = int(rng.integers(4)), *rng.choice(subjects, 2, replace=False)
        rows.append(
            (
                ask[kind].format(one) + f" and {other}",
                tell[kind].format(other) + f" then the {one}",
            )
        )
    return numbered(pl.DataFrame(rows, schema=["question", "answer"], orient="row"))


def _hours(start, count, step=1):
    return [datetime(2021, 1, 1) + timedelta(hours=step * (start + k)) for k in range(count)]


def town_load():
    """A town's load per hour: two days seen, eight hours ahead."""
    rng = seeded(131)
    n = 9000
    t = np.arange(n)
    noise = np.zeros(n)
    for k in range(1, n):
        noise[k] = 0.9 * noise[k - 1] + rng.normal(scale=1.5)
    load = 60 + 15 * np.sin(2 * np.pi * (t - 8) / 24) + 6 * np.sin(4 * np.pi * t / 24)
    load += noise - 8 * ((t // 24) % 7 >= 5)
    at = np.arange(48, n - 8, 3)
    return numbered(
        pl.DataFrame(
            {
                "last_hour": pl.Series(_hours(0, n)).gather(at - 1),
                "seen": lists([load[k - 48 : k] for k in at]),
                "ahead": lists([load[k : k + 8] for k in at]),
            }
        )
    )


def air_passengers():
    """Monthly passengers of eighty lines: two years, and the month that follows."""
    rng = seeded(133)
    rows = []
    for line in range(80):
        size, growth, strength = (
            np.exp(rng.normal(5, 1)),
            rng.normal(0.01, 0.004),
            rng.gamma(4, 0.04),
        )
        months = np.arange(144)
        walk = np.cumsum(rng.normal(scale=0.03, size=144))
        series = size * np.exp(
            growth * months + strength * np.sin(2 * np.pi * months / 12)
            + walk + rng.normal(scale=0.03, size=144)
        )  # fmt: skip
        for k in range(24, 144, 2):
            month = datetime(2000 + k // 12, k % 12 + 1, 5 + k // 2 % 4 * 6)
            rows.append((f"line{line:02}", month, series[k - 24 : k].tolist(), float(series[k])))
    return numbered(
        pl.DataFrame(rows, schema=["line", "month", "two_years", "passengers"], orient="row")
    )


def returns():
    """A share's daily returns in percent, in calm and stormy months: twenty days and the next."""
    rng = seeded(135)
    n = 4000
    r, variance = np.zeros(n), 1.0
    for k in range(1, n):
        variance = 0.04 + 0.12 * r[k - 1] ** 2 + 0.84 * variance
        r[k] = np.sqrt(variance) * rng.normal()
    at = np.arange(20, n)
    days = [datetime(2008, 1, 1) + timedelta(days=int(k)) for k in at]
    return numbered(
        pl.DataFrame(
            {"day": days, "last_days": lists([r[k - 20 : k] for k in at]), "next_day": r[at]}
        )
    )


def partly_shown_ratings():
    """What a reader gave thirty books, 0 where nothing; and the same with a fifth hidden."""
    rng = seeded(137)
    readers, books = rng.normal(size=(3000, 3)), rng.normal(size=(30, 3))
    stars = np.clip(
        np.rint(3 + 0.9 * readers @ books.T + rng.normal(scale=0.5, size=(3000, 30))), 1, 5
    )
    rated = np.where(rng.random((3000, 30)) < 0.5, stars, 0)
    shown = np.where(rng.random((3000, 30)) < 0.2, 0, rated)
    return numbered(pl.DataFrame({"shown": lists(shown), "rated": lists(rated)}))


def banner_clicks():
    """Was an advertisement clicked? Codes of places and devices are numbers, as in the competition."""
    rng = seeded(139)
    n = 9000
    site, device, hour = (
        rng.integers(1000, 1040, n),
        rng.integers(20, 28, n),
        rng.integers(0, 24, n),
    )
    liked, works = rng.normal(scale=0.8, size=40), rng.normal(scale=0.8, size=8)
    logit = -1.2 + liked[site - 1000] + works[device - 20] + 0.6 * np.cos((hour - 20) / 24 * 6.28)
    click = (rng.random(n) < sigmoid(logit)).astype(np.int64)
    return numbered(pl.DataFrame({"site": site, "device": device, "hour": hour, "click": click}))
