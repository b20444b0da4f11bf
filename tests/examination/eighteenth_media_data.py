"""Datasets of the eighteenth list: pictures, signals, texts, documents and sessions."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def parking_spots():
    """Grey patches of parking spots from nine cameras: a car stands there or not."""
    rng = seeded(18001)
    n, side = 1500, 20
    camera = rng.integers(1, 10, n)
    hour = rng.integers(7, 20, n)
    busy = (rng.random(n) < 0.34 + 0.2 * np.exp(-((hour - 12) ** 2) / 14)).astype(int)
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    patches = []
    for k in range(n):
        light = 60 + 90 * np.exp(-((hour[k] - 13) ** 2) / 22) + rng.normal(0, 12)
        ground = light * (0.8 + 0.04 * camera[k]) + rng.normal(0, 6, (side, side))
        slope = np.deg2rad(4.0 * camera[k] - 20 + rng.normal(0, 4))
        u = x * np.cos(slope) + y * np.sin(slope)
        v = -x * np.sin(slope) + y * np.cos(slope)
        ground[np.abs(np.abs(u) - 9) < 0.8] += 0.55 * light
        if busy[k]:
            paint = rng.choice([0.45, 0.75, 0.95, 1.25], p=[0.2, 0.3, 0.3, 0.2]) * light
            dx, dy = rng.normal(0, 0.9, 2)
            body = (np.abs(u - dx) < 5.5) & (np.abs(v - dy) < 8)
            glass = body & (np.abs(np.abs(v - dy) - 4) < 1.1) & (np.abs(u - dx) < 4.2)
            ground[body] = paint + rng.normal(0, 6, body.sum())
            ground[glass] = 0.6 * light + 0.3 * paint
            ground[(np.abs(v - dy - 8.6) < 0.8) & (np.abs(u - dx) < 5.5)] *= 0.45
        elif rng.random() < 0.35:  # the shadow of a tree or an oil stain
            sx, sy = rng.normal(0, 4, 2)
            ground[np.hypot(u - sx, v - sy) < rng.uniform(2.5, 6)] *= rng.uniform(0.45, 0.75)
        ground += rng.normal(0, rng.choice([6, 24], p=[0.6, 0.4]), ground.shape)
        patches.append(ground.clip(0, 255).astype(np.uint8).reshape(-1).tolist())
    day = datetime(2024, 2, 1)
    wrong = rng.random(n) < 0.015
    return numbered(
        pl.DataFrame(
            {
                "camera": [f"cam{c}" for c in camera],
                "taken": [
                    day + timedelta(days=int(d), hours=int(h))
                    for d, h in zip(rng.integers(0, 90, n), hour, strict=True)
                ],
                "patch": pl.Series(patches, dtype=pl.List(pl.UInt8)),
                "busy": np.where(wrong, 1 - busy, busy),
            }
        ).sort("taken")
    )


def retina_grades():
    """Small colour pictures of the back of the eye, graded 0 to 4; two eyes of most patients."""
    rng = seeded(18002)
    people, side = 640, 32
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    r = np.hypot(x, y)
    pictures, patient, eye, grades, clinic = [], [], [], [], []
    for p in range(people):
        sick = float(np.clip(rng.gamma(0.9, 1.35), 0, 4.4))
        where = rng.choice(["Aravali", "Lido", "Norte"], p=[0.5, 0.3, 0.2])
        tone = {"Aravali": (1.0, 0.55, 0.3), "Lido": (0.85, 0.5, 0.35), "Norte": (0.95, 0.42, 0.2)}
        for sidename in ["left", "right"][: 2 if rng.random() < 0.8 else 1]:
            level = float(np.clip(sick + rng.normal(0, 0.3), 0, 4.4))
            base = rng.uniform(105, 190) * np.exp(-((r / 19) ** 2))
            picture = base[..., None] * np.array(tone[where])
            disc = np.hypot(x - (7 if sidename == "right" else -7), y) < 3
            picture[disc] *= 1.45
            for _ in range(rng.poisson(1.6 * level**1.25)):
                cx, cy = rng.uniform(-11, 11, 2)
                spot = np.hypot(x - cx, y - cy) < rng.uniform(0.8, 1.5)
                picture[spot] *= np.array([0.6, 0.3, 0.4])
            for _ in range(rng.poisson(max(level - 1.2, 0) * 1.5)):
                cx, cy = rng.uniform(-10, 10, 2)
                picture[np.hypot(x - cx, y - cy) < rng.uniform(0.8, 1.6)] *= np.array([1.3, 1.7, 1])
            picture[r > 15] = 0
            picture += rng.normal(0, 5, picture.shape)
            pictures.append(picture.clip(0, 255).astype(np.uint8).reshape(-1).tolist())
            patient.append(f"P{p:04d}")
            eye.append(sidename)
            clinic.append(where)
            grades.append(int(np.clip(np.rint(level + rng.normal(0, 0.18)), 0, 4)))
    return numbered(
        pl.DataFrame(
            {
                "patient": patient,
                "eye": eye,
                "clinic": clinic,
                "fundus": pl.Series(pictures, dtype=pl.List(pl.UInt8)),
                "grade": grades,
            }
        )
    )


def flood_chips():
    """Radar chips in decibels, two polarisations; masks: 0 dry, 1 water, 255 void."""
    rng = seeded(18003)
    n, side = 700, 24
    y, x = np.mgrid[:side, :side]
    chips, masks, country, missing = [], [], [], 0
    for _ in range(n):
        smooth = rng.normal(size=(6, 6)).repeat(4, 0).repeat(4, 1)
        smooth = (np.roll(smooth, 2, 0) + smooth + np.roll(smooth, 2, 1)) / 3
        height = smooth + rng.uniform(-0.08, 0.08) * (x - 12) + rng.uniform(-0.08, 0.08) * (y - 12)
        water = height < np.quantile(height, rng.beta(0.9, 2.2))
        land = rng.choice(["bolivia", "ghana", "india", "spain"], p=[0.3, 0.2, 0.35, 0.15])
        dry = -8 + 1.6 * rng.normal(size=(8, 8)).repeat(3, 0).repeat(3, 1)
        road = np.abs((x - y * rng.uniform(-1, 1)) - rng.uniform(0, 24)) < 1.0
        vv = np.where(water, -16 + rng.normal(0, 1.6), dry - 2)
        vh = np.where(water, -21 + rng.normal(0, 1.6), dry - 8.5 + rng.normal(0, 0.7))
        vv = np.where(road & ~water, vv - 8, vv)  # a smooth road is as dark as water in one of them
        speckle = rng.gamma(1.4, 1 / 1.4, (2, side, side))
        band = np.stack([vv, vh]) + 10 * np.log10(speckle)
        mask = water.astype(int)
        cloud = np.hypot(x - rng.uniform(0, 24), y - rng.uniform(0, 24)) < rng.uniform(0, 7)
        mask[cloud] = 255
        if rng.random() < 0.2:
            edge = x > rng.integers(14, 23)
            band[:, edge] = np.nan
            mask[edge] = 255
            missing += 1
        chips.append(np.round(band, 2).astype(np.float32).reshape(-1).tolist())
        masks.append(mask.reshape(-1).tolist())
        country.append(land)
    return numbered(
        pl.DataFrame(
            {
                "country": country,
                "decibels": pl.Series(chips, dtype=pl.List(pl.Float32)),
                "mask": pl.Series(masks, dtype=pl.List(pl.UInt8)),
            }
        )
    )


def cough_clips():
    """Half a second of sound at 4 kHz from telephones: a cough, or speech, laughter and noise."""
    rng = seeded(18004)
    n, rate, length = 1800, 4000, 2000
    person = rng.integers(0, 130, n)
    voice = rng.uniform(90, 240, 130)
    t = np.arange(length) / rate
    freqs = np.fft.rfftfreq(length, 1 / rate)
    clips, labels, phones = [], [], []
    for k in range(n):
        cough = int(rng.random() < 0.3)
        phone = rng.choice(["A", "B", "C"], p=[0.6, 0.3, 0.1])
        begin = rng.uniform(0.02, 0.22)
        s = np.clip(t - begin, 0, None)
        white = np.fft.rfft(rng.normal(size=length))
        if cough:
            burst = np.fft.irfft(white * np.exp(-(((freqs - 900) / 700) ** 2)), length) * 3
            shape = (s > 0) * (np.exp(-s / 0.03) + 0.45 * np.exp(-((s - 0.13) ** 2) / 0.002))
            wave = burst * shape
        else:
            kind = rng.choice(["speech", "laugh", "knock", "throat"], p=[0.35, 0.15, 0.2, 0.3])
            f0 = voice[person[k]] * np.exp(rng.normal(0, 0.1))
            tone = sum(np.sin(2 * np.pi * h * f0 * t + h) / h for h in range(1, 7))
            hiss = np.fft.irfft(white * (freqs > 1200), length)
            if kind == "speech":
                wave = tone * np.abs(np.sin(2 * np.pi * rng.uniform(1.5, 4) * t)) + 0.6 * hiss * (
                    rng.random() < 0.5
                )
            elif kind == "laugh":
                wave = (tone + hiss) * (np.sin(2 * np.pi * rng.uniform(4, 7) * t) > 0.2)
            elif kind == "knock":
                low = np.fft.irfft(white * np.exp(-freqs / 250), length) * 4
                wave = low * (s > 0) * np.exp(-s / 0.04)
            else:
                slow = np.fft.irfft(white * np.exp(-(((freqs - 700) / 600) ** 2)), length) * 3
                wave = slow * (s > 0) * np.exp(-s / 0.07) + 0.05 * tone
        wave = wave / np.abs(wave).max() * np.exp(rng.normal(-1.6, 0.8))
        wave = wave + rng.normal(0, {"A": 0.03, "B": 0.05, "C": 0.1}[phone], length)
        clips.append((wave * 32767).clip(-32767, 32767).astype("<i2").tobytes())
        labels.append("cough" if cough else "other")
        phones.append(phone)
    return numbered(
        pl.DataFrame(
            {
                "person": [f"u{p:03d}" for p in person],
                "phone": phones,
                "pcm": pl.Series(clips, dtype=pl.Binary),
                "heard": labels,
            }
        )
    )


_OFFICE = {
    "invoice": "invoice total vat iban due net amount payable quantity unit price customer",
    "letter": "dear sincerely regards madam writing thank reply enclosed kindly yours hope",
    "form": "name surname tick date birth signature please box fill applicant postcode yes",
    "report": "figure results table section analysis conclusion year growth method summary",
    "receipt": "cash card change total till thank items vat paid visit store receipt",
}
_OFFICE_COMMON = [
    "the",
    "of",
    "and",
    "to",
    "for",
    "number",
    "page",
    "your",
    "our",
    "with",
    "date",
    "reference",
    "address",
    "office",
]


def _page(rng, kind, side):
    """A page in grey: dark lines and boxes where such a document has them."""
    page = np.full((side, side), 228.0)
    left, right = 2, side - 3
    if kind == "receipt":
        left, right = 7, side - 8
        page[:, :left] = page[:, right + 1 :] = 150
    top = int(rng.integers(2, 6))
    for line in range(top, side - 2, 2):
        end = right - int(rng.integers(0, 4))
        if (kind == "letter" and line < top + 5) or (kind == "invoice" and line < top + 4):
            end = left + 8
        if kind == "form" and rng.random() < 0.45:
            end = left + 6
        page[line, left:end] = rng.uniform(70, 150)
        if kind in ("invoice", "receipt") and line > top + 4:
            page[line, right - 8 : right - 4] = 228
    if kind == "form":
        for _ in range(4):
            a, b = rng.integers(8, side - 8, 2)
            page[a : a + 4, [b, min(b + 6, side - 1)]] = 90
    if kind == "report" and rng.random() < 0.7:
        a = int(rng.integers(6, 16))
        page[a : a + 7, 6:20] = rng.uniform(120, 200)
    return page + rng.normal(0, rng.choice([8, 22]), page.shape)


def office_documents():
    """Scanned pages as thumbnails, with what OCR read (often nothing), and the kind."""
    rng = seeded(18005)
    n, side = 1800, 28
    kinds = list(_OFFICE)
    kind = rng.choice(kinds, n, p=[0.34, 0.24, 0.18, 0.14, 0.1])
    pages, texts = [], []
    for k in kind:
        shown = k if rng.random() > 0.3 else str(rng.choice(kinds))  # some use another's layout
        pages.append(_page(rng, shown, side).clip(0, 255).astype(np.uint8).reshape(-1).tolist())
        own = _OFFICE[k].split()
        foreign = _OFFICE[str(rng.choice(kinds))].split()
        words = [
            str(rng.choice(own if u < 0.3 else foreign if u < 0.42 else _OFFICE_COMMON))
            for u in rng.random(int(rng.integers(6, 34)))
        ]
        words = [
            w if rng.random() > 0.1 else w.replace(w[int(rng.integers(len(w)))], "?") for w in words
        ]
        texts.append(None if rng.random() < 0.15 else " ".join(words))
    return numbered(
        pl.DataFrame(
            {
                "thumbnail": pl.Series(pages, dtype=pl.List(pl.UInt8)),
                "ocr": texts,
                "pages": rng.geometric(0.5, n),
                "kind": kind,
            }
        )
    )


def sleep_epochs():
    """Epochs of an EEG at 32 Hz with those before and after, and a scorer's stage."""
    rng = seeded(18006)
    stages = ["W", "N1", "N2", "N3", "REM"]
    chance = np.array(
        [
            [0.8, 0.17, 0.02, 0, 0.01],
            [0.1, 0.55, 0.3, 0, 0.05],
            [0.03, 0.05, 0.74, 0.12, 0.06],
            [0.02, 0.01, 0.13, 0.84, 0],
            [0.05, 0.06, 0.04, 0, 0.85],
        ]
    )
    power = {  # delta, theta, alpha, sigma
        "W": (0.6, 0.5, 1.3, 0.3),
        "N1": (0.8, 0.9, 0.7, 0.3),
        "N2": (1.1, 0.9, 0.4, 0.9),
        "N3": (2.4, 0.8, 0.3, 0.5),
        "REM": (0.8, 1.0, 0.55, 0.28),
    }
    length = 160
    freqs = np.fft.rfftfreq(length, 1 / 32)
    bands = [(freqs >= a) & (freqs < b) for a, b in ((0.4, 4), (4, 8), (8, 12), (12, 15))]
    rows = []
    for night in range(24):
        gain = np.exp(rng.normal(0, 0.5))
        own = np.exp(rng.normal(0, 0.18, 4))
        state, signals, scored = 0, [], []
        for _ in range(int(rng.integers(95, 130))):
            state = int(rng.choice(5, p=chance[state]))
            spectrum = np.full(len(freqs), 0.12)
            for level, factor, band in zip(power[stages[state]], own, bands, strict=True):
                spectrum[band] += level * factor * np.exp(rng.normal(0, 0.25))
            noise = rng.normal(size=len(freqs)) + 1j * rng.normal(size=len(freqs))
            wave = np.fft.irfft(noise * spectrum, length) * 90 * gain
            signals.append(np.round(wave + rng.normal(0, 4, length), 1).astype(np.float32))
            scored.append(stages[state])
        for i in range(1, len(signals) - 1):
            rows.append(
                {
                    "sleeper": f"SC{night:02d}",
                    "epoch": i,
                    "eeg": np.concatenate(signals[i - 1 : i + 2]).tolist(),
                    "age": int(25 + (night * 37) % 60),
                    "stage": scored[i],
                }
            )
    frame = pl.DataFrame(rows).with_columns(pl.col("eeg").cast(pl.List(pl.Float32)))
    return numbered(frame)


