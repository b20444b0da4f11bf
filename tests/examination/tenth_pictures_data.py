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
