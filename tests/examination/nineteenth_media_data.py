"""Datasets of the nineteenth list: pictures, signals, sequences, graphs and pairs."""

from itertools import pairwise

import numpy as np
import polars as pl

from examination.data import numbered, seeded

FLOATS = pl.List(pl.Float32)


def grid_disturbances():
    """Ten cycles of mains voltage at 800 Hz from several substations, with the disturbance."""
    rng = seeded(19001)
    n, length = 1600, 160
    names = ["normal", "sag", "swell", "harmonics", "flicker", "transient"]
    kind = rng.choice(6, n, p=[0.3, 0.2, 0.12, 0.16, 0.12, 0.1])
    site = rng.choice(["elm", "fen", "hay", "oak", "pit"], n, p=[0.3, 0.25, 0.2, 0.15, 0.1])
    rated = np.where(np.isin(site, ["elm", "hay"]), 230.0, 120.0)
    t = np.arange(length) / 800
    waves = []
    for k in range(n):
        phase, amount = rng.uniform(0, 2 * np.pi), rng.uniform(0.1, 0.5)
        angle = 2 * np.pi * (50 + rng.normal(0, 0.05)) * t + phase
        size = np.full(length, rng.normal(1.0, 0.02))
        begin = rng.integers(-80, 100)
        inside = (np.arange(length) >= begin) & (np.arange(length) < begin + rng.integers(80, 240))
        if names[kind[k]] == "sag":
            size = np.where(inside, size - amount, size)
        if names[kind[k]] == "swell":
            size = np.where(inside, size + 0.8 * amount, size)
        if names[kind[k]] == "flicker":
            size = size + 0.2 * amount * np.sin(2 * np.pi * rng.uniform(6, 14) * t + phase * 3)
        wave = size * np.sin(angle)
        if names[kind[k]] == "harmonics":
            for order in rng.choice([3, 5, 7], 2, replace=False):
                wave += 0.25 * amount * np.sin(order * angle + rng.uniform(0, 6.28))
        if names[kind[k]] == "transient":
            at = rng.uniform(0.01, 0.18)
            ring = np.where(t > at, np.exp(-(t - at).clip(0) * rng.uniform(80, 300)), 0)
            wave += 1.6 * amount * ring * np.sin(2 * np.pi * rng.uniform(180, 360) * (t - at))
        volts = np.sqrt(2) * rated[k] * (wave + rng.normal(0, rng.choice([0.01, 0.03]), length))
        waves.append(np.round(volts, 1).astype(np.float32).tolist())
    slips = rng.random(n) < 0.01
    label = np.where(slips, 0, kind)
    return numbered(
        pl.DataFrame(
            {
                "site": site,
                "rated_volts": rated,
                "volts": pl.Series(waves, dtype=FLOATS),
                "disturbance": [names[each] for each in label],
            }
        )
    )


def promoter_windows():
    """Windows of 90 bases: 1 if a promoter lies in them, on either strand; some bases unread."""
    rng = seeded(19002)
    n, length = 2800, 90
    other = {"A": "T", "C": "G", "G": "C", "T": "A", "N": "N"}
    texts, labels = [], []
    for _ in range(n):
        gc = rng.uniform(0.35, 0.6)
        share = [(1 - gc) / 2, gc / 2, gc / 2, (1 - gc) / 2]
        bases = rng.choice(list("ACGT"), length, p=share)
        is_promoter = rng.random() < 0.42
        at = rng.integers(4, 40)
        box = [b if rng.random() < 0.97 else rng.choice(list("ACGT")) for b in "TATAAT"]
        begin = [b if rng.random() < 0.97 else rng.choice(list("ACGT")) for b in "TTGACA"]
        gap = 6 + int(rng.integers(16, 19)) if is_promoter else int(rng.integers(7, 45))
        if is_promoter or rng.random() < 0.2:  # a decoy has only one box, or both at any distance
            bases[at : at + 6] = begin
        if is_promoter or rng.random() < 0.2:
            bases[at + gap : at + gap + 6] = box[: max(0, min(6, length - at - gap))]
        bases[rng.random(length) < rng.choice([0, 0.02], p=[0.8, 0.2])] = "N"
        text = "".join(bases)
        if rng.random() < 0.5:
            text = "".join(other[b] for b in reversed(text))
        texts.append(text.lower() if rng.random() < 0.1 else text)
        labels.append(int(is_promoter))
    return numbered(
        pl.DataFrame(
            {
                "organism": rng.choice(["b_subtilis", "e_coli", "p_putida"], n, p=[0.3, 0.5, 0.2]),
                "window": texts,
                "promoter": labels,
            }
        )
    )


