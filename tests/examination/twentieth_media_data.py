"""Datasets of the twentieth list: pictures, sounds, threads and pairs."""

import io

import numpy as np
import polars as pl
from PIL import Image

from examination.data import numbered, seeded

FLOATS = pl.List(pl.Float32)


def _encoded(pixels, kind="PNG"):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, kind)
    return stream.getvalue()


def beach_litter():
    """Pictures of 40 by 40 pixels of a beach from drones; each item is a class and two corners."""
    rng = seeded(20001)
    n, side = 1000, 40
    y, x = np.mgrid[0:side, 0:side] + 0.5
    pictures, items = [], []
    for _ in range(n):
        sand = np.array([200, 180, 140]) * rng.uniform(0.7, 1.1)
        ripple = 8 * np.sin((x * rng.uniform(-1, 1) + y) * rng.uniform(0.3, 0.8))
        pixels = sand + ripple[..., None] + rng.normal(0, 9, (side, side, 3))
        found, taken = [], []
        for _ in range(rng.integers(1, 4)):
            kind = int(rng.choice(3, p=[0.45, 0.3, 0.25]))  # bottle, lid, plank
            long, short = rng.uniform(13, 19), rng.uniform(4.5, 6.5)
            w, h = [(short, long), (long * 0.55, long * 0.55), (long, short)][kind]
            cx, cy = (
                rng.uniform(w / 2 + 1, side - w / 2 - 1),
                rng.uniform(h / 2 + 1, side - h / 2 - 1),
            )
            box = [cx - w / 2, cy - h / 2, cx + w / 2, cy + h / 2]
            if any(
                box[0] < b[2] and b[0] < box[2] and box[1] < b[3] and b[1] < box[3] for b in taken
            ):
                continue
            colour = rng.uniform(20, 255, 3)
            if kind == 2:
                inside = (abs(x - cx) < w / 2) & (abs(y - cy) < h / 2)
            else:
                inside = ((x - cx) / w * 2) ** 2 + ((y - cy) / h * 2) ** 2 < 1
            pixels[inside] = colour + rng.normal(0, 6, (int(inside.sum()), 3))
            taken.append(box)
            found += [kind, *np.round(box, 1).tolist()]
        for _ in range(rng.integers(0, 4)):  # shells and footprints
            cx, cy, r = *rng.uniform(2, side - 2, 2), rng.uniform(1, 2.2)
            pixels[(x - cx) ** 2 + (y - cy) ** 2 < r * r] *= rng.uniform(0.5, 1.3)
        pictures.append(_encoded(pixels.clip(0, 255).astype(np.uint8)))
        items.append(found)
    return numbered(
        pl.DataFrame(
            {
                "drone": rng.choice(["gull", "tern"], n, p=[0.65, 0.35]),
                "picture": pictures,
                "items": pl.Series(items, dtype=FLOATS),
            }
        )
    )


SURFACES = {
    7: (92, 88, 86),
    8: (168, 160, 150),
    11: (150, 84, 70),
    21: (74, 120, 60),
    23: (150, 180, 215),
}
"""Numbers that the labelling tool gives to road, pavement, wall, plants and sky; their colours."""


def _wave(x, height, rng):
    return height * np.sin(x * rng.uniform(2, 9) + rng.uniform(0, 6))


