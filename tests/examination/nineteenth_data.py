"""Datasets of the nineteenth list: passengers, rides, beans, parcels, demand, songs and posts."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def ship_passengers():
    """Passengers of a ship that hit an anomaly: group and place, cabin, sleep, what they spent."""
    rng = seeded(19001)
    homes, decks = ["Earth", "Europa", "Mars"], "ABCDEFG"
    rows, group = [], 0
    while len(rows) < 3600:
        group += int(rng.integers(1, 3))
        size = int(rng.choice([1, 2, 3, 4], p=[0.6, 0.22, 0.11, 0.07]))
        home = int(rng.choice(3, p=[0.54, 0.25, 0.21]))
        at = rng.choice(7, p=[[0, 0, 0, 0, 0.2, 0.35, 0.45], [0.15, 0.35, 0.35, 0.05, 0.1, 0, 0],
                              [0, 0, 0, 0.2, 0.2, 0.6, 0]][home])  # fmt: skip
        side, number = "PS"[int(rng.integers(2))], int(rng.integers(0, 1800))
        for place in range(size):
            asleep = rng.random() < [0.3, 0.44, 0.39][home]
            age = float(np.clip(rng.gamma(5, 6), 0, 79).round())
            scale = [5.0, 6.4, 5.4][home]
            spent = np.exp(rng.normal(scale, 1.3, 5)).round() * (rng.random(5) < 0.45)
            if asleep or age < 13:
                spent = np.zeros(5)
            z = -0.75 + 2.1 * asleep + [0.0, 1.1, 0.35][home] + 0.5 * (side == "S")
            z += 0.7 * (age < 13) + 0.5 * (at in (1, 2)) - 0.4 * (at == 4)
            z += [0.25, 0.28, -0.42, -0.42, -0.4] @ np.log1p(spent) * 0.5
            lost = rng.random(10) < 0.025
            rows.append(
                {
                    "party": f"{group:04}",
                    "passenger_id": f"{group:04}_{place + 1:02}",
                    "home_planet": None if lost[0] else homes[home],
                    "cryo_sleep": None if lost[1] else bool(asleep),
                    "cabin": None if lost[2] else f"{decks[at]}/{number}/{side}",
                    "age": None if lost[3] else age,
                    "vip": bool(rng.random() < 0.02 + 0.03 * (home == 1)),
                    **{
                        name: None if lost[4 + k] else float(spent[k])
                        for k, name in enumerate(["room", "food", "shop", "spa", "deck"])
                    },
                    "transported": bool(rng.random() < 1 / (1 + np.exp(-z))),
                }
            )
    return numbered(pl.DataFrame(rows, infer_schema_length=None))


def yellow_rides():
    """Rides of yellow taxis: where and when they began and ended, passengers, the fare."""
    rng = seeded(19002)
    n = 3800
    start = datetime(2023, 1, 2)
    hour = rng.choice(24, n, p=np.array([2, 1, 1, 1, 1, 1, 2, 4, 5, 5, 5, 5,
                                         5, 5, 5, 5, 5, 6, 7, 7, 6, 6, 5, 5]) / 100)  # fmt: skip
    day = rng.integers(0, 360, n)
    when = [start + timedelta(days=int(d), hours=int(h), minutes=int(m))
            for d, h, m in zip(day, hour, rng.integers(0, 60, n), strict=True)]  # fmt: skip
    plane = rng.random(n)
    spots = {"jfk": (40.645, -73.785), "lga": (40.774, -73.873)}
    lat0, lon0 = 40.755 + rng.normal(0, 0.022, n), -73.98 + rng.normal(0, 0.016, n)
    lat1, lon1 = lat0 + rng.normal(0, 0.02, n), lon0 + rng.normal(0, 0.016, n)
    for low, high, key in ((0.0, 0.06, "jfk"), (0.06, 0.12, "lga")):
        there = (plane >= low) & (plane < high)
        lat1 = np.where(there, spots[key][0] + rng.normal(0, 0.003, n), lat1)
        lon1 = np.where(there, spots[key][1] + rng.normal(0, 0.003, n), lon1)
    swap = rng.random(n) < 0.4
    lat0, lat1 = np.where(swap, lat1, lat0), np.where(swap, lat0, lat1)
    lon0, lon1 = np.where(swap, lon1, lon0), np.where(swap, lon0, lon1)
    north, east = (lat1 - lat0) * 111.2, (lon1 - lon0) * 84.3
    km = np.hypot(north, east) * 0.6 + (abs(north) + abs(east)) * 0.45
    weekend = np.array([w.weekday() >= 5 for w in when])
    rush = ((hour >= 8) & (hour < 19) & ~weekend).astype(float)
    minutes = km / (24 - 10 * rush + rng.normal(0, 2, n)).clip(7) * 60 + 2
    fare = 3.0 + 1.55 * km + 0.35 * minutes + 1.0 * ((hour >= 20) | (hour < 6)) + 2.5 * rush
    fare = np.where((plane < 0.06) & (lon0 < -73.9), 62.0, fare)
    fare = np.exp(np.log(fare) + rng.normal(0, 0.08, n))
    nowhere = rng.random(n) < 0.015
    return numbered(
        pl.DataFrame(
            {
                "pickup_datetime": when,
                "pickup_lat": np.where(nowhere, 0.0, lat0).round(5),
                "pickup_lon": np.where(nowhere, 0.0, lon0).round(5),
                "dropoff_lat": lat1.round(5),
                "dropoff_lon": lon1.round(5),
                "passengers": rng.choice([0, 1, 2, 3, 5], n, p=[0.01, 0.7, 0.15, 0.06, 0.08]),
                "fare": fare.round(2),
            }
        ).sort("pickup_datetime")
    )


def dry_beans():
    """Seven kinds of beans by what a camera measures of each; perimeters sometimes fail."""
    rng = seeded(19003)
    kinds = ["Barbunya", "Bombay", "Cali", "Dermason", "Horoz", "Seker", "Sira"]
    n = 3200
    kind = rng.choice(7, n, p=[0.1, 0.04, 0.12, 0.26, 0.14, 0.15, 0.19])
    size = np.array([11.15, 12.06, 11.23, 10.37, 10.89, 10.59, 10.71])[kind]
    area = np.exp(size + rng.normal(0, 0.13, n))
    aspect = np.array([1.54, 1.58, 1.73, 1.49, 2.03, 1.24, 1.57])[kind] + rng.normal(0, 0.075, n)
    aspect = aspect.clip(1.02)
    minor = np.sqrt(4 * area / np.pi / aspect) * (1 + rng.normal(0, 0.008, n))
    major = minor * aspect
    rough = np.array([1.08, 1.03, 1.06, 1.02, 1.04, 1.012, 1.025])[kind] + rng.normal(0, 0.012, n)
    h = ((major - minor) / (major + minor)) ** 2
    perimeter = np.pi * (major + minor) / 2 * (1 + h / 4) * rough.clip(1.0)
    perimeter = np.where(rng.random(n) < 0.03, np.nan, perimeter)
    solidity = (1.0 - 0.012 * rough - rng.gamma(2, 0.001, n)).clip(0.9, 1)
    bright = np.array([0.42, 0.3, 0.55, 0.62, 0.5, 0.78, 0.58])[kind] + rng.normal(0, 0.09, n)
    tray = rng.integers(1, 25, n)
    frame = pl.DataFrame(
        {
            "area": area.round(),
            "perimeter": perimeter.round(2),
            "major_axis": major.round(2),
            "minor_axis": minor.round(2),
            "eccentricity": np.sqrt(1 - (minor / major).clip(0, 1) ** 2).round(5),
            "convex_area": (area / solidity).round(),
            "extent": rng.normal(0.75, 0.045, n).clip(0.4, 0.9).round(4),
            "brightness": bright.clip(0, 1).round(3),
            "tray": [f"T{k:02}" for k in tray],
            "variety": np.array(kinds)[kind],
        }
    )
    return numbered(frame.with_columns(pl.col("perimeter").fill_nan(None)))


def parcel_hours():
    """Parcels of web shops: when ordered, where to, by whom, and the hours until they arrived."""
    rng = seeded(19004)
    n = 3600
    carriers = ["Blitz", "Nordpost", "Paketo", "UBX"]
    start = datetime(2024, 1, 1)
    rows = []
    for _ in range(n):
        ordered = start + timedelta(
            days=int(rng.integers(0, 300)),
            hours=int(rng.choice([9, 11, 13, 15, 17, 19, 20, 21, 22])),
            minutes=int(rng.integers(60)),
        )
        carrier = int(rng.choice(4, p=[0.2, 0.35, 0.3, 0.15]))
        km = float(rng.gamma(2.2, 120))
        kg = float(np.exp(rng.normal(0.5, 0.9)))
        island, stock = rng.random() < 0.04, rng.random() < 0.87
        backlog = int(rng.poisson(300 + 200 * (ordered.month in (1, 6))))
        hours = [16, 26, 24, 30][carrier] + km * [0.02, 0.05, 0.045, 0.04][carrier]
        hours += 6 * (ordered.hour >= 15) + 0.02 * backlog + 2.0 * max(kg - 5, 0)
        hours += 40 * island + 50 * (not stock)
        hours *= np.exp(rng.normal(0, 0.12) + (rng.random() < 0.2) * rng.exponential(0.35))
        arrived = ordered + timedelta(hours=float(hours))
        if arrived.weekday() == 6 or (ordered.weekday() >= 4 and arrived.weekday() == 0):
            hours += 24.0
        rows.append(
            {
                "ordered_at": ordered,
                "carrier": carriers[carrier],
                "region": "island" if island else f"R{int(km // 110) + 1}",
                "distance_km": None if rng.random() < 0.05 else round(km, 1),
                "weight_kg": round(kg, 2),
                "in_stock": bool(stock),
                "backlog": backlog,
                "hours": round(float(hours), 1),
            }
        )
    return numbered(pl.DataFrame(rows).sort("ordered_at"))


def cinema_visits():
    """Visits of cinemas: four weeks behind, a week ahead, holidays and premieres known ahead."""
    rng = seeded(19005)
    days, rows = 330, []
    first = date(2023, 1, 2)
    holiday = rng.random(days) < 0.05
    premieres = rng.poisson(0.25, days)
    week = np.array([-0.5, -0.35, -0.3, 0.1, 0.55, 0.9, 0.6])
    buzz = np.zeros(days)
    for d in range(1, days):
        buzz[d] = 0.93 * buzz[d - 1] + 0.3 * premieres[d] + rng.normal(0, 0.03)
    buzz -= buzz.mean()
    for c in range(20):
        level, taste = rng.normal(5.6, 0.7), rng.uniform(0.5, 1.3)
        own = np.zeros(days)
        for d in range(1, days):
            own[d] = 0.8 * own[d - 1] + rng.normal(0, 0.06)
        mean = level + week[np.arange(days) % 7] * rng.uniform(0.8, 1.2) + taste * buzz + own
        mean += 0.75 * holiday * (np.arange(days) % 7 < 5)
        seen = rng.poisson(np.exp(mean + rng.normal(0, 0.06, days)))
        shut = rng.random(days) < 0.02
        begin = int(rng.integers(200, 290))
        shut[begin : begin + 6] = True  # repairs
        for d in range(28, days - 7):
            if rng.random() < 0.62 or shut[d + 1 : d + 8].any():
                continue
            past, ahead = slice(d - 27, d + 1), slice(d + 1, d + 8)
            rows.append(
                {
                    "day": first + timedelta(days=d),
                    "cinema": f"C{c:02}",
                    "visits": [
                        None if s else int(v) for v, s in zip(seen[past], shut[past], strict=True)
                    ],
                    "holiday_seen": holiday[past].astype(int).tolist(),
                    "premieres_seen": premieres[past].tolist(),
                    "holiday_ahead": holiday[ahead].astype(int).tolist(),
                    "premieres_ahead": premieres[ahead].tolist(),
                    "visits_ahead": seen[ahead].tolist(),
                }
            )
    return numbered(pl.DataFrame(rows).sort("day", "cinema"))


def water_demand():
    """Water that districts draw in an hour, two days behind, with gaps in the readings."""
    rng = seeded(19006)
    hours = 24 * 260
    start, t = datetime(2024, 3, 1), np.arange(hours)
    warm = 14 + 9 * np.sin(2 * np.pi * (t / 24 - 30) / 330) + 4 * np.sin(2 * np.pi * (t - 9) / 24)
    slow = np.convolve(rng.normal(0, 1, hours + 71), np.ones(72) / 72, "valid") * 20
    warm = warm + slow
    shape = np.array([4, 3, 3, 3, 4, 8, 15, 18, 14, 11, 10, 10, 11, 10, 9, 9, 10, 13, 16, 17, 14,
                      11, 8, 5]) / 10  # fmt: skip
    rows = []
    for k in range(6):
        size, thirst = rng.uniform(18, 160), rng.uniform(0.01, 0.04)
        late = np.where((t // 24 + 4) % 7 >= 5, 2, 0)
        leak = np.zeros(hours)
        for _ in range(14):
            b = int(rng.integers(0, hours - 60))
            leak[b : b + int(rng.integers(20, 60))] += rng.uniform(0.2, 0.5)
        drift = np.zeros(hours)
        for h in range(1, hours):
            drift[h] = 0.97 * drift[h - 1] + rng.normal(0, 0.035)
        flow = shape[(t - late) % 24] * np.exp(drift + thirst * (warm - 14)) + leak
        flow = size * flow * np.exp(rng.normal(0, 0.03, hours))
        gone = rng.random(hours) < 0.01
        for b in rng.integers(0, hours, 70):
            gone[b : b + 9] = True
        for h in sorted(rng.choice(np.arange(48, hours), 500, replace=False)):
            if gone[h] or gone[h - 48]:
                continue
            past = zip(flow[h - 48 : h], gone[h - 48 : h], strict=True)
            rows.append(
                {
                    "hour": start + timedelta(hours=int(h)),
                    "district": f"D{k + 1}",
                    "flow": [None if g else round(float(v), 2) for v, g in past],
                    "temperature": warm[h - 48 : h].round(1).tolist(),
                    "flow_next": round(float(flow[h]), 2),
                }
            )
    return numbered(pl.DataFrame(rows).sort("hour", "district"))


def song_plays():
    """How often listeners played songs, and songs that were drawn as not played."""
    rng = seeded(19007)
    users, songs, dim = 110, 90, 2
    taste, style = rng.normal(0, 1, (users, dim)), rng.normal(0, 1, (songs, dim))
    fame, zeal = rng.normal(0, 0.9, songs), rng.normal(0, 0.3, users)
    z = 1.5 * taste @ style.T + fame - 1.4 + zeal[:, None]
    played = rng.random((users, songs)) < 1 / (1 + np.exp(-z))
    counts = 1 + rng.poisson(np.exp((0.5 * z).clip(None, 3)))
    pairs = np.argwhere(played)
    picked = pairs[rng.permutation(len(pairs))[:1800]]
    none = np.argwhere(~played)
    none = none[rng.permutation(len(none))[:2100]]
    user, song = np.concatenate([picked, none]).T
    order = rng.permutation(len(user))
    plays = np.where(played, counts, 0)[user, song]
    return numbered(
        pl.DataFrame(
            {
                "user": [f"u{k:03}" for k in user[order]],
                "song": [f"s{k:03}" for k in song[order]],
                "plays": plays[order],
            }
        )
    )


def recipe_sessions():
    """What visitors of a recipe site opened one after the other, and what they opened next."""
    rng = seeded(19008)
    kitchens, each = 6, 7
    near = rng.dirichlet(np.full(each, 0.25), (kitchens, each))
    cross = rng.dirichlet(np.full(kitchens, 0.5), kitchens)
    rows = []
    for session in range(3800):
        home = int(rng.integers(kitchens))
        kitchen, dish = home, int(rng.integers(each))
        seen = []
        for _ in range(int(rng.integers(3, 13))):
            seen.append(f"{'abcdef'[kitchen]}-{dish}")
            if rng.random() < 0.22:  # a look aside
                kitchen = int(rng.choice(kitchens, p=cross[home]))
                dish = int(rng.integers(each))
            elif kitchen != home and rng.random() < 0.7:
                kitchen, dish = home, int(rng.choice(each, p=near[home, dish]))
            else:
                dish = int(rng.choice(each, p=near[kitchen, dish]))
        rows.append({"session": f"v{session:05}", "opened": seen[:-1], "next": seen[-1]})
    return numbered(pl.DataFrame(rows))


def trail_lists():
    """Five trails that an app proposed to a hiker, and the one that was opened."""
    rng = seeded(19009)
    hikers, trails = 150, 90
    wish, place = rng.normal(0, 1, (hikers, 3)), rng.normal(0, 1, (trails, 3))
    fame = rng.normal(0, 0.5, trails)
    rows = []
    for _ in range(3600):
        h = int(rng.integers(hikers))
        shown = rng.choice(trails, 5, replace=False)
        pull = fame[shown] - 1.6 * ((wish[h] - place[shown]) ** 2).sum(1) ** 0.5 * 1.2
        pull = pull + rng.gumbel(0, 0.6, 5)
        names = [f"trail {k:02}" for k in shown]
        rows.append(
            {"hiker": f"h{h:03}", "shown": names, "opened": names[int(pull.argmax())]},
        )
    return numbered(pl.DataFrame(rows))


def _pieces(text, between=" "):
    return text.split(between)


def emotion_posts():
    """Short posts that say how someone feels, now or once; six emotions, as people type."""
    rng = seeded(19010)
    words = {
        "sadness": "gloomy lost empty hopeless lonely drained heartbroken numb",
        "joy": "cheerful glad delighted proud thankful playful content radiant",
        "love": "tender caring adored fond devoted longing smitten warm",
        "anger": "furious annoyed bitter resentful irritated outraged cranky mad",
        "fear": "anxious shaky scared nervous uneasy tense afraid helpless",
        "surprise": "amazed stunned shocked curious dazed startled astonished funny",
    }
    kinds = list(words)
    filler = _pieces(
        "today after work my sister and i went to the shop while it rained all week "
        "because the bus was late again on monday with some friends from school"
    )
    more = ["really", "so", "a bit", "quite", "kind of", "still", "very"]
    rows = []
    for _ in range(3600):
        kind = int(rng.choice(6, p=[0.29, 0.33, 0.08, 0.13, 0.12, 0.05]))
        other = int((kind + rng.integers(1, 6)) % 6)
        now = str(rng.choice(words[kinds[kind]].split()))
        once = str(rng.choice(words[kinds[other]].split()))
        before = " ".join(rng.choice(filler, int(rng.integers(0, 11))))
        after = " ".join(rng.choice(filler, int(rng.integers(0, 9))))
        core = f"i feel {rng.choice(more)} {now}"
        if rng.random() < 0.4:
            core = [
                f"i used to feel {once} but now {core}",
                f"i do not feel {once} , {core}",
                f"{core} and not {once}",
                f"he said i looked {once} yet {core}",
            ][int(rng.integers(4))]
        text = " ".join(f"{before} {core} {after}".split())
        style = rng.random()
        text = text.upper() if style < 0.06 else text.capitalize() if style < 0.5 else text
        text += str(rng.choice(["", "!", "...", " :(", " http", " #feels"]))
        if rng.random() < 0.03:
            kind = int(rng.integers(6))
        rows.append({"text": text, "emotion": kinds[kind]})
    made = pl.DataFrame(rows).unique("text", keep="first", maintain_order=True)
    source = np.where(rng.random(made.height) < 0.3, "b", "a")
    return numbered(made.with_columns(batch=pl.Series(source)))


def graded_excerpts():
    """Excerpts of books with teachers' scores of how easy each is to read: minus 3.7 to 1.7."""
    rng = seeded(19011)
    easy = _pieces(
        "the cat ran home and saw a big red ball so they sat down to eat cake with mom who had a "
        "dog that could jump over the little wall near our school"
    )
    medium = _pieces(
        "journey village animals mountain weather several important different discovered winter "
        "carried followed island machine evening remember question believed travellers"
    )
    hard = _pieces(
        "consequently electromagnetic hypothesis constitutional notwithstanding equilibrium "
        "atmospheric phenomenon jurisdiction photosynthesis metaphysical proportional "
        "circumstances legislature sedimentary infinitesimal"
    )
    rows = []
    for _ in range(2600):
        level = rng.normal(0, 1)
        odds = np.exp([1.6 - 0.35 * level, 0.35 * level, -0.9 + 0.9 * level])
        odds /= odds.sum()
        length = np.exp(2.35 + 0.3 * level + rng.normal(0, 0.12))
        sentences = []
        for _ in range(int(rng.integers(4, 9))):
            count = max(3, int(rng.poisson(length)))
            kinds = rng.choice(3, count, p=odds)
            said = " ".join(str(rng.choice((easy, medium, hard)[k])) for k in kinds)
            sentences.append(said.capitalize() + str(rng.choice([".", ".", ".", "!", "?"])))
        score = -1.0 - 0.85 * level + rng.normal(0, 0.22)
        rows.append(
            {
                "excerpt": "\n".join(sentences) if rng.random() < 0.3 else " ".join(sentences),
                "target": round(float(np.clip(score, -3.7, 1.7)), 3),
            }
        )
    return numbered(pl.DataFrame(rows))


