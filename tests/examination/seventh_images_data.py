"""Datasets of the seventh list: pictures of unusual sizes and channels, signals, clouds of points, physics."""

import numpy as np
import polars as pl
from scipy.ndimage import gaussian_filter, rotate

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid


def skin_lesions():
    """Moles of 700 patients, 18 by 18 in colour, with age and place; one in eleven is malignant."""
    rng = seeded(7001)
    y, x = np.mgrid[:18, :18] - 8.5
    sites = ["arm", "back", "face", "leg"]
    rows = []
    for patient in range(700):
        age, skin = int(rng.integers(18, 88)), rng.normal([205, 165, 140], 14)
        for _ in range(1 + rng.poisson(2.4)):
            grave = rng.normal()
            site = str(rng.choice(sites, p=[0.25, 0.35, 0.15, 0.25]))
            angle = np.arctan2(y, x)
            edge = rng.uniform(3.5, 6) * (
                1 + (0.12 + 0.09 * max(grave, -1)) * np.cos(3 * angle + rng.uniform(0, 6))
            )
            inside = sigmoid(2.5 * (edge - np.hypot(y, x)))[..., None]
            blue = np.exp(-((y - rng.uniform(-3, 3)) ** 2 + (x - rng.uniform(-3, 3)) ** 2) / 4)
            mole = rng.normal([130, 85, 65], 12) + blue[..., None] * np.array([-60, -20, 35]) * (
                sigmoid(2 * grave - 1)
            )
            photo = skin * (1 - inside) + mole * inside + rng.normal(0, 9, (18, 18, 3))
            logit = -4.9 + 2.5 * grave + 0.05 * (age - 50) + 0.9 * (site == "back")
            rows.append(
                (
                    f"pt{patient:04}", age if rng.random() > 0.1 else None, site,
                    np.clip(photo, 0, 255).astype(np.uint8).ravel().tolist(),
                    int(rng.random() < sigmoid(logit)),
                )
            )  # fmt: skip
    names = ["patient", "age", "site", "photo", "malignant"]
    schema = dict.fromkeys(names) | {"photo": pl.List(pl.UInt8)}
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def satellite_tiles():
    """Six bands of eight by eight, reflectances times 10,000, with the day of the year; land cover as a map's codes."""
    rng = seeded(7003)
    codes = [112, 211, 213, 311, 411, 512]
    means = np.array(
        [
            [1300, 1400, 1550, 2100, 2500, 2300], [700, 950, 900, 2600, 2200, 1500],
            [700, 950, 900, 2600, 2200, 1500], [400, 600, 450, 2700, 1500, 800],
            [600, 800, 750, 1800, 1300, 800], [700, 650, 450, 350, 200, 150],
        ]
    )  # fmt: skip
    tiles, days, covers = [], [], []
    for _ in range(2600):
        k = int(rng.choice(6, p=[0.17, 0.25, 0.2, 0.24, 0.04, 0.1]))
        day = int(rng.integers(60, 310))
        band = means[k] * rng.lognormal(0, 0.1, 6)
        if k in (1, 2):  # wheat is green in May, maize in August
            green = np.exp(-(((day - (140 if k == 1 else 220)) / 45) ** 2))
            band = band + green * np.array([-250, -150, -400, 1300, -200, -500])
        rough = 0.22 if k == 0 else 0.07
        tile = band[:, None, None] * rng.lognormal(0, rough, (1, 8, 8))
        tile = tile * rng.lognormal(0, 0.12) + rng.normal(0, 130, (6, 8, 8)) + rng.gamma(1.2, 110)
        if rng.random() < 0.12:
            i, j = rng.integers(0, 5, 2)
            tile[:, i : i + 4, j : j + 4] = rng.normal(6500, 600, (6, 4, 4))
        tiles.append(np.clip(tile, 1, 10_000).astype(int).ravel())
        days.append(day)
        covers.append(codes[k])
    return numbered(
        pl.DataFrame(
            {"reflectance": lists(tiles, pl.Int64), "day_of_year": days, "clc_code": covers}
        )
    )


