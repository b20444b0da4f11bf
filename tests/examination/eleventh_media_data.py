"""Texts, pictures, pairs and ratings of the eleventh list, as data teams have them every day."""

import numpy as np
import polars as pl

from examination.data import numbered, seeded
from examination.third_data import lists, sigmoid


def _typo(rng, word):
    if len(word) < 4 or rng.random() > 0.03:
        return word
    i = int(rng.integers(1, len(word) - 1))
    return word[:i] + word[i + 1] + word[i] + word[i + 2 :]


def _say(rng, parts):
    return " ".join(_typo(rng, word) for part in parts if part for word in str(part).split())


QUEUES = {
    "access": (["cannot log in to", "password expired for", "account locked in", "need access to", "two factor code not arriving for"],
               ["the vpn", "my mailbox", "sap", "the shared drive", "the wiki", "jira"]),
    "hardware": (["screen flickers on", "battery does not charge on", "keyboard broken on", "strange noise from", "need a replacement for"],
                 ["my laptop", "the docking station", "the monitor", "the headset", "my phone"]),
    "printing": (["paper jam in", "toner empty in", "cannot print to", "scan to mail fails on", "pages come out blank from"],
                 ["the printer on floor 3", "the copier", "the plotter", "printer hr-02", "the label printer"]),
    "network": (["no connection to", "very slow", "connection drops on", "cannot reach"],
                ["the wifi in room 214", "the vpn", "the file server", "internet", "the guest wifi"]),
    "software": (["please install", "update fails for", "crashes on start:", "licence expired for", "error message in"],
                 ["excel", "autocad", "the erp client", "teams", "adobe reader", "sap"]),
    "payroll": (["wrong amount on", "missing overtime in", "question about", "did not receive"],
                ["my payslip", "the travel refund", "my tax form", "the bonus", "vacation days"]),
    "facilities": (["heating does not work in", "light broken in", "please move my desk to", "key card refused at"],
                   ["room 214", "the kitchen on floor 3", "the garage", "the main door", "building b"]),
}  # fmt: skip


def helpdesk_mails():
    """Short mails to a company's help desk and the queue that solved them; a few were routed wrongly."""
    rng = seeded(11021)
    names = [*QUEUES]
    hello = ["hello", "hi team", "good morning", "dear colleagues", "urgent:", "", "", ""]
    more = [
        "since this morning",
        "since the update yesterday",
        "again",
        "can someone help",
        "it worked last week",
        "thanks",
        "please call me",
        "",
        "",
    ]
    rows = []
    for _ in range(4200):
        k = int(rng.choice(len(names), p=[0.26, 0.17, 0.12, 0.15, 0.2, 0.06, 0.04]))
        asks, things = QUEUES[names[k]]
        mail = _say(
            rng,
            [
                rng.choice(hello),
                rng.choice(asks),
                rng.choice(things),
                rng.choice(more),
                rng.choice(more),
            ],
        )
        if rng.random() < 0.06:
            mail = _say(
                rng,
                [
                    rng.choice(hello),
                    rng.choice(["it does not work", "need help with", "problem with"]),
                    rng.choice(things),
                    rng.choice(more),
                ],
            )
        queue = names[k] if rng.random() > 0.03 else str(rng.choice(names))
        rows.append((mail, queue))
    return numbered(pl.DataFrame(rows, schema=["mail", "queue"], orient="row"))


