"""Datasets of the seventh list for texts, retrieval and forecasts: small made ones, noisy on purpose."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid

PLAIN = [
    "good",
    "bad",
    "thing",
    "people",
    "nice",
    "school",
    "big",
    "small",
    "say",
    "make",
    "very",
    "like",
    "want",
    "get",
    "go",
    "do",
]
FINE = [
    "considerable",
    "evident",
    "advantage",
    "society",
    "beneficial",
    "institution",
    "significant",
    "modest",
    "claim",
]
FINE += [
    "construct",
    "particularly",
    "comparable",
    "require",
    "obtain",
    "proceed",
    "achieve",
    "nevertheless",
]
LINKS = [
    "however",
    "therefore",
    "although",
    "moreover",
    "consequently",
    "finally",
    "because",
    "instead",
]
TOPICS = {
    "phones": ["phone", "screen", "message", "call", "app", "teacher", "lesson", "game"],
    "parks": ["tree", "park", "bench", "river", "bird", "path", "city", "garden"],
    "sports": ["team", "match", "coach", "training", "goal", "player", "winter", "race"],
}


def misspelled(rng, word):
    """The word with two neighbouring letters exchanged."""
    if len(word) < 4:
        return word
    k = int(rng.integers(1, len(word) - 2))
    return word[:k] + word[k + 1] + word[k] + word[k + 2 :]


def essays():
    """School essays and a grade of 1 to 6 by two tired readers; few get a 1 or a 6."""
    rng = seeded(701)
    rows = []
    for _ in range(760):
        skill = rng.normal()
        topic = str(rng.choice(list(TOPICS)))
        length = int(np.clip(45 + 14 * skill + rng.normal(scale=12), 12, 110))
        kinds = np.array([2.0, 1.6 * np.exp(0.7 * skill), 0.5 * np.exp(0.6 * skill), 2.2])
        pools = [PLAIN, FINE, LINKS, TOPICS[topic]]
        words = []
        for kind in rng.choice(4, length, p=kinds / kinds.sum()):
            word = str(rng.choice(pools[kind]))
            words.append(
                misspelled(rng, word) if rng.random() < 0.06 * np.exp(-0.8 * skill) else word
            )
        readers = 3.4 + 1.0 * skill + rng.normal(scale=0.55, size=2)
        rows.append((topic, " ".join(words), int(np.clip(readers.mean().round(), 1, 6))))
    return numbered(pl.DataFrame(rows, schema=["topic", "essay", "grade"], orient="row"))


SHELVES = {
    "Home > Kitchen > Kettles": "kettle boiler jug",
    "Home > Kitchen > Pans": "pan skillet wok lid",
    "Home > Kitchen > Knives": "knife cleaver blade",
    "Home > Bath > Towels": "towel robe flannel",
    "Home > Bath > Mirrors": "mirror shelf lamp",
    "Garden > Tools > Spades": "spade shovel fork handle",
    "Garden > Tools > Hoses": "hose reel nozzle",
    "Garden > Plants > Bulbs": "tulip crocus bulb",
    "Garden > Plants > Pots": "pot planter saucer",
    "Tech > Light > Bulbs": "bulb led lamp",
    "Tech > Power > Chargers": "charger plug cable reel",
    "Tech > Power > Batteries": "battery cell pack",
    "Toys > Build > Blocks": "block brick plank",
    "Toys > Soft > Bears": "bear bunny plush",
    "Toys > Soft > Dolls": "doll pram robe",
}


def shop_titles():
    """Titles of things in a shop and the shelf they stand on, three levels deep; some shelves are nearly empty."""
    rng = seeded(703)
    shelves = list(SHELVES)
    share = 1 / np.arange(1, len(shelves) + 1) ** 0.8
    order = rng.permutation(len(shelves))
    brands = {
        top: [f"{top[:2].lower()}{end}" for end in ("vio", "rana", "lux", "mora", "tek", "dorf")]
        for top in ("Home", "Garden", "Tech", "Toys")
    }
    hints = {"Home": "steel cotton white oven", "Garden": "outdoor rustproof spring green"}
    hints |= {"Tech": "usb watt e27 fast", "Toys": "kids soft colourful safe"}
    every = [name for names in brands.values() for name in names]
    rows = []
    for k in rng.choice(len(shelves), 4500, p=share / share.sum()):
        shelf = shelves[order[k]]
        top = shelf.split(" > ")[0]
        noun = str(rng.choice(SHELVES[shelf].split()))
        noun += str(rng.choice(["", "", "s", "set"]))
        words = [str(rng.choice(brands[top] if rng.random() < 0.75 else every)), noun]
        words += [str(rng.choice(hints[top].split())) for _ in range(int(rng.integers(0, 3)))]
        words += [str(rng.choice(["new", "sale", "2er", "30cm", "black", "xl", "gift"]))]
        words = [misspelled(rng, w) if rng.random() < 0.08 else w for w in words]
        if rng.random() < 0.03:  # put on a wrong shelf by its seller
            shelf = str(rng.choice(shelves))
        rows.append((" ".join(str(w) for w in rng.permutation(words)), shelf))
    return numbered(pl.DataFrame(rows, schema=["title", "shelf"], orient="row"))


def log_sessions():
    """Sessions of a server: codes of log lines and the milliseconds before each; one in fourteen failed."""
    rng = seeded(705)
    follow = {1: [2, 3], 2: [4, 5, 6], 3: [4, 6], 4: [5, 7], 5: [4, 7, 8], 6: [5, 8], 7: [4, 8, 9]}
    follow |= {8: [4, 5, 9], 9: [10, 4], 10: [5, 11]}
    rows = []
    for _ in range(4200):
        failed = rng.random() < 0.07
        codes = [1]
        while codes[-1] != 11 and len(codes) < 34:
            codes.append(int(rng.choice(follow[codes[-1]])))
        waits = rng.lognormal(3 + 0.25 * np.array(codes) % 2, 0.6)
        how = rng.choice(4, p=[0.35, 0.25, 0.3, 0.1]) if failed else -1
        at = int(rng.integers(1, max(2, len(codes) - 1)))
        if how == 0:  # the same line again and again
            codes = codes[:at] + [codes[at]] * 3 + codes[at + 1 :]
        elif how == 1:  # it waits for a lock, which only line 5 takes
            codes = [*codes[:at], 5, 8, *codes[at:]]
            waits = np.append(waits, rng.lognormal(3, 0.6, 2))
            waits[at + 1] = rng.lognormal(6.3, 0.5)
        elif how == 2:  # it ends before its end
            codes = codes[: max(3, at)]
        if not failed and rng.random() < 0.12:  # a slow disk, which harms nothing
            waits[int(rng.integers(0, len(waits)))] = rng.lognormal(6.0, 0.6)
        size = len(codes)
        waits = np.append(waits, rng.lognormal(3, 0.6, size))[:size]
        rows.append((codes, waits.round(1).tolist(), int(failed)))
    schema = {"events": pl.List(pl.Int64), "waits_ms": pl.List(pl.Float64), "failed": pl.Int64}
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def proteins():
    """Chains of amino acids and where in the cell they end: marks at the start, or motifs anywhere."""
    rng = seeded(707)
    letters = list("ACDEFGHIKLMNPQRSTVWY")
    usual = rng.dirichlet(np.full(20, 12.0))
    places = ["cytosol", "nucleus", "membrane", "secreted", "mitochondrion"]

    def some(pool, size):
        return [
            str(rng.choice(list(pool))) if rng.random() < 0.85 else str(rng.choice(letters))
            for _ in range(size)
        ]

    rows = []
    for _ in range(3600):
        place = str(rng.choice(places, p=[0.36, 0.25, 0.18, 0.13, 0.08]))
        chain = [str(x) for x in rng.choice(letters, int(rng.integers(45, 96)), p=usual)]
        chain[0] = "M"
        if rng.random() < 0.05:
            pass  # sorted by something that the chain does not show
        elif place == "secreted":
            chain[1:14] = [*some("KR", 2), *some("LAVIF", 11)]
        elif place == "mitochondrion":
            chain[1:15] = some("RLSAR", 14)
        elif place == "nucleus":
            at = int(rng.integers(5, len(chain) - 8))
            chain[at : at + 6] = some("KRKKR", 6)
        elif place == "membrane":
            for _ in range(2):
                at = int(rng.integers(14, len(chain) - 13))
                chain[at : at + 11] = some("LIVFA", 11)
        rows.append(("".join(chain), place))
    return numbered(pl.DataFrame(rows, schema=["chain", "place"], orient="row"))


def bank_questions():
    """Eight hundred questions to a bank's chat window, nine intents, many ways to say it."""
    rng = seeded(709)
    intents = {
        "card_lost": ["lost my card", "card is gone", "someone stole the card", "cannot find my card"],
        "card_late": ["card has not arrived", "where is my new card", "still waiting for the card"],
        "limit": ["raise my limit", "what is the card limit", "limit is too low for me"],
        "transfer_failed": ["transfer did not arrive", "payment bounced", "transfer is stuck"],
        "transfer_fee": ["what does a transfer cost", "fee for payment abroad", "why a fee for transfer"],
        "pin": ["forgot my pin", "change the pin of my card", "pin is wrong again"],
        "address": ["moved to a new flat", "change my address", "new street and town"],
        "close": ["close my account", "want to leave the bank", "end the account"],
        "rate": ["what is the savings rate", "interest for a loan", "rate on my account"],
    }  # fmt: skip
    heads = ["hi", "hello", "please help", "", "", "urgent", "quick question", "sorry"]
    tails = ["", "", "thanks", "since monday", "what now", "can you help", "in the app", "asap"]
    share = np.array([5, 3, 3, 4, 2, 4, 2, 1, 2.5])
    rows = []
    for intent in rng.choice(list(intents), 820, p=share / share.sum()):
        said = str(rng.choice(intents[str(intent)]))
        if rng.random() < 0.25:  # two matters, and only one of them was filed
            other = str(rng.choice(intents[str(rng.choice(list(intents)))]))
            said = f"{said} and {other}" if rng.random() < 0.7 else f"{other} and {said}"
        words = f"{rng.choice(heads)} {said} {rng.choice(tails)}".split()
        words = [misspelled(rng, w) if rng.random() < 0.05 else w for w in words]
        words = [w for w in words if rng.random() > 0.12] or ["hello"]
        filed = intent if rng.random() > 0.04 else rng.choice(list(intents))
        rows.append((" ".join(words), str(filed)))
    return numbered(pl.DataFrame(rows, schema=["question", "intent"], orient="row"))