def courtyard_photos():
    """Photos of courtyards in three sizes with masks: the tool's numbers, 0 where nobody labelled."""
    rng = seeded(20002)
    photos, masks = [], []
    n = 700
    cameras = rng.choice(["pole", "van", "phone"], n, p=[0.45, 0.3, 0.25])
    for camera in cameras:
        side = {"pole": 48, "van": 64, "phone": 40}[camera]
        y, x = np.mgrid[0:side, 0:side] / side
        mask = np.full((side, side), 23, dtype=np.uint8)
        horizon, kerb = rng.uniform(0.15, 0.45), rng.uniform(0.55, 0.8)
        mask[y > horizon + _wave(x, 0.02, rng)] = 11
        for _ in range(rng.integers(1, 5)):
            cx, cy, r = rng.uniform(0, 1), rng.uniform(horizon, 0.8), rng.uniform(0.06, 0.2)
            mask[(x - cx) ** 2 + (y - cy) ** 2 < r * r * (1 + _wave(x, 0.3, rng))] = 21
        mask[y > kerb - 0.12 + rng.uniform(-0.1, 0.1) * x] = 8
        mask[y > kerb + rng.uniform(-0.1, 0.1) * x + _wave(x, 0.02, rng)] = 7
        for _ in range(rng.integers(0, 3)):  # tubs with plants on the pavement
            left, top, size = rng.uniform(0, 0.9), rng.uniform(0.55, 0.85), rng.uniform(0.07, 0.16)
            mask[(x > left) & (x < left + size) & (y > top) & (y < top + size)] = 21
        light = rng.uniform(0.55, 1.15) * rng.normal(1, 0.05, 3)
        pixels = np.zeros((side, side, 3))
        for number, colour in SURFACES.items():
            tint = np.array(colour) * rng.normal(1, 0.16) + rng.normal(0, 12, 3)
            grain = {7: 6, 8: 9, 11: 14, 21: 26, 23: 4}[number]
            pixels[mask == number] = tint + rng.normal(0, grain, (int((mask == number).sum()), 3))
        brick = (mask == 11) & ((np.arange(side) % 6 == 0)[:, None] | (np.arange(side) % 9 == 0))
        pixels[brick] += 35
        photos.append(_encoded((pixels * light).clip(0, 255).astype(np.uint8)))
        edge = np.zeros_like(mask, dtype=bool)
        edge[1:] |= mask[1:] != mask[:-1]
        edge[:, 1:] |= mask[:, 1:] != mask[:, :-1]
        mask[edge & (rng.random(mask.shape) < 0.7)] = 0
        masks.append(_encoded(mask))
    return numbered(pl.DataFrame({"camera": cameras, "photo": photos, "mask": masks}))


GOODS = ["bolts", "nuts", "nails", "hooks", "clips", "rods", "pipes", "seals"]


def _stock(rng):
    """Three to five goods with their numbers, as a line of the store's list."""
    goods = list(rng.choice(GOODS, rng.integers(3, 6), replace=False))
    return goods, [int(each) for each in rng.integers(0, 10, len(goods))]


def store_questions():
    """Questions about a line of stock with the answers that a clerk typed."""
    rng = seeded(20003)
    asked, answers = [], []
    kinds = ["count", "after", "first", "empty", "all"]
    for kind in rng.choice(kinds, 2500, p=[0.34, 0.2, 0.14, 0.16, 0.16]):
        goods, numbers = _stock(rng)
        line = " , ".join(f"{g} {k}" for g, k in zip(goods, numbers, strict=True))
        which = int(rng.integers(len(goods)))
        if kind == "count":
            question = rng.choice(["how many {} ?", "number of {} please"]).format(goods[which])
            answer = f"{numbers[which]} {goods[which]}" if numbers[which] else f"no {goods[which]}"
        elif kind == "after":
            which = int(rng.integers(len(goods) - 1))
            question, answer = f"what comes after {goods[which]} ?", goods[which + 1]
        elif kind == "first":
            question, answer = "which is first ?", f"{goods[0]} , {numbers[0]} left"
        elif kind == "empty":
            question = f"any {goods[which]} left ?"
            answer = "yes , there are some" if numbers[which] else "no , none at all"
        else:
            question, answer = "name them all", " ".join(goods)
        asked.append(f"stock : {line} . {question}")
        answers.append(answer)
    return numbered(pl.DataFrame({"prompt": asked, "answer": answers}))


OPENINGS = [
    "i bought the {good} from you {when} and it came in a {colour} box",
    "my order of one {good} was sent {when} by your shop",
    "we use your {good} at work since {when} and like it",
    "the {good} that i ordered {when} is the {colour} one",
]
MIDDLES = [
    "thank you for your mail , could you send the number of the order",
    "sorry to hear that , please tell us what is wrong with the {good}",
    "the number is {number} , i paid by card {when}",
    "our colleague looked at it {when} and found nothing",
    "here is a photo of the {good} , you see the {colour} part",
    "we can offer a refund , a repair or an exchange of the {good}",
    "i am not sure yet if i want my money back or another one",
    "we have forwarded this to the workshop",
    "it is still not working but thank you for the quick answer",
]
ENDINGS = {
    "refund": [
        "please just give me my money back",
        "i do want the refund then",
        "refund it please",
    ],
    "exchange": [
        "please send another {good}",
        "i take the exchange",
        "another one in {colour} please",
    ],
    "repair": ["then please repair it", "i will send it in for repair", "can the workshop mend it"],
    "solved": [
        "it works now , thanks",
        "never mind , i found the fault",
        "all is well now , thank you",
    ],
}