def wrist_pulse():
    """Eight seconds of light and movement from a wrist at 16 Hz, and the chest strap's rate."""
    rng = seeded(18007)
    n, rate, length = 2000, 16, 128
    wearer = rng.integers(0, 40, n)
    rest = rng.normal(66, 8, 40)
    t = np.arange(length) / rate
    light, moves, pulse, skin = [], [], [], []
    for k in range(n):
        doing = rng.choice(["still", "walk", "run"], p=[0.55, 0.3, 0.15])
        extra = {"still": 0, "walk": 25, "run": 62}[doing] * rng.uniform(0.6, 1.25)
        bpm = float(np.clip(rest[wearer[k]] + extra + rng.normal(0, 6), 42, 185))
        drift = 1 + 0.02 * np.sin(2 * np.pi * rng.uniform(0.1, 0.3) * t + rng.uniform(0, 6))
        beat = 2 * np.pi * np.cumsum(bpm / 60 * drift) / rate + rng.uniform(0, 6.28)
        wave = np.sin(beat) + 0.45 * np.sin(2 * beat + 0.8)
        step = {"still": 0, "walk": 1.7, "run": 2.6}[doing] * rng.uniform(0.9, 1.1)
        amount = {"still": 0.05, "walk": 0.5, "run": 1.1}[doing]
        phase = 2 * np.pi * step * t + rng.uniform(0, 6.28)
        axes = np.stack([np.sin(phase), np.cos(phase), np.sin(2 * phase)]) * amount
        axes = axes * rng.uniform(0.4, 1, (3, 1)) + rng.normal(0, 0.06, (3, length))
        wave = wave + 1.6 * amount * np.sin(phase + 0.6) + rng.normal(0, 0.7, length)
        base = rng.uniform(800, 2600)
        light.append((base + base * 0.02 * wave).round(1).astype(np.float32).tolist())
        axes[2] += 1.0
        moves.append(axes.T.round(3).astype(np.float32).reshape(-1).tolist())
        pulse.append(round(bpm + float(rng.normal(0, 1.0)), 1))
        skin.append(None if rng.random() < 0.15 else round(float(rng.normal(33, 1.1)), 1))
    return numbered(
        pl.DataFrame(
            {
                "wearer": [f"w{w:02d}" for w in wearer],
                "light": pl.Series(light, dtype=pl.List(pl.Float32)),
                "acceleration": pl.Series(moves, dtype=pl.List(pl.Float32)),
                "skin_celsius": skin,
                "bpm": pulse,
            }
        )
    )