def app_reviews():
    """Reviews of an app: praise and complaints in one text, negations, and whether there were four or five stars."""
    rng = seeded(11023)
    things = [
        "the app",
        "login",
        "the new update",
        "syncing",
        "support",
        "the design",
        "the widget",
        "search",
        "the price",
        "battery use",
    ]
    good = ["great", "smooth", "fast", "reliable", "lovely", "worth it", "easy", "helpful"]
    bad = [
        "slow",
        "broken",
        "useless",
        "confusing",
        "buggy",
        "too expensive",
        "annoying",
        "terrible",
    ]
    link = ["and", "but", "also", "though", ".", ",", "while"]
    ends = [
        "would recommend",
        "uninstalling now",
        "please fix",
        "keep it up",
        "five stars",
        "want my money back",
        "",
        "",
        "",
        "",
    ]
    rows = []
    for _ in range(3600):
        mood, said, parts = rng.normal(), 0.0, []
        for _ in range(int(rng.integers(1, 5))):
            likes = rng.random() < sigmoid(1.6 * mood)
            turned = rng.random() < 0.22
            word = rng.choice(good if likes != turned else bad)
            verb = (
                rng.choice(["is not", "isn't", "was never"])
                if turned
                else rng.choice(["is", "was", "feels", "is really"])
            )
            parts += [rng.choice(things), verb, word, rng.choice(link)]
            said += 1 if likes else -1
        end = rng.choice(ends) if rng.random() < 0.5 else ""
        said += {
            "would recommend": 1,
            "keep it up": 1,
            "five stars": 1.5,
            "uninstalling now": -1.5,
            "want my money back": -1.5,
            "please fix": -0.5,
        }.get(str(end), 0)
        rows.append((_say(rng, [*parts[:-1], end]), int(rng.random() < sigmoid(2.2 * said + 0.6))))
    return numbered(pl.DataFrame(rows, schema=["review", "positive"], orient="row"))


def sms():
    """Short messages of which one in seven is spam; numbers, prices and slang as people write them."""
    rng = seeded(11025)
    chat = """ok lol see you later tonight where are you im at home can we meet tomorrow call me when you get
    this love miss you happy birthday dinner mum dad work late bus train sorry cant talk now haha yes no maybe
    what time is the movie did you eat already going to sleep good morning how was your day class exam bring
    the book please thanks dear babe k wat u r gonna wanna dont know think so much nice one"""
    sell = """free win winner won prize cash claim call now txt text stop mobile urgent offer guaranteed reply
    award selected week customer service account draw tones ringtone voucher send to your number only live
    camera sms nokia bonus points expires valid chance collect"""
    chat, sell = chat.split(), sell.split()
    rows = []
    for _ in range(2600):
        spam = rng.random() < 0.14
        length = int(np.clip(rng.gamma(3, 8 if spam else 4), 2, 40))
        share = rng.beta(6, 4) if spam else rng.beta(1, 14)
        words = [str(rng.choice(sell if rng.random() < share else chat)) for _ in range(length)]
        if rng.random() < (0.7 if spam else 0.04):
            words.insert(int(rng.integers(len(words))), str(rng.integers(80000, 89999)))
        if rng.random() < (0.5 if spam else 0.02):
            words.insert(int(rng.integers(len(words))), f"£{rng.integers(1, 20) * 100}")
        text = " ".join(w.upper() if spam and rng.random() < 0.2 else w for w in words)
        rows.append((text + rng.choice(["", "", "!", "...", " :)"]), "spam" if spam else "ham"))
    return numbered(pl.DataFrame(rows, schema=["message", "kind"], orient="row"))


