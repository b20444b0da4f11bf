"""Killed before any line, a registration is never half visible, and a retry completes it.

A kill point is an executed line of the step, of the doors it goes through (MLflow, object store,
files) and, in the long matrix, of MLflow's own registry; they are counted, so none is forgotten.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from perennial.register_model.step import register_model_step
from registration_inputs import step_arguments, write_inputs
from small_models import NOISY

SAMPLE = 4
HOUR = 3600


@pytest.fixture
def attempts(environment, tmp_path, monkeypatch):
    """Runs the points of a registration, after `before` others, in a program of its own."""
    home, template = tmp_path / "home", tmp_path / "template"
    home.mkdir()
    (tmp_path / "mlflow.db").rename(home / "mlflow.db")
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(home / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")

    def prepare(before):
        for number in range(before):
            write_inputs(tmp_path, (2.0, number / 10), champion=str(number or ""))
            monkeypatch.setenv("PERENNIAL_RUN_ID", f"earlier-{number}")
            register_model_step(**step_arguments(tmp_path))
        write_inputs(tmp_path, NOISY, champion=str(before or ""))
        shutil.copytree(home, template)

    def run(points, *, before, inside=False):
        if not template.exists():
            prepare(before)
        job = {
            "home": str(home), "template": str(template), "before": before, "inside": inside,
            "arguments": step_arguments(tmp_path), "points": points,
        }  # fmt: skip
        (tmp_path / "job.json").write_text(json.dumps(job))
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(
            [sys.executable, str(root / "tests/support/registration_attempts.py"), tmp_path / "job.json"],
            env={**os.environ, "PYTHONPATH": str(root / "tests/support")},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        answers = [json.loads(line) for line in done.stdout.splitlines()]
        wrong = [answer for answer in answers if points and not answer["right"]]
        assert not wrong, f"{wrong}\n{done.stderr[-4000:]}"
        return answers

    return run


def killed_at(attempts, choose, **setting):
    """Kill at chosen ones of all executed lines; returns how many lines there are."""
    (lines,) = attempts([], **setting)
    results = attempts(choose(lines), **setting)
    executed = f"{len(lines)} executions of {len({line for line, _ in lines})} lines"
    print(f"{setting}: {executed}, {len(results)} kills, {len(results)} retries right")
    return results


def spread(lines):
    """A few of all, in equal distances."""
    return list(range(0, len(lines), len(lines) // SAMPLE))


def every_world(lines):
    """Of the lines before which a kill leaves the same files, the first."""
    first = {left: point for point, (_, left) in reversed(list(enumerate(lines)))}
    return sorted(first.values())


@pytest.mark.full
@pytest.mark.parametrize("before", [0, 1])
def test_a_registration_killed_before_a_line_is_completed_by_a_retry(attempts, before):
    results = killed_at(attempts, spread, before=before)
    # The points reach from an untouched registry to a finished registration.
    assert results[0]["left"] != results[-1]["left"]


@pytest.mark.full
@pytest.mark.timeout(HOUR)
@pytest.mark.parametrize("before", [0, 1])
def test_a_registration_killed_before_every_line_is_completed_by_a_retry(attempts, before):
    """What a kill leaves is files: each state of them that any line finds is left by a kill."""
    killed_at(attempts, every_world, before=before, inside=True)
