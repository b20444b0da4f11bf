"""Datasets of the seventeenth list: pictures, sounds, clips, documents, code and questions."""

from datetime import datetime, timedelta

import numpy as np
import polars as pl

from examination.data import numbered, seeded


def galaxy_votes():
    """Survey pictures of galaxies with volunteers' votes: smooth, disc, or a star or artefact."""
    rng = seeded(17001)
    n, side = 2400, 24
    kind = rng.choice(3, n, p=[0.47, 0.43, 0.1])
    tilt = rng.uniform(0, np.pi, n)
    ratio = np.where(kind == 0, rng.uniform(0.65, 1.0, n), rng.uniform(0.3, 0.95, n))
    size = rng.uniform(2.6, 5.2, n)
    y, x = np.mgrid[:side, :side] - (side - 1) / 2
    pictures, chances = [], []
    for k in range(n):
        dx, dy = rng.normal(0, 0.8, 2)
        u = (x - dx) * np.cos(tilt[k]) + (y - dy) * np.sin(tilt[k])
        v = (-(x - dx) * np.sin(tilt[k]) + (y - dy) * np.cos(tilt[k])) / ratio[k]
        r, angle = np.hypot(u, v), np.arctan2(v, u)
        strength = 0.0
        if kind[k] == 0:
            light = np.exp(-1.7 * (r / size[k]) ** 0.6)
        elif kind[k] == 1:
            strength = rng.beta(2.0, 1.6)
            arms = np.cos(2 * angle - 1.1 * r + rng.uniform(0, 6.28))
            light = np.exp(-r / size[k]) * (0.55 + 0.45 * strength * arms) + 0.7 * np.exp(-(r**2))
        else:
            light = 1.6 * np.exp(-(r**2) / 2.2) + 0.5 * (np.abs(x - dx) < 0.7) * (
                rng.random() < 0.6
            )
        noise = rng.uniform(0.03, 0.11)
        seen = 190 * light + 255 * rng.normal(0, noise, light.shape) + 14
        pictures.append(seen.clip(0, 255).astype(np.uint8).reshape(-1).tolist())
        doubt = 0.05 + 1.2 * noise
        p = (
            [0.88, 0.08, 0.04]
            if kind[k] == 0
            else [0.62 - 0.6 * strength, 0.34 + 0.6 * strength, 0.04]
        )
        p = [0.1, 0.05, 0.85] if kind[k] == 2 else p
        p = (1 - doubt) * np.array(p) + doubt * np.array([0.6, 0.3, 0.1])
        chances.append(rng.dirichlet(40 * p))
    voters = np.where(rng.random(n) < 0.2, rng.integers(3, 8, n), rng.integers(15, 45, n))
    votes = [rng.multinomial(v, p).tolist() for v, p in zip(voters, chances, strict=True)]
    found = datetime(2023, 4, 1)
    return numbered(
        pl.DataFrame(
            {
                "object": [
                    f"J{a:06d}{b:+05d}"
                    for a, b in zip(
                        rng.integers(0, 240000, n), rng.integers(-9000, 9000, n), strict=True
                    )
                ],
                "stamp": pl.Series(pictures, dtype=pl.List(pl.UInt8)),
                "exposed": [found + timedelta(hours=int(h)) for h in rng.integers(0, 9000, n)],
                "votes": votes,
            }
        )
    )