def catalogue_pairs():
    """The same product in two shops' catalogues: other orders of the words, abbreviations, missing parts."""
    rng = seeded(11027)
    brands = [
        "acme",
        "boltex",
        "corva",
        "delmar",
        "elko",
        "fenix",
        "gorani",
        "hexal",
        "ivara",
        "jotun",
        "kestrel",
        "lumen",
    ]
    kinds = ["cordless drill", "jigsaw", "angle grinder", "table lamp", "led strip", "garden hose", "wall paint", "router", "keyboard",
             "mouse", "coffee maker", "kettle", "blender", "toaster", "vacuum cleaner", "hair dryer"]  # fmt: skip
    colours = {
        "black": "blk",
        "white": "wht",
        "silver": "slv",
        "red": "red",
        "blue": "blu",
        "green": "grn",
    }
    units = [
        ("18v", "18 volt"),
        ("230v", "230 volt"),
        ("1.5l", "1.5 litre"),
        ("500ml", "500 millilitre"),
        ("5m", "5 metre"),
        ("10m", "10 metre"),
        ("2000w", "2000 watt"),
    ]
    rows = []
    for _ in range(3000):
        brand, kind, colour = rng.choice(brands), rng.choice(kinds), str(rng.choice([*colours]))
        unit = units[int(rng.integers(len(units)))]
        model = f"{rng.choice(list('abcdefgkmrstx'))}{rng.choice(list('abcdefgkmrstx'))}{rng.integers(10, 99)}"
        ours = [brand, kind, model, unit[0], colour]
        theirs = [
            brand if rng.random() < 0.85 else "",
            model if rng.random() < 0.7 else "",
            kind,
            colours[colour] if rng.random() < 0.8 else "",
            unit[1] if rng.random() < 0.7 else "",
        ]
        theirs = [theirs[i] for i in rng.permutation(5)] + [
            rng.choice(["new", "sale", "2 year warranty", "", ""])
        ]
        rows.append((_say(rng, ours), _say(rng, theirs)))
    return numbered(pl.DataFrame(rows, schema=["our_title", "their_title"], orient="row"))


def _pixels(values):
    return np.clip(np.rint(values), 0, 255).astype(np.uint8).ravel()


def castings():
    """Grey photographs of cast parts from above, 32 by 32: sound ones, and ones with a crack, holes or a chipped edge."""
    rng = seeded(11029)
    y, x = np.mgrid[:32, :32] - 15.5
    photos, names = [], []
    for _ in range(2000):
        kind = str(rng.choice(["ok", "crack", "holes", "chipped"], p=[0.55, 0.15, 0.17, 0.13]))
        cy, cx, radius = *rng.normal(0, 1, 2), rng.uniform(11, 13.5)
        far = np.hypot(y - cy, x - cx)
        picture = np.where(far < radius, rng.uniform(140, 180), rng.uniform(50, 80)) + rng.normal(
            0, 9, (32, 32)
        )
        picture[far < rng.uniform(2.5, 4)] = rng.uniform(60, 90)
        picture[np.abs(far - radius * 0.7) < 0.7] -= 22
        picture += rng.normal(0, 1.2) * x + rng.normal(0, 1.2) * y
        for _ in range(int(rng.integers(0, 3))):  # dust lies everywhere
            a, b = rng.uniform(-15, 15, 2)
            picture[(y - a) ** 2 + (x - b) ** 2 < 0.8] -= 40
        turn = rng.uniform(0, 2 * np.pi)
        if kind == "crack":
            u, v = x * np.cos(turn) + y * np.sin(turn), -x * np.sin(turn) + y * np.cos(turn)
            crack = (
                (np.abs(v - rng.uniform(-4, 4) - np.sin(u / 2) * 0.8) < 0.7)
                & (u > rng.uniform(2, 5))
                & (far < radius)
            )
            picture[crack] -= rng.uniform(30, 70)
        if kind == "holes":
            for _ in range(int(rng.integers(2, 6))):
                a, r = rng.uniform(0, 2 * np.pi), rng.uniform(5, 10)
                picture[
                    (y - cy - r * np.sin(a)) ** 2 + (x - cx - r * np.cos(a)) ** 2
                    < rng.uniform(1.5, 4)
                ] -= rng.uniform(35, 75)
        if kind == "chipped":
            a = rng.uniform(0, 2 * np.pi)
            picture[
                np.hypot(y - cy - radius * np.sin(a), x - cx - radius * np.cos(a))
                < rng.uniform(2.2, 4)
            ] = rng.uniform(50, 80)
        photos.append(_pixels(picture))
        names.append(kind)
    return numbered(pl.DataFrame({"photo": lists(photos, pl.UInt8), "defect": names}))


