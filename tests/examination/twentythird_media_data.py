"""Datasets of the twenty-third list: timber, parcels of land, eggs, menus, steps and adverts."""

import io

import numpy as np
import polars as pl
from PIL import Image, ImageDraw

from examination.data import numbered, seeded


def _as_png(array):
    buffer = io.BytesIO()
    Image.fromarray(array.clip(0, 255).astype(np.uint8)).save(buffer, format="PNG")
    return buffer.getvalue()


def timber_boards():
    """Pictures of boards and masks: 0 clear wood, 1 knot, 2 crack, 255 where nobody could tell."""
    rng = seeded(23101)
    rows = []
    for board in range(330):
        wood = np.array([188, 148, 104]) + rng.normal(0, 14, 3)
        grain, phase = rng.uniform(0.5, 1.3), rng.uniform(0, 6)
        for _ in range(4):
            y, x = np.mgrid[0:32, 0:32]
            rings = 9 * np.sin(grain * x + phase + 1.5 * np.sin(y / 9 + phase))
            pixels = wood + rings[..., None]
            mask, unsure = np.zeros((32, 32)), np.zeros((32, 32), dtype=bool)
            for _ in range(int(rng.choice([0, 1, 2], p=[0.25, 0.5, 0.25]))):
                cx, cy, r = *rng.uniform(4, 28, 2), rng.uniform(2.5, 5)
                far = np.hypot((x - cx) / rng.uniform(0.8, 1.2), y - cy)
                pixels[far < r] *= 0.62 + 0.1 * np.sin(3 * far[far < r])[:, None]
                mask[far < r] = 1
                unsure |= np.abs(far - r) < 0.6
            if rng.random() < 0.4:
                x0, lean, y0 = rng.uniform(6, 26), rng.normal(0, 0.25), rng.uniform(0, 12)
                crack = np.abs(x - x0 - lean * (y - 16)) < rng.uniform(0.6, 1.2)
                crack &= (y > y0) & (y < y0 + rng.uniform(12, 22))
                pixels[crack] *= 0.5
                mask[crack] = 2
            mask[unsure & (mask != 2)] = 255
            pixels = pixels * np.exp(rng.normal(0, 0.1)) + rng.normal(0, 8, pixels.shape)
            rows.append(
                {"board": f"W{board:03}", "picture": _as_png(pixels), "mask": _as_png(mask)}
            )
    return numbered(pl.DataFrame(rows))


def parcel_pairs():
    """A parcel from above in two years, and whether something was built on it in between."""
    rng = seeded(23102)
    rows = []
    for _ in range(2600):
        houses = [
            (*rng.integers(1, 20, 2), *rng.integers(4, 8, 2)) for _ in range(rng.poisson(1.2))
        ]
        trees = [rng.uniform(0, 24, 2) for _ in range(rng.poisson(2.0))]
        built = rng.random() < 0.3
        later = [*houses, (*rng.integers(1, 19, 2), *rng.integers(4, 8, 2))] if built else houses
        if houses and rng.random() < 0.35:  # one is pulled down
            later = [house for house in later if house != houses[0]]
        field = rng.uniform(90, 130)
        pair = []
        for year, there in enumerate((houses, later)):
            picture = Image.new("L", (24, 24), int(field + rng.normal(0, 12)))
            draw = ImageDraw.Draw(picture)
            for cx, cy in trees:
                r = 2.2 + 0.5 * year + rng.normal(0, 0.3)
                draw.ellipse([cx - r, cy - r, cx + r, cy + r], fill=int(rng.normal(62, 8)))
            for x, y, w, h in there:
                draw.rectangle([x, y, x + w, y + h], fill=int(rng.normal(190, 14)))
            if rng.random() < 0.35:  # a lorry that is gone in the other year
                x, y = rng.integers(0, 20, 2)
                draw.rectangle([x, y, x + 3, y + 1], fill=210)
            array = np.asarray(picture, dtype=float) * np.exp(rng.normal(0, 0.15))
            pair.append(_as_png(array + rng.normal(0, 9, array.shape)))
        rows.append({"before": pair[0], "after": pair[1], "built": built})
    return numbered(pl.DataFrame(rows))