def disaster_posts():
    """Short posts with a keyword: reports of disasters, and people who only speak of them."""
    rng = seeded(19012)
    keywords = _pieces("fire flood crash storm explosion wreckage panic collapse ambulance blaze")
    real = _pieces(
        "{k} reported near {p} ; police on scene|at least {n} injured in {k} at {p}|"
        "{p} : {k} closes highway , residents leave|breaking : {k} in {p} , {n} homes destroyed|"
        "officials confirm {k} killed {n} in {p}|crews respond to {k} outside {p}|"
        "people trapped after {k} hits {p}|emergency declared in {p} after {k}",
        "|",
    )
    talk = _pieces(
        "this new song is {k} lol|my exams are a total {k} today|{k} sale at the mall in {p} now|"
        "i love the {k} scene in that movie|he is on {k} tonight , {n} goals|"
        "my love life is one big {k}|just watched {k} with {n} friends in {p}|"
        "that party in {p} was {k}|my phone crashed again what a {k}|"
        "officials say the {k} drill in {p} went well|book review : {k} by {p} , {n} stars",
        "|",
    )
    either = _pieces(
        "{k} in {p} right now|so much {k} here|another {k} today , {n} already|oh no , {k} again|"
        "what a {k} in {p}|{k} all over {p} tonight|did you see the {k} in {p}",
        "|",
    )
    places = _pieces("texas leeds manila oslo kobe ohio turin accra perth lima")
    extra = _pieces("omg please so wow via update more photos here just now again really")
    rows = []
    for _ in range(3400):
        bad = rng.random() < 0.3
        which = int(rng.choice(10, p=np.array([6, 5, 3, 3, 1, 1, 1, 1, 1, 1]) / 23))
        which = which if bad else 9 - which
        frame = str(rng.choice(either if rng.random() < 0.5 else real if bad else talk))
        k, p = keywords[which], str(rng.choice(places))
        tail = " ".join(rng.choice(extra, int(rng.integers(0, 5)), replace=False))
        text = f"{frame.format(k=k, p=p, n=int(rng.integers(2, 60)))} {tail}".strip()
        if rng.random() < 0.35:
            text = f"@user{int(rng.integers(900))} {text}"
        if rng.random() < 0.5:
            text += f" http://t.co/{int(rng.integers(1e8)):08x}"
        text = text.capitalize() if rng.random() < 0.5 else text.replace(k, f"#{k}")
        bad = bad if rng.random() > 0.06 else not bad
        gone = rng.random() < 0.1
        rows.append({"keyword": None if gone else k, "text": text, "target": int(bad)})
    return numbered(pl.DataFrame(rows).unique("text", keep="first", maintain_order=True))


