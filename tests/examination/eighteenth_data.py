"""Datasets of the eighteenth list: students, stays, stock, football, cards, jobs and hotels."""

from datetime import date, datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def student_outcomes():
    """How students of a college fared: their courses' marks, their bills, a code of admission."""
    rng = seeded(18001)
    n = 3200
    course = rng.choice(11, n, p=[0.2, 0.16, 0.13, 0.11, 0.1, 0.09, 0.08, 0.06, 0.04, 0.02, 0.01])
    mode = rng.choice(7, n, p=[0.4, 0.22, 0.16, 0.1, 0.07, 0.04, 0.01])
    talent = rng.normal(0, 1, n)
    age = 18 + rng.gamma(0.8, 6, n) * np.array([0.4, 0.5, 1.0, 2.0, 2.4, 1.0, 1.5])[mode]
    hard = rng.normal(0, 0.5, 11)[course]
    debtor = rng.random(n) < 0.09 + 0.06 * (age > 25)
    paid = rng.random(n) < np.where(debtor, 0.55, 0.94)
    scholar = rng.random(n) < 1 / (1 + np.exp(1.4 - 0.7 * talent))
    enrolled = rng.integers(5, 8, n)
    will = talent - hard + 0.9 * paid + 0.4 * scholar - 0.03 * (age - 20) + rng.normal(0, 0.6, n)
    passed = [rng.binomial(enrolled, 1 / (1 + np.exp(-0.9 * will - k))) for k in (0.1, -0.2)]
    mark = [
        np.where(p > 0, (12.4 + 1.2 * talent + rng.normal(0, 0.8, n)).clip(10, 19), 0.0)
        for p in passed
    ]
    gone = 1.1 - 1.3 * will - 1.1 * paid + rng.normal(0, 0.35, 7)[mode] - 3.2 * passed[1] / enrolled
    still = 0.2 - 0.5 * hard - 1.6 * passed[1] / enrolled + 0.25 * (course % 3)
    done = -2.6 + 0.8 * will + 2.6 * (passed[1] + passed[0]) / (2 * enrolled)
    odds = np.exp(np.stack([gone, still, done], 1))
    fate = [rng.choice(3, p=row / row.sum()) for row in odds]
    mother = rng.choice([1, 3, 19, 34, 37, 38], n, p=[0.3, 0.15, 0.25, 0.05, 0.2, 0.05])
    lost = rng.random(n) < 0.07
    return numbered(
        pl.DataFrame(
            {
                "course": np.array(
                    [
                        "nursing",
                        "law",
                        "design",
                        "tourism",
                        "it",
                        "agronomy",
                        "sport",
                        "music",
                        "social",
                        "optics",
                        "equine",
                    ]
                )[course],
                "application_mode": np.array([1, 17, 39, 42, 43, 44, 57])[mode],
                "mother_qualification": mother,
                "admission_grade": [
                    None if a else round(float(v), 1)
                    for a, v in zip(lost, 127 + 11 * talent + rng.normal(0, 8, n), strict=True)
                ],
                "age": age.astype(int),
                "debtor": debtor.astype(int),
                "tuition_paid": paid.astype(int),
                "scholarship": scholar.astype(int),
                "sem1_enrolled": enrolled,
                "sem1_approved": passed[0],
                "sem1_grade": mark[0].round(2),
                "sem2_approved": passed[1],
                "sem2_grade": mark[1].round(2),
                "outcome": np.array(["Dropout", "Enrolled", "Graduate"])[fate],
            }
        )
    )