SEGMENTS = ["abcdef", "bc", "abdeg", "abcdg", "bcfg", "acdfg", "acdefg", "abc", "abcdefg", "abcdfg"]
STROKES = {
    "a": np.s_[1, 2:6], "b": np.s_[2:5, 6], "c": np.s_[6:9, 6], "d": np.s_[9, 2:6],
    "e": np.s_[6:9, 1], "f": np.s_[2:5, 1], "g": np.s_[5, 2:6],
}  # fmt: skip


def meter_displays():
    """Liquid crystal displays of three digits, 11 by 25, grey: low contrast, shadows of dark segments, glare."""
    rng = seeded(7005)
    images, readings = [], []
    for _ in range(2600):
        reading = int(np.minimum(rng.gamma(1.6, 170), 999))
        on = np.zeros((11, 25))
        for place, digit in enumerate(f"{reading:03}"):
            for name, stroke in STROKES.items():
                shade = 1.0 if name in SEGMENTS[int(digit)] else rng.uniform(0.05, 0.3)
                on[:, place * 8 : place * 8 + 8][stroke] = shade
        on = np.roll(on, (rng.integers(-1, 2), rng.integers(0, 2)), (0, 1))
        image = rng.uniform(130, 210) - rng.uniform(50, 110) * gaussian_filter(on, 0.5)
        glare = np.exp(-(((np.arange(25) - rng.uniform(-10, 35)) / 4) ** 2))
        image = image + 45 * glare + rng.normal(0, 12, (11, 25))
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel())
        readings.append(reading)
    return numbered(pl.DataFrame({"display": lists(images, pl.UInt8), "reading": readings}))


def otoliths():
    """Ear stones of fish, 24 by 24: one ring a year, which grow narrower; ages from 1 to 14, most are young."""
    rng = seeded(7007)
    y, x = np.mgrid[:24, :24] - 11.5
    images, ages = [], []
    for _ in range(2000):
        age = 1 + min(int(rng.gamma(1.7, 2.2)), 13)
        grown = rng.uniform(10, 11.5) * (
            1 - np.exp(-rng.normal(0.2, 0.02) * (np.arange(age + 1) + 0.6))
        )
        r = np.hypot((y - rng.normal(0, 0.4)) * rng.uniform(1, 1.2), x - rng.normal(0, 0.4))
        image = np.where(r < grown[-1], 150.0, 60.0)
        for ring in grown[:-1]:
            image -= 55 * np.exp(-(((r - ring) / 0.45) ** 2))
        image = image * rng.uniform(0.8, 1.2) + rng.normal(0, 10, (24, 24))
        read = max(1, age + int(rng.choice([-1, 0, 1], p=[0.08, 0.84, 0.08])))
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel())
        ages.append(read)
    return numbered(pl.DataFrame({"scan": lists(images, pl.UInt8), "age": ages}))


def lamplit_rooms():
    """Rooms lit from the camera, 16 by 20, and the distance of each pixel in metres; 0 where the sensor saw nothing."""
    rng = seeded(7009)
    row = np.arange(16)[:, None] * np.ones(20)
    images, depths = [], []
    for _ in range(1500):
        wall = rng.uniform(2.5, 9)
        floor = rng.uniform(8, 14) / np.maximum(row - 5, 0.5)
        depth = np.minimum(wall, floor)
        paint = np.where(floor < wall, rng.uniform(0.6, 0.9), rng.uniform(0.7, 1.0))
        for _ in range(rng.integers(1, 4)):
            near = rng.uniform(1.2, wall)
            foot = int(np.clip(5 + 10 / near, 7, 15))
            top, left = foot - int(14 / near) - 1, rng.integers(0, 16)
            place = np.s_[max(top, 0) : foot + 1, left : left + int(10 / near) + 2]
            is_nearer = depth[place] > near
            depth[place] = np.where(is_nearer, near, depth[place])
            paint[place] = np.where(is_nearer, rng.uniform(0.4, 1.0), paint[place])
        light = 255 * paint * np.minimum(1, (2.2 / (depth + 1.2)) ** 1.1) * rng.uniform(0.85, 1.15)
        measured = depth * rng.normal(1, 0.03, depth.shape)
        measured[(rng.random(depth.shape) < 0.08) | (depth > 8)] = 0
        images.append(np.clip(light + rng.normal(0, 7, depth.shape), 0, 255).astype(int).ravel())
        depths.append(measured.round(3).ravel())
    return numbered(pl.DataFrame({"grey": lists(images, pl.Int64), "depth_m": lists(depths)}))


