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


def _picked(rng, text, count):
    words = text.split()
    return [words[k] for k in rng.integers(len(words), size=count)]


def job_adverts():
    """Job adverts as scraped: first the firm praises itself, then comes the work; the sector."""
    rng = seeded(22104)
    sectors = {
        "building": "scaffold concrete crane roof mason site tiles drill plaster helmet",
        "care": "patients ward nights nursing residents medicine elderly shifts wounds empathy",
        "hotels": "guests breakfast kitchen reception rooms menu waiter bar cook tables",
        "it": "python servers tickets cloud database network backend users kubernetes sprint",
        "law": "contracts clients court files notary deeds clauses hearing mandate drafts",
        "logistics": "forklift pallets lorry warehouse loading routes parcels dispatch stock",
        "schools": "pupils lessons maths parents timetable classroom sports reading exams teaching",
    }
    shared = "team work experience you we with and the in our for a skills join years training"
    shared += " support customers daily tasks contract full time driving licence german english"
    praise = "family business since decades leading company innovative future market worldwide"
    praise += " award employer values growth sustainable passion quality tradition proud partner"
    names = list(sectors)
    rows = []
    for k in rng.choice(7, 2800, p=[0.15, 0.22, 0.15, 0.17, 0.05, 0.16, 0.1]):
        text = _picked(rng, praise + " " + shared, int(rng.integers(15, 45)))
        if rng.random() < 0.5:  # firms name other trades, too
            other = sectors[names[int(rng.integers(7))]]
            text[5:5] = _picked(rng, other, int(rng.integers(2, 5)))
        for _ in range(int(rng.integers(10, 26))):
            own = rng.random() < 0.22
            stray = rng.random() < 0.05
            pool = sectors[names[int(rng.integers(7)) if stray else k]] if own or stray else shared
            text += _picked(rng, pool, 1)
        typed = " ".join(w[:-1] if rng.random() < 0.02 and len(w) > 4 else w for w in text)
        rows.append({"advert": typed, "sector": names[k]})
    return numbered(pl.DataFrame(rows))


def reference_strings():
    """References of papers in words, with a tag for each: author, title, journal, year or pages."""
    rng = seeded(22105)
    names = "Abel Brandt Chen Dietz Ekberg Fischer Garcia Haas Ito Jansen Kaya Lang Meyer Novak Ode"
    names += " Park Quist Rossi Sato Thoma Ueda Vogel Weber Young Zorn"
    words = (
        "analysis of the soil in rivers and lakes a model for growth under stress new methods on"
    )
    words += " bees nature science water letters review early birds climate Weber May"
    journals = ["Nature", "Science", "Soil Review", "Water Letters", "Annals of Botany"]
    journals += ["Journal of Climate", "Birds", "Review of Methods", "Letters on Growth"]
    syllables = [
        "ba",
        "chi",
        "del",
        "er",
        "fo",
        "gan",
        "hu",
        "ik",
        "jo",
        "ka",
        "lem",
        "mi",
        "no",
        "os",
        "pra",
        "qui",
        "rei",
        "sol",
        "tan",
        "ur",
        "vi",
        "wen",
    ]

    def rare():
        return "".join(_picked(rng, " ".join(syllables), int(rng.integers(2, 4))))

    rows = []
    for _ in range(2000):
        parts, comma = [], "," if rng.random() < 0.6 else ""
        for _ in range(int(rng.integers(1, 5))):
            name = _picked(rng, names, 1)[0] if rng.random() < 0.5 else rare().capitalize()
            initial = f"{'ABCDEFGHKLMPRST'[int(rng.integers(15))]}{'.' if comma else ''}"
            author = [(name + comma, "AUTHOR"), (initial, "AUTHOR")]
            parts += author if comma else author[::-1]
        year = [(str(rng.integers(1960, 2025)), "YEAR")]
        early = rng.random() < 0.5
        parts += year if early else []
        title = _picked(rng, words, int(rng.integers(3, 11)))
        title = [rare() if rng.random() < 0.2 else w for w in title]
        if rng.random() < 0.25:
            title += ["since", str(rng.integers(1900, 2025))]
        parts += [(w.capitalize() if rng.random() < 0.5 else w, "TITLE") for w in title]
        journal = journals[int(rng.integers(len(journals)))].split()
        parts += [("In", "O")] if rng.random() < 0.4 else []
        parts += [(w, "JOURNAL") for w in journal]
        parts += [] if early else year
        if rng.random() < 0.7:
            first = int(rng.integers(1, 900))
            parts += [("pp.", "O")] if rng.random() < 0.5 else []
            parts += [(f"{first}-{first + int(rng.integers(2, 30))}", "PAGES")]
        kinds = ["O", "AUTHOR", "TITLE", "JOURNAL"]
        parts = [(w, kinds[int(rng.integers(4))] if rng.random() < 0.015 else t) for w, t in parts]
        text, tags = zip(*parts, strict=True)
        rows.append({"reference": " ".join(text), "tags": " ".join(tags)})
    return numbered(pl.DataFrame(rows))