def _outline(kind, rng):
    """Corners of a drawn sign, in the order of the pen, with where the pen is lifted."""
    turn = np.linspace(0, 2 * np.pi, 14) + rng.uniform(0, 6.28)
    if kind == "circle":
        return np.stack([np.cos(turn), np.sin(turn)], 1), ()
    if kind == "spiral":
        t = np.linspace(0, 4 * np.pi, 26)
        return np.stack([t * np.cos(t), t * np.sin(t)], 1) / 12, ()
    corners = {
        "square": [(-1, -1), (1, -1), (1, 1), (-1, 1), (-1, -1)],
        "triangle": [(-1, -0.8), (1, -0.8), (0, 1), (-1, -0.8)],
        "zigzag": [(-1.2, 0), (-0.7, 0.7), (-0.2, -0.6), (0.3, 0.7), (0.8, -0.6), (1.2, 0.2)],
        "arrow_left": [(1, 0), (-1, 0), (-0.4, 0.6), (-1, 0), (-0.4, -0.6)],
        "arrow_right": [(-1, 0), (1, 0), (0.4, 0.6), (1, 0), (0.4, -0.6)],
        "cross": [(-0.8, -0.8), (0.8, 0.8), (-0.8, 0.8), (0.8, -0.8)],
    }[kind]
    corners = corners if rng.random() < 0.6 or "arrow" in kind else corners[::-1]
    return np.array(corners, dtype=float), (1,) if kind == "cross" else ()


def pen_sketches():
    """Signs drawn on tablets: offsets of the pen from point to point, and where it is lifted."""
    rng = seeded(19003)
    n = 1500
    kinds = ["circle", "spiral", "square", "triangle", "zigzag"]
    kinds += ["arrow_left", "arrow_right", "cross"]
    drawn, right, up, lifted = rng.choice(kinds, n), [], [], []
    app = rng.choice(["web", "tablet", "board"], n, p=[0.5, 0.35, 0.15])
    for k in range(n):
        corners, lifts = _outline(drawn[k], rng)
        points, pen = [corners[0]], [0]
        for j in range(1, len(corners)):
            count = max(1, int(np.hypot(*(corners[j] - corners[j - 1])) * rng.uniform(2.5, 6)))
            for s in range(1, count + 1):
                points.append(corners[j - 1] + (corners[j] - corners[j - 1]) * s / count)
                pen.append(int(s == count and j in lifts))
        path = np.array(points) * rng.uniform(0.6, 1.4) * np.array([1, rng.uniform(0.7, 1.3)])
        tilt = rng.normal(0, 0.15)
        path = path @ np.array([[np.cos(tilt), -np.sin(tilt)], [np.sin(tilt), np.cos(tilt)]])
        path = 90 * path + rng.normal(0, 5, path.shape)
        step = np.round(np.diff(path, axis=0)).astype(int)
        right.append(step[:, 0].tolist())
        up.append(step[:, 1].tolist())
        lifted.append(pen[1:])
    ints = pl.List(pl.Int32)
    return numbered(
        pl.DataFrame(
            {
                "app": app,
                "right": pl.Series(right, dtype=ints),
                "up": pl.Series(up, dtype=ints),
                "lifted": pl.Series(lifted, dtype=ints),
                "sign": drawn,
            }
        )
    )