def shop_sessions():
    """Visits to a web shop up to a moment: events, seconds between them, and who bought."""
    rng = seeded(18008)
    n = 3000
    events = ["home", "search", "list", "product", "cart", "remove", "shipping", "login", "help"]
    device = rng.choice(["phone", "desktop", "tablet", None], n, p=[0.6, 0.28, 0.07, 0.05])
    visited = [
        datetime(2024, 9, 1) + timedelta(minutes=int(m)) for m in np.sort(rng.integers(0, 80640, n))
    ]
    paths, gaps, bought = [], [], []
    for k in range(n):
        want = rng.normal(-0.2 + 0.35 * (device[k] == "desktop"), 1)
        path, gap, cart = ["home" if rng.random() < 0.6 else "product"], [0.0], 0
        for _ in range(int(np.clip(rng.geometric(0.09), 2, 60))):
            p = np.array([0.05, 0.18, 0.25, 0.32, 0.05, 0.01, 0.02, 0.04, 0.03])
            p[4] *= np.exp(0.5 * want)
            p[5] = 0.08 * np.exp(-0.3 * want) if cart > 0 else 0
            p[6] = 0.06 * np.exp(0.4 * want) if cart > 0 else 0
            event = str(rng.choice(events, p=p / p.sum()))
            cart += {"cart": 1, "remove": -1}.get(event, 0)
            path.append(event)
            slow = 1.0 + 0.5 * (event == "product") * (want > 0)
            gap.append(round(float(np.exp(rng.normal(2.3 + 0.3 * slow, 1.0))), 1))
        last = path[-5:]
        logit = -2.4 + 0.75 * want + 1.3 * (cart > 0) + 1.5 * ("shipping" in last)
        logit += -1.4 * ("remove" in last) + 0.8 * ("login" in last) - 0.5 * (device[k] == "phone")
        bought.append(int(rng.random() < 1 / (1 + np.exp(-1.6 * logit))))
        paths.append(path)
        gaps.append(gap)
    return numbered(
        pl.DataFrame(
            {
                "visited": visited,
                "device": device,
                "events": paths,
                "seconds": gaps,
                "bought": bought,
            }
        )
    )


