"""Datasets of the twenty-first list: pictures, texts and searches."""

import io

import numpy as np
import polars as pl
from PIL import Image

from examination.data import numbered, seeded


def claim_letters():
    """Letters to an insurer; the department that has to answer, some far more often than others."""
    rng = seeded(21101)
    topics = {
        "Motor": "car windscreen bumper motorway parked lorry garage tyre collision driver",
        "Home": "kitchen pipe ceiling flooded burglar roof cellar window storm carpet",
        "Travel": "flight suitcase hotel cancelled airport passport luggage ferry holiday delayed",
        "Health": "hospital dentist surgery prescription physiotherapy doctor glasses invoice knee",
        "Legal": "lawyer landlord court neighbour dispute tenant notice judge employer contract",
        "Pets": "dog cat vet horse injury limping vaccinated rabbit bitten clinic",
    }
    words = {name: text.split() for name, text in topics.items()}
    openings = [
        "Dear Sir or Madam , I have been a customer of yours for many years",
        "Hello , my policy number is on the attached sheet and I write again",
        "Good morning , please forward this to whoever is in charge of claims",
        "To whom it may concern , I called twice last week without any luck",
    ]
    fillers = [
        "please",
        "and",
        "the",
        "was",
        "my",
        "we",
        "it",
        "on",
        "yesterday",
        "again",
        "because",
        "very",
        "with",
        "after",
        "still",
    ]
    names = list(words)
    rows = []
    for _ in range(2600):
        k = int(rng.choice(6, p=[0.34, 0.26, 0.16, 0.12, 0.07, 0.05]))
        text = openings[int(rng.integers(4))].split()
        for _ in range(int(rng.integers(10, 26))):
            if rng.random() < 0.2:
                own = k if rng.random() < 0.8 else int(rng.integers(6))
                pool = words[names[own]]
            else:
                pool = fillers
            text.append(str(rng.choice(pool)))
        text = " ".join(text)
        text = text.upper() if rng.random() < 0.05 else text
        if rng.random() < 0.3:
            text = " ".join(w.capitalize() if rng.random() < 0.3 else w for w in text.split())
        wrong = rng.random() < 0.03
        rows.append({"letter": text, "department": names[int(rng.integers(6)) if wrong else k]})
    return numbered(pl.DataFrame(rows))


def nurse_calls():
    """Notes that nurses take of calls at night; one in five is urgent, "no" and "not" count."""
    rng = seeded(21102)
    grave = ["chest pain", "short breath", "bleeding", "numb arm", "seizure", "fainted"]
    mild = ["cough", "sore throat", "rash", "headache", "cold", "back pain", "fever", "nausea"]
    people = ["mother", "boy", "man", "woman", "girl", "baby", "grandfather"]
    fillers = ["since this morning", "called before", "the day after surgery", "at home"]
    fillers += ["asks for advice", "takes the usual pills", "worried", "is alone"]
    rows = []
    for _ in range(3000):
        said, z = [], -1.6
        for _ in range(int(rng.integers(2, 6))):
            is_grave = rng.random() < 0.45
            name = str(rng.choice(grave if is_grave else mild))
            state = rng.random()
            if state < 0.45:
                said.append(f"no {name}")
            elif state < 0.55:
                said.append(f"{name} is not there now")
            else:
                said.append(name)
                z += 2.6 if is_grave else -0.1
        z -= 1.4
        text = [str(rng.integers(1, 90)), "year old", str(rng.choice(people))]
        text += [str(rng.choice(fillers)), *said]
        text += [str(rng.choice(fillers)) for _ in range(int(rng.integers(0, 4)))]
        urgent = rng.random() < 1 / (1 + np.exp(-1.6 * z))
        rows.append({"note": " ".join(text), "urgent": "yes" if urgent else "no"})
    return numbered(pl.DataFrame(rows))