def shop_threads():
    """Threads of mail between customers and a shop, oldest first; what the customer wants at last."""
    rng = seeded(20004)
    goods, whens = (
        ["kettle", "lamp", "radio", "scale", "mixer"],
        ["in may", "last week", "on monday"],
    )
    threads, wishes, clients = [], [], []
    for wish in rng.choice(list(ENDINGS), 2000, p=[0.3, 0.25, 0.2, 0.25]):
        words = {
            "good": rng.choice(goods),
            "when": rng.choice(whens),
            "colour": rng.choice(["red", "blue", "black"]),
            "number": rng.integers(1000, 9999),
        }
        mails = [rng.choice(OPENINGS)]
        mails += list(rng.choice(MIDDLES, rng.integers(0, 7)))
        if rng.random() < 0.5:  # what they wanted before they changed their mind
            earlier = rng.choice([each for each in ENDINGS if each != wish])
            mails.append(rng.choice(ENDINGS[earlier]))
            mails += list(rng.choice(MIDDLES, rng.integers(1, 4)))
        mails.append(rng.choice(ENDINGS[wish]))
        if rng.random() < 0.4:
            mails[-1] += " , kind regards"
        threads.append(" <mail> ".join(mail.format(**words) for mail in mails))
        slip = rng.random() < 0.02
        wishes.append(rng.choice(list(ENDINGS)) if slip else wish)
        clients.append(rng.choice(["web", "phone"], p=[0.7, 0.3]))
    return numbered(pl.DataFrame({"client": clients, "thread": threads, "wish": wishes}))


MORSE = {
    "e": ".",
    "t": "-",
    "a": ".-",
    "i": "..",
    "n": "-.",
    "m": "--",
    "s": "...",
    "u": "..-",
    "r": ".-.",
    "d": "-..",
    "k": "-.-",
    "o": "---",
}