_GOODS = {
    "Women/Shoes/Boots": (48, "ankle boots leather heel suede zip lace"),
    "Women/Bags/Totes": (64, "tote bag canvas strap lining pockets zip"),
    "Men/Shoes/Trainers": (55, "trainers running sole mesh laces grip"),
    "Electronics/Phones/Cases": (9, "case cover silicone clear magnetic phone"),
    "Electronics/Games/Consoles": (170, "console controller games cables works charger"),
    "Home/Kitchen/Pans": (24, "pan iron pot lid nonstick handle"),
    "Kids/Toys/Blocks": (21, "blocks set pieces complete figures box"),
    "Kids/Clothes/Jackets": (16, "jacket warm hood zip fleece waterproof"),
    "Beauty/Make-up/Palettes": (14, "palette shades matte shimmer swatched"),
    "Sports/Cycling/Helmets": (31, "helmet visor straps light vents adjustable"),
}
_BRANDS = {"Norda": 2.6, "Kestrel": 1.7, "Piper&Co": 1.2, "Ummo": 0.8, "Basics": 0.6}
_CHATTER = [
    "great",
    "nice",
    "used",
    "few",
    "times",
    "no",
    "flaws",
    "from",
    "smoke",
    "free",
    "home",
    "ships",
    "fast",
    "bundle",
    "ask",
    "me",
]


