"""Tasks written from scratch, as users write them, and small data of their own for each."""

import math
from datetime import datetime, timedelta
from pathlib import Path
from typing import ClassVar

import numpy as np
import polars as pl
import torch
from torch import nn

from perennial.check_skeleton.config import SkeletonSection
from perennial.contracts.data import DataSection, SplitSection
from perennial.contracts.snapshot import Snapshot
from perennial.engine.task import LABEL, Task
from perennial.snapshot_data.manifest import take_snapshot
from skeleton_tables import WITHOUT_TRIALS

JOBS = ("admin", "chef", "clerk", "driver", "nurse", "pilot", "smith", "tutor")
GOOD = ("great", "lovely", "superb", "bright", "happy", "fresh")
BAD = ("awful", "broken", "dull", "noisy", "sad", "stale")
NEUTRAL = tuple(f"word{number}" for number in range(40))
PEOPLE, SURNAMES = ("Ann", "Bob", "Cleo", "Dan"), ("Lee", "Roy", "Kim")
PLACES, EITHER = ("Oslo", "Rome", "Lima", "Bonn"), ("Paris", "Jordan")
LENGTH = 24
SETTINGS = SkeletonSection(
    sample_rows=1024, batch_rows=64, training_steps=120, learning_rates=(1e-2, 1e-3),
    severities=WITHOUT_TRIALS,
)  # fmt: skip
TRAINING = {
    "steps": 400,
    "global_batch_size": 64,
    "optimizer": {"name": "adamw", "learning_rate": 3e-3},
}


def customers(rows: int = 3000, *, seed: int = 5) -> pl.DataFrame:
    """A bank's customers, and whether they leave."""
    random = np.random.default_rng(seed)
    age = random.integers(18, 90, rows)
    income = np.round(np.exp(random.normal(7.5, 0.6, rows)), 2)
    visits = random.poisson(300, rows)
    job = random.choice(len(JOBS), rows, p=np.array([8, 7, 6, 5, 4, 3, 2, 1]) / 36)
    score = (
        (age - 54) / 20 + 1.3 * (np.log(income) - 7.5) / 0.6 + (job % 3 - 1) + (visits - 300) / 20
    )
    leaves = (score + random.logistic(size=rows) > 0).astype(np.int64)
    joined = [datetime(2021, 1, 1) + timedelta(days=int(d)) for d in random.integers(0, 900, rows)]
    return pl.DataFrame(
        {
            "row": np.arange(rows),
            "age": age,
            "income": income,
            "visits": visits,
            "job": [JOBS[each] for each in job],
            "joined": [each.date().isoformat() for each in joined],
            "leaves": leaves,
        }
    )