def candled_eggs():
    """Eggs before a lamp, a tray of thirty on one day; one in twelve will not hatch."""
    rng = seeded(23103)
    rows = []
    y, x = np.mgrid[0:24, 0:24]
    for tray in range(90):
        lamp, brown = rng.uniform(0.75, 1.2), rng.uniform(0, 1)
        age = int(rng.integers(7, 15))
        for _ in range(30):
            dead = rng.random() < 0.085
            cx, cy, a = *rng.normal(11.5, 0.8, 2), rng.uniform(7.5, 9)
            far = np.hypot((x - cx) * 1.25, y - cy) / a
            glow = 215 - 60 * brown - 30 * far**2
            kx, ky = cx + rng.normal(0, 1.5), cy + rng.normal(1, 1.5)
            size = (1.2 + 0.22 * age) * (rng.uniform(0.35, 0.6) if dead else rng.uniform(0.85, 1.1))
            glow = glow - 95 * np.exp(-(np.hypot(x - kx, y - ky) ** 2) / (2 * size**2))
            if not dead or rng.random() < 0.15:
                for turn in rng.uniform(0, 2 * np.pi, 4):
                    off = np.abs((x - kx) * np.sin(turn) - (y - ky) * np.cos(turn))
                    ahead = (x - kx) * np.cos(turn) + (y - ky) * np.sin(turn) > 0
                    glow = glow - 38 * ((off < 0.7) & ahead)
            elif rng.random() < 0.7:  # a ring of blood
                glow = glow - 50 * (np.abs(np.hypot(x - kx, y - ky) - 2.2 * size - 1) < 0.7)
            pixels = np.where(far < 1, glow * lamp, 18) + rng.normal(0, 9, x.shape)
            rows.append(
                {"tray": f"T{tray:02}", "day": age, "photo": _as_png(pixels), "hatches": not dead}
            )
    return numbered(pl.DataFrame(rows))


def _some(rng, words, count):
    return [words[k] for k in rng.integers(len(words), size=count)]


def menu_dishes():
    """Dishes of menus, and five allergens: yes, no or not declared."""
    rng = seeded(23104)
    holds = {
        "gluten": "Noodles Dumpling Bread Schnitzel Pasta Couscous Pie Batter Croutons Seitan",
        "milk": "Cheese Cream Butter Yoghurt Parmesan Gratin Béchamel Ricotta Custard Feta",
        "egg": "Omelette Mayonnaise Meringue Aioli Frittata Carbonara Tamago Quiche",
        "nuts": "Walnut Pesto Almond Satay Praline Hazelnut Marzipan Cashew",
        "fish": "Salmon Tuna Anchovy Cod Trout Sushi Caesar Herring",
    }
    also = {"Quiche": "milk gluten", "Caesar": "egg milk", "Carbonara": "gluten milk",
            "Pesto": "milk", "Schnitzel": "egg", "Meringue": "nuts"}  # fmt: skip
    plain = "Rice Tomato Basil Beans Potato Salad Carrot Lentil Chicken Beef Pumpkin Leek Apple "
    plain += "Mushroom Spinach Pepper Olive Lemon Herbs Onion Cabbage Beetroot Soup Stew Plate"
    joints = ["with", "and", "in", "on", "of the day", "from the grill", "house style"]
    names = list(holds)
    rows = []
    for _ in range(4200):
        words, found = _some(rng, plain.split(), int(rng.integers(1, 4))), set()
        for name in names:
            if (
                rng.random()
                < {"gluten": 0.34, "milk": 0.4, "egg": 0.18, "nuts": 0.12, "fish": 0.2}[name]
            ):
                word = _some(rng, holds[name].split(), 1)[0]
                spared = name in ("milk", "gluten") and rng.random() < 0.2
                words.append(f"vegan {word}" if spared and name == "milk" else word)
                found |= set() if spared and name == "milk" else {name}
                found |= set() if spared else set(also.get(word, "").split())
        rng.shuffle(words)
        text = words[0]
        for word in words[1:]:
            text += f" {_some(rng, joints, 1)[0]} {word}"
        truth = [float((name in found) ^ (rng.random() < 0.03)) for name in names]
        known = [v if rng.random() < (0.8 if v else 0.45) else None for v in truth]
        if any(value is not None for value in known):
            shown = text if rng.random() < 0.8 else text.upper()
            rows.append({"dish": shown, "allergens": known})
    return numbered(pl.DataFrame(rows))