def radio_captures():
    """Pieces of 96 samples, I and Q in turn, of captures of radio stations; their modulation."""
    rng = seeded(19004)
    kinds = {
        "bpsk": np.array([-1, 1], dtype=complex),
        "qpsk": np.exp(1j * np.pi * (0.25 + 0.5 * np.arange(4))),
        "pam4": np.array([-3, -1, 1, 3], dtype=complex) / 2.24,
        "qam16": (np.arange(4)[:, None] * 2 - 3 + 1j * (np.arange(4) * 2 - 3)).ravel() / 3.16,
        "gfsk": None,
    }
    pieces, capture, snr, label = [], [], [], []
    for c in range(220):
        name = list(kinds)[c % 5]
        level, decibels = rng.lognormal(0, 0.8), rng.uniform(4, 20)
        drift, offset = rng.normal(0, 0.006), rng.uniform(0, 2 * np.pi)
        shape = np.hanning(10) if rng.random() < 0.5 else np.ones(8)
        for _ in range(rng.integers(5, 11)):
            if kinds[name] is None:
                bits = np.convolve(rng.choice([-1, 1], 16).repeat(8), np.hanning(8) / 4, "same")
                base = np.exp(1j * np.cumsum(bits * 0.35))[8:104]
            else:
                spikes = np.zeros(144, dtype=complex)
                spikes[::8] = rng.choice(kinds[name], 18)
                base = np.convolve(spikes, shape / 1.2, "same")[
                    (d := rng.integers(16, 32)) : d + 96
                ]
            wave = base * np.exp(1j * (offset + 2 * np.pi * drift * np.arange(96)))
            noise = 10 ** (-decibels / 20) * np.sqrt(0.5)
            wave = level * (wave + noise * (rng.normal(size=96) + 1j * rng.normal(size=96)))
            both = np.stack([wave.real, wave.imag], 1)
            pieces.append(np.round(both, 4).astype(np.float32).reshape(-1).tolist())
            capture.append(f"cap{c:03d}")
            snr.append(round(decibels, 1))
            label.append(name)
    frame = pl.DataFrame(
        {
            "capture": capture,
            "snr_db": snr,
            "iq": pl.Series(pieces, dtype=FLOATS),
            "modulation": label,
        }
    )
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=4))


def knitting_patterns():
    """Short knitting patterns as they are typed: yarn, stitches cast on, and rows that add up."""
    rng = seeded(19005)
    texts = []
    for _ in range(1100):
        yarn = rng.choice(["lace", "dk", "aran", "chunky"], p=[0.15, 0.4, 0.3, 0.15])
        size = {"lace": 3, "dk": 4, "aran": 5, "chunky": 8}[yarn] + int(rng.random() < 0.15)
        unit = [(2, 2), (1, 1), (3, 1), (4, 2)][rng.integers(4)]
        repeats = int(rng.integers(2, 6))
        text = [yarn, "needle", size, "cast", "on", sum(unit) * repeats, ";"]
        body = rng.choice(["rib", "garter", "stocking"], p=[0.5, 0.25, 0.25])
        for row in range(1, int(rng.integers(3, 6)) + 1):
            text += ["row", row, ":"]
            if body == "rib":
                text += ["k", unit[0], "p", unit[1]] * repeats
            elif body == "garter" or row % 2:
                text += ["k", "all"]
            else:
                text += ["p", "all"]
            if rng.random() < 0.12:
                text += [rng.choice(["turn", "place", "slip"]), rng.choice(["marker", "one"])]
            text += [";"]
        text += ["bind", "off"] if rng.random() < 0.9 else ["bind", "off", "loosely"]
        texts.append(" ".join(str(each) for each in text))
    return numbered(pl.DataFrame({"pattern": texts}))


KANA = {
    "": "あいうえお",
    "k": "かきくけこ",
    "s": "さしすせそ",
    "t": "たちつてと",
    "n": "なにぬねの",
    "h": "はひふへほ",
    "m": "まみむめも",
    "r": "らりるれろ",
    "g": "がぎぐげご",
    "b": "ばびぶべぼ",
}
IRREGULAR = {"si": "shi", "ti": "chi", "tu": "tsu", "hu": "fu"}


