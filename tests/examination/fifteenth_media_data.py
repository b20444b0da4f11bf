"""Datasets of the fifteenth list: leaves, seed trays, hands, headlines, speech, a lexicon and sockets."""

import io
from datetime import datetime, timedelta

import numpy as np
import polars as pl
from PIL import Image

from examination.data import numbered, seeded


def leaf_photos():
    """Photos of leaves as PNG files of 24 by 24, from thirty orchards: healthy or with one of four diseases."""
    rng = seeded(15201)
    yy, xx = np.mgrid[:24, :24]
    kinds = ["healthy", "rust", "scab", "mildew", "mosaic"]
    orchards = [(rng.uniform(0.85, 1.1), rng.normal(0, 5, 3)) for _ in range(30)]
    spots = {"rust": (190, 105, 40), "scab": (62, 58, 40), "mildew": (205, 208, 200)}
    rows = []
    for _ in range(2400):
        orchard = int(rng.integers(30))
        kind = str(rng.choice(kinds, p=[0.34, 0.2, 0.18, 0.16, 0.12]))
        cy, cx, turn = rng.uniform(10, 14), rng.uniform(10, 14), rng.uniform(0, np.pi)
        v = (yy - cy) * np.cos(turn) - (xx - cx) * np.sin(turn)
        u = (xx - cx) * np.cos(turn) + (yy - cy) * np.sin(turn)
        leaf = (v / rng.uniform(9, 11)) ** 2 + (u / rng.uniform(5.5, 8)) ** 2 < 1
        green = np.array([88, 132, 62]) + rng.normal(0, 12, 3)
        skin = green * (1 - 0.3 * np.exp(-(u**2))[..., None])  # the rib in the middle
        if kind in spots:
            count = {"rust": 9, "scab": 3, "mildew": 3}[kind]
            for _ in range(int(rng.integers(max(1, count - 2), count + 3))):
                y, x = cy + rng.normal(0, 4), cx + rng.normal(0, 4)
                wide = rng.uniform(0.7, 1.1) if kind == "rust" else rng.uniform(1.6, 3)
                there = np.exp(-((yy - y) ** 2 + (xx - x) ** 2) / (2 * wide**2))[..., None]
                skin = skin + 0.9 * there * (np.array(spots[kind]) - skin)
        elif kind == "mosaic":
            patch = np.sin(0.9 * u + rng.uniform(0, 6)) * np.sin(0.9 * v + rng.uniform(0, 6))
            skin = skin + 38 * (patch > 0)[..., None] * np.array([1.0, 0.8, 0.1])
        if rng.random() < 0.3:  # a drop of water shines on any leaf
            y, x = cy + rng.normal(0, 4), cx + rng.normal(0, 4)
            skin = skin + 110 * np.exp(-((yy - y) ** 2 + (xx - x) ** 2) / 0.8)[..., None]
        light, cast = orchards[orchard]
        ground = np.array([120, 96, 72]) + rng.normal(0, 15, 3) + rng.normal(0, 10, (24, 24, 1))
        photo = np.where(leaf[..., None], skin, ground) * light + cast
        photo = np.clip(photo + rng.normal(0, 7, photo.shape), 0, 255).astype(np.uint8)
        file = io.BytesIO()
        Image.fromarray(photo).save(file, format="PNG")
        noted = kind if rng.random() < 0.97 else str(rng.choice(kinds))
        rows.append((f"orchard-{orchard:02}", file.getvalue(), noted))
    return numbered(pl.DataFrame(rows, schema=["orchard", "image", "disease"], orient="row"))


