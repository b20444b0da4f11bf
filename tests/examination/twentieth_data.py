"""Datasets of the twentieth list: lettings, air, blood, cells, shelves, cultures, parts, glass."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def _sigmoid(z):
    return 1 / (1 + np.exp(-z))


def letting_impressions():
    """Flats shown to visitors of a portal: was a flat opened, and was its owner then asked."""
    rng = seeded(20001)
    districts = ["Altstadt", "Hafen", "Heide", "Nord", "Park", "Süd", "Werder"]
    charm = dict(zip(districts, [0.7, 0.3, -0.6, -0.2, 0.5, 0.0, -0.4], strict=True))
    flats = []
    for k in range(160):
        district = districts[int(rng.integers(7))]
        rooms = int(rng.choice([1, 2, 3, 4], p=[0.25, 0.35, 0.28, 0.12]))
        fair = 330 + 240 * rooms + 150 * charm[district]
        flats.append(
            {
                "flat": f"F{k:03}",
                "district": district,
                "rooms": rooms,
                "rent": float(np.round(fair * np.exp(rng.normal(0, 0.16)), -1)),
                "photos": int(rng.poisson(6)),
                "balcony": bool(rng.random() < 0.5),
                "dear": 0.0,
                "fair": fair,
            }
        )
    rows = []
    start = datetime(2024, 3, 1)
    for _ in range(3000):
        flat = flats[int(rng.integers(160))]
        budget = float(np.round(np.exp(rng.normal(6.65, 0.3)), -1))
        wanted = int(rng.choice([1, 2, 3, 4], p=[0.3, 0.35, 0.25, 0.1]))
        device = str(rng.choice(["app", "phone", "desktop"], p=[0.4, 0.35, 0.25]))
        over = np.log(flat["rent"] / budget)
        z = -0.6 + charm[flat["district"]] + 0.16 * (flat["photos"] - 6) + 0.5 * (device == "app")
        z -= 0.9 * abs(flat["rooms"] - wanted) + 1.3 * max(over, 0)
        opened = rng.random() < _sigmoid(1.5 * z + 0.2)
        asks = -0.1 - 4.5 * over - 3 * np.log(flat["rent"] / flat["fair"]) + 0.9 * flat["balcony"]
        asks -= 1.2 * (device == "phone") + 0.8 * (flat["rooms"] < wanted)
        asked = opened and rng.random() < _sigmoid(asks)
        rows.append(
            {
                "shown_at": start + timedelta(minutes=int(rng.integers(0, 60 * 24 * 90))),
                **{key: flat[key] for key in ("district", "rooms", "rent", "photos", "balcony")},
                "wanted_rooms": wanted if rng.random() < 0.9 else None,
                "budget": budget if rng.random() < 0.85 else None,
                "device": device,
                "asked_this_week": int(rng.poisson(0.5 * np.exp(0.4 * charm[flat["district"]]))),
                "outcome": [int(opened), int(asked)],
            }
        )
    return numbered(pl.DataFrame(rows).sort("shown_at"))


def street_air_sensors():
    """Cheap dust sensors beside reference instruments: every second hour at six sites."""
    rng = seeded(20002)
    sites = ["Bahnhof", "Brunnen", "Damm", "Kanal", "Markt", "Wald"]
    start, hours = datetime(2024, 3, 18), 1000
    clock = (np.arange(hours)) % 24
    warm = 9 + 4 * np.sin((clock - 9) * 2 * np.pi / 24) + np.cumsum(rng.normal(0, 0.15, hours))
    damp = np.cumsum(rng.normal(0, 0.25, hours))
    damp = 68 + 18 * np.tanh((damp - damp.mean()) / 5) - 14 * np.sin((clock - 9) * 2 * np.pi / 24)
    damp = (damp + rng.normal(0, 3, hours)).clip(20, 99)
    wind_from = np.mod(330 + np.cumsum(rng.normal(0, 22, hours)), 360)
    speed = np.exp(0.8 + 0.5 * np.sin(np.cumsum(rng.normal(0, 0.2, hours))))
    regional = np.zeros(hours)
    for h in range(1, hours):
        regional[h] = 0.97 * regional[h - 1] + rng.normal(0, 0.11)
    traffic = 0.5 * np.exp(-(((clock - 8) / 2.2) ** 2)) + 0.4 * np.exp(-(((clock - 18) / 2.5) ** 2))
    rows = []
    for k, site in enumerate(sites):
        gain, road = np.exp(rng.normal(0, 0.2)), [1.4, 0.8, 1.0, 0.6, 1.2, 0.2][k]
        model = ["SDS", "PMS", "SDS", "OPC", "PMS", "OPC"][k]
        ref = 9 * np.exp(regional + road * traffic - 0.25 * (speed - 2.5) / 2.5)
        ref = ref * np.exp(rng.normal(0, 0.22, hours))
        # a refinery in the north: its soot is finer than what the sensors count
        soot = np.exp(-((np.mod(wind_from - 350 + 180, 360) - 180) ** 2) / 2 / 35**2)
        swollen = 1 + {"SDS": 0.5, "PMS": 0.35, "OPC": 0.2}[model] * (damp / 100) ** 6 * 3
        raw = gain * ref * swollen * np.exp(rng.normal(0, 0.12, hours))
        ref = ref * (1 + 0.8 * soot) + rng.normal(0, 0.4, hours)
        validity = rng.choice([1, -1, -99], (hours, 4), p=[0.92, 0.05, 0.03])
        quarters = raw[:, None] * np.exp(rng.normal(0, 0.1, (hours, 4)))
        none = np.where(rng.random((hours, 4)) < 0.7, -999.0, 0.0)
        quarters = np.where(validity == 1, quarters.round(1), none)
        rows += [
            {
                "hour": start + timedelta(hours=h),
                "site": site,
                "sensor": model,
                "pm_quarters": quarters[h].tolist(),
                "validity": validity[h].tolist(),
                "humidity": round(float(damp[h]), 1) if rng.random() < 0.97 else None,
                "temperature": round(float(warm[h]), 1),
                "wind_from": float(np.round(wind_from[h] / 10) * 10 % 360),
                "wind_speed": round(float(speed[h]), 1),
                "pm_reference": round(float(max(ref[h], 0.5)), 1),
            }
            for h in range(0, hours, 2)
        ]
    return numbered(pl.DataFrame(rows).sort("hour", "site"))


def blood_demand():
    """Red cells that hospitals use: four weeks behind, five days ahead, operations planned."""
    rng = seeded(20003)
    first, days = date(2023, 1, 2), 330
    week = np.array([0.25, 0.3, 0.28, 0.2, 0.05, -0.45, -0.75])
    holiday = rng.random(days) < 0.03
    weekday = np.arange(days) % 7
    rows = []
    for k in range(14):
        level, surgical = rng.normal(2.3, 0.5), rng.uniform(1.0, 2.2)
        slow = np.zeros(days)
        for d in range(1, days):
            slow[d] = 0.9 * slow[d - 1] + rng.normal(0, 0.07)
        busy = np.where((weekday < 5) & ~holiday, 1.0, 0.6)
        planned = rng.poisson(np.exp(0.7 + 0.3 * surgical) * busy)
        mean = np.exp(level + slow + week[weekday] - 0.4 * holiday) + surgical * 1.3 * planned
        emergency = rng.gamma(0.35, 9, days) * (rng.random(days) < 0.25)
        used = rng.poisson(mean * rng.gamma(12, 1 / 12, days) + emergency)
        done = rng.binomial(planned, 0.9) + np.round(emergency / 4).astype(int)
        done += np.round((used - mean) / mean * 4).clip(-2, 6).astype(int)
        for d in range(28, days - 5):
            if rng.random() < 0.4:
                continue
            past, ahead = slice(d - 27, d + 1), slice(d + 1, d + 6)
            lost = rng.random(28) < 0.02
            rows.append(
                {
                    "day": first + timedelta(days=d),
                    "hospital": f"H{k:02}",
                    "units": [
                        None if gone else int(u) for u, gone in zip(used[past], lost, strict=True)
                    ],
                    "planned_past": planned[past].tolist(),
                    "planned_ahead": planned[ahead].tolist(),
                    "holiday_ahead": holiday[ahead].astype(int).tolist(),
                    "units_ahead": used[ahead].tolist(),
                    "performed_ahead": done[ahead].clip(0).tolist(),
                }
            )
    return numbered(pl.DataFrame(rows).sort("day", "hospital"))


def cell_counts():
    """Counts of sixty genes in single cells of three laboratories, five types of cells."""
    rng = seeded(20004)
    genes, labs = 60, ["berlin", "kyoto", "oslo"]
    base = rng.normal(0, 1.0, genes)
    types = base + rng.normal(0, 1.1, (5, genes)) * (rng.random((5, genes)) < 0.35)
    program = rng.normal(0, 0.5, genes)
    lab_shift = rng.normal(0, 0.35, (3, genes))
    theta = np.exp(rng.normal(1.4, 0.4, genes))
    rows = []
    for _ in range(1800):
        lab = int(rng.choice(3, p=[0.4, 0.35, 0.25]))
        kind = int(rng.choice(5, p=[0.3, 0.25, 0.2, 0.15, 0.1]))
        share = np.exp(types[kind] + lab_shift[lab] + program * rng.normal())
        depth = np.exp(rng.normal([6.0, 6.6, 5.7][lab], 0.35))
        mean = depth * share / share.sum()
        counts = rng.poisson(mean * rng.gamma(theta, 1 / theta)).tolist()
        rows.append({"lab": labs[lab], "donor": f"D{lab}{int(rng.integers(6))}", "umi": counts})
    frame = pl.DataFrame(rows).with_columns(umi_again=pl.col("umi"))
    return numbered(frame)


def shelf_clicks():
    """Lists of a shop's search: what was shown in which order, and what was clicked."""
    rng = seeded(20005)
    rows = []
    start = datetime(2024, 1, 8)
    for _ in range(2400):
        size = int(rng.integers(4, 11))
        match = rng.beta(2, 2, size)
        price = rng.normal(0, 1, size)
        stars = np.where(rng.random(size) < 0.15, np.nan, rng.normal(4, 0.5, size).clip(1, 5))
        sold = rng.gamma(1.2, 40, size)
        fresh = rng.exponential(60, size)
        ours = 1.2 * np.log1p(sold) + 0.8 * match + rng.normal(0, 0.8, size)
        order = np.argsort(-ours)
        z = 5.0 * (match - 0.55) - 0.9 * price + 1.6 * (np.nan_to_num(stars, nan=3.9) - 4)
        z -= 0.25 * (np.log1p(sold) - 3) + 0.004 * (fresh - 60)
        relevant = rng.random(size) < _sigmoid(1.4 * z - 0.4)
        place = np.arange(size)
        looked = rng.random(size) < 1 / (1 + place)
        clicked = (relevant[order] & looked) | (rng.random(size) < 0.01)
        if not clicked.any():
            continue
        rows.append(
            {
                "searched_at": start + timedelta(minutes=int(rng.integers(0, 60 * 24 * 120))),
                "shown_at": (place + 1).tolist(),
                "match": match[order].round(3).tolist(),
                "price": price[order].round(2).tolist(),
                "stars": [None if np.isnan(s) else round(float(s), 1) for s in stars[order]],
                "sold": sold[order].round().astype(int).tolist(),
                "days_listed": fresh[order].round().astype(int).tolist(),
                "clicks": clicked.astype(int).tolist(),
            }
        )
    return numbered(pl.DataFrame(rows).sort("searched_at"))


