"""Datasets of the fifteenth list: tractors at auctions, cored wells, hatcheries, news, spare parts, campus meters, river basins."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import sigmoid


def _some_missing(rng, values, share):
    """The values as a list in which a share, or those with the given chances, is missing."""
    is_gone = rng.random(len(values)) < share
    return [
        None if gone else v
        for v, gone in zip(np.asarray(values).tolist(), is_gone.tolist(), strict=True)
    ]


def tractor_auctions():
    """Used tractors that were sold at auctions: the lot as the catalogue describes it, and its hammer price."""
    rng = seeded(15001)
    n = 4800
    makes = ["Valmet", "Fendler", "Deerfield", "Masson", "Claus", "Holland", "Steyer", "Zetar"]
    brand = np.array([0.1, 0.45, 0.3, 0.0, 0.15, 0.05, 0.2, -0.4])
    type_make = rng.integers(0, 8, 40)
    type_power = np.exp(rng.normal(4.75, 0.4, 40)).round(-1)
    kind = rng.choice(40, n, p=rng.dirichlet(np.full(40, 1.5)))
    make, power = type_make[kind], type_power[kind] + rng.integers(-5, 6, n)
    day = np.sort(rng.integers(0, 730, n))
    sold = [date(2022, 1, 5) + timedelta(days=int(d)) for d in day]
    age = np.clip(rng.gamma(2.2, 5.0, n), 0.5, 45)
    built = (2022 + day / 365 - age).astype(int)
    hours = np.exp(rng.normal(6.2, 0.45, n)) * age**0.85
    condition = np.clip((2.0 + 0.06 * age + rng.normal(0, 0.9, n)).round(), 1, 5).astype(int)
    house = rng.choice(6, n, p=[0.3, 0.25, 0.2, 0.12, 0.08, 0.05])
    drive = rng.choice(3, n, p=[0.22, 0.72, 0.06])
    loader = rng.random(n) < 0.35
    tyres = np.clip(rng.beta(2.2, 1.6, n) * 100, 3, 100).round(-1)
    broken = rng.random(n) < 0.13
    z = 6.55 + brand[make] + 0.85 * np.log(power) - 0.055 * age - 0.16 * np.log(hours / 3000)
    z += np.array([-0.25, 0.0, 0.25])[drive] + 0.09 * loader - 0.09 * (condition - 2)
    z += (
        np.array([0.0, 0.08, -0.06, 0.1, -0.15, 0.03])[house] + 0.0025 * (tyres - 60) - 0.6 * broken
    )
    z += rng.normal(0, 0.12, 40)[kind] + 0.06 * np.sin(day / 365 * 2 * np.pi) + 0.0002 * day
    price = np.exp(z + 0.17 * rng.standard_t(5, n))
    bid = np.exp(z - 0.9 + rng.normal(0, 0.55, n))
    houses = np.array(["Agrobid", "Hof & Sohn", "Merrow", "Nordauktion", "Ritter", "Vallelunga"])
    return numbered(
        pl.DataFrame(
            {
                "sold_on": sold,
                "house": houses[house],
                "make": np.array(makes)[make],
                "model": [f"{makes[m][:2].upper()}{k:02}-{int(p)}" for m, k, p in zip(make, kind, type_power[kind], strict=True)],
                "drive": np.array(["2WD", "4WD", "tracks"])[drive],
                "front_loader": _some_missing(rng, np.where(loader, "yes", "no"), 0.06),
                "condition": _some_missing(rng, np.array(list("ABCDE"))[condition - 1], 0.15),
                "horsepower": power,
                "built": built,
                "engine_hours": _some_missing(rng, hours.round(), np.where(broken, 0.95, 0.03)),
                "tyres_percent": _some_missing(rng, tyres, 0.2),
                "starting_bid": bid.round(-2).clip(200),
                "price": price.round(-1).clip(250),
            }
        )
    )  # fmt: skip


FACIES = (
    "sandstone",
    "siltstone",
    "mudstone",
    "wackestone",
    "dolomite",
    "packstone",
    "bafflestone",
)


def well_logs():
    """Readings of five logs at five depths around a core's plug, from 24 wells, and the facies that a geologist saw."""
    rng = seeded(15002)
    # gamma ray, density, neutron porosity, sonic, logarithm of resistivity
    centre = np.array(
        [[52, 2.32, 0.20, 82, 1.1], [78, 2.42, 0.21, 78, 0.9], [112, 2.50, 0.29, 88, 0.6],
         [70, 2.60, 0.12, 66, 1.5], [38, 2.72, 0.08, 55, 1.9], [34, 2.55, 0.13, 63, 1.7],
         [30, 2.46, 0.18, 70, 2.1]]
    )  # fmt: skip
    noise = np.array([11, 0.06, 0.028, 4.5, 0.28])
    near = np.exp(-np.abs(np.arange(7)[:, None] - np.arange(7)[None]) / 1.2)
    np.fill_diagonal(near, 0)
    near /= near.sum(1, keepdims=True)
    rows = []
    for well in range(24):
        depths = int(rng.integers(140, 200))
        state, facies = int(rng.integers(7)), []
        for _ in range(depths):
            if rng.random() < 0.13:
                state = int(rng.choice(7, p=near[state]))
            facies.append(state)
        facies = np.array(facies)
        drift = rng.normal(0, 0.35, 5) * noise
        wander = np.cumsum(rng.normal(0, 0.06, (depths, 5)), axis=0) * noise
        logs = centre[facies] + drift + wander + rng.normal(0, 1, (depths, 5)) * noise
        padded = np.pad(logs, ((1, 1), (0, 0)), "edge")
        logs = 0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:]
        logs[:, 4] = 10 ** logs[:, 4]
        top = 2400 + rng.normal(0, 60)
        has_sonic = well % 4 != 3
        for d in range(2, depths - 2):
            part = logs[d - 2 : d + 3]
            row = {
                "well": f"W-{well:02}",
                "depth": round(float(top + 0.5 * d), 1),
                "formation": ["upper", "middle", "lower"][min(3 * d // depths, 2)],
            }
            for k, (name, digits) in enumerate(
                [("gr", 1), ("rhob", 3), ("nphi", 3), ("dt", 1), ("rt", 2)]
            ):
                row[name] = [round(float(v), digits) for v in part[:, k]]
            if not has_sonic:
                row["dt"] = None
            rows.append(row | {"facies": FACIES[facies[d]]})
    return numbered(pl.DataFrame(rows, infer_schema_length=None))


def hatchery_settings():
    """Trays of eggs that hatcheries set: the flock, the eggs and the machine, and [hatched, set]."""
    rng = seeded(15003)
    n = 4200
    flock = rng.integers(0, 90, n)
    farm = rng.integers(0, 18, 90)[flock]
    breed = rng.choice(4, 90, p=[0.45, 0.3, 0.2, 0.05])[flock]
    day = np.sort(rng.integers(0, 500, n))
    age = 24 + (day / 7 + rng.integers(0, 38, 90)[flock]) % 40
    stored = np.clip(rng.gamma(2.0, 2.6, n), 0, 21).round()
    weight = 52 + 0.32 * (age - 24) + rng.normal(0, 2.2, n)
    machine = rng.integers(0, 7, n)
    heat = 37.6 + rng.normal(0, 0.16, n) + np.array([0, 0.1, -0.1, 0, 0.05, 0.2, -0.05])[machine]
    humid = 54 + rng.normal(0, 3.5, n)
    male = np.clip(rng.normal(9.2, 0.9, n), 6, 12).round(1)
    fertile = 2.5 + rng.normal(0, 0.3, 90)[flock] + rng.normal(0, 0.2, 18)[farm]
    fertile += np.array([0.0, 0.25, -0.2, -0.5])[breed] + 0.22 * (male - 9.2)
    fertile -= 0.0042 * (age - 36) ** 2 * np.where(age > 36, 1.0, 1.6)
    hatch = 2.2 - 0.011 * np.maximum(stored - 4, 0) ** 2 - 5.5 * (heat - 37.65) ** 2
    hatch -= 0.006 * (humid - 54) ** 2 + 0.3 * np.cos(day / 365 * 2 * np.pi)
    eggs = rng.choice([84, 90, 126, 132, 150, 168], n) - rng.poisson(2, n)
    own = rng.beta(sigmoid(fertile) * 45, (1 - sigmoid(fertile)) * 45)
    rate = own * rng.beta(sigmoid(hatch) * 60, (1 - sigmoid(hatch)) * 60)
    before = np.clip(sigmoid(fertile) + rng.normal(0, 0.05, n), 0.3, 0.995)
    hatched = rng.binomial(eggs, rate)
    return numbered(
        pl.DataFrame(
            {
                "set_on": [date(2023, 2, 1) + timedelta(days=int(d)) for d in day],
                "farm": [f"farm-{k:02}" for k in farm],
                "flock": [f"F{k:03}" for k in flock],
                "breed": np.array(["Lohner", "Rosse", "Hubbel", "Sasso"])[breed],
                "machine": [f"setter {k + 1}" for k in machine],
                "flock_weeks": age.astype(int),
                "stored_days": stored,
                "egg_weight": _some_missing(rng, weight.round(1), 0.1),
                "males_percent": male,
                "temperature": heat.round(2),
                "humidity": _some_missing(rng, humid.round(), 0.07),
                "fertility_last_tray": _some_missing(rng, before.round(3), 0.12),
                "result": [[int(a), int(b)] for a, b in zip(hatched, eggs, strict=True)],
            }
        )
    )


TOPICS = {
    "football": "goal striker league keeper penalty derby transfer coach injury cup stadium referee",
    "politics": "minister vote coalition parliament budget reform treaty senate ballot law mayor tax",
    "cooking": "recipe oven garlic soup bread dinner spice roast sauce butter cake herbs",
    "travel": "beach airline hotel passport island museum train visa hiking resort ferry city",
    "health": "doctor sleep vaccine diet heart clinic virus stress therapy patient pain muscles",
    "money": "shares bank inflation rates mortgage savings bond profit startup pension euro debt",
    "screen": "actor series sequel festival trailer director drama award streaming comedy cinema role",
    "science": "planet fossil quantum telescope genome glacier robot physics species rocket brain ocean",
}


def news_impressions():
    """What a news app showed a reader: titles read before, five titles offered at once, and which one was tapped."""
    rng = seeded(15004)
    names = list(TOPICS)
    words = [TOPICS[t].split() for t in names]
    filler = [
        "new",
        "why",
        "after",
        "how",
        "first",
        "over",
        "week",
        "says",
        "top",
        "day",
        "big",
        "back",
        "year",
        "what",
    ]
    articles = []
    for a in range(700):
        topic = int(rng.integers(8))
        about = list(rng.choice(words[topic], int(rng.integers(2, 4)), replace=False))
        about += list(rng.choice(filler, int(rng.integers(2, 4)), replace=False))
        if rng.random() < 0.25:
            about.append(str(rng.choice(words[int(rng.integers(8))])))
        rng.shuffle(about)
        published = float(a) / 700 * 60 * 24
        articles.append((" ".join(about).capitalize(), topic, published, rng.normal(0, 0.5)))
    topics = np.array([a[1] for a in articles])
    hours = np.array([a[2] for a in articles])
    appeal = np.array([a[3] for a in articles])
    readers = 450
    taste = rng.normal(0, 2.4, (readers, 8))
    rows = []
    for _ in range(4200):
        who = int(rng.integers(readers))
        at = float(rng.uniform(72, 60 * 24))
        pool = np.flatnonzero((hours < at) & (hours > at - 72))
        if len(pool) < 16:
            continue
        old = np.flatnonzero(hours < at - 1)
        p = np.exp(taste[who, topics[old]] + appeal[old])
        read = rng.choice(
            old, int(min(rng.geometric(0.16) + 2, 10, len(old))), replace=False, p=p / p.sum()
        )
        shown = rng.choice(np.setdiff1d(pool, read), 5, replace=False)
        z = taste[who, topics[shown]] + appeal[shown] - 0.015 * (at - hours[shown])
        clicked = int(np.argmax(z + rng.gumbel(0, 1, 5)))
        rows.append(
            {
                "shown_at": datetime(2024, 4, 1) + timedelta(hours=at),
                "reader": f"r{who:04}",
                "history": [articles[i][0] for i in read],
                "titles": [articles[i][0] for i in shown],
                "categories": [names[topics[i]] for i in shown],
                "age_hours": [round(float(at - hours[i]), 1) for i in shown],
                "clicked": clicked,
            }
        )  # fmt: skip
    return numbered(pl.DataFrame(rows).sort("shown_at", "reader"))


PARTS = {
    "bolt": ("screw", "hex bolt", "M-bolt"), "nut": ("nut", "lock nut", "hexagon nut"),
    "bearing": ("ball bearing", "roller", "bushing"), "belt": ("drive belt", "v-belt", "strap"),
    "filter": ("oil filter", "strainer", "cartridge"), "hose": ("hose", "pipe flexible", "tube"),
    "seal": ("gasket", "o-ring", "sealing ring"), "valve": ("valve", "tap", "shutoff"),
    "fuse": ("fuse", "breaker", "cutout"), "relay": ("relay", "contactor", "switch coil"),
    "lamp": ("bulb", "led lamp", "indicator light"), "pump": ("pump", "impeller unit", "feeder"),
    "spring": ("spring", "coil", "tension spring"), "gear": ("gear", "cogwheel", "pinion"),
    "chain": ("chain", "roller chain", "link chain"), "cable": ("cable", "wire", "lead"),
}  # fmt: skip
STUFF = {
    "steel": ("steel", "metal"), "brass": ("brass", "yellow metal"), "nylon": ("nylon", "plastic"),
    "rubber": ("rubber", "elastic"), "copper": ("copper", "cu"), "ceramic": ("ceramic", "porcelain"),
    "zinc": ("zinc plated", "galvanised"), "viton": ("viton", "fkm"),
}  # fmt: skip
MACHINES = ("combine", "loader", "excavator", "press", "conveyor", "mixer", "lathe", "crane", "oven", "baler")  # fmt: skip


def parts_searches():
    """What mechanics typed into the catalogue of spare parts, and the entry that they ordered."""
    rng = seeded(15005)
    kinds, stuffs = list(PARTS), list(STUFF)
    sizes = ["M6", "M8", "M10", "M12", "16mm", "20mm", "25mm", "32mm", "40mm", "12V", "24V", "230V"]
    notes = ["spare part original quality", "delivered in one piece", "sold per unit", "see drawing",
             "replaces older number", "packed in tens", "for workshop use"]  # fmt: skip
    rows = []
    for _ in range(3000):
        kind, stuff = str(rng.choice(kinds)), str(rng.choice(stuffs))
        size, machine = str(rng.choice(sizes)), str(rng.choice(MACHINES))
        number = f"{rng.integers(100, 999)}-{rng.integers(10, 99)}"
        entry = [
            f"No {number}",
            f"{kind.capitalize()} {size}",
            f"{stuff} finish",
            f"for {machine}s",
        ]
        rng.shuffle(tail := list(rng.choice(notes, 2, replace=False)))
        typed = [str(rng.choice(PARTS[kind]))]
        if rng.random() < 0.85:
            typed.append(size.lower() if rng.random() < 0.6 else size)
        if rng.random() < 0.5:
            typed.append(str(rng.choice(STUFF[stuff])))
        if rng.random() < 0.5:
            typed.append(machine)
        if rng.random() < 0.3:
            typed.append(str(rng.choice(["please", "urgent", "need", "pcs"])))
        rng.shuffle(typed)
        rows.append(
            {
                "branch": f"B{rng.integers(12):02}",
                "query": " ".join(typed),
                "entry": ". ".join([*entry, *tail]),
            }
        )
    return numbered(pl.DataFrame(rows))


def campus_load():
    """Electric load of buildings of a campus: the last seven days by the hour, the weather that is forecast, the next day."""
    rng = seeded(15006)
    days = 400
    start = datetime(2023, 1, 2)
    t = np.arange(days * 24)
    season = 11 - 10 * np.cos((t / 24 - 18) / 365 * 2 * np.pi)
    spell = np.repeat(np.convolve(rng.normal(0, 6, days), np.ones(4) / 4, "same"), 24)
    warm = season + spell + 4 * np.sin((t % 24 - 9) / 24 * 2 * np.pi)
    closed = np.repeat(rng.random(days) < 0.04, 24)
    rows = []
    for b in range(24):
        kind = b % 3
        scale = float(np.exp(rng.normal(4.2, 0.8)))
        hour = t % 24
        free = (t // 24 % 7 >= 5) | closed
        busy = sigmoid((hour - 7.5) * 1.6) * sigmoid((17.5 + 2 * kind - hour) * 1.4)
        use = 0.35 + busy * np.where(free, [0.1, 0.25, 0.7][kind], [0.8, 0.7, 0.5][kind])
        heating, cooling = rng.uniform(0.004, 0.014), rng.uniform(0.02, 0.05)
        use = (
            use
            + heating * np.maximum(15 - warm, 0)
            + cooling * (0.4 + busy) * np.maximum(warm - 18, 0)
        )
        noise = np.zeros(len(t))
        shock = rng.normal(0, 0.02, len(t))
        for i in range(1, len(t)):
            noise[i] = 0.9 * noise[i - 1] + shock[i]
        load = scale * use * np.exp(noise)
        gone = np.zeros(len(t), dtype=bool)
        for s in rng.integers(0, len(t) - 12, 14):
            gone[s : s + int(rng.integers(2, 12))] = True
        for d in range(7 + b % 5, days - 1, 5):
            cut = d * 24
            ahead = warm[cut : cut + 24] + rng.normal(0, 1.0)
            past = load[cut - 168 : cut].round(2).tolist()
            rows.append(
                {
                    "issued_at": start + timedelta(days=d),
                    "building": f"bldg-{b:02}",
                    "past": [None if g else v for v, g in zip(past, gone[cut - 168 : cut], strict=True)],
                    "closed_tomorrow": bool(closed[cut]),
                    "past_temperature": warm[cut - 168 : cut : 3].round(1).tolist(),
                    "temperature": ahead[::3].round(1).tolist(),
                    "load": load[cut : cut + 24].round(2).tolist(),
                }
            )  # fmt: skip
    return numbered(pl.DataFrame(rows).sort("issued_at", "building"))


def basin_inflow():
    """Inflow into reservoirs: three weeks of rain, warmth and discharge, a rain forecast, and the next five days."""
    rng = seeded(15007)
    days = 900
    start = date(2021, 10, 1)
    rows = []
    for b in range(16):
        area = float(np.exp(rng.normal(5.8, 0.7)))
        height = float(rng.uniform(300, 2200))
        forest = float(rng.uniform(5, 90))
        fast, slow = rng.uniform(0.35, 0.6), rng.uniform(0.02, 0.05)
        t = np.arange(days)
        warm = 11 - height / 180 - 9 * np.cos((t + 270 - 15) / 365 * 2 * np.pi)
        warm = warm + np.convolve(rng.normal(0, 5, days), np.ones(3) / 3, "same")
        wet = np.zeros(days, dtype=bool)
        for i in range(1, days):
            wet[i] = rng.random() < (0.55 if wet[i - 1] else 0.22)
        rain = np.where(wet, rng.gamma(0.7, 11.0, days), 0.0)
        snow = quick = 0.0
        base, flow = 1.0, []
        for i in range(days):
            fall = rain[i] if warm[i] <= 0 else 0.0
            melt = min(snow, 2.6 * max(warm[i], 0.0))
            snow += fall - melt
            water = rain[i] - fall + melt
            loss = min(water, max(0.0, 0.12 * warm[i]) + 0.01 * forest)
            quick += 0.6 * (water - loss)
            base += 0.4 * (water - loss)
            flow.append(fast * quick + slow * base)
            quick, base = quick * (1 - fast), base * (1 - slow)
        flow = np.array(flow) * np.exp(rng.normal(0, 0.05, days)) + 0.05
        cubic = flow * area / 86.4
        for d in range(30 + b % 8, days - 6, 8):
            told = rain[d : d + 5] * np.exp(rng.normal(0, 0.25 + 0.12 * np.arange(5)))
            told = np.where(rng.random(5) < 0.08 + 0.04 * np.arange(5), rain[d - 6 : d - 1], told)
            rows.append(
                {
                    "issued_on": start + timedelta(days=d),
                    "basin": f"basin-{b:02}",
                    "area_km2": round(area, 1),
                    "height_m": round(height),
                    "forest_percent": None if b == 5 else round(forest, 1),
                    "rain": rain[d - 21 : d].round(1).tolist(),
                    "temperature": warm[d - 21 : d].round(1).tolist(),
                    "inflow": cubic[d - 21 : d].round(2).tolist(),
                    "rain_forecast": told.round(1).tolist(),
                    "temperature_forecast": (warm[d : d + 5] + rng.normal(0, 1.2, 5)).round(1).tolist(),
                    "inflow_ahead": cubic[d : d + 5].round(2).tolist(),
                }
            )  # fmt: skip
    return numbered(pl.DataFrame(rows).sort("issued_on", "basin"))