def dialogues():
    """Dialogues with a help desk, turn by turn, and whether the customer was content; surveys stand for many."""
    rng = seeded(711)
    calm = ["thanks", "great", "works", "perfect", "fine", "lovely", "solved", "super"]
    cross = ["again", "useless", "still", "broken", "waiting", "refund", "angry", "nobody"]
    usual = [
        "the",
        "my",
        "order",
        "router",
        "invoice",
        "password",
        "email",
        "it",
        "is",
        "on",
        "with",
        "please",
        "how",
        "when",
        "line",
    ]
    agent = [
        "let",
        "me",
        "check",
        "please",
        "try",
        "could",
        "you",
        "restart",
        "send",
        "the",
        "link",
        "now",
        "sorry",
        "we",
        "will",
    ]
    rows = []
    for _ in range(3600):
        turns = int(rng.integers(2, 8))
        content = rng.random() < 0.64
        start = rng.normal(0.0, 0.8)
        mood = np.linspace(start, (1.1 if content else -1.1) + rng.normal(scale=0.7), turns)
        said = []
        for k in range(turns):
            if k % 2 == 1:
                said.append("agent " + " ".join(rng.choice(agent, int(rng.integers(3, 8)))))
                continue
            words = []
            for _ in range(int(rng.integers(3, 10))):
                pick = rng.random()
                p = sigmoid(2.2 * mood[k])
                pool = (calm if rng.random() < p else cross) if pick < 0.25 else usual
                words.append(str(rng.choice(pool)))
            said.append("customer " + " ".join(words))
        region = str(rng.choice(["north", "south", "online"], p=[0.5, 0.3, 0.2]))
        rows.append(
            (" | ".join(said), {"north": 1.0, "south": 1.7, "online": 3.2}[region], int(content))
        )
    schema = {"turns": pl.String, "stands_for": pl.Float64, "content": pl.Int64}
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def minerals():
    """Spectra of powders at 72 wavelengths; the grain shifts the level, the light the slope, 14 minerals."""
    rng = seeded(713)
    x = np.linspace(0, 1, 72)
    bands = [
        [
            (rng.uniform(0.08, 0.92), rng.uniform(0.02, 0.06), rng.uniform(0.1, 0.3))
            for _ in range(3)
        ]
        for _ in range(14)
    ]
    for k in (3, 7, 11):  # close relatives: one band differs
        bands[k] = [*bands[k - 1][:2], bands[k][2]]
    share = rng.dirichlet(np.full(14, 4.0))
    spectra, names = [], []
    for k in rng.choice(14, 3200, p=share):
        spectrum = rng.uniform(0.35, 0.9) + rng.normal(scale=0.25) * (x - 0.5)
        wobble = rng.normal(scale=0.008)
        for at, wide, deep in bands[k]:
            depth = deep * rng.uniform(0.25, 1.2)
            spectrum = spectrum - depth * np.exp(-(((x - at - wobble) / wide) ** 2))
        other = bands[int(rng.integers(0, 14))]  # impure
        at, wide, deep = other[int(rng.integers(0, 3))]
        spectrum = spectrum - rng.uniform(0, 0.9) * deep * np.exp(-(((x - at) / wide) ** 2))
        spectra.append((spectrum + rng.normal(scale=0.03, size=72)).round(4))
        names.append(f"mineral {'ABCDEFGHIJKLMN'[k]}")
    return numbered(pl.DataFrame({"reflectance": lists(spectra), "mineral": names}))