def bicycle_adverts():
    """Adverts for used things, in words, and a tag for each: brand, model, size, price or none."""
    rng = seeded(21103)
    brands = ["Falter", "Kettler", "Gazelle", "Puch", "Diamant", "Peugeot", "Hercules", "Batavus"]
    models = ["Tour", "Sport", "City", "Classic", "Pro", "Star", "Royal", "Swing"]
    words = [
        "selling",
        "my",
        "old",
        "bicycle",
        "good",
        "condition",
        "hardly",
        "used",
        "needs",
        "repair",
        "new",
        "bell",
    ]
    words += [
        "collect",
        "in",
        "person",
        "garage",
        "since",
        "summer",
        "for",
        "and",
        "the",
        "with",
        "basket",
        "blue",
        "green",
    ]
    rows = []
    for _ in range(2200):
        text, tags = [], []

        def add(word, tag="O", text=text, tags=tags):
            text.append(word)
            tags.append(tag)

        def fill(add=add):
            for _ in range(int(rng.integers(1, 6))):
                add(str(rng.choice(words)))

        parts = ["brand", "size", "price", "year", "frame"]
        for part in rng.permutation(parts)[: int(rng.integers(2, 6))]:
            fill()
            if part == "brand":
                add(str(rng.choice(brands)), "BRAND")
                if rng.random() < 0.7:
                    add(str(rng.choice(models)), "MODEL")
                    if rng.random() < 0.3:
                        add(str(rng.integers(1, 9)), "MODEL")
            elif part == "size":
                add(str(rng.integers(46, 64)), "SIZE")
                if rng.random() < 0.5:
                    add(str(rng.choice(["cm", "inch"])), "SIZE")
            elif part == "price":
                add(str(rng.integers(2, 60) * 10), "PRICE")
                if rng.random() < 0.5:
                    add(str(rng.choice(["euros", "EUR", "cash"])), "PRICE")
            elif part == "year":
                add("from")
                add(str(rng.integers(1985, 2021)))
            else:
                add(str(rng.choice(models)).lower())  # a word as others
                add("frame")
        fill()
        for k in np.flatnonzero(rng.random(len(text)) < 0.08):  # slips of the keyboard
            text[k] = text[k].replace(str(rng.choice(list(text[k]))), "", 1) or text[k]
        rows.append({"advert": " ".join(text), "tags": " ".join(tags)})
    return numbered(pl.DataFrame(rows))


def part_searches():
    """What people typed when they looked for a spare part, and the title of the one they bought."""
    rng = seeded(21104)
    things = {
        "hose": "pipe tube",
        "filter": "sieve strainer",
        "door seal": "gasket rubber",
        "drain pump": "motor emptying",
        "heating element": "heater coil",
        "shelf": "tray rack",
        "handle": "grip knob",
        "belt": "strap band",
        "brush set": "carbon brushes",
        "thermostat": "temperature sensor",
        "lamp": "light bulb",
        "castor": "wheel roller",
    }
    machines = {
        "washing machine": "washer laundry",
        "dishwasher": "dishes dishwashing",
        "refrigerator": "fridge cooler",
        "oven": "cooker stove",
        "tumble dryer": "dryer drying",
        "vacuum cleaner": "hoover vacuum",
    }
    makers = ["Alba", "Borea", "Cinta", "Dovre", "Erle", "Fjell", "Glanz", "Hansa"]
    parts = []
    for thing, other in things.items():
        for machine, also in machines.items():
            if rng.random() < 0.75:
                for maker in rng.choice(makers, int(rng.integers(2, 5)), replace=False):
                    title = f"{maker} {thing} for {machine} {int(rng.integers(100, 999))}"
                    parts.append((str(maker), thing, other.split(), machine, also.split(), title))
    order = rng.permutation(len(parts))
    popular = 1 / (1 + np.argsort(order)) ** 1.0
    popular /= popular.sum()
    rows = []
    for _ in range(3000):
        k = int(rng.choice(len(parts), p=popular))
        maker, thing, other, machine, also, title = parts[k]
        typed = (
            [] if rng.random() < 0.1 else [thing if rng.random() < 0.45 else str(rng.choice(other))]
        )
        typed.append(machine if rng.random() < 0.4 else str(rng.choice(also)))
        typed += [maker.lower()] if rng.random() < 0.5 else []
        typed += [str(rng.choice(["new", "cheap", "original", "spare"]))] * (rng.random() < 0.3)
        typed = [typed[i] for i in rng.permutation(len(typed))]
        rows.append({"typed": " ".join(typed), "bought": title})
    return numbered(pl.DataFrame(rows))