def diabetic_stays():
    """Stays of diabetics: three ICD-9 codes, an age band, whether they came back in 30 days."""
    rng = seeded(18002)
    patients = 2300
    frail = rng.normal(0, 1, patients)
    age = rng.integers(3, 10, patients)
    chapters = {
        "heart": (["428", "414", "410.71", "427.31", "411"], 0.9),
        "lungs": (["486", "491.21", "496", "493"], 0.35),
        "diabetes": (["250.02", "250.6", "250.82", "250.13"], 0.0),
        "injury": (["820", "996.62", "998.59"], -0.2),
        "kidney": (["584", "599", "585.6"], 1.0),
        "digestion": (["577", "560.1", "530.81"], -0.7),
        "joints": (["715.36", "722.1", "733"], -1.0),
        "mental": (["296.3", "295", "303.9"], 0.3),
        "outside": (["V58", "V45.81", "E885.9", "E932"], -0.3),
    }
    names = list(chapters)
    found = []
    for who in range(patients):
        own = rng.choice(len(names), 2)
        day = int(rng.integers(0, 900))
        inpatient = int(rng.poisson(np.exp(-1.0 + 0.7 * frail[who])))
        for _ in range(int(rng.choice([1, 2, 3, 4], p=[0.7, 0.17, 0.08, 0.05]))):
            picked = [own[0] if rng.random() < 0.6 else rng.integers(len(names)), own[1]]
            picked.append(rng.integers(len(names)))
            kinds = [names[k] for k in picked]
            codes = [str(rng.choice(chapters[k][0])) for k in kinds]
            gaps = rng.random(3) < [0.0, 0.04, 0.3]
            days = int(rng.integers(1, 6) + rng.poisson(2 + max(frail[who], 0)))
            a1c = rng.choice(["None", "Norm", ">7", ">8"], p=[0.7, 0.12, 0.08, 0.1])
            insulin = rng.choice(["No", "Steady", "Up", "Down"], p=[0.45, 0.3, 0.12, 0.13])
            admission = rng.choice(
                ["Emergency", "Urgent", "Elective", "?"], p=[0.5, 0.2, 0.22, 0.08]
            )
            z = -2.55 + 0.5 * frail[who] + 0.42 * min(inpatient, 5) + 0.06 * days
            z += 0.9 * chapters[kinds[0]][1] + 0.22 * (age[who] - 6)
            z += 0.35 * sum(
                chapters[k][1] for k, g in zip(kinds[1:], gaps[1:], strict=True) if not g
            )
            z += {"No": -0.2, "Steady": 0.0, "Up": 0.5, "Down": 0.4}[insulin]
            z += 0.4 * (admission == "Emergency") - 0.3 * (a1c == "Norm")
            soon = rng.random() < 1 / (1 + np.exp(-z))
            later = rng.random() < 0.33 + 0.06 * (kinds[0] in ("joints", "injury", "digestion"))
            found.append(
                {
                    "admitted": date(2020, 1, 6) + timedelta(days=day),
                    "patient": f"P{who:05}",
                    "age_band": f"[{10 * age[who]}-{10 * age[who] + 10})",
                    "admission": str(admission),
                    "days_in": days,
                    "n_labs": int(rng.poisson(38 + 3 * days)),
                    "n_medications": int(rng.poisson(11 + days)),
                    "inpatient_before": inpatient,
                    "a1c": str(a1c),
                    "insulin": str(insulin),
                    **{f"diag_{k + 1}": None if gaps[k] else codes[k] for k in range(3)},
                    "weight": f"[{25 * int(rng.integers(2, 5))}-)" if rng.random() < 0.04 else None,
                    "readmitted": "<30" if soon else ">30" if later else "NO",
                }
            )
            day += int(rng.integers(10, 30) if soon else rng.integers(40, 300))
            inpatient += 1
    return numbered(pl.DataFrame(found))