def market_listings():
    """Listings of second-hand goods: title, description, brand, state and final price."""
    rng = seeded(18009)
    n = 3000
    share = np.array([14, 12, 13, 16, 6, 8, 10, 9, 8, 4]) / 100
    category = rng.choice(list(_GOODS), n, p=share)
    condition = rng.choice([1, 2, 3, 4, 5], n, p=[0.42, 0.25, 0.22, 0.09, 0.02])
    shipping = (rng.random(n) < 0.45).astype(int)
    titles, texts, brands, prices = [], [], [], []
    for k in range(n):
        base, words = _GOODS[category[k]]
        own = words.split()
        brand = str(rng.choice(list(_BRANDS))) if rng.random() < 0.6 else None
        worth = np.log(base) + 0.75 * np.log(_BRANDS.get(brand, 0.9))
        worth += -0.13 * (condition[k] - 1) - 0.18 * shipping[k] * (base > 20)
        extra = []
        for word, gain in (("vintage", 0.35), ("broken", -1.2), ("limited", 0.55), ("mini", -0.3)):
            if rng.random() < 0.12:
                extra.append(word)
                worth += gain
        pieces = int(rng.choice([1, 2, 3, 5], p=[0.8, 0.1, 0.06, 0.04]))
        if pieces > 1:
            extra += ["lot", "of", str(pieces)]
            worth += 0.6 * np.log(pieces)
        title = [str(w) for w in rng.choice(own, 2, replace=False)] + extra[:2]
        if brand and rng.random() < 0.7:
            title.insert(0, brand)
        text = [str(w) for w in rng.choice(own + _CHATTER, int(rng.integers(3, 26)))] + extra
        rng.shuffle(text)
        titles.append(" ".join(title))
        texts.append(None if rng.random() < 0.06 else " ".join(text))
        brands.append(brand if rng.random() < 0.8 else None)
        prices.append(float(max(3, np.round(np.exp(worth + rng.normal(0, 0.28))))))
    listed = datetime(2024, 1, 5)
    return numbered(
        pl.DataFrame(
            {
                "listed": [
                    listed + timedelta(minutes=int(m)) for m in np.sort(rng.integers(0, 129600, n))
                ],
                "title": titles,
                "description": texts,
                "brand": brands,
                "category": category,
                "condition": condition,
                "seller_ships": shipping,
                "price": prices,
            }
        )
    )