def reviews(rows: int = 1500, *, seed: int = 6, words: tuple[int, int] = (4, 20)) -> pl.DataFrame:
    """Short texts, and whether they praise: a few telling words stand anywhere in them."""
    random = np.random.default_rng(seed)
    texts, labels = [], []
    for _ in range(rows):
        label = int(random.integers(2))
        length = int(random.integers(*words))
        text = [NEUTRAL[int(random.integers(len(NEUTRAL)))] for _ in range(length)]
        for place in random.choice(length, max(1, length // 5), replace=False):
            telling = (BAD, GOOD)[label if random.random() < 0.85 else 1 - label]
            text[place] = telling[int(random.integers(6))]
        texts.append(" ".join(text))
        labels.append(label)
    return pl.DataFrame({"row": np.arange(rows), "text": texts, "praises": labels})


def sentences(rows: int = 1500, *, seed: int = 9) -> pl.DataFrame:
    """Texts with people and places, and a tag for each word; some names may be either."""
    random = np.random.default_rng(seed)
    texts, tags = [], []
    for row in range(rows):
        words, own = [], []
        for _ in range(int(random.integers(2, 6))):
            kind = ("O", "PER", "LOC")[int(random.integers(3))]
            names = [str(random.choice(PEOPLE if kind == "PER" else PLACES))]
            if kind == "O":
                names = [NEUTRAL[int(random.integers(8))]]
            is_either = kind != "O" and random.random() < 0.3
            if is_either:  # predicted by the word before alone
                names = [str(random.choice(EITHER))]
            if is_either or (kind != "O" and random.random() < 0.3):
                words.append({"PER": "meet", "LOC": "near"}[kind])
                own.append("O")
            if kind == "PER" and random.random() < 0.4:
                names.append(str(random.choice(SURNAMES)))
            words += names
            own += [
                kind if kind == "O" else f"{'I' if at else 'B'}-{kind}" for at in range(len(names))
            ]
        # Annotators make mistakes.
        own = [tag if random.random() > 0.03 else "O" for tag in own]
        texts.append(" ".join([*words, str(row % 7)]))
        tags.append(" ".join([*own, "O"]))
    return pl.DataFrame({"row": np.arange(rows), "text": texts, "tags": tags})


def series(rows: int = 1500, *, steps: int = LENGTH, seed: int = 7) -> pl.DataFrame:
    """Windows of a noisy process that falls back to its mean, and the value after each."""
    random = np.random.default_rng(seed)
    values = np.zeros((rows, steps + 1))
    for step in range(1, steps + 1):
        drive = random.normal(size=rows)
        values[:, step] = 0.9 * values[:, step - 1] - 0.4 * values[:, max(step - 2, 0)] + drive
    values = 20 + 3 * values
    return pl.DataFrame(
        {"row": np.arange(rows), "history": values[:, :-1].tolist(), "next": values[:, -1]}
    )


def forecasts(rows: int = 1500, *, steps: int = 4) -> pl.DataFrame:
    """Windows of the same process, and the values of several steps after each."""
    frame = series(rows, steps=LENGTH + steps - 1)
    values = np.column_stack([np.stack(frame["history"].to_list()), frame["next"]])
    return frame.with_columns(
        history=pl.Series(values[:, :LENGTH].tolist()), next=pl.Series(values[:, LENGTH:].tolist())
    )


def pinned(frame: pl.DataFrame, folder: Path, label: str, **data) -> Snapshot:
    frame.write_parquet(folder / "rows.parquet")
    section = DataSection(uri=str(folder), label=label, **{"ids": ("row",), **data})
    return take_snapshot(section, SplitSection())


def write_customers(
    folder: Path, *, also: str = "", copies: int = 1, households: int = 0, meta=(), **shape
) -> Snapshot:
    """With `also` a column that no honest table has; with copies of each row, or few households."""
    left = pl.col("leaves") == 1
    more = {
        "": [],
        "twin": [pl.when(left).then(pl.lit("yes")).otherwise(pl.lit("no")).alias("churned")],
        "scaled": [(pl.col("leaves") * 100.0 + 3).alias("score")],
        "reason": [pl.when(left).then(pl.lit("price")).alias("reason")],
        "closed": [pl.when(left).then(pl.col("row") % 300 + 0.5).alias("closed_after_days")],
        "number": [(pl.col("row") + 100_000).alias("number")],
        "noise": [((pl.col("row") * 7919) % 1009).alias("lot")],
    }[also]
    frame = customers(**shape).with_columns(more)
    if copies > 1:
        frame = pl.concat([frame] * copies).with_columns(row=pl.int_range(pl.len()))
    if households:
        home = (pl.col("row") * 7919) % households
        frame = frame.with_columns(household=home, leaves=(home * 31 % 97 > 48).cast(pl.Int64))
    return pinned(frame, folder, "leaves", meta=meta)


def write_reviews(folder: Path, **shape) -> Snapshot:
    return pinned(reviews(**shape), folder, "praises", text=("text",), features=("text",))


def write_sentences(folder: Path, **shape) -> Snapshot:
    columns = {"text": ("text", "tags"), "features": ("text",)}
    return pinned(sentences(**shape), folder, "tags", **columns)


def write_series(folder: Path, *, stride: int = 0, **shape) -> Snapshot:
    """Windows of series of their own, or with a stride of one that goes on."""
    frame = series(**shape)
    if stride:
        values = np.concatenate(series(rows=800)["history"].to_list())
        starts = range(0, len(values) - LENGTH - 1, stride)
        frame = pl.DataFrame(
            {
                "row": range(len(starts)),
                "history": [values[each : each + LENGTH].tolist() for each in starts],
                "next": [float(values[each + LENGTH]) for each in starts],
            }
        )
    return pinned(frame, folder, "next")


def write_forecasts(folder: Path, *, overlap: int = 0) -> Snapshot:
    """Forecasts; with an overlap, the label begins so many values before the window's end."""
    frame = forecasts()
    if overlap:
        history, later = (np.stack(frame[name].to_list()) for name in ("history", "next"))
        late = np.concatenate([history[:, -overlap:], later[:, :-overlap]], axis=1)
        frame = frame.with_columns(next=pl.Series(late.tolist()))
    return pinned(frame, folder, "next")


class OwnTask(Task):
    """What each of these tasks needs beside its own: what `fit` learned, in a dictionary."""

    kind = "binary"
    metrics: ClassVar = {"accuracy": "maximize"}

    def __init__(self, options, columns):
        super().__init__(options, columns)
        self.learned = {}

    def state(self):
        return dict(self.learned)

    def load_state(self, state):
        self.learned = dict(state)

    def losses(self, output, batch):
        return nn.functional.binary_cross_entropy_with_logits(
            output, batch[LABEL].float(), reduction="none"
        )

    def predict(self, output):
        return torch.sigmoid(output)

    def score(self, predictions, labels):
        return {"accuracy": float(((predictions > 0.5) == (labels > 0.5)).mean())}

    def expected_initial_loss(self):
        return math.log(2)

    def with_label(self, rows, inputs):
        if self.columns.label in rows.columns:
            inputs[LABEL] = torch.from_numpy(rows[self.columns.label].to_numpy(writable=True))
        return inputs


class Net(nn.Module):
    """Numbers and the vector of a job into two layers."""

    def __init__(self, numbers, jobs):
        super().__init__()
        self.job = nn.Embedding(jobs, 4)
        self.layers = nn.Sequential(nn.Linear(numbers + 4, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, numbers, job):
        return self.layers(torch.cat([numbers, self.job(job)], dim=1)).squeeze(1)


class Leaving(OwnTask):
    """Which customers leave."""

    def fit(self, train):
        rows = train.collect()
        numbers = self.numbers(rows)
        self.learned = {
            "mean": numbers.mean(axis=0).tolist(),
            "scale": (numbers.std(axis=0) + 1e-9).tolist(),
            "jobs": sorted(rows["job"].unique().to_list()),
        }

    def numbers(self, rows):
        days = rows["joined"].str.to_date().dt.epoch("d").to_numpy()
        return np.stack(
            [rows["age"].to_numpy(), np.log(rows["income"].to_numpy()), self.visits(rows), days],
            axis=1,
        ).astype(np.float64)

    def visits(self, rows):
        return rows["visits"].to_numpy()

    def jobs(self, rows):
        known = {job: code for code, job in enumerate(self.learned["jobs"], start=1)}
        return [known.get(job, 0) for job in rows["job"]]

    def encode(self, rows):
        mean, scale = np.array(self.learned["mean"]), np.array(self.learned["scale"])
        numbers = ((self.numbers(rows) - mean) / scale).astype(np.float32)
        codes = torch.tensor(self.jobs(rows), dtype=torch.long)
        return self.with_label(rows, {"numbers": torch.from_numpy(numbers), "job": codes})

    def build_model(self):
        return Net(4, 1 + len(self.learned["jobs"]))


class Praise(OwnTask):
    """Which texts praise: fixed-length texts, padded with zeros, through a transformer."""

    length = LENGTH

    def fit(self, train):
        words = {word for text in train.collect()["text"] for word in self.split(text)}
        self.learned = {"words": sorted(words)}

    def split(self, text):
        return text.lower().split()

    def codes(self, text):
        known = self.known
        return [known.get(word, 1) for word in self.split(text)]

    @property
    def known(self):
        return {word: code for code, word in enumerate(self.learned["words"], start=2)}

    def kept(self, codes):
        return codes[: self.length]

    def encode(self, rows):
        known = self.known
        tokens = torch.zeros(rows.height, self.length, dtype=torch.long)
        for row, text in enumerate(rows["text"]):
            codes = self.kept([known.get(word, 1) for word in self.split(text)])
            tokens[row, : len(codes)] = torch.tensor(codes)
        return self.with_label(rows, {"tokens": tokens})

    def build_model(self):
        return Reader(2 + len(self.learned["words"]), self.length)


class Reader(nn.Module):
    """One layer of attention over words and their places, then the mean of the words."""

    width = 32
    heads = 4

    def __init__(self, words, length):
        super().__init__()
        self.words = nn.Embedding(words, self.width, padding_idx=0)
        self.places = nn.Parameter(0.1 * torch.randn(length, self.width))
        self.queries, self.keys, self.values, self.output = (
            nn.Linear(self.width, self.width) for _ in range(4)
        )
        self.norm = nn.LayerNorm(self.width)
        self.head = nn.Linear(self.width, 1)

    def positions(self, x):
        return x + self.places

    def heads_of(self, x):
        return x.view(len(x), -1, self.heads, self.width // self.heads).transpose(1, 2)

    def joined(self, x):
        return x.transpose(1, 2).reshape(len(x), -1, self.width)

    def weights(self, scores, is_word):
        return scores.masked_fill(~is_word[:, None, None, :], -1e9).softmax(dim=-1)

    def attended(self, x, is_word):
        q, k, v = (self.heads_of(each(x)) for each in (self.queries, self.keys, self.values))
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
        return self.output(self.joined(self.weights(scores, is_word) @ v))

    def pooled(self, x, is_word):
        share = is_word[:, :, None].float()
        return (x * share).sum(dim=1) / share.sum(dim=1).clamp_min(1)

    def forward(self, tokens):
        is_word = tokens != 0
        x = self.positions(self.words(tokens))
        x = self.norm(x + self.attended(x, is_word))
        return self.head(self.pooled(x, is_word)).squeeze(1)


class Next(OwnTask):
    """The next value of a series."""

    kind = "regression"
    metrics: ClassVar = {"mae": "minimize"}

    def fit(self, train):
        values = np.stack(train.collect()["history"].to_list())
        self.learned = {"mean": float(values.mean()), "scale": float(values.std())}

    def window(self, values):
        return values

    def encode(self, rows):
        values = self.window(np.stack([np.asarray(each) for each in rows["history"].to_list()]))
        history = torch.from_numpy((values - self.learned["mean"]) / self.learned["scale"]).float()
        return self.with_label(rows, {"history": history.unsqueeze(2)})

    def build_model(self):
        return Recurrent()

    def losses(self, output, batch):
        return (output - (batch[LABEL] - self.learned["mean"]).float() / self.learned["scale"]) ** 2

    def predict(self, output):
        return output * self.learned["scale"] + self.learned["mean"]

    def score(self, predictions, labels):
        return {"mae": float(np.abs(predictions - labels).mean())}

    def expected_initial_loss(self):
        return 1.0


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.gru = nn.GRU(1, 32, batch_first=True)
        self.head = nn.Linear(32, 1)

    def forward(self, history):
        return self.head(self.gru(history)[0][:, -1]).squeeze(1)