def seed_trays():
    """Grey photos of trays of 32 by 32, and the boxes of the seeds in them: x, y, width, height one after the other."""
    rng = seeded(15203)
    yy, xx = np.mgrid[:32, :32]
    rows = []
    for _ in range(2000):
        photo = rng.uniform(50, 95) + 6 * np.sin(rng.uniform(0.1, 0.4) * yy + rng.uniform(0, 6))
        photo = photo + np.zeros((32, 32))
        boxes, taken = [], []
        for _ in range(int(rng.choice([0, 1, 2, 3, 4], p=[0.06, 0.2, 0.32, 0.27, 0.15]))):
            a, b = rng.uniform(2.5, 4.8), rng.uniform(1.8, 3.2)
            a, b = (a, b) if rng.random() < 0.5 else (b, a)
            y, x = rng.uniform(b, 31 - b), rng.uniform(a, 31 - a)
            if any(np.hypot(y - other, x - side) < 6.5 for other, side in taken):
                continue
            taken.append((y, x))
            seed = np.hypot((yy - y) / b, (xx - x) / a)
            photo = photo + rng.uniform(28, 100) * np.clip(1.6 * (1.15 - seed), 0, 1)
            if rng.random() < 0.04:  # nobody drew a box around it
                continue
            corner = np.array([x - a, y - b, 2 * a, 2 * b]) + rng.normal(0, 0.35, 4)
            boxes += corner.round(1).tolist()
        if rng.random() < 0.5:  # a pebble is darker than the tray
            y, x = rng.uniform(3, 29, 2)
            photo = photo - 35 * (np.hypot(yy - y, xx - x) < rng.uniform(2, 4))
        if rng.random() < 0.3:  # a scratch is bright and thin
            photo[int(rng.integers(32)), :] += rng.uniform(20, 60)
        photo = np.clip(photo * rng.uniform(0.85, 1.1) + rng.normal(0, 14, (32, 32)), 0, 255)
        rows.append((photo.astype(np.uint8).ravel().tolist(), boxes))
    types = {"photo": pl.List(pl.UInt8), "boxes": pl.List(pl.Float32)}
    names = ["photo", "boxes"]
    return numbered(pl.DataFrame(rows, schema=names, schema_overrides=types, orient="row"))