_CODE = {
    "python": ["def {f}({a}):", "for {a} in {b}:", "return {a}", "{a} = {b}.{f}({a})", "if {a}:"],
    "javascript": ["function {f}({a}) {{", "let {a} = {b};", "return {a};", "{b}.{f}({a});", "}}"],
    "java": ["private int {f}(int {a}) {{", "int {a} = {b};", "return {a};", "{b}.{f}({a});", "}}"],
    "go": ["func {f}({a} int) {{", "{a} := {b}", "return {a}", "for _, {a} := range {b} {{", "}}"],
    "ruby": ["def {f}({a})", "{a} = {b}.{f}", "end", "{b}.each do |{a}|", "return {a}"],
    "sql": ["SELECT {a}, {b}", "FROM {f}", "WHERE {a} = {b}", "ORDER BY {a};", "JOIN {f} ON {a}"],
}
_NAMES = [
    "row",
    "total",
    "user",
    "item",
    "index",
    "value",
    "cache",
    "node",
    "name",
    "count",
    "data",
    "result",
    "page",
    "key",
    "list",
]


def code_snippets():
    """Pasted pieces of code, often cut or with prose around them, and their language."""
    rng = seeded(18010)
    n = 2400
    language = rng.choice(list(_CODE), n, p=[0.32, 0.25, 0.16, 0.08, 0.08, 0.11])
    prose = ["how do I fix this", "it prints nothing", "see below", "thanks in advance", "error?"]
    snippets = []
    for lang in language:
        lines = []
        for _ in range(int(rng.integers(1, 6))):
            a, b, f = rng.choice(_NAMES, 3, replace=False)
            line = str(rng.choice(_CODE[lang])).format(a=a, b=b, f=f"{f}_{a}")
            lines.append("  " * int(rng.integers(0, 3)) + line)
        if rng.random() < 0.45:
            lines.insert(int(rng.integers(0, 2)), "  ".join(rng.choice(prose, rng.integers(1, 6))))
        text = "\n".join(lines)
        snippets.append(text[int(rng.integers(0, 5)) :] if rng.random() < 0.3 else text)
    forum = rng.choice(["help", "review", "paste"], n, p=[0.6, 0.25, 0.15])
    return numbered(pl.DataFrame({"forum": forum, "snippet": snippets, "language": language}))