def park_visits():
    """Walkers that counters in parks saw on a day, of the hours in which the counter ran."""
    rng = seeded(19013)
    parks = ["Ahorn", "Bach", "Dorn", "Erlen", "Fichten", "Garten", "Hafen", "Insel"]
    level = rng.normal(2.3, 0.6, 8)
    kind = rng.integers(0, 3, 8)
    rows = []
    for d in range(400):
        day = date(2023, 3, 1) + timedelta(days=d)
        season = np.sin(2 * np.pi * (day.timetuple().tm_yday - 100) / 365)
        temp = 11 + 9 * season + rng.normal(0, 4)
        rain = max(0.0, rng.normal(-1, 4))
        sky = (
            str(rng.choice(["clear", "clouds", "fog"], p=[0.4, 0.5, 0.1])) if rain == 0 else "rain"
        )
        off = day.weekday() >= 5 or rng.random() < 0.03
        for k in range(8):
            hours = 24 if rng.random() < 0.45 else int(rng.integers(3, 24))
            z = level[k] + 0.045 * temp - 0.0011 * max(temp - 14, 0) ** 2 - 0.07 * rain
            z += [0.1, 0.9, 0.5][kind[k]] * off + 0.15 * (sky == "clear") + 0.2 * season
            mean = np.exp(z) * hours / 8 * rng.gamma(14, 1 / 14)
            rows.append(
                {
                    "day": day,
                    "park": parks[k],
                    "kind": ["street", "forest", "play"][kind[k]],
                    "sky": None if rng.random() < 0.06 else sky,
                    "temperature": None if rng.random() < 0.05 else round(temp, 1),
                    "rain_mm": round(rain, 1),
                    "day_off": bool(off),
                    "hours_counted": hours,
                    "walkers": int(rng.poisson(mean)),
                }
            )
    return numbered(pl.DataFrame(rows, infer_schema_length=None))