def kana_words():
    """Words in kana and in Latin letters (Hepburn): doubled consonants, n before b, long o."""
    rng = seeded(19006)
    heads, found = list(KANA), {}
    while len(found) < 2200:
        kana, latin = "", ""
        double = False
        for at in range(int(rng.integers(2, 7))):
            head = heads[rng.choice(10, p=[0.12] + [0.88 / 9] * 9)]
            vowel = int(rng.choice(5, p=[0.28, 0.22, 0.16, 0.12, 0.22]))
            sound = head + "aiueo"[vowel]
            sound = IRREGULAR.get(sound, sound)
            if head in ("k", "s", "t") and at and latin[-1] in "aiueo" and rng.random() < 0.15:
                kana, double = kana + "っ", True
            if double:
                sound = "t" + sound if sound.startswith("ch") else sound[0] + sound
            double = False
            if kana.endswith("ん") and sound[0] in "bm":
                latin = latin[:-1] + "m"
            elif kana.endswith("ん") and sound[0] in "aiueo":
                latin += "'"
            kana, latin = kana + KANA[head][vowel], latin + sound
            if vowel == 4 and rng.random() < 0.2:
                kana, latin = kana + "う", latin[:-1] + "ō"
            elif rng.random() < 0.12:
                kana, latin = kana + "ん", latin + "n"
        found[kana] = latin
    return numbered(pl.DataFrame({"kana": list(found), "romaji": list(found.values())}))


WORDS = {
    "DET": ["the", "a", "every", "this"],
    "ADJ": ["old", "small", "red", "quiet", "broken"],
    "NOUN": ["dog", "teacher", "garden", "letter", "boat", "hill", "neighbour", "window", "key"],
    "VERB": ["saw", "found", "painted", "left", "opened", "followed"],
    "ADV": ["slowly", "yesterday", "twice"],
}


def _sentence(rng):
    """Words, tags and heads; a phrase with `of` belongs to its noun, one with `at` to the verb."""
    words, tags, heads = [], [], []

    def add(tag, head, word=None):
        words.append(word or str(rng.choice(WORDS[tag])))
        tags.append(tag)
        heads.append(head)
        return len(words) - 1

    def noun(head, depth=0):
        before = [add("DET", None)] if rng.random() < 0.8 else []
        before += [add("ADJ", None) for _ in range(rng.poisson(0.4))]
        at = add("NOUN", head)
        for each in before:
            heads[each] = at
        if depth < 2 and rng.random() < 0.3:
            phrase(at, rng.choice(["of", "with", "in"], p=[0.6, 0.2, 0.2]), depth)
        return at

    def phrase(head, word, depth):
        at = add("ADP", head, str(word))
        noun(at, depth + 1)

    subject = noun(None)
    verb = add("VERB", -1)
    heads[subject] = verb
    if rng.random() < 0.75:
        noun(verb)
    if rng.random() < 0.45:
        phrase(verb, rng.choice(["at", "with", "in"], p=[0.6, 0.2, 0.2]), 0)
    if rng.random() < 0.3:
        add("ADV", verb)
    return [words[0].capitalize(), *words[1:]], tags, heads