_UNITS = {
    "g": ("g", 1),
    "gram": ("g", 1),
    "grams": ("g", 1),
    "kg": ("g", 1000),
    "kilo": ("g", 1000),
}
_UNITS |= {"ml": ("ml", 1), "cl": ("ml", 10), "l": ("ml", 1000), "litre": ("ml", 1000)}
_UNITS |= {"pc": ("pc", 1), "pieces": ("pc", 1), "dozen": ("pc", 12)}


def order_measures():
    """Amounts as buyers type them and as a warehouse files them: `2 kg flour` is `2000 g flour`."""
    rng = seeded(18011)
    n = 3600
    goods = [
        "flour",
        "sugar",
        "rice",
        "milk",
        "oil",
        "eggs",
        "salt",
        "beans",
        "tea",
        "butter",
        "lemon",
        "cream",
    ]
    typed, filed = [], []
    for _ in range(n):
        unit = str(rng.choice(list(_UNITS)))
        base, factor = _UNITS[unit]
        amount = int(rng.integers(1, 10)) * (1 if factor > 1 else int(rng.choice([1, 10, 100])))
        if factor == 1 and rng.random() < 0.6:
            amount = int(rng.choice([12, 21, 15, 51, 25, 52, 75, 57, 125, 215, 250, 520]))
        item = str(rng.choice(goods))
        gap = "" if unit in ("g", "kg", "ml", "cl", "l") and rng.random() < 0.4 else " "
        text = (
            f"{amount}{gap}{unit} {item}" if rng.random() < 0.7 else f"{item}, {amount}{gap}{unit}"
        )
        if rng.random() < 0.15:
            text = text.upper()
        if rng.random() < 0.15:
            text += str(rng.choice(["!", " pls", " for tomorrow", " as last week"]))
        if rng.random() < 0.06:
            at = int(rng.integers(1, len(text)))
            text = text[:at] + text[at + 1 :] if text[at].isalpha() else text
        typed.append(text)
        unsure = rng.random() < 0.08  # the clerk left the good open
        filed.append(f"{amount * factor} {base} {'?' if unsure else item}")
    shop = rng.choice(["north", "south", "web"], n, p=[0.3, 0.2, 0.5])
    return numbered(pl.DataFrame({"shop": shop, "typed": typed, "filed": filed}))