def stock_backorders():
    """Articles of a wholesaler in one week: stock, forecasts and sales; which were sold out."""
    rng = seeded(18003)
    n = 4000
    pace = np.exp(rng.normal(1.2, 1.6, n))
    sales = [rng.poisson(pace * m) for m in (1, 3, 6, 9)]
    forecast = [np.round(pace * m * np.exp(rng.normal(0, 0.35, n))) for m in (3, 6, 9)]
    lead = rng.choice([2, 4, 8, 9, 12, 16, 52], n, p=[0.16, 0.12, 0.44, 0.1, 0.13, 0.04, 0.01])
    stock = np.round(pace * np.exp(rng.normal(0.6, 1.1, n)) + rng.normal(0, 1, n))
    oversold = rng.random(n) < 0.07
    stock = np.where(oversold, -np.round(pace * rng.gamma(1.2, 0.6, n)) - 1, stock)
    transit = np.where(rng.random(n) < 0.35, rng.poisson(pace * 1.5), 0)
    quality = rng.beta(7, 2.0, n).round(2)
    unknown = rng.random(n) < 0.17
    bank = np.where(rng.random(n) < 0.5, np.round(pace * 0.6), 0)
    issue = rng.random(n) < 0.02
    auto = rng.random(n) < 0.96
    cover = (np.maximum(stock, 0) + 0.6 * transit + 0.5) / (forecast[0] / 3 * lead / 6 + 0.5)
    z = -2.3 - 1.1 * np.log(cover) - 5.0 * (quality - 0.78) + 1.6 * issue - 0.6 * (1 - auto)
    z = np.where(stock < 0, 0.9 + 0.35 * np.log(-stock.clip(None, -1)) - 5.0 * (quality - 0.78), z)
    sold_out = rng.random(n) < 1 / (1 + np.exp(-z))
    gone = rng.random(n) < 0.06
    return numbered(
        pl.DataFrame(
            {
                "sku": [f"{k:07}" for k in rng.permutation(9_000_000)[:n]],
                "national_inv": stock.astype(int),
                "lead_time": [None if g else int(v) for g, v in zip(gone, lead, strict=True)],
                "in_transit_qty": transit,
                "forecast_3_month": forecast[0].astype(int),
                "forecast_6_month": forecast[1].astype(int),
                "forecast_9_month": forecast[2].astype(int),
                "sales_1_month": sales[0],
                "sales_3_month": sales[1],
                "sales_6_month": sales[2],
                "sales_9_month": sales[3],
                "min_bank": bank.astype(int),
                "potential_issue": np.where(issue, "Yes", "No"),
                "perf_6_month_avg": np.where(unknown, -99.0, quality),
                "stop_auto_buy": np.where(auto, "Yes", "No"),
                "went_on_backorder": np.where(sold_out, "Yes", "No"),
            }
        )
    )


def football_matches():
    """Matches of two leagues over seven seasons: teams, rest, form of five matches, goals."""
    rng = seeded(18004)
    teams = 44
    attack, defence = rng.normal(0, 0.48, teams), rng.normal(0, 0.42, teams)
    found = []
    for season in range(7):
        attack = 0.92 * attack + rng.normal(0, 0.1, teams)
        defence = 0.92 * defence + rng.normal(0, 0.1, teams)
        for league in range(2):
            members = rng.permutation(np.arange(22 * league, 22 * league + 22))[:20]
            scored = {t: [] for t in members}
            conceded = {t: [] for t in members}
            for week in range(19):
                order = rng.permutation(members)
                for home, away in zip(order[::2], order[1::2], strict=True):
                    rest = rng.choice([3, 4, 7, 8, 14], 2, p=[0.15, 0.15, 0.5, 0.15, 0.05])
                    tired = 0.12 * (rest < 5)
                    rates = np.exp(
                        [
                            0.38 - 0.12 * league + attack[home] - defence[away] - tired[0],
                            0.08 - 0.12 * league + attack[away] - defence[home] - tired[1],
                        ]
                    )
                    goals = rng.poisson(rates)
                    form = {}
                    for side, who in (("home", home), ("away", away)):
                        for name, past in (("for", scored[who]), ("against", conceded[who])):
                            form[f"{side}_{name}_5"] = float(np.mean(past[-5:])) if past else None
                    day = date(2016, 8, 6) + timedelta(days=364 * season + 14 * week)
                    found.append(
                        {
                            "played_on": day + timedelta(days=int(rng.integers(0, 3))),
                            "league": ["first", "second"][league],
                            "home": f"T{home:02}",
                            "away": f"T{away:02}",
                            "home_rest": int(rest[0]),
                            "away_rest": int(rest[1]),
                            **form,
                            "goals": [int(g) for g in goals],
                        }
                    )
                    scored[home].append(goals[0])
                    scored[away].append(goals[1])
                    conceded[home].append(goals[1])
                    conceded[away].append(goals[0])
    return numbered(pl.DataFrame(found))