def chest_films():
    """Pictures like frontal chest films, 40 by 40, several of a patient: one in nine shows an opacity."""
    rng = seeded(11031)
    y, x = np.mgrid[:40, :40] - 19.5
    films, findings, patients, views = [], [], [], []
    for patient in range(900):
        wide, high, sick = rng.uniform(5.5, 7.5), rng.uniform(11, 14), rng.random() < 0.13
        for _ in range(int(rng.integers(1, 5))):
            shift, side = rng.normal(0, 1.2, 2), rng.choice(["PA", "AP"], p=[0.7, 0.3])
            film = 165 + 14 * np.cos(x / 9) + rng.normal(0, 2.5) * y / 4
            for s in (-1, 1):
                lung = ((x - shift[1] - s * 9) / wide) ** 2 + ((y - shift[0] + 1) / high) ** 2 < 1
                film[lung] -= 85
            film += 10 * (np.sin((y - shift[0]) * 1.6 + np.abs(x) / 4) > 0.6)
            film[(np.abs(x - shift[1]) < 2.2)] += 28
            film[((x - shift[1] - 3) / 6) ** 2 + ((y - shift[0] - 7) / 6) ** 2 < 1] += 45
            shows = sick and rng.random() < 0.85
            if shows:
                s, a, r = rng.choice([-1, 1]), rng.uniform(-7, 7), rng.uniform(2.5, 5)
                film += rng.uniform(25, 60) * np.exp(
                    -((x - shift[1] - s * 9) ** 2 + (y - shift[0] - a) ** 2) / r**2
                )
            film = (
                (film - 120) * rng.uniform(0.7, 1.2)
                + rng.uniform(105, 135)
                + (8 if side == "AP" else 0)
            )
            films.append(_pixels(film + rng.normal(0, 9, (40, 40))))
            findings.append(int(shows))
            patients.append(f"P{patient:04d}")
            views.append(str(side))
    return numbered(
        pl.DataFrame(
            {
                "film": lists(films, pl.UInt8),
                "view": views,
                "patient": patients,
                "opacity": findings,
            }
        )
    )


TOPICS = {
    "python": ["list comprehension", "virtualenv", "decorator", "traceback in python", "pip install fails", "python dict"],
    "pandas": ["groupby", "merge two dataframes", "pandas pivot", "fill nan in column", "dataframe index"],
    "sql": ["left join", "select distinct", "slow query", "group by having", "postgres index"],
    "javascript": ["promise", "async await", "undefined is not a function", "dom element", "event listener"],
    "css": ["flexbox", "center a div", "media query", "z-index", "grid layout"],
    "docker": ["dockerfile", "container exits", "docker compose", "mount a volume", "image size"],
    "git": ["merge conflict", "rebase", "undo last commit", "detached head", "submodule"],
    "regex": ["regular expression", "match group", "lookahead", "greedy match"],
}  # fmt: skip