def sea_reports():
    """Reports for sailors, in the few words and the strict order that these have."""
    rng = seeded(22106)
    areas = (
        "Viking Forties Dogger Fisher Humber Thames Dover Wight Plymouth Biscay Sole Lundy Fastnet"
    )
    areas = areas.split()
    winds = ["northerly", "northeasterly", "easterly", "southeasterly", "southerly"]
    winds += ["southwesterly", "westerly", "northwesterly"]
    seas = ["smooth", "slight", "moderate", "rough", "very rough", "high"]
    rows = []
    for _ in range(2600):
        text = []
        for area in sorted(rng.choice(13, int(rng.integers(1, 4)), replace=False)):
            wind, force = int(rng.integers(8)), int(np.clip(rng.normal(5, 1.6), 2, 9))
            text += [areas[area], ":", winds[wind], str(force), "to", str(force + 1), ","]
            if rng.random() < 0.5:
                turn = (wind + int(rng.choice([-1, 1]))) % 8
                text += ["becoming" if rng.random() < 0.5 else "veering", winds[turn]]
                text += [str(max(force - 2, 1)), "later", ","]
            sea = int(np.clip(round((force - 1) / 1.6 + rng.normal(0, 0.4)), 0, 5))
            text += [*seas[sea].split(), "."]
            wet = rng.random() < (0.75 if wind in {4, 5, 6} else 0.3)
            text += ["rain", "or", "showers", "."] if wet else ["fair", "."]
            foggy = force < 4 and rng.random() < 0.5
            text += ["fog", "patches", ",", "very", "poor", "."] if foggy else ["good", "."]
        rows.append({"report": " ".join(text)})
    return numbered(pl.DataFrame(rows))


def machine_complaints():
    """What users of washing machines complain of, and the title of the fault that was found."""
    rng = seeded(22107)
    parts = {
        "drain pump": "water stands drum empty pumping",
        "door lock": "door opens closing latch shut",
        "heating element": "cold lukewarm heating warm washes",
        "drum bearing": "noise grinding loud spinning rumbles",
        "inlet valve": "fills slowly inflow tap water",
        "motor brushes": "drum turns standstill motor sparks",
        "control board": "display blinks programme freezes buttons",
        "door seal": "leaks puddle rubber drips floor",
    }
    states = {"worn": "old gradually often", "broken": "suddenly never completely"}
    states |= {"blocked": "sometimes dirt stuck", "loose": "rattles shaking wobbly"}
    fillers = "my machine since yesterday again please help the is when it after wash and no more"
    rows = []
    pairs = [(part, state) for part in parts for state in states]
    share = rng.dirichlet(np.full(len(pairs), 2.0))
    for k in rng.choice(len(pairs), 3200, p=share):
        part, state = pairs[k]
        said = _picked(rng, parts[part], int(rng.integers(1, 4)))
        said += _picked(rng, states[state], int(rng.integers(0, 3)))
        said += _picked(rng, parts[list(parts)[int(rng.integers(8))]], int(rng.integers(0, 2)))
        said += _picked(rng, fillers, int(rng.integers(3, 9)))
        said = [said[j] for j in rng.permutation(len(said))]
        typos = [w[:-1] + w[-1] * 2 if rng.random() < 0.08 else w for w in said]
        rows.append({"complaint": " ".join(typos), "fault": f"{part} {state}"})
    return numbered(pl.DataFrame(rows))