def card_statements():
    """Three to thirteen monthly statements of a card, oldest first, and a later default."""
    rng = seeded(18005)
    n = 2800
    found = []
    for _ in range(n):
        months = int(rng.choice(np.arange(3, 14), p=[0.05] * 10 + [0.5]))
        limit = float(np.round(np.exp(rng.normal(8.2, 0.6)), -2))
        habit, slope = rng.beta(1.5, 2.5), rng.normal(0, 0.035)
        shock = rng.random() < 0.3
        use = habit + slope * np.arange(months) + rng.normal(0, 0.13, months)
        paid = np.clip(0.75 - 0.5 * use + rng.normal(0, 0.3, months), 0.02, 1)
        if shock:
            last = int(rng.integers(1, min(5, months)))
            use[-last:] += np.linspace(0.12, 0.4, last)
            paid[-last:] *= rng.uniform(0.1, 0.7)
        elif rng.random() < 0.35 and months > 6:  # an old shock that was overcome
            begin = int(rng.integers(0, months - 5))
            use[begin : begin + 3] += 0.35
            paid[begin : begin + 3] *= 0.3
        use = use.clip(0, 1.4)
        weight = 0.94 ** np.arange(months)[::-1]
        stress = ((use - 1.6 * paid) * weight).sum() / weight.sum()
        tenure = int(rng.gamma(2, 30))
        product = int(rng.choice(4, p=[0.55, 0.25, 0.15, 0.05]))
        z = -0.55 + 4.2 * stress - 0.006 * tenure + [0, 0.3, -0.4, 0.8][product]
        gaps = rng.random(months) < 0.05
        found.append(
            {
                "balance": [round(float(limit * u), 2) for u in use],
                "spend": [
                    None if g else round(float(limit * u * rng.uniform(0.2, 0.6)), 2)
                    for u, g in zip(use, gaps, strict=True)
                ],
                "paid_share": [round(float(p), 3) for p in paid],
                "limit": limit,
                "tenure_months": tenure,
                "product": ["basic", "miles", "gold", "student"][product],
                "default": int(rng.random() < 1 / (1 + np.exp(-z))),
            }
        )
    return numbered(pl.DataFrame(found))


def job_salaries():
    """Advertised yearly pay: title, one of many employers, city, skills, years asked for."""
    rng = seeded(18006)
    n = 3200
    titles = [
        "analyst",
        "developer",
        "tester",
        "designer",
        "architect",
        "manager",
        "nurse",
        "buyer",
        "clerk",
        "driver",
    ]
    base = np.array([10.75, 10.9, 10.6, 10.65, 11.2, 11.1, 10.45, 10.55, 10.25, 10.2])
    grades = {"junior": -0.22, "": 0.0, "senior": 0.22, "lead": 0.36}
    share = 1 / (np.arange(300) + 6.0)
    employer = rng.choice(300, n, p=share / share.sum())
    pays = rng.normal(0, 0.16, 300)
    city = rng.choice(18, n, p=np.arange(18, 0, -1) / 171)
    dear = rng.normal(0, 0.11, 18)
    skills = [f"skill{k:02}" for k in range(30)]
    worth = rng.normal(0, 0.07, 30)
    found = []
    for k in range(n):
        t = int(rng.integers(10))
        grade = str(rng.choice(list(grades), p=[0.2, 0.5, 0.22, 0.08]))
        years = int(rng.poisson({"junior": 1, "": 3, "senior": 6, "lead": 8}[grade]))
        many = int(rng.integers(0, 7))
        own = sorted({int((3 * t + s) % 30) for s in rng.geometric(0.17, many)})
        degree = rng.choice([None, "none", "bachelor", "master"], p=[0.25, 0.25, 0.3, 0.2])
        remote = str(rng.choice(["no", "hybrid", "full"], p=[0.5, 0.35, 0.15]))
        y = base[t] + grades[grade] + 0.018 * years + pays[employer[k]] + dear[city[k]]
        y += worth[own].sum() + {"master": 0.09, "bachelor": 0.04}.get(degree, 0.0)
        y += 0.05 * (remote == "full") + rng.normal(0, 0.1)
        found.append(
            {
                "title": f"{grade} {titles[t]}".strip(),
                "employer": f"E{employer[k]:03}",
                "city": f"city{city[k]:02}",
                "remote": remote,
                "degree": degree,
                "years": years,
                "skills": [skills[s] for s in own],
                "posted": date(2023, 1, 2) + timedelta(days=int(rng.integers(0, 700))),
                "salary": float(np.round(np.exp(y), -2)),
            }
        )
    return numbered(pl.DataFrame(found))