def parser_steps():
    """States of an arc-standard parser with the step that leads to the right tree."""
    rng = seeded(19007)
    rows = []
    for number in range(170):
        words, tags, heads = _sentence(rng)
        left = [heads.count(i) for i in range(len(words))]
        stack, buffer = [-1], list(range(len(words)))
        while buffer or len(stack) > 1:
            step = "shift"
            if len(stack) > 1:
                top, below = stack[-1], stack[-2]
                if below >= 0 and heads[below] == top and not left[below]:
                    step = "left_arc"
                elif heads[top] == below and not left[top]:
                    step = "right_arc"
            named = [["ROOT" if i < 0 else w[i] for i in stack] for w in (words, tags)]
            waiting = [[w[i] for i in buffer] for w in (words, tags)]
            rows.append((f"s{number:03d}", *named, *waiting, step))
            if step == "shift":
                stack.append(buffer.pop(0))
            else:
                gone = stack.pop(-2 if step == "left_arc" else -1)
                if heads[gone] >= 0:
                    left[heads[gone]] -= 1
    names = ["sentence", "stack", "stack_tags", "buffer", "buffer_tags", "step"]
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def hummed_songs():
    """Melodies and how people hum them: another key and tempo, slides, breaths without a pitch."""
    rng = seeded(19008)
    songs = []
    for _ in range(260):
        moves = rng.choice(
            [-5, -3, -2, -1, 0, 1, 2, 4, 7],
            12,
            p=[0.05, 0.1, 0.2, 0.13, 0.1, 0.14, 0.15, 0.08, 0.05],
        )
        notes = np.clip(60 + np.cumsum(moves), 48, 76)
        songs.append((notes, rng.choice([1, 2, 4], 12, p=[0.4, 0.45, 0.15])))
    liked = 1 / (1 + np.arange(260)) ** 0.5
    which = rng.choice(260, 1700, p=liked / liked.sum())
    hums, melodies = [], []
    for song in which:
        notes, beats = songs[song]
        rate = rng.uniform(1.6, 2.4)
        sung = notes + rng.choice([-2, 0, 2], 12, p=[0.1, 0.8, 0.1])  # not every note is hit
        frames = np.repeat(sung, np.maximum(1, np.rint(beats * rate)).astype(int)).astype(float)
        frames = np.convolve(np.pad(frames, 1, "edge"), [0.2, 0.6, 0.2], "valid")
        frames += rng.normal(0, 4) + np.cumsum(rng.normal(0, 0.15, len(frames)))
        frames += rng.normal(0, 0.6, len(frames))
        frames[rng.random(len(frames)) < 0.06] = np.nan
        hums.append([None if np.isnan(f) else round(float(f), 2) for f in frames[:64]])
        melodies.append(np.repeat(notes, beats).tolist())
    return numbered(
        pl.DataFrame(
            {
                "song": [f"song{s:03d}" for s in which],
                "singer": rng.choice([f"u{u:02d}" for u in range(40)], 1700),
                "hum": pl.Series(hums, dtype=FLOATS),
                "melody": pl.Series(melodies, dtype=pl.List(pl.Int16)),
            }
        )
    )