def graph_facts():
    """Facts of a graph of 120 things: (head, relation, tail); what follows from a kind and a place, mostly."""
    rng = seeded(715)
    n, relations = 120, 8
    place, kind = rng.normal(size=(n, 3)), rng.normal(size=(n, 3))
    turn = rng.normal(size=(relations, 3, 3)) / np.sqrt(3)
    facts = set()
    popularity = rng.normal(scale=0.7, size=n)
    while len(facts) < 4500:
        head = int(rng.integers(0, n))
        relation = int(rng.choice(relations, p=np.arange(1, 9) / 36))
        of = place if relation % 2 else kind
        near = 6 * of @ turn[relation] @ of[head] + popularity
        near[head] = -50
        p = np.exp(near - near.max())
        p = 0.92 * p / p.sum() + 0.08 / n
        facts.add((head, relation, int(rng.choice(n, p=p))))
    rows = sorted(facts)
    rows = [rows[k] for k in rng.permutation(len(rows))]
    return numbered(pl.DataFrame(rows, schema=["head", "relation", "tail"], orient="row"))


def vacancies():
    """Who was hired for which advertisement: codes of skills and years on one side, text and pay on the other."""
    rng = seeded(717)
    jobs = [rng.permutation(120)[:9] for _ in range(24)]
    words = [[f"w{(7 * k + 3 * j) % 131:03}" for j in range(7)] for k in range(24)]
    towns = ["north", "harbour", "hills", "lakes", "centre"]
    rows = []
    for _ in range(4200):
        job, town = int(rng.integers(0, 24)), int(rng.integers(0, 5))
        years = float(rng.gamma(2.0, 4.0))
        own = [int(s) for s in rng.choice(jobs[job], int(rng.integers(3, 8)), replace=False)]
        own += [int(s) for s in rng.integers(0, 120, int(rng.integers(0, 5)))]
        text = [str(w) for w in rng.choice(words[job], 4, replace=False)]
        text += [
            towns[town] if rng.random() < 0.8 else "anywhere",
            str(rng.choice(["team", "m/f", "now"])),
        ]
        level = "junior" if years < 4 else "senior" if years > 11 else "regular"
        if rng.random() < 0.7:
            text.append(level)
        pay = np.exp(10.2 + 0.03 * min(years, 20) + 0.012 * (job - 12) + rng.normal(scale=0.08))
        rows.append(
            (
                [int(s) for s in rng.permutation(own)], round(years, 1),
                towns[town] if rng.random() < 0.9 else None,
                " ".join(str(w) for w in rng.permutation(text)), round(float(pay), -2),
            )
        )  # fmt: skip
    schema = {
        "skills": pl.List(pl.Int64), "years": pl.Float64, "town": pl.String,
        "vacancy": pl.String, "pay": pl.Float64,
    }  # fmt: skip
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def manual_answers():
    """A question to a manual and five paragraphs found for it by another search; one was marked as the answer."""
    rng = seeded(719)
    parts = ["pump", "valve", "filter", "motor", "belt", "sensor", "hose", "fuse"]
    said = {"leaks": ["drips", "wet", "seal"], "stops": ["halts", "dead", "restart"]}
    said |= {"noisy": ["rattles", "hum", "grease"], "hot": ["warm", "cooling", "fan"]}
    said |= {"slow": ["speed", "drag", "tighten"], "blinks": ["lamp", "code", "reset"]}
    filler = [
        "the",
        "a",
        "to",
        "of",
        "unit",
        "see",
        "page",
        "first",
        "then",
        "when",
        "if",
        "check",
        "turn",
        "before",
        "after",
    ]
    rows = []
    for _ in range(3600):
        part, fault = str(rng.choice(parts)), str(rng.choice(list(said)))
        question = [part, fault, *rng.choice(filler, int(rng.integers(2, 6)))]
        right = int(rng.choice(5, p=[0.34, 0.24, 0.18, 0.14, 0.1]))
        found = []
        for k in range(5):
            p, f = str(rng.choice(parts)), str(rng.choice(list(said)))
            if k == right:
                p, f = part, fault
            elif rng.random() < 0.45:
                p = part
            elif rng.random() < 0.5:
                f = fault
            text = [p, *rng.choice(said[f], 2, replace=False)]
            text += [str(rng.choice(parts))] if rng.random() < 0.3 else []
            text += [str(w) for w in rng.choice(filler, int(rng.integers(3, 12)))]
            found.append(" ".join(str(w) for w in rng.permutation(text)))
        if rng.random() < 0.06:
            right = int(rng.integers(0, 5))
        rows.append((" ".join(str(w) for w in rng.permutation(question)), "\n".join(found), right))
    schema = {"question": pl.String, "found": pl.String, "answer": pl.Int64}
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def spare_parts():
    """Demand for spare parts: most weeks nothing, then a few or very many; six classes of part, two years."""
    rng = seeded(721)
    rows = []
    for part in range(60):
        often, group = float(rng.beta(2, 5)), int(rng.integers(0, 6))
        size = float(rng.lognormal(1.0 + 0.3 * group, 0.6))
        n = 130
        need = np.zeros(n)
        load = 0.0
        for week in range(n):
            load = 0.85 * load + rng.normal(scale=0.35)
            season = 0.6 * np.sin(2 * np.pi * week / 52 + group)
            p = sigmoid(np.log(often / (1 - often)) + season + load)
            if rng.random() < p:
                need[week] = np.ceil(size * rng.lognormal(0.5 * load, 0.5))
        for week in range(26, n):
            when = datetime(2022, 1, 3) + timedelta(weeks=week)
            rows.append(
                (
                    f"part {part:02}",
                    f"class {group}",
                    when,
                    need[week - 26 : week].tolist(),
                    need[week],
                )
            )
    names = ["part", "part_class", "week", "past_26", "demand"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("week", "part"))