def hotel_nights():
    """Rooms on the books of hotels 90 to 10 days before each night, and rooms sold in the end."""
    rng = seeded(18007)
    hotels = 9
    rooms = np.array([60, 85, 120, 140, 180, 210, 95, 320, 45])
    kind = np.array([0, 1, 0, 1, 1, 0, 0, 1, 0])  # leisure or business
    before = np.array([90, 60, 45, 30, 21, 14, 10])
    found = []
    for h in range(hotels):
        noise, last = 0.0, {}
        for k in range(730):
            day = date(2022, 1, 1) + timedelta(days=k)
            weekday = day.weekday()
            season = np.sin(2 * np.pi * (day.timetuple().tm_yday - 100) / 365)
            week = [
                [-0.7, -0.7, -0.5, -0.2, 0.9, 1.2, -0.1],
                [0.4, 0.9, 0.9, 0.6, -0.5, -0.9, -0.5],
            ]
            noise = 0.8 * noise + rng.normal(0, 0.2)
            event = rng.random() < 0.05
            z = 0.5 + week[kind[h]][weekday] + (0.9 - 0.7 * kind[h]) * season + noise + 1.1 * event
            demand = rooms[h] * 1.25 / (1 + np.exp(-z))
            sold = min(float(demand * np.exp(rng.normal(0, 0.05))), float(rooms[h]))
            pace = before / (26.0 if kind[h] == 0 else 12.0) * rng.lognormal(0, 0.22)
            pace = pace * (1.25 if weekday < 4 else 0.9)
            books = np.maximum.accumulate(sold * np.exp(-pace) * rng.lognormal(0, 0.04, 7))
            last[k] = round(sold)
            if k < 366:
                continue
            found.append(
                {
                    "night": day,
                    "hotel": f"hotel_{h}",
                    "rooms": int(rooms[h]),
                    "on_books": [
                        None if rng.random() < 0.03 and j < 6 else round(float(b))
                        for j, b in enumerate(books)
                    ],
                    "last_year": None if rng.random() < 0.08 else last[k - 364],
                    "event": int(event),
                    "rate": round(float(80 + 60 * kind[h] + 25 * z + rng.normal(0, 8)), 1),
                    "sold": round(sold),
                }
            )
    return numbered(pl.DataFrame(found).sort("night", "hotel"))


def server_loads():
    """Four hours of CPU, memory and requests of servers, and the CPU of the next hour."""
    rng = seeded(18008)
    found = []
    roles = ["web", "batch", "database", "cache"]
    for server in range(24):
        role = server % 4
        length = 12 * 24 * 56
        t = np.arange(length)
        hour = (t / 12 + server % 3) % 24
        base = [28, 14, 34, 20][role] + rng.normal(0, 4)
        cycle = [17, 5, 10, 8][role] * np.sin(2 * np.pi * (hour - 9 - rng.normal(0, 1)) / 24)
        noise = np.zeros(length)
        for k in range(1, length):
            noise[k] = 0.93 * noise[k - 1] + rng.normal(0, 1.6)
        period = int(rng.choice([12, 18, 24]))
        job = [4, 38, 8, 5][role] * ((t + rng.integers(period)) % period < 4)
        cpu = (base + cycle + noise + job + rng.normal(0, 1.0, length)).clip(0, 100)
        requests = np.roll(np.exp(3 + (cycle + noise) / 14), -2) * rng.lognormal(0, 0.08, length)
        memory = (40 + 0.3 * np.cumsum(rng.normal(0, 0.25, length)) + 0.2 * base).clip(5, 98)
        for start in range(0, length - 60, 139):
            past = slice(start, start + 48)
            gap = rng.random(48) < 0.015
            found.append(
                {
                    "measured_at": datetime(2024, 3, 4) + timedelta(minutes=5 * (start + 48)),
                    "server": f"srv-{server:02}",
                    "role": roles[role],
                    "cpu": [
                        None if g else round(float(v), 1)
                        for v, g in zip(cpu[past], gap, strict=True)
                    ],
                    "memory": memory[past].round(1).tolist(),
                    "requests": requests[past].round().tolist(),
                    "cpu_next": cpu[start + 48 : start + 60].round(1).tolist(),
                }
            )
    return numbered(pl.DataFrame(found).sort("measured_at", "server"))


