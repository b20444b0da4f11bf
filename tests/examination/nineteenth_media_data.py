"""Datasets of the nineteenth list: pictures, signals, sequences, graphs and pairs."""


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