def manual_steps():
    """Two steps of a manual, and whether the first that is shown is done first."""
    rng = seeded(23105)
    stages = [
        "unpack box carton lay out parts", "check list count screws missing",
        "screw legs frame loosely bolts", "attach back panel slide groove",
        "mount hinges doors align", "tighten all bolts firmly wrench",
        "insert shelves pins level", "fix wall bracket drill anchor", "wipe clean dry cloth done",
    ]  # fmt: skip
    shared = "the carefully then with a piece side right left until it and of please both"

    def step(k):
        words = _some(rng, stages[k].split(), int(rng.integers(2, 4)))
        words += _some(rng, shared.split(), int(rng.integers(3, 8)))
        rng.shuffle(words)
        return " ".join(words)

    rows = []
    for manual in range(700):
        for _ in range(4):
            a, b = rng.choice(9, 2, replace=False, p=np.array([2, 1, 1, 1, 1, 1, 1, 1, 2]) / 11)
            rows.append(
                {
                    "manual": f"M{manual:03}",
                    "shown_first": step(a),
                    "shown_second": step(b),
                    "in_order": bool((a < b) ^ (rng.random() < 0.04)),
                }
            )
    return numbered(pl.DataFrame(rows))


def rental_adverts():
    """Adverts of flats, and the monthly rent in euros."""
    rng = seeded(23106)
    parts = {"Altstadt": 0.35, "Hafen": 0.2, "Nordend": 0.1, "Bahnhof": -0.05, "Siedlung": -0.2}
    extras = {
        "balcony": 0.06, "lift": 0.04, "garage": 0.09, "kitchen fitted": 0.07,
        "renovated": 0.08, "basement": -0.12, "noisy street": -0.1, "roof terrace": 0.18,
    }  # fmt: skip
    filler = "lovely quiet flat for rent available soon pets on request call us viewing by "
    filler += "appointment close to shops bright friendly please write a few lines about yourself"
    rows = []
    for _ in range(2800):
        part = list(parts)[int(rng.choice(5, p=[0.15, 0.15, 0.25, 0.25, 0.2]))]
        size = float(np.exp(rng.normal(4.1, 0.38)).clip(18, 210))
        rooms = max(1, round(size / 24 + rng.normal(0, 0.5)))
        chosen = rng.choice(len(extras), int(rng.integers(0, 4)), replace=False)
        log = (
            2.75 + parts[part] + 0.92 * np.log(size) + sum(list(extras.values())[k] for k in chosen)
        )
        words = _some(rng, filler.split(), int(rng.integers(8, 30)))
        metres = f"{size:.0f}" if rng.random() < 0.6 else f"{size:.1f}".replace(".", ",")
        facts = [f"{metres} m2", f"{rooms} rooms", part, *(list(extras)[k] for k in chosen)]
        for fact in facts:
            words.insert(int(rng.integers(len(words) + 1)), fact)
        rows.append(
            {
                "advert": " ".join(words),
                "furnished": bool(rng.random() < 0.2),
                "rent": round(float(np.exp(log + rng.normal(0, 0.07)))),
            }
        )
        if rows[-1]["furnished"]:
            rows[-1]["rent"] = round(rows[-1]["rent"] * 1.2)
    return numbered(pl.DataFrame(rows))