def weld_seams():
    """Seven hundred X-rays of weld seams, 20 by 20: sound ones, pores, cracks and the rare undercut."""
    rng = seeded(7011)
    y, x = np.mgrid[:20, :20]
    images, states = [], []
    for _ in range(700):
        state = str(rng.choice(["sound", "pores", "crack", "undercut"], p=[0.55, 0.22, 0.15, 0.08]))
        centre, width = rng.uniform(8, 12), rng.uniform(2.5, 4)
        seam = 90 * np.exp(-(((y - centre) / width) ** 2))
        if state == "pores":
            for _ in range(rng.integers(2, 6)):
                py, px = rng.normal(centre, 1.5), rng.uniform(2, 18)
                seam -= rng.uniform(40, 70) * np.exp(-((y - py) ** 2 + (x - px) ** 2) / 1.3)
        if state == "crack":
            path = centre + np.cumsum(rng.normal(0, 0.5, 20)) - 1
            here = (x > rng.integers(0, 8)) & (x < rng.integers(13, 20))
            seam -= 50 * np.exp(-(((y - path[x]) / 0.6) ** 2)) * here
        if state == "undercut":
            side = centre + rng.choice([-1, 1]) * (width + 1)
            seam -= 42 * np.exp(-(((y - side) / 1.0) ** 2)) * (x > rng.integers(0, 8))
        image = 90 + seam * rng.uniform(0.7, 1.2) + rng.normal(0, 11, (20, 20))
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel())
        states.append(state)
    return numbered(pl.DataFrame({"xray": lists(images, pl.UInt8), "finding": states}))


def biopsies():
    """Three to nine patches of eight by eight per biopsy; one with a large dark nucleus makes it positive."""
    rng = seeded(7013)
    y, x = np.mgrid[:8, :8]
    bags, labels = [], []
    for _ in range(2200):
        count = int(rng.integers(3, 10))
        has_tumour = rng.random() < 0.35
        bad = (
            rng.choice(count, int(rng.integers(1, min(3, count))), replace=False)
            if has_tumour
            else []
        )
        stain, patches = rng.normal(190, 12), []
        for k in range(count):
            patch = stain + rng.normal(0, 9, (8, 8))
            for _ in range(rng.integers(1, 4)):  # ordinary nuclei, as dark but small
                cy, cx = rng.uniform(1, 7, 2)
                patch -= 75 * (np.hypot(y - cy, x - cx) < rng.uniform(0.8, 1.5))
            if k in bad:
                cy, cx = rng.uniform(2.5, 5.5, 2)
                patch -= 85 * (np.hypot(y - cy, x - cx) < rng.uniform(2.3, 3.2))
            patches.append(np.clip(patch, 0, 255).astype(int).ravel())
        bags.append(np.concatenate(patches).tolist())
        labels.append(int(has_tumour) if rng.random() > 0.04 else 1 - int(has_tumour))
    return numbered(
        pl.DataFrame({"patches": pl.Series(bags, dtype=pl.List(pl.Int64)), "tumour": labels})
    )


def weather_vanes():
    """Arrows on roofs, 18 by 18, from a camera that looks up: where they point in degrees, clockwise from the top."""
    rng = seeded(7015)
    base = np.zeros((36, 36))
    base[6:30, 17:19] = 1
    for k in range(8):
        base[6 + k, 17 - k // 2 : 19 + k // 2] = 1
    base[26:30, 15:21] = 0.7
    images, headings = [], []
    for _ in range(2400):
        heading = float((rng.vonmises(-1.2, 0.7) * 180 / np.pi) % 360)
        arrow = rotate(base, -heading, reshape=False, order=1)
        arrow = np.roll(arrow, rng.integers(-3, 4, 2), (0, 1)).reshape(18, 2, 18, 2).mean((1, 3))
        image = rng.uniform(120, 220) - rng.uniform(60, 110) * arrow
        if rng.random() < 0.5:  # a cable
            line = np.abs(
                np.arange(18)[:, None] - rng.uniform(0, 18) - rng.normal() * np.arange(18)
            )
            image = image - 50 * (line < 0.7)
        image = image + rng.normal(0, 14, (18, 18))
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel())
        headings.append(round((heading + rng.normal(scale=3)) % 360, 1))
    return numbered(pl.DataFrame({"photo": lists(images, pl.UInt8), "heading": headings}))