def station_nights():
    """The last 24 hours of a weather station, and the lowest temperature of the 12 hours after."""
    rng = seeded(19014)
    hours, rows = 24 * 420, []
    t = np.arange(hours)
    start = datetime(2022, 10, 1)
    year = -np.cos(2 * np.pi * (t / 24 + 255) / 365)
    front = np.zeros(hours)
    for h in range(1, hours):
        front[h] = 0.985 * front[h - 1] + rng.normal(0, 0.25)
    cloud = 1 / (1 + np.exp(-np.convolve(rng.normal(0, 4, hours + 17), np.ones(18) / 18, "valid")))
    turn = np.cumsum(rng.normal(0, 9, hours)) + 200
    speed = np.abs(np.convolve(rng.normal(0, 8, hours + 11), np.ones(12) / 12, "valid")) + 0.2
    north = np.cos(np.radians(turn)) * speed
    cold = np.convolve(north, np.r_[np.zeros(8), np.ones(14) / 14])[:hours]
    for s in range(5):
        high = rng.normal(0, 2.0)
        swing = (1.5 + 6.5 * (1 - cloud)) * np.sin(2 * np.pi * (t - 9) / 24)
        temp = 9 + high + 9 * year + front - 2.4 * cold + swing + rng.normal(0, 0.3, hours)
        damp = (92 - 18 * (1 - cloud) - 1.5 * swing + rng.normal(0, 2, hours)).clip(20, 100)
        wind = (speed + rng.normal(0, 0.3, hours)).clip(0)
        wind = np.where(rng.random(hours) < 0.004, -9999.0, wind)
        for evening in range(36, hours - 14, 24):
            h = evening + int(rng.integers(-2, 3))
            if rng.random() < 0.1:
                continue
            past = slice(h - 24, h)
            rows.append(
                {
                    "asked_at": start + timedelta(hours=int(h)),
                    "station": f"S{s + 1}",
                    "temperature": temp[past].round(1).tolist(),
                    "humidity": damp[past].round().tolist(),
                    "wind_speed": wind[past].round(1).tolist(),
                    "wind_direction": (turn[past] % 360).round().tolist(),
                    "low": round(float(temp[h : h + 12].min()), 1),
                }
            )
    return numbered(pl.DataFrame(rows).sort("asked_at", "station"))