def urine_cultures():
    """Cultures of patients, several of some: does the bacterium resist a common antibiotic."""
    rng = seeded(20006)
    bugs = ["E. coli", "Klebsiella", "Proteus", "Enterococcus", "Pseudomonas", "Citrobacter"]
    innate = np.array([-0.6, 0.1, -0.9, 1.1, 1.8, 0.3])
    wards = ["urology", "surgery", "medicine", "geriatrics", "intensive", "outpatient"]
    burden = np.array([0.4, 0.0, 0.0, 0.5, 0.9, -0.5])
    codes = ["N39", "N20", "E11", "I10", "N18", "Z96", "J44", "C61", "N40", "I50", "F03", "K50"]
    risk = np.array([0.1, 0.5, 0.2, 0.0, 0.4, 0.7, 0.2, 0.3, 0.4, 0.1, 0.3, 0.0])
    rows, patient = [], 0
    start = date(2022, 1, 3)
    while len(rows) < 2600:
        patient += 1
        born = int(rng.integers(1930, 2004))
        man = bool(rng.random() < 0.35)
        ward, lab = int(rng.integers(6)), int(rng.integers(5))
        frail = rng.normal(0, 1.5)
        district = int(rng.integers(10, 60))
        day, before = int(rng.integers(0, 500)), None
        favourite = int(rng.choice(6, p=[0.5, 0.17, 0.1, 0.12, 0.06, 0.05]))
        for _ in range(1 + int(rng.poisson(1.8))):
            kind = favourite if rng.random() < 0.7 else int(rng.integers(6))
            given = int(rng.poisson(np.exp(-0.3 + 0.2 * frail)))
            tube = rng.random() < _sigmoid(-1.2 + burden[ward] + 0.4 * frail)
            picked = rng.choice(12, int(rng.choice([2, 3, 4], p=[0.12, 0.23, 0.65])), replace=False)
            z = -0.55 + innate[kind] + 0.7 * burden[ward] + 0.5 * min(given, 4) + 0.5 * tube
            z += 0.9 * frail + (0 if before is None else 1.3 * before - 0.4)
            z += risk[picked].sum() - 1.0 + 0.012 * (2022 - born - 55)
            resists = bool(rng.random() < _sigmoid(1.2 * z - 0.6))
            rows.append(
                {
                    "patient": f"P{patient:04}",
                    "day": start + timedelta(days=day),
                    "born": born,
                    "sex": "m" if man else "f",
                    "district": f"{district}",
                    "ward": wards[ward],
                    "laboratory": f"L{lab + 1}",
                    "organism": bugs[kind],
                    "courses_90d": given if rng.random() < 0.9 else None,
                    "catheter": bool(tube),
                    "before": None if before is None else ("R" if before else "S"),
                    "codes": [codes[k] for k in picked],
                    "zone_mm": round(float(np.clip(rng.normal(14 if resists else 22, 3), 6, 35))),
                    "resistant": resists,
                }
            )
            before = resists
            day += int(rng.integers(20, 160))
    return numbered(pl.DataFrame(rows, infer_schema_length=None))