def _ground(rng, height, width):
    """A random texture at three scales."""
    total = np.zeros((height, width))
    for cell, size in ((2, 1.0), (4, 1.2), (8, 0.8)):
        grid = rng.normal(size=(height // cell + 2, width // cell + 2))
        total += size * grid.repeat(cell, 0).repeat(cell, 1)[:height, :width]
    return total


def stereo_patches():
    """Left and right patches of rectified cameras on two rigs; by how many pixels they differ."""
    rng = seeded(19009)
    n, height, width = 1400, 16, 32
    left, right, shifts = [], [], rng.gamma(2.6, 1.25, n).clip(0.2, 8.5)
    rig = rng.choice(["north", "south"], n, p=[0.6, 0.4])
    for shift in shifts:
        scene = 26 * _ground(rng, height, 4 * 56).cumsum(axis=1) / 6
        scene = scene - np.convolve(scene.mean(0), np.ones(33) / 33, "same")
        at = 4 * np.arange(width)[None] + 48
        pair = []
        for moved in (
            0.0,
            float(shift),
        ):  # what lies at x on the left lies at x - shift on the right
            x = (at + 4 * moved).repeat(height, 0)
            low = x.astype(int)
            rows_at = np.arange(height)[:, None]
            part = x - low
            view = scene[rows_at, low] * (1 - part) + scene[rows_at, low + 1] * part
            view = 120 + rng.normal(0, 8) + rng.uniform(0.8, 1.2) * view
            view += rng.normal(0, rng.choice([4, 12]), view.shape)
            pair.append(view.clip(0, 255).astype(np.uint8).reshape(-1).tolist())
        left.append(pair[0])
        right.append(pair[1])
    measured = shifts + rng.normal(0, 0.08, n)
    return numbered(
        pl.DataFrame(
            {
                "rig": rig,
                "left": pl.Series(left, dtype=pl.List(pl.UInt8)),
                "right": pl.Series(right, dtype=pl.List(pl.UInt8)),
                "shift": np.round(measured, 2),
            }
        )
    )


def retina_scans():
    """Cross-sections of the retina, 32 x 36; its surface's depth in each column, in micrometres."""
    rng = seeded(19010)
    n, height, width = 900, 32, 36
    x, z = np.arange(width), np.arange(height)[:, None]
    scans, depths, spacing, device = [], [], [], []
    for _ in range(n):
        which = rng.choice(["spectral", "swept", "handheld"], p=[0.5, 0.3, 0.2])
        unit = {"spectral": 12.0, "swept": 9.5, "handheld": 15.0}[which]
        slope, pit = rng.normal(0, 0.12), rng.uniform(0, 5)
        surface = rng.uniform(6, 15) + slope * (x - 18)
        surface = surface + pit * np.exp(-((x - rng.uniform(6, 30)) ** 2) / rng.uniform(10, 50))
        surface = surface.clip(1, 24)
        below = z - surface
        picture = 30 + 75 * (below > 0) * np.exp(-below.clip(0) / 9)
        picture += 90 * np.exp(-((below - rng.uniform(6, 10)) ** 2) / 1.5)  # a brighter layer below
        picture += rng.uniform(0, 50) * np.exp(-((z - surface / rng.uniform(2, 4)) ** 2) / 2)
        for start in rng.integers(0, width, rng.poisson(1.2)):
            picture[:, start : start + 3] *= rng.uniform(0.3, 0.6)
        picture *= rng.gamma(6, 1 / 6, picture.shape)
        depth = surface * unit + rng.normal(0, 2, width)
        missing = np.zeros(width, dtype=bool)
        if rng.random() < 0.5:
            start = rng.integers(0, width - 6)
            missing[start : start + rng.integers(4, 14)] = True
        scans.append(picture.clip(0, 255).astype(np.uint8).reshape(-1).tolist())
        depths.append(np.where(missing, -1, np.round(depth, 1)).tolist())
        spacing.append(unit)
        device.append(which)
    return numbered(
        pl.DataFrame(
            {
                "device": device,
                "um_per_pixel": spacing,
                "scan": pl.Series(scans, dtype=pl.List(pl.UInt8)),
                "surface_um": pl.Series(depths, dtype=FLOATS),
            }
        )
    )


def symbol_episodes():
    """Five symbols of one alphabet, each written twice, and a sixth drawing of one of them."""
    rng = seeded(19011)
    side = 14
    y, x = np.mgrid[:side, :side]

    def write(strokes):
        turn, move = rng.normal(0, 0.22), rng.normal(0, 1.1, 2)
        spin = np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        picture = np.zeros((side, side))
        for stroke in strokes:
            line = (stroke + rng.normal(0, 0.7, stroke.shape)) @ spin + move + (side - 1) / 2
            for a, b in pairwise(line):
                along = np.linspace(0, 1, 12)[:, None]
                for px, py in a + (b - a) * along:
                    picture = np.maximum(picture, np.exp(-((x - px) ** 2 + (y - py) ** 2) / 0.7))
        return (255 * picture).astype(np.uint8)

    alphabets = []
    for _ in range(36):
        reach = rng.uniform(3.2, 4.8)
        symbols = [
            [rng.uniform(-reach, reach, (rng.integers(2, 5), 2)) for _ in range(rng.integers(1, 4))]
            for _ in range(12)
        ]
        alphabets.append([[write(symbol) for _ in range(12)] for symbol in symbols])
    rows = []
    for _ in range(1300):
        which = int(rng.integers(36))
        chosen = rng.choice(12, 5, replace=False)
        right = int(rng.integers(5))
        support = [alphabets[which][c][d] for c in chosen for d in rng.choice(12, 3, replace=False)]
        query = alphabets[which][chosen[right]][rng.integers(12)]
        shown = np.stack([s for i, s in enumerate(support) if i % 3 != 2]).reshape(-1)
        rows.append((f"alphabet{which:02d}", shown.tolist(), query.reshape(-1).tolist(), right))
    frame = pl.DataFrame(
        rows,
        orient="row",
        schema={
            "alphabet": pl.String,
            "support": pl.List(pl.UInt8),
            "query": pl.List(pl.UInt8),
            "match": pl.Int64,
        },
    )
    return numbered(frame)


def solar_cells():
    """Cells of solar panels under current, 24 x 24: busbars, shading, cracks and dead corners."""
    rng = seeded(19012)
    side = 24
    y, x = np.mgrid[:side, :side]
    pictures, makers = [], []
    for _ in range(1300):
        maker = rng.choice(["helio", "sunlab"], p=[0.65, 0.35])
        bars = (4, 12, 20) if maker == "helio" else (7, 16)
        glow = rng.uniform(110, 190) + rng.normal(0, 2.5) * (x - 12) + rng.normal(0, 2.5) * (y - 12)
        glow = glow - 22 * np.cos(2 * np.pi * (y + rng.uniform(0, 8)) / 8)
        slope, start = rng.uniform(-1.5, 1.5), rng.uniform(2, 22)
        if rng.random() < 0.5:
            crack = y - start - slope * (x - 12)
            glow[crack > 0] *= rng.uniform(0.5, 0.95)
            glow[np.abs(crack) < 0.9] *= 0.4
        for bar in bars:
            glow[:, bar : bar + 2] *= 0.35
        glow += rng.normal(0, 5, glow.shape)
        pictures.append(glow.clip(0, 255).astype(np.uint8).reshape(-1).tolist())
        makers.append(maker)
    cells = pl.Series(pictures, dtype=pl.List(pl.UInt8))
    return numbered(pl.DataFrame({"maker": makers, "cell": cells}))


def low_voltage_feeders():
    """Feeders as trees of houses: lines with their ohms, loads, and the power lost on the way."""
    rng = seeded(19013)
    names = ["utility", "tail", "head", "ohm", "kw", "lost_kw"]
    rows = []
    for _ in range(1800):
        n = int(rng.integers(4, 15))
        parent = [max(0, i - 1 - int(rng.geometric(0.5)) + 1) for i in range(1, n)]
        ohm = rng.choice([0.02, 0.05, 0.12], n - 1, p=[0.3, 0.5, 0.2]) * rng.uniform(
            0.8, 1.2, n - 1
        )
        load = np.append(0.0, rng.gamma(2.0, rng.uniform(0.8, 3.0), n - 1)).round(2)
        flow = load.copy()
        for i in range(n - 1, 0, -1):
            flow[parent[i - 1]] += flow[i]
        lost = float((ohm * (flow[1:] / 0.4) ** 2).sum() / 1000) * rng.lognormal(0, 0.06)
        # houses are numbered as they were connected; the transformer is the first
        rows.append(
            (
                rng.choice(["amp", "lux", "volta"], p=[0.4, 0.35, 0.25]),
                parent,
                list(range(1, n)),
                ohm.round(4).tolist(),
                load.tolist(),
                round(lost, 4),
            )
        )
    return numbered(pl.DataFrame(rows, schema=names, orient="row"))


def mineral_spectra():
    """Raman spectra in 64 bins: one to three minerals, fluorescence beneath, cosmic spikes."""
    rng = seeded(19014)
    at = np.arange(64)
    lines = [rng.uniform(4, 60, rng.integers(2, 6)) for _ in range(9)]
    heights = [rng.uniform(0.3, 1.0, len(each)) for each in lines]
    spectra, lab = [], []
    for _ in range(1500):
        total = np.zeros(64)
        for mineral in rng.choice(9, rng.integers(1, 4), replace=False):
            share = rng.uniform(0.3, 1.0)
            for place, height in zip(lines[mineral], heights[mineral], strict=True):
                total += share * height * np.exp(-((at - place) ** 2) / 3.5)
        total += rng.uniform(0, 0.6) * np.exp(-at / rng.uniform(20, 60))
        total += rng.normal(0, 0.02, 64)
        if rng.random() < 0.05:
            total[rng.integers(64)] += rng.uniform(1, 3)
        spectra.append(np.round(total * rng.lognormal(5, 0.4), 1).astype(np.float32).tolist())
        lab.append(rng.choice(["bergen", "oulu"]))
    return numbered(pl.DataFrame({"lab": lab, "counts": pl.Series(spectra, dtype=FLOATS)}))