def forum_questions():
    """Titles of questions with the tags that moderators gave, one to three of eight; some are forgotten."""
    rng = seeded(11033)
    names = [*TOPICS]
    near = {
        "python": "pandas",
        "pandas": "python",
        "javascript": "css",
        "css": "javascript",
        "docker": "git",
        "git": "docker",
        "sql": "pandas",
        "regex": "python",
    }
    opens = ["how to", "why does", "best way to", "cannot", "what is", "problem with", "error:", ""]
    ends = [
        "in production",
        "with large files",
        "on windows",
        "not working",
        "in a loop",
        "after update",
        "",
        "",
        "",
    ]
    rows = []
    for _ in range(3600):
        tags = [str(rng.choice(names, p=[0.24, 0.14, 0.15, 0.16, 0.1, 0.08, 0.09, 0.04]))]
        if rng.random() < 0.4:
            tags.append(near[tags[0]])
        if rng.random() < 0.08:
            tags.append(str(rng.choice(names)))
        tags = [*dict.fromkeys(tags)]
        phrases = [rng.choice(TOPICS[t]) for t in tags]
        title = _say(rng, [rng.choice(opens), " ".join(phrases), rng.choice(ends)])
        kept = [t for t in tags if rng.random() > 0.06] or tags[:1]
        rows.append((title, [int(t in kept) for t in names]))
    schema = {"title": pl.String, "tags": pl.List(pl.Int64)}
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def car_photos():
    """A damaged car's small colour photograph and what the policy tells of it: the cost of its repair."""
    rng = seeded(11035)
    y, x = np.mgrid[:24, :24] - 11.5
    photos, rows = [], []
    makes = ["vw", "opel", "bmw", "mercedes", "dacia", "tesla"]
    dear = dict(zip(makes, (0.0, -0.1, 0.35, 0.45, -0.35, 0.6), strict=True))
    for _ in range(2200):
        make = str(rng.choice(makes, p=[0.33, 0.22, 0.17, 0.14, 0.11, 0.03]))
        age, mileage = float(np.clip(rng.gamma(2, 3.5), 0, 25).round(1)), 0.0
        mileage = float((age * np.clip(rng.normal(13, 4), 2, 40)).round(1))
        photo = np.ones((24, 24, 3)) * rng.uniform(120, 190) + rng.normal(0, 8, (24, 24, 3))
        paint = rng.uniform(30, 220, 3)
        body = (np.abs(x) < 9) & (y > -3) & (y < 6) | (np.abs(x) < 5) & (y > -7) & (y <= -3)
        photo[body] = paint + rng.normal(0, 8, (body.sum(), 3))
        for s in (-5, 5):
            photo[(x - s) ** 2 + (y - 6.5) ** 2 < 5] = 25
        size = float(np.clip(rng.gamma(2.2, 1.1), 0.6, 7))
        a, b = rng.uniform(-8, 8), rng.uniform(-2, 5)
        dent = (((x - a) / size) ** 2 + ((y - b) / (0.6 * size)) ** 2 < 1) & body
        photo[dent] = paint * 0.45 + rng.normal(0, 14, (dent.sum(), 3))
        cost = 6.3 + 0.32 * size + dear[make] - 0.025 * age + rng.normal(0, 0.22)
        photos.append(_pixels(photo * rng.uniform(0.8, 1.15)))
        rows.append(
            (
                make,
                age,
                None if rng.random() < 0.07 else mileage,
                str(rng.choice(["garage", "street", "carport"])),
                float(np.exp(cost).round(0)),
            )
        )
    frame = pl.DataFrame(
        rows, schema=["make", "age", "mileage", "parked", "repair_cost"], orient="row"
    )
    return numbered(frame.with_columns(photo=lists(photos, pl.UInt8)))


def recipe_stars():
    """Stars from 1 to 5 that 500 cooks gave to 300 recipes; most cooks rate a few, some a hundred."""
    rng = seeded(11039)
    cooks, recipes = 500, 300
    p, q = rng.normal(0, 0.55, (cooks, 4)), rng.normal(0, 0.55, (recipes, 4))
    bu, bi = rng.normal(0, 0.35, cooks), rng.normal(0, 0.45, recipes)
    active = rng.dirichlet(np.full(cooks, 1.1))
    popular = 1 / np.arange(1, recipes + 1) ** 0.6
    pairs = {
        (int(u), int(i))
        for u, i in zip(
            rng.choice(cooks, 22000, p=active),
            rng.choice(recipes, 22000, p=popular / popular.sum()),
            strict=True,
        )
    }
    rows = []
    for u, i in sorted(pairs):
        stars = 3.9 + bu[u] + bi[i] + p[u] @ q[i] + rng.normal(0, 0.6)
        rows.append(
            (f"cook{u:04d}", f"r{(i * 7919) % 100003:06d}", int(np.clip(np.rint(stars), 1, 5)))
        )
    return numbered(
        pl.DataFrame(rows, schema=["cook", "recipe", "stars"], orient="row").sample(
            fraction=1.0, shuffle=True, seed=3
        )
    )
