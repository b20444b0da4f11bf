"""Datasets of the twenty-second list: coins, roofs, cranes, adverts, references and complaints."""

import io

import numpy as np
import polars as pl
from PIL import Image, ImageDraw

from examination.data import numbered, seeded


def _as_png(array):
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, format="PNG")
    return buffer.getvalue()


def coin_photos():
    """Old coins of eight kinds on a sorter's belt: two to four photos of each coin."""
    rng = seeded(22101)
    metals = {"copper": (176, 104, 62), "brass": (196, 164, 82), "nickel": (168, 170, 172)}
    kinds = [
        ("penny", "copper", 7, 0), ("twopence", "copper", 10, 0), ("farthing", "copper", 7, 4),
        ("threepence", "brass", 8, 6), ("crown", "nickel", 11, 0), ("shilling", "nickel", 8, 0),
        ("florin", "nickel", 10, 4), ("token", "brass", 10, 3),
    ]  # fmt: skip
    rows = []
    for coin in range(620):
        k = int(rng.choice(8, p=[0.2, 0.15, 0.08, 0.12, 0.1, 0.2, 0.1, 0.05]))
        name, metal, radius, corners = kinds[k]
        patina = rng.normal(0, 16, 3) + rng.normal(0, 16)
        worn = rng.uniform(0.3, 1.3)
        scratches = rng.uniform(-1, 1, (3, 4)) * radius * 2
        for _ in range(int(rng.integers(2, 5))):
            belt = np.clip(rng.normal(95, 12) + rng.normal(0, 5, 3), 0, 255)
            picture = Image.new("RGB", (56, 56), tuple(int(v) for v in belt))
            draw = ImageDraw.Draw(picture)
            x, y = rng.uniform(24, 32, 2)
            turn, light = rng.uniform(0, 2 * np.pi), np.exp(rng.normal(0, 0.12))

            def paint(factor, light=light, metal=metal, patina=patina):
                return tuple(
                    int(v)
                    for v in np.clip((np.array(metals[metal]) + patina) * light * factor, 0, 255)
                )

            r = 2 * radius + rng.normal(0, 0.4)
            draw.ellipse([x - r, y - r, x + r, y + r], fill=paint(1.0), outline=paint(0.6))
            if corners:
                angle = turn + 2 * np.pi * np.arange(corners) / corners
                points = np.stack([x + 0.6 * r * np.cos(angle), y + 0.6 * r * np.sin(angle)], 1)
                draw.polygon([tuple(p) for p in points], fill=paint(1 - 0.3 * worn))
            for x0, y0, x1, y1 in scratches:
                draw.line([x + x0, y + y0, x + x1, y + y1], fill=paint(0.75))
            small = np.asarray(picture.resize((28, 28), Image.Resampling.BILINEAR), dtype=float)
            small = small + rng.normal(0, 7, small.shape)
            rows.append(
                {
                    "coin": f"C{coin:04}",
                    "photo": _as_png(small.clip(0, 255).astype(np.uint8)),
                    "kind": name,
                }
            )
    return numbered(pl.DataFrame(rows))


def roof_panels():
    """Roofs from above, and a mask of the solar panels on them: 255 where one is."""
    rng = seeded(22102)
    rows = []
    for _ in range(1500):
        ground = np.clip(np.array([96, 112, 78]) + rng.normal(0, 18, 3), 0, 255)
        picture = Image.new("RGB", (32, 32), tuple(int(v) for v in ground))
        mask = Image.new("L", (32, 32), 0)
        draw, panels = ImageDraw.Draw(picture), ImageDraw.Draw(mask)
        x, y = rng.integers(2, 9, 2)
        w, h = rng.integers(16, 24, 2)
        red = np.array([(150, 82, 66), (120, 118, 116), (88, 70, 62)])[int(rng.integers(3))]
        roof = tuple(int(v) for v in np.clip(red + rng.normal(0, 14, 3), 0, 255))
        draw.rectangle([x, y, x + w, y + h], fill=roof)
        blue = np.clip(np.array([44, 52, 92]) + rng.normal(0, 12, 3), 0, 255)
        blue = tuple(int(v) for v in blue)
        for _ in range(int(rng.choice([0, 1, 2, 3], p=[0.12, 0.4, 0.32, 0.16]))):
            a, b = x + rng.integers(1, w - 6), y + rng.integers(1, h - 5)
            c, d = min(a + rng.integers(4, 10), x + w - 1), min(b + rng.integers(3, 8), y + h - 1)
            draw.rectangle([a, b, c, d], fill=blue)
            panels.rectangle([a, b, c, d], fill=255)
        for _ in range(int(rng.integers(0, 3))):  # skylights, as blue but small
            a, b = x + rng.integers(1, w - 2), y + rng.integers(1, h - 2)
            draw.rectangle([a, b, a + 1, b + 1], fill=(70, 84, 120))
            panels.rectangle([a, b, a + 1, b + 1], fill=0)
        if rng.random() < 0.4:  # a tree's shadow
            a, b = rng.integers(0, 26, 2)
            draw.ellipse([a, b, a + 9, b + 9], fill=(38, 56, 40))
            panels.ellipse([a, b, a + 9, b + 9], fill=0)
        array = np.asarray(picture, dtype=float) * np.exp(rng.normal(0, 0.12))
        array = (array + rng.normal(0, 9, array.shape)).clip(0, 255).astype(np.uint8)
        rows.append({"picture": _as_png(array), "panels": _as_png(np.asarray(mask))})
    return numbered(pl.DataFrame(rows))


def crane_joints():
    """Grey pictures of a crane on a site, and where its base, elbow and hook are, in pixels."""
    rng = seeded(22103)
    rows = []
    for _ in range(1700):
        sky, steel = rng.uniform(110, 200), rng.uniform(15, 80)
        picture = Image.new("L", (80, 80), int(sky))
        draw = ImageDraw.Draw(picture)
        for _ in range(int(rng.integers(0, 3))):  # houses
            a, tall = rng.integers(0, 60), rng.integers(8, 26)
            draw.rectangle([a, 80 - tall, a + rng.integers(12, 30), 80], fill=int(sky * 0.8))
        base = np.array([rng.uniform(20, 60), rng.uniform(64, 74)])
        lean = rng.normal(0, 0.25)
        elbow = base + rng.uniform(34, 50) * np.array([np.sin(lean), -np.cos(lean)])
        side, dip = rng.choice([-1, 1]), rng.uniform(-0.2, 0.9)
        hook = elbow + rng.uniform(14, 26) * np.array([side * np.cos(dip), np.sin(dip)])
        hook = hook.clip(4, 76)
        draw.line([*base, *elbow], fill=int(steel), width=3)
        draw.line([*elbow, *hook], fill=int(steel), width=3)
        draw.rectangle([*(base - 5), *(base + 5)], fill=int(steel * 0.8))
        draw.ellipse([*(hook - 3), *(hook + 3)], fill=int(steel * 0.6))
        small = np.asarray(picture.resize((40, 40), Image.Resampling.BILINEAR), dtype=float)
        small = (small + rng.normal(0, 8, small.shape)).clip(0, 255).astype(np.uint8)
        joints = np.concatenate([base, elbow, hook]) / 2 + rng.normal(0, 0.25, 6)
        rows.append(
            {
                "camera": f"K{int(rng.integers(5))}",
                "picture": _as_png(small),
                "joints": joints.round(1).tolist(),
            }
        )
    return numbered(pl.DataFrame(rows))