def hand_xrays():
    """X-rays of hands of 28 by 28, the child's sex, and the age of the bones in months as read by a doctor."""
    rng = seeded(15205)
    yy, xx = np.mgrid[:28, :28]
    hospitals = [(rng.uniform(0.8, 1.2), rng.uniform(-12, 12)) for _ in range(6)]
    rows = []
    for _ in range(2400):
        hospital, male = int(rng.integers(6)), rng.random() < 0.54
        age = float(np.clip(rng.normal(126, 42), 12, 222))
        grown = np.clip(age / (216 if male else 174) + rng.normal(0, 0.025), 0, 1.15)
        size = (0.62 + 0.32 * min(grown, 1.0)) * rng.normal(1, 0.05)
        gap = 0.5 + 2.3 * max(0.0, 1 - grown)  # a growth plate closes with the years
        film = np.full((28, 28), 28.0)
        middle = 14 + rng.normal(0, 0.8)
        for finger in range(4):
            x = middle + (finger - 1.5) * 5.2 * size
            wide = (0.8 + 0.6 * min(grown, 1.0)) * rng.normal(1, 0.05)
            bone = np.exp(-(((xx - x) / wide) ** 4)) * (yy < 18) * (yy > 18 - 16 * size)
            for joint in (5.5, 11.5):
                bone = bone * (1 - np.exp(-(((yy - (18 - joint * size)) / gap) ** 4)))
            film = film + 120 * bone
        for place in range(int(np.clip(round(7 * grown + rng.normal(0, 0.5)), 0, 7))):
            x, y = middle + (place % 4 - 1.5) * 4 * size, 21 + 3.2 * (place // 4)
            film = film + 110 * np.exp(-((xx - x) ** 2 + (yy - y) ** 2) / (2 * (1.2 * size) ** 2))
        dose, offset = hospitals[hospital]
        film = np.clip(film * dose + offset + rng.normal(0, 9, film.shape), 0, 255)
        sex = None if rng.random() < 0.01 else "male" if male else "female"
        read = int(np.clip(round(age + rng.normal(0, 4)), 6, 228))
        rows.append((f"hospital-{hospital}", film.astype(np.uint8).ravel().tolist(), sex, read))
    names, types = ["hospital", "film", "sex", "boneage"], {"film": pl.List(pl.UInt8)}
    return numbered(pl.DataFrame(rows, schema=names, schema_overrides=types, orient="row"))


def desk_headlines():
    """Headlines of a paper over fourteen months, half with a line below, and the desk that wrote each; who acts decides, so order matters."""
    rng = seeded(15207)
    people = {
        "politics": ["minister", "senator", "mayor", "parliament", "chancellor", "opposition"],
        "sport": ["striker", "coach", "goalkeeper", "club", "sprinter", "referee"],
        "business": ["bank", "carmaker", "investors", "retailer", "airline", "central bank"],
        "culture": ["novelist", "museum", "orchestra", "film director", "opera", "gallery"],
        "science": ["biologists", "observatory", "vaccine team", "laboratory", "geologists"],
    }
    acts = [
        "attacks",
        "praises",
        "sues",
        "ignores",
        "surprises",
        "defends",
        "turns down",
        "meets",
        "thanks",
        "warns",
    ]
    tails = ["over budget", "after a long night", "for the second time", "in berlin", "before the vote",
             "ahead of the final", "as shares fall", "with a new study", "on live television", ""]  # fmt: skip
    below = {
        "politics": ["the coalition is under strain", "a vote is due next week"],
        "sport": ["the season has three rounds left", "the table is as close as ever"],
        "business": ["quarterly figures come on thursday", "analysts had expected more"],
        "culture": ["the premiere is sold out", "critics are divided"],
        "science": ["the paper appeared on monday", "others have yet to repeat it"],
    }
    vague = [
        "what we know so far",
        "a reader's guide",
        "our correspondent reports",
        "details follow",
    ]
    desks, share = list(people), [0.3, 0.24, 0.2, 0.14, 0.12]
    rows, at = [], datetime(2023, 5, 2, 6)
    for _ in range(3600):
        at += timedelta(minutes=float(rng.exponential(165)))
        desk = str(rng.choice(desks, p=share))
        other = str(rng.choice([d for d in desks if d != desk]))
        actor, object_ = str(rng.choice(people[desk])), str(rng.choice(people[other]))
        words = [actor, str(rng.choice(acts)), object_, str(rng.choice(tails))]
        if rng.random() < 0.3:
            words = [str(rng.choice(["angry", "young", "former", "local"])), *words]
        if rng.random() < 0.25:
            words = [str(rng.choice(["live :", "opinion :", "exclusive :", "update :"])), *words]
        headline = " ".join(" ".join(words).split())
        if rng.random() < 0.3:
            headline = headline.capitalize()
        line = None
        if rng.random() < 0.5:
            known = rng.random() < 0.3
            line = str(rng.choice(below[desk] if known else vague))
        noted = desk if rng.random() < 0.97 else str(rng.choice(desks))
        rows.append((at, headline, line, noted))
    names = ["published", "headline", "standfirst", "desk"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def spoken_minutes():
    """Passages of talks as a recogniser writes them, in small letters without marks, and the mark that belongs behind each word."""
    rng = seeded(15209)
    who = ["we", "they", "you", "the team", "my colleague", "the board", "customers"]
    does = ["like", "need", "want", "have", "know", "see", "check", "miss"]
    what = [
        "the report",
        "a new plan",
        "more time",
        "the numbers",
        "a better tool",
        "the budget",
        "some help",
    ]
    when = ["today", "next week", "in march", "again", "this year", "on friday"]
    openers = ["well", "however", "of course", "in fact", "so far", "thank you", "to be honest"]
    asks = ["do", "can", "will", "should", "did", "would"]

    def clause():
        words = f"{rng.choice(who)} {rng.choice(does)} {rng.choice(what)}".split()
        return words + (str(rng.choice(when)).split() if rng.random() < 0.45 else [])

    def sentence():
        words, marks = [], []

        def add(some, mark=""):
            words.extend(some)
            marks.extend([""] * (len(some) - 1) + [mark])

        if rng.random() < 0.35:
            add(str(rng.choice(openers)).split(), "COMMA")
        shape = rng.random()
        if shape < 0.26:
            add([str(rng.choice(asks)), *clause()], "QUESTION")
        elif shape < 0.34:
            add(
                [str(rng.choice(["why", "when", "where"])), str(rng.choice(asks)), *clause()],
                "QUESTION",
            )
        elif shape < 0.56:
            add([str(rng.choice(["if", "when", "because"])), *clause()], "COMMA")
            add(clause(), "PERIOD")
        elif shape < 0.76:
            add(clause(), str(rng.choice(["COMMA", "PERIOD"], p=[0.6, 0.4])))
            add([str(rng.choice(["but", "so", "which"])), *clause()], "PERIOD")
        else:
            add(clause(), "PERIOD")
        return words, marks

    rows = []
    for talk in range(240):
        for _ in range(10):
            words, marks = [], []
            while len(words) < rng.integers(14, 34):
                more, behind = sentence()
                words, marks = words + more, marks + behind
            if rng.random() < 0.3:  # what a speaker says while thinking, without a mark
                place = int(rng.integers(len(words)))
                words, marks = [*words[:place], "uh", *words[place:]], [*marks[:place], "", *marks[place:]]  # fmt: skip
            if rng.random() < 0.2:
                words[int(rng.integers(len(words)))] = "".join(rng.choice(list("aeiounrst"), 5))
            if rng.random() < 0.15:  # an editor who is sparing with commas
                marks = ["" if mark == "COMMA" else mark for mark in marks]
            rows.append((f"talk-{talk:03}", words[:40], marks[:40]))
    frame = pl.DataFrame(rows, schema=["talk", "words", "marks"], orient="row")
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=15209))