def rivers():
    """Rain, warmth and flow of 24 basins of very unequal size, thirty days each; gauges fail now and then."""
    rng = seeded(723)
    rows = []
    for basin in range(24):
        area, slope, clay = rng.lognormal(5, 1.1), rng.beta(2, 4), rng.beta(2, 2)
        n = 1100
        day = np.arange(n)
        warm = 9 - 10 * np.cos(2 * np.pi * day / 365) + rng.normal(scale=2.5, size=n)
        rain = rng.gamma(0.5, 9, n) * (rng.random(n) < 0.4)
        fast, slow, snow = 0.0, 1.0, 0.0
        flow = np.zeros(n)
        for k in range(n):
            snow += rain[k] * (warm[k] < 0)
            melt = min(snow, max(warm[k], 0) * 0.8)
            snow -= melt
            wet = rain[k] * (warm[k] >= 0) + melt
            dry = max(0.0, 0.09 * warm[k])
            fast = fast * (0.75 - 0.6 * slope) + wet * (0.15 + 0.6 * clay)
            slow = max(0.1, slow * 0.96 + 0.3 * wet * (1 - clay) - 0.1 * dry)
            flow[k] = (0.35 * fast + 0.06 * slow) * np.exp(rng.normal(scale=0.12))
        flow = flow * area / 86.4
        for k in range(30 + basin, n, 6):
            past_rain, past_warm = rain[k - 30 : k + 1].round(1), warm[k - 30 : k + 1].round(1)
            gauge = [None if rng.random() < 0.04 else float(r) for r in past_rain]
            when = datetime(2019, 1, 1) + timedelta(days=k)
            known = (round(area, 1), round(slope, 3), round(clay, 3))
            rows.append(
                (f"b{basin:02}", when, gauge, past_warm.tolist(), *known, round(flow[k], 3))
            )
    names = ["basin", "day", "rain", "warmth", "area", "slope", "clay", "flow"]
    frame = pl.DataFrame(rows, schema=names, orient="row", infer_schema_length=None)
    return numbered(frame.sort("day", "basin"))