def statute_questions():
    """A question, the paragraph that answers it, one that does not, and a teacher's margin."""
    rng = seeded(23107)
    fields = {
        "rent": ("landlord deposit heating mould flat", "tenancy surety defects premises notice"),
        "work": ("boss overtime holiday fired sick", "employment dismissal leave wages incapacity"),
        "cars": ("parking crash speeding insurer bike", "traffic liability vehicle fine collision"),
        "web": ("shop parcel refund password spam", "distance withdrawal consumer data consent"),
        "kin": ("child divorce grandma will alimony", "custody marriage estate testament support"),
        "noise": ("neighbour hedge party dog fence", "boundary nuisance emission trees animals"),
    }
    asked, law = zip(*(pair for pair in fields.values()), strict=True)
    filler = "can my do i have to what if the is a when who pays how long"
    stiff = "shall pursuant to section the of unless person within period provided that may"
    rows = []
    for _ in range(9000):
        k = int(rng.integers(6))
        near = rng.random() < 0.5
        j = k if near else int(rng.integers(6))
        topic, other = (int(v) for v in rng.choice(5, 2, replace=False))
        query = [asked[k].split()[topic]]
        query += _some(rng, filler.split(), int(rng.integers(4, 9)))
        right = [law[k].split()[topic], *_some(rng, law[k].split(), 1)]
        wrong = [law[j].split()[other], *_some(rng, law[j].split(), 1)]
        margin = 1.5 + 4.5 * (j != k) + 2.0 * (law[k].split()[topic] not in wrong)
        texts = []
        for words in (
            query,
            right + _some(rng, stiff.split(), 9),
            wrong + _some(rng, stiff.split(), 9),
        ):
            rng.shuffle(words)
            texts.append(" ".join(words))
        margin = margin if rng.random() > 0.04 else -margin * 0.3
        rows.append(
            {
                "question": texts[0],
                "paragraph": texts[1],
                "other_paragraph": texts[2],
                "teacher_margin": round(float(margin + rng.normal(0, 0.6)), 3),
            }
        )
    return numbered(pl.DataFrame(rows))


def screw_searches():
    """What was typed in a shop for screws, eight articles that were shown, and the one bought."""
    rng = seeded(23108)
    heads = {"hex": "hexagon", "pan": "panhead", "csk": "countersunk", "cyl": "cylinder"}
    stuffs = {"a2": "stainless", "zinc": "galvanised", "brass": "brass", "black": "blackened"}
    makers = ["Alpha", "Bolto", "Ferrum", "Kern", "Nordfix", "Schraub"]
    wide, long = [3, 4, 5, 6, 8, 10], [10, 16, 20, 25, 30, 40, 50, 60, 80]
    rows = []
    for _ in range(3000):
        head, stuff = _some(rng, list(heads), 1)[0], _some(rng, list(stuffs), 1)[0]
        d, length = _some(rng, wide, 1)[0], _some(rng, long, 1)[0]
        asked = [heads[head], stuffs[stuff] if rng.random() < 0.6 else "screw"]
        asked = [w if rng.random() < 0.7 else w[:5] for w in asked]
        asked += [f"m{d}" if rng.random() < 0.5 else f"{d}mm", f"x{length}"]
        shown = [(head, stuff, d, length)]
        while len(shown) < 8:
            other = [head, stuff, d, length]
            for k in rng.choice(4, int(rng.integers(1, 3)), replace=False):
                other[k] = _some(rng, (list(heads), list(stuffs), wide, long)[k], 1)[0]
            if tuple(other) not in shown:
                shown.append(tuple(other))
        order = rng.permutation(8)
        bought = int(np.argmax(order == 0)) if rng.random() < 0.93 else int(rng.integers(8))
        shown = [shown[k] for k in order]
        rows.append(
            {
                "search": " ".join(asked),
                "maker": [_some(rng, makers, 1)[0] for _ in shown],
                "article": [f"{h} {s} screw" for h, s, _, _ in shown],
                "diameter": [float(w) for _, _, w, _ in shown],
                "length": [float(v) for _, _, _, v in shown],
                "bought": bought,
            }
        )
    return numbered(pl.DataFrame(rows))
