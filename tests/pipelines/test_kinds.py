"""Kinds of tasks that need no code train, pass the gate and register in a local run."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from sklearn.datasets import load_digits

from documents import documents
from own_tasks import forecasts, reviews, sentences, series
from perennial.contracts.toml import toml_line
from published_models import initial_of, options_of, write_published
from skeleton_tables import table

TABULAR = "perennial.tasks.tabular:TabularRegression"


def tags() -> pl.DataFrame:
    frame = table("regression", rows=2000)
    names = {"bright": frame["x0"] > 0, "odd": frame["group"] == "g2"}
    rows = zip(*(np.where(flags, name, "") for name, flags in names.items()), strict=True)
    return frame.with_columns(label=pl.Series([",".join(filter(None, row)) for row in rows]))


def digits() -> pl.DataFrame:
    source = load_digits()
    pictures = pl.Series("picture", source.data.astype("uint8").tolist())
    return pl.DataFrame({"row": range(len(pictures)), "picture": pictures, "label": source.target})


KINDS = {
    "forecast": (
        series().rename({"next": "label"}),
        {"task": TABULAR, "options": {"relative_to": "history"}},
        {},
    ),
    "several steps": (
        forecasts().rename({"next": "label"}),
        {"task": "perennial.tasks.forecasting:TabularForecast"},
        {},
    ),
    "quantile": (
        table("regression", rows=2000),
        {"task": TABULAR, "options": {"loss": "quantile", "quantile": 0.9}},
        {},
    ),
    "multi-label": (
        tags(),
        {"task": "perennial.tasks.multi_label:TabularMultiLabel"},
        {"text": ["label"]},
    ),
    "texts": (
        reviews(rows=2000).rename({"praises": "label"}),
        {
            "task": "perennial.tasks.text_classification:TextClassification",
            "options": {
                "context_length": 48,
                "width": 32,
                "heads": 2,
                "vocab_size": 400,
                "token_dropout": 0.1,
            },
        },
        {"features": ["text"], "text": ["text"]},
    ),
    "words": (
        sentences(rows=2000).rename({"tags": "label"}),
        {
            "task": "perennial.tasks.token_classification:TokenClassification",
            "options": {"context_length": 64, "width": 32, "heads": 2},
        },
        {"features": ["text"], "text": ["text", "label"]},
    ),
    "published words": (
        documents(2000).select(
            row="id", time="time", label=pl.concat_str("text", "id", separator=" ")
        ),
        {
            "task": "perennial.tasks.transformers_models:TransformersCausalLM",
            "options": options_of("gpt2", Path("hub")),
            "initial": initial_of(Path("hub")),
        },
        {"features": ["label"], "text": ["label"]},
    ),
    "mixed pictures": (
        digits(),
        {
            "task": "perennial.tasks.image_classification:ImageClassification",
            "options": {
                "shape": [8, 8],
                "resnet": {"depths": [1, 1], "widths": [8, 16]},
                "augmentation": {"rotation": 10.0, "crop": 0.9, "mixup": 0.2, "cutmix": 1.0},
            },
        },
        {},
    ),
}
TRAINING = {
    "mixed pictures": {"normalization": {"batch_norm": "sync"}},
    "published words": {
        "optimizer": {"learning_rate": 3e-3},
        "adapter": {"targets": ["*.c_attn", "*.mlp.c_*"], "rank": 8},
    },
}


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_without_code_becomes_a_champion(kind, tmp_path):
    frame, model, data = KINDS[kind]
    (tmp_path / "data").mkdir()
    frame.write_parquet(tmp_path / "data" / "part.parquet")
    if kind == "published words":
        write_published(tmp_path / "hub", "gpt2", frame["label"].to_list()[:500], steps=60)
    sections = {
        "model": {"name": "kind", **model},
        "data": {"uri": "data", "label": "label", "ids": ["row"], **data},
        "training": {
            "steps": 200, "evaluate_every_steps": 40, "global_batch_size": 128,
            "micro_batch_size": 128,
            **TRAINING.get(kind, {}),
        },
        "gate": {"min_test_rows": 200},
    }  # fmt: skip
    lines = [
        line
        for name, options in sections.items()
        for line in (f"[{name}]", *(toml_line(key, value) for key, value in options.items()))
    ]
    (tmp_path / "contract.toml").write_text("\n".join(lines))
    done = subprocess.run(
        [sys.executable, "-m", "perennial.cli", "run", "contract.toml"],
        cwd=tmp_path, env=os.environ | {"PERENNIAL_HOME": str(tmp_path / "home")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "kind version 1 is champion" in done.stdout