def power_prices():
    """Prices of a day-ahead auction: two days of 24 hours seen, wind and load foretold; spikes, and below zero at times."""
    rng = seeded(725)
    n = 1500
    level = 45.0
    h = np.arange(24)
    shape = 9 * np.exp(-(((h - 8) / 2.5) ** 2)) + 13 * np.exp(-(((h - 19) / 3) ** 2)) - 6 * (h < 5)
    price, wind, load = [], [], []
    blow = 0.0
    for day in range(n):
        level += 0.06 * (45 - level) + rng.normal(scale=2.2)
        blow = 0.5 * blow + rng.normal(scale=0.7)
        w = np.exp(0.6 * (blow + 0.3 * np.cumsum(rng.normal(scale=0.25, size=24))))
        is_free = (day % 7) >= 5
        demand = 1 + 0.1 * np.cos(2 * np.pi * day / 365) - 0.13 * is_free + 0.012 * shape
        demand = demand + rng.normal(scale=0.02, size=24)
        p = level + shape * (0.5 if is_free else 1) + 75 * (demand - 1) - 13 * w
        p = p + rng.normal(scale=2.5, size=24)
        if rng.random() < 0.05:
            at = int(rng.integers(6, 21))
            p[at : at + 2] += rng.pareto(2.0) * 60
        price.append(p.round(2))
        wind.append((w + rng.normal(scale=0.12, size=24)).round(3))
        load.append(demand.round(3))
    rows = [
        (
            datetime(2020, 1, 1) + timedelta(days=d), (d + 2) % 7, d % 365,
            price[d - 1].tolist(), price[d - 7].tolist(),
            wind[d].tolist(), load[d].tolist(), price[d].tolist(),
        )
        for d in range(7, n)
    ]  # fmt: skip
    names = ["day", "weekday", "day_of_year", "price_yesterday", "price_week_ago"]
    names += ["wind_forecast", "load_forecast", "price"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def solar_roofs():
    """Power of roofs in kW, cloud and warmth each hour: two days seen, the next six hours; nights are dark."""
    rng = seeded(727)
    rows = []
    for roof in range(8):
        peak = float(rng.lognormal(2.0, 0.8))
        n = 24 * 330
        hour = np.arange(n)
        sun = np.clip(np.sin(np.pi * ((hour % 24) - 6) / 12), 0, None)
        sun = sun * (0.75 - 0.3 * np.cos(2 * np.pi * hour / 8760))
        cloud, drift = np.zeros(n), 0.0
        for k in range(n):
            drift = 0.94 * drift + rng.normal(scale=0.33)
            cloud[k] = sigmoid(1.6 * drift)
        power = peak * sun * (1 - 0.8 * cloud) * np.exp(rng.normal(scale=0.08, size=n))
        warm = 10 + 9 * np.roll(sun, 2) + rng.normal(scale=1.5, size=n)
        for k in range(48 + 3 * roof, n - 6, 13):
            seen = np.stack([power[k - 48 : k], cloud[k - 48 : k], warm[k - 48 : k]], axis=1)
            when = datetime(2023, 1, 1) + timedelta(hours=k - 1)
            ahead = power[k : k + 6]
            rows.append(
                (
                    f"roof {roof}",
                    when,
                    when.hour,
                    seen.round(3).ravel().tolist(),
                    ahead.round(3).tolist(),
                )
            )
    names = ["roof", "last_hour", "hour", "seen", "next_6h"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("last_hour", "roof"))


def shop_turnover():
    """Monthly turnover of 90 shops of unequal size: three years seen, the next month; levels wander, seasons differ."""
    rng = seeded(729)
    rows = []
    for shop in range(90):
        level, trend = rng.lognormal(3, 1.2), rng.normal(scale=0.004)
        kind = int(rng.integers(0, 3))
        month = np.arange(12)
        season = np.exp(
            [0.35, 0.2, 0.45][kind] * np.cos(2 * np.pi * (month - [11, 6, 3][kind]) / 12)
        )
        season = season * np.exp(rng.normal(scale=0.06, size=12))
        n, loose = 37 + 48, float(rng.uniform(0.01, 0.08))
        seen = np.zeros(n)
        base = np.log(level)
        for k in range(n):
            base += trend + rng.normal(scale=loose)
            seen[k] = np.exp(base + rng.normal(scale=0.07)) * season[k % 12]
        for k in range(36, n):
            when = datetime(2015 + k // 12, k % 12 + 1, int(1 + (shop * 7 + k * 11) % 28))
            rows.append((f"s{shop:02}", ["grocer", "ice", "garden"][kind], when,
                         seen[k - 36 : k].round(2).tolist(), round(float(seen[k]), 2)))  # fmt: skip
    names = ["shop", "trade", "closed_on", "months", "turnover"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row").sort("closed_on", "shop"))
