"""The first hour: from a user's own file to a registered model, in the commands that are printed."""

import os
import re
import subprocess
import sys
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from perennial.runs import Home

MOST_COMMANDS = 5
REGISTERED = "version 1 is champion"


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "own").mkdir()
    return tmp_path / "own"


def perennial(*arguments, folder, code=0, program=("-m", "perennial.cli")):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PERENNIAL")}
    done = subprocess.run(
        [sys.executable, *program, *arguments],
        cwd=folder, env=environment | {"OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == code, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def orders(folder, *, rows=1000):
    """A CSV as a shop may export it."""
    generator = np.random.default_rng(0)
    amount = generator.gamma(2.0, 50.0, rows)
    country = generator.choice(["de", "fr", "it"], rows)
    logit = 0.03 * (amount - 100) + 2.0 * (country == "it") - 0.5
    hours = np.sort(generator.random(rows)) * 24 * 120
    pl.DataFrame(
        {
            "order_id": [f"o{row:05}" for row in range(rows)],
            "ordered_at": [datetime(2025, 1, 1) + timedelta(hours=float(each)) for each in hours],
            "amount": amount.round(2),
            "country": country,
            "returned": generator.random(rows) < 1 / (1 + np.exp(-logit)),
            "days_kept": (2 + 0.1 * amount + generator.normal(0, 2, rows)).round(1),
        }
    ).write_csv(folder / "orders.csv")


def pictures(folder):
    """A folder for each class, as pictures are often kept."""
    for row, (pixels, digit) in enumerate(zip(*load_digits(return_X_y=True), strict=True)):
        target = folder / "digits" / str(digit) / f"{row}.png"
        target.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray((pixels.reshape(8, 8) * 15).astype(np.uint8)).save(target)


def stories(folder, *, rows=1500):
    generator = np.random.default_rng(0)
    words = [
        "the",
        "a",
        "model",
        "data",
        "train",
        "test",
        "gate",
        "loss",
        "value",
        "small",
        "large",
        "drift",
        "monitor",
        "finds",
        "reads",
    ]
    texts = [" ".join(generator.choice(words, generator.integers(8, 20))) for _ in range(rows)]
    pl.DataFrame({"key": range(rows), "story": texts}).write_csv(folder / "stories.csv")


def follow_printed_commands(folder, *arguments, leave_out=()):
    """Run `init`, then each command that it prints; the last one's output."""
    printed = perennial("init", *arguments, folder=folder)
    commands = re.findall(r"^  perennial (\w+) (\S+)", printed, re.M)
    assert [verb for verb, _ in commands] == ["check", "sanity", "run"]
    assert 1 + len(commands) <= MOST_COMMANDS
    for verb, path in commands:
        if verb not in leave_out:
            printed = perennial(verb, path, folder=folder)
    return printed


@pytest.mark.full  # test_readme.py trains the first task of a person in every run
@pytest.mark.timeout(600)
def test_a_table_becomes_a_registered_model(folder):
    orders(folder)
    # The run has the sanity checks as its third step.
    printed = follow_printed_commands(
        folder, "table", "orders.csv", "--label", "returned", leave_out=["sanity"]
    )
    assert f"orders {REGISTERED}" in printed
    assert len(Home(folder / ".perennial").runs()) == 1


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("make", "arguments"),
    [
        (orders, ("table", "orders.csv", "--label", "days_kept")),
        (pictures, ("image", "digits")),
        (stories, ("text", "stories.csv")),
        (orders, ("custom", "orders.csv", "--label", "returned", "--time", "none")),
        (orders, ("custom", "orders.csv", "--label", "days_kept", "--time", "none")),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_each_kind_becomes_a_registered_model(folder, make, arguments):
    make(folder)
    assert REGISTERED in follow_printed_commands(folder, *arguments)


@pytest.mark.full
@pytest.mark.timeout(600)
def test_the_same_in_python(folder):
    orders(folder)
    perennial("init", "table", "orders.csv", "--label", "returned", folder=folder)
    program = (
        "from perennial.api import run\n"
        "ended = run('contract.toml')\n"
        "assert ended.succeeded and 'srcdoc' in ended._repr_html_()\n"
        "print(ended)"
    )
    assert "succeeded" in perennial(folder=folder, program=("-c", program))