def pump_inspections():
    """Pumps that are looked at from time to time: between which visits did each fail."""
    rng = seeded(20007)
    makers, fluids = ["Aqua", "Brunn", "Corva", "Delf"], ["water", "brine", "slurry"]
    rows = []
    for _ in range(1800):
        maker, fluid = int(rng.integers(4)), int(rng.choice(3, p=[0.5, 0.3, 0.2]))
        firm = int(rng.integers(5))
        load = float(rng.beta(4, 3))
        speed = float(np.round(rng.choice([1450, 2900]) * rng.uniform(0.95, 1.02)))
        vibration = float(np.exp(rng.normal(0.4, 0.4)))
        z = 3.9 + [0.0, 0.3, -0.3, 0.15][maker] - [0.0, 0.35, 0.8][fluid] - 1.1 * (load - 0.55)
        z -= 0.35 * (speed > 2000) + 0.35 * (np.log(vibration) - 0.4)
        life = np.exp(z) * rng.weibull(2.2)
        every = float(rng.choice([3.0, 6.0, 12.0], p=[0.25, 0.5, 0.25]))
        until = float(rng.uniform(12, 84))
        visits = np.cumsum(every * rng.uniform(0.7, 1.3, 60))
        visits = np.concatenate([[0.0], visits[visits < until]])
        seen = life < visits[-1]
        last = visits[visits < life][-1] if seen else visits[-1]
        found = visits[visits >= life][0] if seen else None
        rows.append(
            {
                "firm": f"S{firm + 1}",
                "maker": makers[maker],
                "fluid": fluids[fluid],
                "load": round(load, 2) if rng.random() < 0.93 else None,
                "speed": speed,
                "vibration": round(vibration, 2),
                "visits": round(60 / every),
                "life": [round(float(last), 1), None if found is None else round(float(found), 1)],
                "visited": len(visits) - 1 if not seen else int((visits <= found).sum()) - 1,
            }
        )
    return numbered(pl.DataFrame(rows, infer_schema_length=None))