def pendulum_rollouts():
    """A damped pendulum under torques: angle and speed now, five torques, and the states after each."""
    rng = seeded(7017)
    now, torques, after = [], [], []
    for _ in range(3000):
        angle, speed = rng.uniform(-np.pi, np.pi), rng.normal(0, 2)
        push = rng.uniform(-2, 2, 5)
        now.append(np.array([angle, speed]) + rng.normal(0, 0.02, 2))
        path = []
        for u in push:
            for _ in range(10):
                force = -9.81 * np.sin(angle) - 0.25 * speed + 1.6 * u
                speed += 0.01 * (force - 0.08 * speed * abs(speed))
                angle += 0.01 * speed
            path += [angle + rng.normal(0, 0.02), speed + rng.normal(0, 0.06)]
        torques.append(push)
        after.append(path)
    return numbered(
        pl.DataFrame(
            {
                "state": lists(np.round(now, 4)), "torques": lists(np.round(torques, 3)),
                "states_after": lists(np.round(after, 4)),
            }
        )
    )  # fmt: skip


def cohort():
    """Patients of a study: months until relapse or the last visit, and whether it was a relapse."""
    rng = seeded(7019)
    n = 1600
    age, stage = rng.normal(61, 11, n).round(), rng.choice(4, n, p=[0.3, 0.35, 0.25, 0.1]) + 1
    marker, crp = rng.lognormal(2.2, 0.9, n), rng.lognormal(1.0, 1.0, n)
    dose, nodes = rng.choice([0, 50, 100], n), rng.negative_binomial(1, 0.25, n)
    risk = 0.03 * (age - 61) + 0.55 * (stage - 2) + 0.7 * (np.log(marker) - 2.2)
    risk = risk + 0.5 * np.log1p(nodes) - 0.009 * dose * (np.log(crp) < 1.2)
    months = 70 * rng.weibull(1.2, n) * np.exp(-risk / 1.2)
    seen = rng.uniform(4, 60, n)
    label = np.stack([np.minimum(months, seen).round(1).clip(0.1), months <= seen], 1)
    crp[rng.random(n) < 0.25] = np.nan
    frame = pl.DataFrame(
        {
            "age": age, "stage": [f"{'I' * s}" if s < 4 else "IV" for s in stage],
            "ca_marker": marker.round(2), "crp": crp.round(2), "dose_mg": dose,
            "positive_nodes": nodes, "relapse": lists(label.astype(float)),
        }
    )  # fmt: skip
    return numbered(frame.with_columns(pl.col("crp").fill_nan(None)))


def heating_log():
    """What heat pumps did in a quarter of an hour, and the return that followed: comfort less the bill."""
    rng = seeded(7021)
    n = 5000
    inside, outside = rng.normal(20, 1.8, n), rng.normal(4, 6, n)
    hour, price = rng.integers(0, 24, n), rng.gamma(4, 0.07, n)
    at_home = rng.random(n) < np.where((hour > 7) & (hour < 16), 0.35, 0.9)
    need = 0.9 * (21 - inside) + 0.06 * (8 - outside) + 0.8 * at_home - 2.2 * (price - 0.28) - 0.6
    level = np.array([0.0, 1.0, 2.0])
    worth = -((need[:, None] - level * 1.1 + 0.4) ** 2) * 0.5
    habit = 0.35 * np.stack([-need, 0 * need, need], 1)
    chosen = np.argmax(habit + rng.gumbel(size=(n, 3)), 1)
    ret = worth[np.arange(n), chosen] - 0.25 * np.abs(21 - inside) + rng.normal(scale=0.5, size=n)
    return numbered(
        pl.DataFrame(
            {
                "inside_c": inside.round(1), "outside_c": outside.round(1), "hour": hour,
                "eur_per_kwh": price.round(3), "at_home": at_home,
                "logged": lists(np.stack([chosen, ret.round(3)], 1)),
            }
        )
    )  # fmt: skip