SIGNS = ["left", "right", "stop", "yield", "limit"]


def _sign(kind, rng, side=28):
    y, x = np.mgrid[0:side, 0:side]
    x = (x - side / 2 - rng.uniform(-2.5, 2.5)) / rng.uniform(10, 13)
    y = (y - side / 2 - rng.uniform(-2.5, 2.5)) / rng.uniform(10, 13)
    pixels = np.ones((side, side, 3)) * rng.uniform(60, 190, 3)
    pixels += (
        25 * np.sin(x * rng.uniform(1, 4) + y * rng.uniform(1, 4) + rng.uniform(0, 6))[..., None]
    )
    red, blue, white = np.array([190, 40, 45]), np.array([40, 70, 170]), np.array([235, 235, 230])
    disc = x**2 + y**2 < 0.85
    if kind in ("left", "right"):
        pixels[disc] = blue
        a = x if kind == "right" else -x
        head = (a > 0) & (a < 0.6) & (abs(y) < 0.6 - a)
        pixels[disc & (head | ((a <= 0) & (a > -0.6) & (abs(y) < 0.18)))] = white
    elif kind == "stop":
        body = (abs(x) < 0.85) & (abs(y) < 0.85) & (abs(x) + abs(y) < 1.2)
        pixels[body] = red
        pixels[body & (abs(y) < 0.2) & (abs(x) < 0.6)] = white
    elif kind == "yield":
        outer = (y > -0.75) & (y < 0.85 - 1.8 * abs(x))
        pixels[outer] = red
        pixels[(y > -0.5) & (y < 0.4 - 1.8 * abs(x))] = white
    else:
        pixels[disc] = red
        pixels[x**2 + y**2 < 0.5] = white
        pixels[(abs(abs(x) - 0.25) < 0.1) & (abs(y) < 0.35)] = 30
    pixels = (pixels - 128) * rng.uniform(0.2, 0.9) + 128 + rng.uniform(-60, 60)
    return (pixels + rng.normal(0, 42, pixels.shape)).clip(0, 255).astype(np.uint8)


def road_signs():
    """Crops of road signs from a car's camera, 28 by 28, in PNG: speed limits are in the lead."""
    rng = seeded(21105)
    rows = []
    for _ in range(1800):
        kind = SIGNS[int(rng.choice(5, p=[0.07, 0.1, 0.13, 0.2, 0.5]))]
        stream = io.BytesIO()
        Image.fromarray(_sign(kind, rng)).save(stream, "PNG")
        rows.append({"crop": stream.getvalue(), "sign": kind})
    return numbered(pl.DataFrame(rows))


def thermal_frames():
    """Pictures of pipes by a cheap thermal camera, 20 by 20, and by a good one beside it."""
    rng = seeded(21106)
    side = 20
    y, x = np.mgrid[0:side, 0:side]
    bad_rows = rng.normal(0, 1.2, (1, side))  # the cheap sensor's stripes
    rows = []
    for _ in range(1600):
        clean = np.full((side, side), rng.normal(18, 2.5)) + 0.08 * rng.normal() * y
        for _ in range(int(rng.integers(1, 4))):
            angle, off = rng.uniform(0, np.pi), rng.uniform(-7, 7)
            away = (x - side / 2) * np.cos(angle) + (y - side / 2) * np.sin(angle) - off
            clean = clean + rng.uniform(3, 14) * np.exp(-((away / rng.uniform(0.8, 2.0)) ** 2))
        if rng.random() < 0.4:
            cx, cy = rng.uniform(3, side - 3, 2)
            clean = clean + rng.uniform(4, 9) * np.exp(-((x - cx) ** 2 + (y - cy) ** 2) / 5)
        noisy = clean + bad_rows + rng.normal(0, 2.2, clean.shape) + rng.normal(0, 0.5)
        rows.append(
            {
                "cheap": noisy.round(1).ravel().tolist(),
                "good": clean.round(1).ravel().tolist(),
            }
        )
    return numbered(pl.DataFrame(rows))