def video_watches():
    """What a viewer watched, oldest first, age and country, and the video watched next."""
    rng = seeded(18009)
    n, videos, topics = 4000, 40, 6
    topic = rng.integers(0, topics, videos)
    fame = rng.normal(0, 0.5, videos)
    follows = rng.permutation(videos)
    countries = ["US", "BR", "IN", "DE", "JP"]
    local = rng.normal(0, 0.5, (5, topics))
    found = []
    for _ in range(n):
        country = int(rng.choice(5, p=[0.35, 0.25, 0.2, 0.15, 0.05]))
        age = int(rng.gamma(4, 7) + 13)
        mood = int(rng.integers(topics))
        length = int(rng.geometric(0.06)) + 2
        seen = []
        for _ in range(min(length, 40) + 1):
            if rng.random() < 0.1:
                mood = int(rng.integers(topics))
            score = fame + 2.6 * (topic == mood) + local[country][topic]
            score = score + 0.03 * (age - 40) * (topic % 2)
            if seen:
                score[follows[seen[-1]]] += 3.0
                score[seen[-4:]] -= 4
            odds = np.exp(score)
            seen.append(int(rng.choice(videos, p=odds / odds.sum())))
        found.append(
            {
                "watched": [f"v{k:02}" for k in seen[:-1]],
                "age": None if rng.random() < 0.15 else age,
                "country": countries[country],
                "next_video": f"v{seen[-1]:02}",
            }
        )
    return numbered(pl.DataFrame(found))


def banner_auctions():
    """Banners shown: site, app, device, advertiser and hour as codes; prices; clicked or not."""
    rng = seeded(18010)
    n = 4000

    def codes(size, flat=3.0):
        share = 1 / (np.arange(size) + flat)
        return rng.choice(size, n, p=share / share.sum())

    site, slot, device = codes(14), codes(5), codes(4, 1.5)
    advertiser, creative, hour = codes(12), codes(10), rng.integers(0, 24, n)
    carrier = codes(6)
    taste = rng.normal(0, 1, (14, 3)), rng.normal(0, 1, (12, 3)), rng.normal(0, 1, (4, 3))
    z = -1.2 + rng.normal(0, 0.3, 14)[site] + rng.normal(0, 0.3, 12)[advertiser]
    z = z + rng.normal(0, 0.4, 5)[slot] + rng.normal(0, 0.3, 10)[creative]
    z = z + 1.5 * (taste[0][site] * taste[1][advertiser]).sum(1)
    z = z + 0.7 * (taste[2][device] * taste[1][advertiser]).sum(1)
    z = z + 0.4 * np.sin(2 * np.pi * (hour - 14) / 24)
    floor = np.exp(rng.normal(-0.5, 0.8, n))
    area = rng.choice([300 * 250, 728 * 90, 160 * 600, 320 * 50], n)
    z = z + 0.3 * np.log(area / 60000) - 0.15 * np.log(floor)
    clicked = rng.random(n) < 1 / (1 + np.exp(-z))
    none = rng.random(n) < 0.08
    day = rng.integers(0, 180, n)
    return numbered(
        pl.DataFrame(
            {
                "shown_at": [
                    datetime(2024, 5, 6) + timedelta(days=int(d), hours=int(h))
                    for d, h in zip(day, hour, strict=True)
                ],
                "site": [f"s{k:02}" for k in site],
                "slot": [f"p{k}" for k in slot],
                "device": np.array(["phone", "desktop", "tablet", "tv"])[device],
                "advertiser": [f"a{k:02}" for k in advertiser],
                "creative": [f"c{k:02}" for k in creative],
                "carrier": [None if g else f"n{k}" for g, k in zip(none, carrier, strict=True)],
                "floor_price": floor.round(3),
                "area": area,
                "click": clicked.astype(int),
            }
        ).sort("shown_at")
    )