def greenhouse_air():
    """Air of compartments under glass: a day of five instruments, humidity of the next hours."""
    rng = seeded(20008)
    start, hours = datetime(2024, 2, 5), 24 * 40
    clock = np.arange(hours) % 24
    cloud = _sigmoid(np.cumsum(rng.normal(0, 0.25, hours)))
    sun = 600 * np.sin((clock - 6) * np.pi / 12).clip(0) * (1 - 0.75 * cloud)
    outside = 7 + 0.008 * sun + np.cumsum(rng.normal(0, 0.12, hours))
    rows = []
    for k in range(8):
        heat, crop = rng.uniform(16, 20), rng.uniform(0.6, 1.4)
        wet, warm, gas, vent = np.zeros((4, hours))
        wet[0], warm[0], gas[0] = 75, heat, 600
        watering = int(rng.integers(5, 10))
        limit = rng.uniform(80, 86)
        for h in range(1, hours):
            open_ = 8 * max(warm[h - 1] - heat - 4, 0) + 6 * max(wet[h - 1] - limit, 0)
            vent[h] = np.clip(0.6 * vent[h - 1] + 0.4 * open_, 0, 100)
            pull = 0.25 * (heat - warm[h - 1]) + 0.01 * sun[h] - 0.004 * vent[h]
            warm[h] = warm[h - 1] + pull + 0.02 * (outside[h] - warm[h - 1]) + rng.normal(0, 0.25)
            steam = crop * (0.012 * sun[h] + 0.9) + 5.0 * (clock[h] in (watering, watering + 6))
            dry = 0.06 * vent[h] + 0.12 * (wet[h - 1] - 66) + 1.4 * (warm[h] - warm[h - 1])
            wet[h] = np.clip(wet[h - 1] + steam - dry + rng.normal(0, 0.9), 30, 99)
            gas[h] = gas[h - 1] + 0.3 * (700 - gas[h - 1]) - 0.25 * sun[h] - 1.2 * vent[h]
            gas[h] = max(gas[h] + rng.normal(0, 15), 350)
        for h in range(24, hours - 6):
            if rng.random() < 0.62:
                continue
            past, ahead = slice(h - 23, h + 1), slice(h + 1, h + 7)
            humidity = [round(float(v), 1) for v in wet[past]]
            if rng.random() < 0.2:  # the sensor's bus fails now and then, up to now in some cases
                humidity = [*humidity[: -int(rng.integers(2, 7))], *[None] * 6][:24]
            rows.append(
                {
                    "hour": start + timedelta(hours=h),
                    "compartment": f"K{k + 1}",
                    "humidity": humidity,
                    "temperature": warm[past].round(1).tolist(),
                    "co2": gas[past].round().tolist(),
                    "radiation": sun[past].round().tolist(),
                    "vents": vent[past].round().tolist(),
                    "humidity_ahead": wet[ahead].round(1).tolist(),
                }
            )
    return numbered(pl.DataFrame(rows).sort("hour", "compartment"))
