"""Registered versions, and a process that knows of them what a stranger knows: the alias."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from registered_versions import home, register
from small_models import environment

ASK = Path(__file__).with_name("ask.py")


@pytest.fixture
def ask(tmp_path_factory):
    """Sends tables to a model, in a process without this folder, this path and this code."""

    def run(model_uri, questions, *, tracking_uri, python=sys.executable, earlier=()):
        scratch = tmp_path_factory.mktemp("asked")
        for name, rows in questions.items():
            rows.write_parquet(scratch / f"{name}.parquet")
        known = {key: os.environ[key] for key in ("PATH", "HOME") if key in os.environ}
        done = subprocess.run(
            [
                *(str(python), "-I", str(ASK)),
                *(model_uri, str(scratch), str(scratch / "answers.json"), *earlier),
            ],
            capture_output=True, text=True, check=False, cwd=scratch,
            env=known | {"MLFLOW_TRACKING_URI": tracking_uri, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads((scratch / "answers.json").read_text())

    return run