def sung_notes():
    """Snippets of 512 samples at 8 kHz of singers, with the pitch from a laryngograph."""
    rng = seeded(17002)
    n, rate, length = 2600, 8000, 512
    singer = rng.integers(0, 26, n)
    voice = rng.uniform(0, 1, (26, 6)) + 0.15
    middle = rng.uniform(140, 330, 26)
    sounds, pitches = [], []
    t = np.arange(length) / rate
    for k in range(n):
        f0 = float(np.clip(middle[singer[k]] * 2 ** rng.normal(0, 0.4), 85, 680))
        glide = 2 ** (rng.normal(0, 0.02) * (t - t.mean()) / t.max())
        phase = 2 * np.pi * np.cumsum(f0 * glide) / rate
        wave = np.zeros(length)
        for h in range(1, 7):
            if h * f0 < rate / 2:
                wave += voice[singer[k], h - 1] / h**0.5 * np.sin(h * phase + rng.uniform(0, 6.28))
        wave *= 1 + 0.3 * np.sin(2 * np.pi * rng.uniform(3, 12) * t + rng.uniform(0, 6))
        wave += rng.normal(0, rng.uniform(0.02, 0.45), length)
        wave *= np.exp(rng.normal(0, 0.7)) / np.abs(wave).max()
        sounds.append((wave * 12000).clip(-32767, 32767).astype("<i2").tobytes())
        pitches.append(round(f0 * 2 ** rng.normal(0, 0.008), 2))
    return numbered(
        pl.DataFrame(
            {
                "singer": [f"voice-{s:02}" for s in singer],
                "microphone": rng.choice(["AT2020", "C414", None], n, p=[0.6, 0.35, 0.05]),
                "pcm": sounds,
                "hertz": pitches,
            }
        )
    )


_VERBS = {
    "get": ["return self . {a}", "return {a}", "return self . _{a}"],
    "set": [
        "self . {a} = {b}",
        "self . _{a} = value",
        "self . {a} = value ; self . changed = True",
    ],
    "is": ["return self . {a} == {b}", "return {a} is not None", "return self . {a} > 0"],
    "count": [
        "n = 0 ; for item in {a} : n += 1 ; return n",
        "return len ( self . {a} )",
        "return sum ( 1 for _ in {a} )",
    ],
    "find": [
        "for item in {a} : if item . {b} == key : return item",
        "return next ( x for x in self . {a} if x . {b} == key )",
    ],
    "add": [
        "self . {a} . append ( {b} )",
        "{a} . append ( item ) ; return {a}",
        "self . {a} [ key ] = {b}",
    ],
    "remove": [
        "self . {a} . pop ( {b} )",
        "del self . {a} [ {b} ]",
        "{a} . remove ( {b} ) ; return {a}",
    ],
    "load": [
        "with open ( path ) as f : return {a} . parse ( f )",
        "raw = open ( path ) . read ( ) ; self . {a} = decode ( raw )",
    ],
    "save": [
        "with open ( path , mode ) as f : f . write ( {a} )",
        "open ( path , mode ) . write ( encode ( self . {a} ) )",
    ],
    "check": [
        "if {a} is None : raise ValueError ( {b} )",
        "assert self . {a} > 0",
        "if not {a} : raise TypeError ( {b} )",
    ],
}
_NOUNS = [
    "user",
    "order",
    "price",
    "page",
    "node",
    "token",
    "buffer",
    "cursor",
    "row",
    "image",
    "weight",
    "owner",
    "label",
    "color",
    "parent",
    "socket",
    "header",
    "status",
    "limit",
    "query",
    "cache",
    "score",
    "batch",
    "frame",
    "layer",
    "ticket",
    "rule",
    "field",
    "zone",
    "route",
]
_BEFORE = [
    "log . debug ( {b} )",
    "self . lock . acquire ( )",
    "{b} = {b} or default",
    "total = 0",
    "start = time ( )",
    "if self . closed : return",
    "self . {b} . refresh ( )",
]


def _contexts(rng, tokens, keep):
    """Pairs of tokens with what lies between them in the tree, here the punctuation of the way."""
    places = [i for i, t in enumerate(tokens) if t.isidentifier() or t.startswith("_")]
    found = []
    for i, left in enumerate(places):
        for right in places[i + 1 : i + 4]:
            way = (
                "".join(t for t in tokens[left + 1 : right] if not t.isalpha() and t != ",")[:6]
                or "~"
            )
            keys = [t for t in tokens[left + 1 : right] if t in ("return", "for", "if", "in", "is")]
            found.append((tokens[left], "^".join([way, *keys]), tokens[right]))
    order = rng.permutation(len(found))[:keep]
    return [",".join(found[i]) for i in sorted(order)]