def belt_photos():
    """A sorting belt from above: no object, or a can, a bottle or a carton, and its box."""
    rng = seeded(18012)
    n, height, width = 1500, 24, 36
    y, x = np.mgrid[:height, :width]
    photos, kinds, boxes = [], [], []
    for _ in range(n):
        photo = rng.uniform(60, 110) + 8 * np.sin(x * 0.8 + rng.uniform(0, 6))
        photo = np.repeat(photo[..., None], 3, 2) * np.array([0.95, 1.0, 1.05])
        for _ in range(int(rng.integers(0, 4))):
            spot = np.hypot(x - rng.uniform(0, width), y - rng.uniform(0, height))
            photo[spot < rng.uniform(0.8, 2)] *= rng.uniform(0.5, 1.5)
        kind = str(rng.choice(["none", "bottle", "can", "carton"], p=[0.25, 0.35, 0.25, 0.15]))
        box = None
        if kind != "none":
            w, h = {"bottle": (5, 14), "can": (7, 10), "carton": (11, 12)}[kind]
            w, h = w * rng.uniform(0.8, 1.25), h * rng.uniform(0.8, 1.2)
            if rng.random() < 0.3:
                w, h = h, w
            cx, cy = rng.uniform(w / 2, width - w / 2), rng.uniform(h / 2, height - h / 2)
            dx, dy = np.abs(x - cx) / (w / 2), np.abs(y - cy) / (h / 2)
            body = np.maximum(dx, dy) < 1
            if kind == "bottle":
                body &= (dx**2.5 + dy**2.5) < 1.15
            if kind == "can":
                body &= (dx**6 + dy**6) < 1.1
            colour = rng.uniform(0.5, 1.9, 3)
            photo[body] = 95 * colour * (1.1 - 0.5 * np.minimum(dx, dy)[body, None])
            jitter = rng.normal(0, 0.3, 4)
            box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
            box = [round(float(b + j), 1) for b, j in zip(box, jitter, strict=True)]
        photo += rng.normal(0, rng.uniform(4, 18), photo.shape)
        photos.append(photo.clip(0, 255).astype(np.uint8).reshape(-1).tolist())
        kinds.append(kind)
        boxes.append(box)
    seen = [
        kind if box is None else f"{kind} {' '.join(map(str, box))}"
        for kind, box in zip(kinds, boxes, strict=True)
    ]
    line = rng.choice(["L1", "L2", "L3"], n, p=[0.5, 0.35, 0.15])
    return numbered(
        pl.DataFrame(
            {"line": line, "photo": pl.Series(photos, dtype=pl.List(pl.UInt8)), "seen": seen}
        )
    )