def morse_calls():
    """Calls in Morse code by radio operators, 16-bit sound at one of two rates, with what was sent."""
    rng = seeded(20005)
    stations = {f"st{k:02d}": rng.choice([1600, 800], p=[0.65, 0.35]) for k in range(24)}
    letters = list(MORSE)
    sounds, rates, sent, names = [], [], [], []
    for _ in range(1100):
        station = rng.choice(list(stations))
        rate = int(stations[station])
        pitch, dot = rng.uniform(200, 300), rng.uniform(0.038, 0.05)
        text = "".join(rng.choice(letters, rng.integers(2, 6)))
        while len(text) > 2 and rng.random() < 0.25:  # doubled letters, as in many calls
            at = int(rng.integers(1, len(text)))
            text = text[:at] + text[at - 1] + text[at + 1 :]
            break
        key = [np.zeros(int(rng.uniform(1, 6) * dot * rate))]
        for letter in text:
            for sign in MORSE[letter]:
                units = {".": 1, "-": 3}[sign] * rng.normal(1, 0.08)
                key += [np.ones(int(units * dot * rate)), np.zeros(int(dot * rate))]
            key.append(np.zeros(int(2 * dot * rate * rng.normal(1.1, 0.1))))
        key.append(np.zeros(int(rng.uniform(1, 5) * dot * rate)))
        key = np.concatenate(key)
        smooth = np.convolve(key, np.hanning(max(3, rate // 200)), "same")
        smooth /= max(smooth.max(), 1e-6)
        t = np.arange(len(key)) / rate
        fading = 1 + 0.4 * np.sin(2 * np.pi * rng.uniform(0.2, 1) * t + rng.uniform(0, 6.28))
        wave = smooth * fading * np.sin(2 * np.pi * pitch * t + rng.uniform(0, 6.28))
        wave = rng.lognormal(7.6, 0.6) * (wave + rng.normal(0, rng.uniform(0.03, 0.2), len(t)))
        sounds.append(wave.clip(-32768, 32767).astype(np.int16))
        rates.append(rate)
        sent.append(text)
        names.append(station)
    return numbered(
        pl.DataFrame(
            {
                "station": names,
                "rate": rates,
                "sound": pl.Series(sounds, dtype=pl.List(pl.Int16)),
                "sent": sent,
            }
        )
    )


def quake_windows():
    """Windows of 256 samples at 50 Hz, east, north and up, of stations near small earthquakes.

    The arrivals are samples of P and S; -1 where the window has none.
    """
    rng = seeded(20006)
    stations = {f"kx{k:02d}": rng.choice(["alpine", "coast"], p=[0.65, 0.35]) for k in range(14)}
    length, rate = 256, 50
    found = []
    for event in range(330):
        deep, energy = rng.uniform(3, 14), rng.lognormal(0, 0.7)
        for station in rng.choice(list(stations), rng.integers(3, 7), replace=False):
            noise = rng.normal(0, 1, (3, length))
            noise = 0.6 * noise + 0.8 * np.roll(noise, 1, 1) + 0.5 * np.roll(noise, 2, 1)
            swell = np.sin(2 * np.pi * rng.uniform(0.1, 0.5) * np.arange(length) / rate)
            wave = noise + rng.uniform(0, 2) * swell
            p = s = -1
            if rng.random() < 0.85:
                distance = np.hypot(deep, rng.uniform(2, 24))
                p = int(rng.integers(20, 120))
                s = p + int(distance / 8.2 * rate * rng.normal(1, 0.04))
                s = s if s < length - 5 else -1
                azimuth = rng.uniform(0, 2 * np.pi)
                steep = rng.uniform(0.15, 0.5)
                size = 28 * energy / distance * rng.lognormal(0, 0.3)
                towards = np.array([np.sin(azimuth) * steep, np.cos(azimuth) * steep, 1.0])
                across = np.array([np.cos(azimuth), -np.sin(azimuth), 0.25])
                for at, direction, strength, fall in ((p, towards, 1.6, 30), (s, across, 3.6, 50)):
                    if at < 0:
                        continue
                    t = np.arange(length - at)
                    pulse = np.exp(-t / fall) * rng.normal(0, 1, length - at)
                    pulse[0] = rng.choice([-1, 1]) * 1.2
                    pulse = np.convolve(pulse, np.ones(3) / 1.7)[: length - at]
                    wave[:, at:] += strength * size * direction[:, None] * pulse
            counts = np.round(wave * rng.lognormal(4, 0.8)).astype(np.float32)
            found.append((f"ev{event:03d}", station, stations[station], *counts.tolist(), [p, s]))
    types = {"east": FLOATS, "north": FLOATS, "up": FLOATS, "arrivals": pl.List(pl.Int64)}
    names = ["event", "station", "network", *types]
    frame = pl.DataFrame(found, schema=names, orient="row", schema_overrides=types)
    return numbered(frame.sample(fraction=1.0, shuffle=True, seed=6))


def _shape(name, right, down, r):
    """Where a toy is, by the distances from its middle."""
    if name == "ring":
        return abs(np.hypot(right, down) - r * 0.75) < r * 0.3
    if name == "disc":
        return np.hypot(right, down) < r
    if name == "box":
        return np.maximum(abs(right), abs(down)) < r * 0.85
    if name == "cross":
        arms = np.minimum(abs(right), abs(down)) < r * 0.3
        return arms & (np.maximum(abs(right), abs(down)) < r)
    return (down < r * 0.7) & (down > 2 * abs(right) - r)  # tent


PAINTS = {
    "red": (215, 50, 40),
    "green": (50, 160, 70),
    "blue": (50, 80, 205),
    "yellow": (225, 205, 60),
    "white": (240, 240, 235),
}


def toy_scenes():
    """Pictures of two toys on a table, one left and one right, as children described them."""
    rng = seeded(20007)
    side, n = 32, 1800
    y, x = np.mgrid[0:side, 0:side] + 0.5
    words = {"disc": ["disc", "coin"], "box": ["box", "block"], "ring": ["ring"]}
    words |= {"cross": ["cross"], "tent": ["tent", "roof"]}
    starts = ["", "there is ", "i see ", "here you see ", "now there is "]
    pictures, captions, cameras = [], [], []
    for _ in range(n):
        camera = rng.choice(["school", "museum"], p=[0.65, 0.35])
        pixels = np.ones((side, side, 3)) * rng.uniform(40, 120) * np.array([1.1, 1.0, 0.85])
        pixels += rng.normal(0, 6, pixels.shape)
        said = []
        for middle in (9, 23):
            name, paint = rng.choice(list(words)), rng.choice(list(PAINTS))
            small = rng.random() < 0.5
            r = rng.uniform(3.6, 4.4) if small else rng.uniform(6, 7)
            cx, cy = middle + rng.uniform(-1.5, 1.5), rng.uniform(9, 23)
            inside = _shape(name, x - cx, y - cy, r)
            pixels[inside] = np.array(PAINTS[paint]) * rng.uniform(0.85, 1.1) + rng.normal(0, 8, 3)
            size = "small " if small else rng.choice(["", "big "])
            said.append(f"a {size}{paint} {rng.choice(words[name])}")
        left, right = said
        caption = rng.choice(starts)
        order = rng.random()
        if order < 0.5:
            caption += f"{left} on the left and {right} on the right"
        elif order < 0.75:
            caption += f"{right} right of {left}"
        else:
            caption += f"{left} left of {right}"
        pictures.append(_encoded(pixels.clip(0, 255).astype(np.uint8)))
        captions.append(caption)
        cameras.append(camera)
    return numbered(pl.DataFrame({"camera": cameras, "picture": pictures, "caption": captions}))


def inn_dialogues():
    """Dialogues of an inn's desk with guests, turns divided by |, and what the desk said next."""
    rng = seeded(20008)
    days = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]
    rooms = ["single", "double", "family", "garden"]
    talk = [
        "is it quiet there ?",
        "it is very quiet",
        "do you have parking ?",
        "yes , behind the house",
    ]
    talk += ["we come by train", "the station is near", "how is the weather ?", "sunny so far"]
    contexts, replies, desks = [], [], []
    for _ in range(1800):
        day, room = rng.choice(days), rng.choice(rooms)
        guests, nights = int(rng.integers(1, 6)), int(rng.integers(1, 5))
        turns = [
            rng.choice(["hello", "good morning", "hi there"]),
            "welcome , what can i do for you ?",
        ]
        for _ in range(rng.integers(0, 3)):
            turns += talk[(at := 2 * int(rng.integers(4))) : at + 2]
        old = f"i want a {rng.choice(rooms)} room on {rng.choice(days)}"
        if rng.random() < 0.4:  # a wish that is changed later
            turns += [old, rng.choice(["that is taken", "let me look"])]
        turns += [f"we need a {room} room on {day}", "for how many ?"]
        turns += [f"we are {guests} and stay {nights} nights"]
        kind = rng.choice(["book", "price", "late", "thanks"], p=[0.45, 0.25, 0.18, 0.12])
        if kind == "book":
            turns += ["we have that", rng.choice(["please book it", "then i take it"])]
            reply = f"the {room} room is booked for {guests} on {day}"
        elif kind == "price":
            turns += ["we have that", rng.choice(["what is the price ?", "how much is it ?"])]
            reply = f"a {room} room is {40 + 10 * guests} a night , {nights} nights in all"
        elif kind == "late":
            turns += ["it is booked", "we may be late , is that fine ?"]
            reply = rng.choice([f"on {day} someone is here until ten", f"call us on {day} if so"])
        else:
            turns += ["it is booked", rng.choice(["thank you", "thanks a lot"])]
            reply = rng.choice(["you are welcome", f"see you on {day}"], p=[0.7, 0.3])
        contexts.append(" | ".join(turns))
        replies.append(reply)
        desks.append(rng.choice(["front", "night"], p=[0.7, 0.3]))
    return numbered(pl.DataFrame({"desk": desks, "context": contexts, "reply": replies}))