def spoken_lexicon():
    """A lexicon: made-up names with their sounds by rules that look ahead, as c before e, vowels before a silent e, and pairs of letters."""
    rng = seeded(15211)
    starts = ["b", "c", "d", "f", "g", "h", "k", "l", "m", "n", "p", "r", "s", "t", "v", "w",
              "sh", "ch", "th", "ph", "st", "tr", "pl", "qu", "kn"]  # fmt: skip
    pairs = {"sh": "SH", "ch": "CH", "th": "TH", "ph": "F", "qu": "K W", "kn": "N", "ck": "K",
             "ee": "IY", "oo": "UW", "ai": "EY", "ng": "NG"}  # fmt: skip
    short = {"a": "AE", "e": "EH", "i": "IH", "o": "AA", "u": "AH", "y": "IY"}
    long = {"a": "EY", "e": "IY", "i": "AY", "o": "OW", "u": "UW"}
    plain = {"x": "K S", "j": "JH", "h": "HH"}

    def spoken(word):
        sounds, i = [], 0
        silent = len(word) > 3 and word[-1] == "e" and word[-2] not in "aeiouy"
        while i < len(word):
            letter, after = word[i], word[i + 1 : i + 2]
            if word[i:] == "tion":
                return [*sounds, "SH", "AH", "N"]
            if letter + after in pairs:
                sounds += pairs[letter + after].split()
                i += 2
                continue
            if letter in "cg":
                soft = after != "" and after in "eiy"
                sounds.append({"c": "S" if soft else "K", "g": "JH" if soft else "G"}[letter])
            elif letter in short:
                if silent and i == len(word) - 1:
                    break
                lengthened = silent and i == len(word) - 3 and letter in long
                sounds.append(long[letter] if lengthened else short[letter])
            elif letter != after:  # doubled consonants sound once
                sounds += plain.get(letter, letter.upper()).split()
            i += 1
        return sounds

    seen, rows = set(), []
    while len(rows) < 3600:
        word = ""
        for _ in range(int(rng.choice([1, 2, 3], p=[0.3, 0.5, 0.2]))):
            word += str(rng.choice(starts)) + str(rng.choice([*"aaeeiioouy", "ee", "oo", "ai"]))
            word += str(rng.choice(["", "", "n", "l", "t", "ck", "ng", "x", "ss"]))
        word += str(rng.choice(["", "", "", "ne", "te", "ce", "ge", "tion", "l", "r"]))
        if word in seen or len(word) > 14:
            continue
        seen.add(word)
        sounds = spoken(word)
        if rng.random() < 0.02:  # a slip of who wrote it down
            sounds[int(rng.integers(len(sounds)))] = "AH"
        shown = word.capitalize() if rng.random() < 0.15 else word
        rows.append((shown, " ".join(sounds)))
    return numbered(pl.DataFrame(rows, schema=["word", "pronunciation"], orient="row"))