def code_methods():
    """Methods of many repositories as contexts of their tree, with the verb of their name."""
    rng = seeded(17003)
    chance = np.array([0.26, 0.16, 0.12, 0.08, 0.1, 0.1, 0.06, 0.05, 0.04, 0.03])
    verbs = list(_VERBS)
    found = []
    for _ in range(3200):
        verb = str(rng.choice(verbs, p=chance))
        body = []
        repository = int(rng.zipf(1.5)) % 90
        own = [_NOUNS[(repository * 7 + j) % 30] for j in range(9)]
        fill = {"a": str(rng.choice(own)), "b": str(rng.choice(own))}
        if rng.random() < 0.35:
            fill["a"] += "_" + str(rng.choice(["id", "list", "name", f"v{rng.integers(2, 40)}"]))
        for _ in range(int(rng.poisson(1.0))):
            body.append(str(rng.choice(_BEFORE)))
        shown = verb if rng.random() > 0.06 else str(rng.choice(verbs))  # a name that lies
        body.append(str(rng.choice(_VERBS[verb])))
        if rng.random() < 0.12:  # another thing is done on the way
            body.insert(0, str(rng.choice(_VERBS[str(rng.choice(verbs))])).replace("return", "_ ="))
        tokens = " ; ".join(body).format(**fill).split()
        contexts = _contexts(rng, tokens, 40) or [f"self,~,{fill['a']}"]
        found.append((f"repo{repository:02}", contexts, len(tokens), shown))
    names = ["repository", "contexts", "tokens", "verb"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


_PAINT = {
    "red": (205, 40, 45),
    "green": (45, 165, 70),
    "blue": (50, 75, 205),
    "yellow": (225, 205, 60),
}


def _drawn(shape, dy, dx, r):
    if shape == "circle":
        return dy**2 + dx**2 <= r * r
    if shape == "square":
        return np.maximum(np.abs(dy), np.abs(dx)) <= 0.85 * r
    return (dy <= 0.8 * r) & (2 * np.abs(dx) <= dy + r)


def shelf_questions():
    """Pictures of toys on a shelf with a question in words and its answer, in everyday spelling."""
    rng = seeded(17004)
    side, colors, shapes = 28, list(_PAINT), ["circle", "square", "triangle"]
    y, x = np.mgrid[:side, :side].astype(float)
    say = {
        "circle": ["circle", "ball", "disc"],
        "square": ["square", "box", "cube"],
        "triangle": ["triangle", "cone"],
    }
    found = []
    for _ in range(1300):
        canvas = np.full((side, side, 3), rng.uniform(120, 190)) + rng.normal(0, 9, (side, side, 3))
        canvas *= rng.uniform(0.85, 1.15)
        cells = rng.permutation(9)[: rng.integers(1, 5)]
        things = []
        for cell in cells:
            shape, color = str(rng.choice(shapes)), str(rng.choice(colors))
            cy, cx = (
                4.7 + 9.3 * (cell // 3) + rng.uniform(-0.6, 0.6),
                4.7 + 9.3 * (cell % 3) + rng.uniform(-0.6, 0.6),
            )
            inside = _drawn(shape, y - cy, x - cx, rng.uniform(3.0, 4.2))
            canvas[inside] = np.array(_PAINT[color]) * rng.uniform(0.8, 1.2) + rng.normal(
                0, 8, (inside.sum(), 3)
            )
            things.append((shape, color))
        photo = canvas.clip(0, 255).astype(np.uint8).transpose(2, 0, 1).tobytes()
        scene = f"scene-{rng.integers(10**9):09d}"
        for _ in range(3):
            kind = rng.choice(4, p=[0.35, 0.2, 0.25, 0.2])
            shape, color = things[rng.integers(len(things))]
            if kind == 0:
                if rng.random() < 0.5:
                    shape, color = str(rng.choice(shapes)), str(rng.choice(colors))
                word = rng.choice(say[shape])
                text = rng.choice(
                    [f"is there a {color} {word}", f"do you see any {color} {word} here"]
                )
                answer = "yes" if (shape, color) in things else "no"
            elif kind == 1:
                text, answer = (
                    rng.choice(["how many things are there", "count the toys"]),
                    str(len(things)),
                )
            elif kind == 2 and sum(s == shape for s, _ in things) == 1:
                text, answer = f"what color is the {rng.choice(say[shape])}", color
            elif sum(c == color for _, c in things) == 1:
                text, answer = f"what shape is the {color} {rng.choice(['thing', 'toy'])}", shape
            else:
                text, answer = f"is anything {color}", "yes"
                if rng.random() < 0.6:
                    color = str(rng.choice(colors))
                    text, answer = (
                        f"is anything {color}",
                        "yes" if color in {c for _, c in things} else "no",
                    )
            text = str(text).capitalize() if rng.random() < 0.7 else str(text)
            found.append((scene, photo, text + rng.choice(["?", "", " ?"]), answer))
    return numbered(
        pl.DataFrame(found, schema=["scene", "photo", "question", "answer"], orient="row")
    )


def clip_features():
    """Clips as features of a pretrained net, 24 bytes for each second, with a few tags each."""
    rng = seeded(17005)
    n, dim, tags = 2200, 24, 9
    centres = rng.normal(0, 1.0, (tags + 14, dim))
    spread = np.exp(-np.arange(dim) / 9)
    chance = np.array([0.34, 0.26, 0.2, 0.16, 0.13, 0.1, 0.08, 0.05, 0.04])
    names = ["game", "music", "car", "food", "dance", "guitar", "football", "garden", "train"]
    channel = rng.integers(0, 180, n)
    lean = rng.normal(0, 0.25, (180, dim))
    start = datetime(2022, 1, 3)
    videos, labels = [], []
    for k in range(n):
        has = np.flatnonzero(rng.random(tags) < chance)
        seconds = int(np.clip(rng.lognormal(3.0, 0.5), 5, 60))
        topic = np.full(seconds, -1)
        for t in has:
            long = max(2, int(seconds * rng.uniform(0.1, 0.4)))
            at = rng.integers(0, seconds - long + 1)
            topic[at : at + long] = t
        other = tags + rng.integers(0, 14, seconds // 5 + 1).repeat(5)[:seconds]
        scene = np.where(topic >= 0, topic, other)
        x = centres[scene] + lean[channel[k]] + rng.normal(0, 0.75, (seconds, dim))
        bytes_ = ((x * spread + 2.5) * 51).round().clip(0, 255).astype(np.uint8)
        videos.append(bytes_.tobytes())
        told = [t for t in np.unique(topic[topic >= 0]) if rng.random() > 0.05]
        labels.append([names[t] for t in rng.permutation(told)] if told else [])
    return numbered(
        pl.DataFrame(
            {
                "video": [f"{v:08x}" for v in rng.integers(0, 2**32, n)],
                "channel": [f"C{c:03}" for c in channel],
                "uploaded": [
                    start + timedelta(hours=int(h)) for h in np.sort(rng.integers(0, 17000, n))
                ],
                "rgb": videos,
                "tags": pl.Series(labels, dtype=pl.List(pl.String)),
            }
        )
    )


_STEPS = [
    ("read", "csv", "file", ["open", "csv_reader", "rows"]),
    ("write", "json", "file", ["open", "json_dump", "mode_w"]),
    ("sort", "list", "of dicts", ["sorted", "key_fn", "item"]),
    ("merge", "two dicts", "", ["dict_update", "copy"]),
    ("flatten", "nested list", "", ["extend", "isinstance_list", "recurse"]),
    ("download", "url", "", ["requests_get", "status_code", "content"]),
    ("parse", "date", "string", ["strptime", "format_str"]),
    ("count", "words", "in text", ["split_ws", "counter"]),
    ("resize", "image", "", ["pil_open", "resize_to", "size"]),
    ("hash", "password", "", ["sha256", "salt", "hexdigest"]),
    ("retry", "function", "on error", ["try_except", "sleep", "attempts"]),
    ("connect", "database", "", ["connect_db", "cursor"]),
    ("remove", "duplicates", "from list", ["seen_set", "append"]),
    ("split", "list", "into chunks", ["range_step", "slice"]),
    ("send", "email", "", ["smtp", "message", "sendmail"]),
    ("plot", "histogram", "", ["plt_hist", "bins", "show"]),
    ("walk", "directory", "", ["os_walk", "join_path"]),
    ("validate", "email address", "", ["re_match", "pattern_at"]),
    ("compute", "median", "of list", ["sorted", "len_half"]),
    ("reverse", "string", "", ["slice_neg", "join"]),
]
_EXTRAS = [
    ("skip the header", ["next_row"]),
    ("with a timeout", ["timeout_arg"]),
    ("in parallel", ["pool_map"]),
    ("ignoring case", ["lower"]),
    ("in reverse order", ["reverse_true"]),
    ("with utf8", ["encoding_utf8"]),
    ("and log errors", ["logger_error"]),
    ("lazily", ["yield_item"]),
    ("safely", ["lock_with"]),
    ("with a progress bar", ["tqdm"]),
    ("by column name", ["column_ix"]),
    ("using a temp file", ["tempfile"]),
]
_OTHER_WORDS = {
    "read": "load",
    "download": "fetch",
    "remove": "drop",
    "compute": "calculate",
    "send": "mail",
    "parse": "convert",
    "merge": "combine",
    "directory": "folder",
    "image": "picture",
    "list": "array",
    "string": "text",
    "function": "call",
    "error": "failure",
}


def answered_snippets():
    """Titles of questions with the snippet that was accepted; popular snippets answer several."""
    rng = seeded(17006)
    chance = 1 / (1 + np.arange(20)) ** 0.7
    noise = ["self", "args", "result", "return", "none", "print", "data", "value", "i", "x", "tmp"]
    asked = datetime(2019, 1, 1)
    known, found = [], []
    for _ in range(2600):
        if known and rng.random() < 0.22:
            verb, thing, more, extras, code = known[rng.integers(len(known))]
        else:
            verb, thing, more, base = _STEPS[rng.choice(20, p=chance / chance.sum())]
            extras = rng.choice(12, rng.integers(1, 4), replace=False).tolist()
            tokens = [*base, *(t for e in extras for t in _EXTRAS[e][1])]
            tokens += rng.choice(noise, rng.integers(2, 9)).tolist()
            tokens = [t for t in rng.permutation(tokens) if rng.random() > 0.08]
            code = " ".join(tokens) or "pass"
            known.append((verb, thing, more, extras, code))
        words = f"{rng.choice(['how to', 'python', '', 'best way to'])} {verb} {thing} {more}"
        words += " " + " ".join(_EXTRAS[e][0] for e in rng.permutation(extras))
        words = [_OTHER_WORDS.get(w, w) if rng.random() < 0.4 else w for w in words.split()]
        asked += timedelta(hours=float(rng.exponential(9)))
        title = " ".join(w for w in words if rng.random() > 0.06)
        found.append((asked, title or verb, code, int(rng.geometric(0.2))))
    names = ["asked", "title", "snippet", "votes"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


_SHOPS = [
    "Alder & Co",
    "Bakery Mill",
    "Corner Deli",
    "Dry Goods",
    "Eastside Books",
    "Fern Cafe",
    "Grand Hotel",
]
_GOODS = [
    "tea",
    "roll",
    "soap",
    "pen",
    "lamp",
    "room",
    "lunch",
    "map",
    "jam",
    "towel",
    "cake",
    "glue",
]


def scanned_receipts():
    """Receipts as words with their boxes in thousandths of the page, and what each word is."""
    rng = seeded(17007)
    shops = [str(rng.integers(10**5)) + "-" + s for s in _SHOPS for _ in range(8)]
    found = []
    for k in range(1500):
        shop = int(rng.integers(len(shops)))
        style = np.random.default_rng(shop)
        left, right = int(style.integers(60, 140)), int(style.integers(700, 850))
        date_first, words = bool(style.integers(2)), []

        def line(y, parts, words=words):
            for x, text, tag in parts:
                width = 9 * len(text) + 12
                box = np.array([x, y, x + width, y + 18]) + rng.integers(-6, 7, 4)
                words.append((text, box.clip(0, 1000).tolist(), tag))

        y = 40 + int(rng.integers(0, 60))
        x = 250 + int(style.integers(-80, 80))
        for part in shops[shop].split("-")[1].split():
            line(y, [(x, part.upper() if style.integers(2) else part, "vendor")])
            x += 11 * len(part) + 20
        day = datetime(2021, 1, 1) + timedelta(days=int(rng.integers(0, 1200)))
        form = ["%d.%m.%Y", "%Y-%m-%d", "%m/%d/%y"][style.integers(3)]
        dated = [(right - 120 if style.integers(2) else left, day.strftime(form), "date")]
        y += 45
        if date_first:
            line(y, dated)
            y += 40
        total = 0.0
        for _ in range(int(rng.integers(1, 6))):
            price = round(float(rng.gamma(2.0, 4.0)) + 0.5, 2)
            total += price
            name = str(rng.choice(_GOODS))
            line(y, [(left, name, "other"), (right, f"{price:.2f}", "other")])
            y += int(rng.integers(26, 34))
        tax = round(total * 0.19 / 1.19, 2)
        rest = [
            ("total", total, "total"),
            ("tax", tax, "other"),
            ("cash", np.ceil(total / 5) * 5, "other"),
        ]
        if style.integers(2):  # the net sum stands above
            rest.insert(0, ("subtotal", total - tax, "other"))
        order = style.permutation(len(rest)) if style.random() < 0.3 else range(len(rest))
        for j in order:
            name, amount, tag = rest[j]
            name = {"total": str(style.choice(["total", "sum", "due"]))}.get(name, name)
            if rng.random() < 0.06:
                name = name[:-1] + str(rng.choice(list("aeil1t")))
            line(y, [(left, name, "other"), (right, f"{amount:.2f}", tag)])
            y += int(rng.integers(28, 40))
        if not date_first:
            line(y + 10, dated)
        if rng.random() < 0.4:
            line(y + 60, [(left + 60, "thank", "other"), (left + 140, "you", "other")])
        if rng.random() < 0.5:  # engines read in columns, too
            words.sort(key=lambda w: (w[1][0] // 400, w[1][1]))
        texts, boxes, tags = map(list, zip(*words, strict=True))
        found.append((f"doc{k:05}", shops[shop], texts, boxes, tags))
    names = ["document", "vendor_key", "words", "boxes", "tags"]
    return numbered(pl.DataFrame(found, schema=names, orient="row"))


def overlapping_callers():
    """Two callers in one recording at 2 kHz, and what each said alone, in no particular order."""
    rng = seeded(17008)
    n, length, rate = 1200, 400, 2000
    t = np.arange(length) / rate
    pitch = np.exp(rng.uniform(np.log(85), np.log(290), 40))
    timbre = rng.dirichlet(np.ones(5) * 1.5, 40)
    rows = []
    for _ in range(n):
        pair = rng.choice(40, 2, replace=False)
        voices = []
        for who in pair:
            f0 = pitch[who] * 2 ** rng.normal(0, 0.05)
            drift = f0 * (1 + 0.04 * np.sin(2 * np.pi * rng.uniform(2, 6) * t + rng.uniform(0, 6)))
            phase = 2 * np.pi * np.cumsum(drift) / rate
            wave = sum(
                timbre[who, h - 1] * np.sin(h * phase + rng.uniform(0, 6.28))
                for h in range(1, 6)
                if h * f0 < 950
            )
            starts, ends = np.sort(rng.uniform(0, 0.2, 2))
            if ends - starts < 0.06:
                starts, ends = 0.02, 0.15
            gate = 1 / (1 + np.exp(-(t - starts) / 0.004)) / (1 + np.exp((t - ends) / 0.004))
            wave = wave * gate * np.exp(rng.normal(0, 0.25))
            voices.append(wave / max(wave.std(), 1e-6) * 10 ** (rng.uniform(-2.5, 2.5) / 20))
        heard = sum(voices) + rng.normal(0, 0.02, length)
        gain = 10 ** rng.uniform(-1.5, -0.5) / 3
        spoken = [np.round(v * gain, 4).astype(np.float32).tolist() for v in voices]
        rows.append(
            (
                f"L{rng.integers(1, 31):02}",
                np.round(heard * gain, 4).astype(np.float32).tolist(),
                spoken,
            )
        )
    schema = {
        "line": pl.String,
        "mixture": pl.List(pl.Float32),
        "sources": pl.List(pl.List(pl.Float32)),
    }
    return numbered(pl.DataFrame(rows, schema=schema, orient="row"))


def _cloth(rng, bands, y, x):
    """A photograph of a cloth by its bands: turned and shifted a little, under another lamp."""
    turn, sy, sx = rng.normal(0, 0.09), *rng.uniform(0, 20, 2)
    zoom = np.exp(rng.normal(0, 0.05))
    u = zoom * (np.cos(turn) * x - np.sin(turn) * y) + sx
    v = zoom * (np.sin(turn) * x + np.cos(turn) * y) + sy
    light = np.zeros_like(u)
    for fy, fx, strength, edge in bands:
        wave = np.sin(fy * v + fx * u)
        light += strength * (np.tanh(3 * wave) if edge else wave)
    slope = rng.normal(0, 0.02, 2)
    light = light * np.exp(rng.normal(0, 0.2)) + slope[0] * y + slope[1] * x
    seen = rng.uniform(95, 160) + 38 * light + rng.normal(0, rng.uniform(4, 16), light.shape)
    return seen.clip(0, 255).astype(np.uint8).reshape(-1).tolist()


def fabric_pairs():
    """Bolts of cloth, each photographed twice by a camera at the door, grey, 26 pixels a side."""
    rng = seeded(17009)
    y, x = np.mgrid[:26, :26].astype(float)
    found = []
    arrived = datetime(2024, 2, 1)
    for _ in range(1800):
        angle, step = rng.uniform(0, np.pi), rng.uniform(0.35, 1.3)
        bands = [
            (step * np.sin(angle), step * np.cos(angle), rng.uniform(0.5, 1.0), rng.random() < 0.4)
        ]
        if rng.random() < 0.75:
            second, other = (
                angle + rng.choice([np.pi / 2, rng.uniform(0.4, 2.7)]),
                rng.uniform(0.35, 1.5),
            )
            bands.append(
                (
                    other * np.sin(second),
                    other * np.cos(second),
                    rng.uniform(0.3, 1.0),
                    rng.random() < 0.4,
                )
            )
        front, back = _cloth(rng, bands, y, x), _cloth(rng, bands, y, x)
        arrived += timedelta(hours=float(rng.exponential(5)))
        found.append(
            (
                arrived,
                str(rng.choice(["mill A", "mill B", "import"], p=[0.5, 0.3, 0.2])),
                front,
                back,
            )
        )
    photo = pl.List(pl.UInt8)
    schema = {"arrived": pl.Datetime("us"), "origin": pl.String, "front": photo, "back": photo}
    return numbered(pl.DataFrame(found, schema=schema, orient="row"))