def lidar_objects():
    """Echoes of a laser from one side of an object, eight to 28 points in metres; bicycles and poles are rare."""
    rng = seeded(7023)
    kinds = {
        "car": (4.3, 1.8, 1.5), "van": (5.2, 2.0, 2.1), "cyclist": (1.7, 0.6, 1.7),
        "pedestrian": (0.6, 0.6, 1.7), "pole": (0.25, 0.25, 2.6),
    }  # fmt: skip
    clouds, names = [], []
    for _ in range(3000):
        kind = str(rng.choice(list(kinds), p=[0.45, 0.15, 0.1, 0.22, 0.08]))
        size = np.array(kinds[kind]) * rng.lognormal(0, 0.13, 3)
        count = int(rng.integers(8, 29))
        p = rng.uniform(-0.5, 0.5, (count, 3))
        face = rng.random(count) < 0.6  # two faces are seen
        p[face, 1], p[~face, 0] = -0.5, 0.5
        if kind == "cyclist":  # a body above a thin frame
            up = p[:, 2] > 0
            p[up, 0] *= 0.35
            p[~up, 1] *= 0.3
        if kind == "car":
            p[p[:, 2] > 0.1, 0] *= 0.55
        p = p * size
        turn = rng.uniform(0, 2 * np.pi)
        p[:, :2] = p[:, :2] @ np.array(
            [[np.cos(turn), np.sin(turn)], [-np.sin(turn), np.cos(turn)]]
        )
        p = p + rng.normal(0, 0.07, p.shape) + np.array([*rng.normal(0, 20, 2), 0])
        clouds.append(p.round(3).ravel().tolist())
        names.append(kind)
    return numbered(
        pl.DataFrame({"points": pl.Series(clouds, dtype=pl.List(pl.Float64)), "object": names})
    )


def brightness(kind, phase, depth, half, form):
    """What a planet or a second star takes away; the latter twice in a period."""
    impact, other = form
    if kind == "planet":
        return -depth * sigmoid((half - np.abs(phase)) / (0.002 + 0.006 * impact))
    if kind == "binary":
        first = np.maximum(0, 1 - np.abs(phase) / (1.6 * half))
        second = np.maximum(0, 1 - np.abs(np.abs(phase) - 0.5) / (1.6 * half))
        return -depth * (first + other * second)
    return 0.0