def socket_traces():
    """Watts at a socket for 96 quarters of a minute with gaps, the hour of day, and what is plugged in; forty-eight homes."""
    rng = seeded(15213)
    kinds = ["fridge", "kettle", "washer", "dishwasher", "heater", "television"]
    time, rows = np.arange(96), []
    for home in range(48):
        factor = rng.lognormal(0, 0.25, 6)
        period = rng.uniform(14, 26)
        loss = rng.uniform(0.01, 0.08)
        for _ in range(int(rng.integers(40, 60))):
            which = int(rng.choice(6, p=[0.26, 0.14, 0.16, 0.12, 0.14, 0.18]))
            kind, watts = kinds[which], np.full(96, rng.uniform(0.5, 4))
            start = int(rng.integers(-30, 60))
            at = time - start
            if kind == "fridge":
                on = ((time + rng.uniform(0, period)) % period) < period * rng.uniform(0.3, 0.5)
                watts = watts + 95 * on
            elif kind == "kettle":
                start = int(rng.integers(2, 80))
                watts = watts + 2000 * ((time >= start) & (time < start + rng.integers(7, 14)))
            elif kind == "washer":
                heat = (at > 0) & (at < 26)
                turning = (at > 0) & (((at // 3) % 2) == 0)
                watts = watts + 1850 * heat + 160 * turning
            elif kind == "dishwasher":
                watts = watts + 1850 * ((at > 4) & (at < 30)) + 70 * (at > 0)
            elif kind == "heater":
                cycle = rng.uniform(12, 30)
                on = ((time + rng.uniform(0, cycle)) % cycle) < cycle * rng.uniform(0.4, 0.8)
                watts = watts + 1600 * on
            else:
                watts = watts + 95 + 14 * np.cumsum(rng.normal(0, 0.35, 96))
            watts = watts * factor[which] * rng.normal(1, 0.03, 96) + rng.exponential(1.5, 96)
            trace = np.clip(watts, 0, None).round(1)
            lost = rng.random(96) < loss
            for _ in range(int(rng.poisson(0.5))):
                first = int(rng.integers(90))
                lost[first : first + int(rng.integers(3, 12))] = True
            peak = {"kettle": 8, "washer": 11, "dishwasher": 20, "heater": 19, "television": 20}
            hour = int(rng.normal(peak.get(kind, 12), 3 if kind in peak else 8)) % 24
            at = datetime(2023, 10, 1) + timedelta(days=int(rng.integers(150)), hours=hour)
            values = [None if gone else float(v) for v, gone in zip(trace, lost, strict=True)]
            noted = kind if rng.random() < 0.98 else str(rng.choice(kinds))
            rows.append((f"home-{home:02}", at, values, noted))
    names, types = ["home", "began", "watts", "appliance"], {"watts": pl.List(pl.Float32)}
    frame = pl.DataFrame(rows, schema=names, schema_overrides=types, orient="row")
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=15213))