def customer_pairs():
    """Records of a shop and a bank that a search found alike: are they one person?"""
    rng = seeded(18011)
    first = [
        "anna",
        "maria",
        "peter",
        "hans",
        "luis",
        "elena",
        "marta",
        "jonas",
        "katrin",
        "oskar",
        "irene",
        "paul",
        "nadia",
        "felix",
    ]
    parts = ["mai", "hoff", "berg", "stein", "witz", "ler", "mann", "ova", "ini", "sen", "dor"]
    towns = ["ulm", "bern", "graz", "linz", "trier", "essen", "basel", "worms"]

    def slip(word):
        k = int(rng.integers(1, len(word)))
        kind = rng.integers(4)
        if kind == 0:
            return word[:k] + word[k + 1 :]
        if kind == 1:
            return word[: k - 1] + word[k] + word[k - 1] + word[k + 1 :]
        if kind == 2:
            return word[:k] + chr(97 + int(rng.integers(26))) + word[k:]
        return word[:k] + chr(97 + int(rng.integers(26))) + word[k + 1 :]

    def person():
        name = "".join(rng.choice(parts, int(rng.integers(2, 4)), replace=False))
        born = date(1940, 1, 1) + timedelta(days=int(rng.integers(0, 23000)))
        return [str(rng.choice(first)), name, born, str(rng.choice(towns)), int(rng.integers(1e6))]

    def worn(two):
        if rng.random() < 0.45:
            two[1] = slip(two[1])
        if rng.random() < 0.12:
            two[0] = two[0][0]
        if rng.random() < 0.1 and two[2].day <= 12:
            two[2] = date(two[2].year, two[2].day, two[2].month)
        elif rng.random() < 0.08:
            two[2] = two[2] + timedelta(days=int(rng.choice([-1, 1, 10, -10, 365])))
        if rng.random() < 0.3:
            two[3] = str(rng.choice(towns))
        if rng.random() < 0.35:
            two[4] = int(rng.integers(1e6))
        return two

    def alike(two):
        other = person()
        kind = rng.choice(4, p=[0.3, 0.3, 0.25, 0.15])
        if kind == 0:  # of one family
            return [other[0], two[1], other[2], two[3], two[4] if rng.random() < 0.5 else other[4]]
        if kind == 1:  # of a common name
            return [*two[:2], other[2], two[3] if rng.random() < 0.6 else other[3], other[4]]
        if kind == 2:
            return [*other[:3], two[3], other[4]]
        twin = [other[0], *two[1:4]]
        return [*twin, two[4] if rng.random() < 0.3 else other[4]]

    found = []
    for _ in range(3200):
        one = person()
        same = rng.random() < 0.4
        two = worn(list(one)) if same else alike(one)
        row = {}
        for side, who in (("shop", one), ("bank", two)):
            upper = side == "bank"
            full = f"{who[1]}, {who[0]}" if upper else f"{who[0]} {who[1]}"
            row[f"{side}_name"] = full.upper() if upper else full.title()
            row[f"{side}_born"] = None if rng.random() < 0.08 else who[2]
            row[f"{side}_town"] = who[3].title()
            row[f"{side}_phone"] = None if rng.random() < 0.25 else f"{who[4]:06}"
        found.append(row | {"same": bool(same)})
    return numbered(pl.DataFrame(found))