def light_curves():
    """Folded brightness of stars, whole period and close-up, in parts per million; one signal in ten is a planet."""
    rng = seeded(7025)
    wide, close = np.linspace(-0.5, 0.5, 96), np.linspace(-0.08, 0.08, 32)
    rows = []
    for _ in range(3600):
        kind = rng.choice(["planet", "binary", "noise"], p=[0.1, 0.2, 0.7])
        noise = rng.lognormal(5.3, 0.5)
        depth = noise * rng.uniform(1.2, 5) * (1.0 if kind == "planet" else 1.3)
        half = rng.uniform(0.015, 0.035)
        period, impact = rng.lognormal(1.8, 0.9), rng.random() * 0.5

        other, cycles, start = rng.uniform(0.1, 0.7), rng.integers(1, 5), rng.uniform(0, 6)
        views = [
            (
                brightness(kind, phase, depth, half, (impact, other))
                + 0.8 * noise * np.sin(2 * np.pi * phase * cycles + start) * (kind == "noise")
                + rng.normal(0, noise * share, len(phase))
            )
            .round(1)
            .tolist()
            for phase, share in ((wide, 0.7), (close, 0.55))
        ]
        is_planet = int(kind == "planet") if rng.random() > 0.015 else int(rng.random() < 0.5)
        rows.append((*views, round(period, 4), is_planet))
    names = ["global_view", "local_view", "period_days", "planet"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def grain_spectra():
    """480 samples of wheat: absorbance at 140 wavelengths with the scatter of grains, and protein by the laboratory."""
    rng = seeded(7027)
    wave = np.linspace(0, 1, 140)
    bands = np.stack(
        [
            np.exp(-(((wave - c) / w) ** 2))
            for c, w in ((0.2, 0.05), (0.45, 0.07), (0.52, 0.04), (0.75, 0.06), (0.9, 0.09))
        ]
    )
    n = 480
    protein, moisture = rng.normal(12.5, 1.6, n), rng.normal(13, 1.2, n)
    starch = 66 - 0.9 * (protein - 12.5) - 0.5 * (moisture - 13) + rng.normal(0, 1.2, n)
    fat, fibre = rng.normal(2, 0.3, n), rng.normal(11, 1, n)
    mix = np.stack([moisture, starch, protein, fat * 3, fibre], 1) @ bands * 0.012
    scatter, slope = rng.lognormal(0, 0.18, n), rng.normal(0, 0.15, n)
    spectra = mix * scatter[:, None] + rng.normal(0.4, 0.12, n)[:, None] + slope[:, None] * wave
    spectra = spectra + rng.normal(0, 0.0025, spectra.shape)
    table = {f"nm_{900 + 5 * k}": spectra[:, k].round(5) for k in range(140)}
    return numbered(pl.DataFrame(table | {"protein": (protein + rng.normal(0, 0.25, n)).round(1)}))


def imagined_moves():
    """A second of brain waves, eight electrodes by 64 samples, of sixteen people who imagine a movement."""
    rng = seeded(7029)
    t = np.arange(64) / 64
    rows = []
    for person in range(16):
        mu, strength = rng.uniform(9, 12), rng.uniform(0.8, 1.6)
        mixing = rng.normal(0, 0.2, (8, 8)) + np.eye(8)
        gain = rng.lognormal(0, 0.25)
        for _ in range(150):
            move = str(rng.choice(["left", "right", "feet"]))
            power = np.full(8, 1.0)
            idle = {"left": [5, 6], "right": [1, 2], "feet": [3, 4]}[move]
            power[idle] = 1 - rng.beta(5, 2) * min(strength, 1.2) / 1.2
            wave = np.sin(2 * np.pi * mu * t + rng.uniform(0, 6, (8, 1))) * power[:, None] * 1.5
            slow = np.cumsum(rng.normal(size=(8, 64)), 1) * 0.15
            signal = mixing @ (wave + slow + rng.normal(0, 0.7, (8, 64))) * gain * 12
            if rng.random() < 0.07:  # a blink
                signal[0] += 120 * np.exp(-(((t - rng.random()) / 0.12) ** 2))
            rows.append((f"S{person:02}", signal.round(1).ravel().tolist(), move))
    return numbered(pl.DataFrame(rows, schema=["subject", "eeg_uv", "imagined"], orient="row"))


def assays():
    """Which of 160 fragments a compound has, and four tests of toxicity, most of them not made (-1)."""
    rng = seeded(7031)
    n, bits = 2600, 160
    common = rng.beta(0.6, 6, bits)
    family = rng.integers(0, 12, n)
    liked = rng.random((12, bits)) < 0.12
    chance = np.clip(common + 0.45 * liked[family], 0, 0.95)
    has = rng.random((n, bits)) < chance
    effects = rng.normal(size=(4, bits)) * (rng.random((4, bits)) < 0.25)
    effects[1] = 0.7 * effects[0] + 0.5 * effects[1]
    score = (has - common) @ effects.T + 1.4 * (has[:, 3:6].any(1) & has[:, 40:60].any(1))[:, None]
    score = (score - score.mean(0)) / score.std(0)
    toxic = (rng.random((n, 4)) < sigmoid(2.6 * score - np.array([1.2, 2.2, 1.8, 3.0]))).astype(int)
    toxic[rng.random((n, 4)) < np.array([0.15, 0.4, 0.55, 0.3])] = -1
    toxic[(toxic < 0).all(1), 0] = 0
    fragments = [np.flatnonzero(row).tolist() for row in has]
    return numbered(
        pl.DataFrame(
            {
                "fragments": pl.Series(fragments, dtype=pl.List(pl.Int64)),
                "results": lists(toxic, pl.Int64),
            }
        )
    )
