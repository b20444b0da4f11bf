"""Many want to be champion at once: there is one at any time, and none is worse than the last.

Rivals are processes with models of known quality, on a real MLflow database; who finds that the
champion moved is judged again against the new one.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from random import Random

import pytest

from perennial.clients.tracking import open_mlflow
from perennial.contracts.environment import Environment
from perennial.contracts.version_decisions import REPLACED_TAG, VersionDecision
from perennial.registry.model_registry import CHAMPION, open_registry
from rival_promotions import NAME, QUALITY
from small_models import GOOD, stream, write_challenger, write_snapshot

FEWEST, FEW, MANY = 2, 4, 50
FULL_SECONDS = 3600
LONG = [pytest.mark.full, pytest.mark.timeout(FULL_SECONDS)]


@pytest.fixture
def compete(environment, tmp_path):
    """Lets rivals compete; returns what became of each, and who was seen as champion."""
    snapshot = write_snapshot(tmp_path / "data", stream())
    write_challenger(tmp_path / "model", snapshot, GOOD)

    def run(qualities):
        job = tmp_path / "job.json"
        job.write_text(json.dumps({"model": str(tmp_path / "model"), "qualities": qualities}))
        root = Path(__file__).resolve().parents[2]
        done = subprocess.run(
            [sys.executable, str(root / "tests/support/rival_promotions.py"), str(job)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr[-8000:]
        return json.loads(done.stdout)

    return run


def assert_order(found, qualities):
    """One version per model, one line of champions, each better than the one before."""
    registry = open_registry(Environment.read())
    versions = {version.version: version for version in registry.versions(NAME)}
    known = [int(version.tags[QUALITY]) for version in versions.values()]
    assert len(known) == len(set(known))
    line, number = [], registry.aliases(NAME)[CHAMPION]
    while number:
        line.append(int(versions[number].tags[QUALITY]))
        number = versions[number].tags[REPLACED_TAG]
    assert line[0] == max(qualities)
    assert line == sorted(line, reverse=True)
    # Whoever was champion stands in that one line: no two ever held the place at once.
    promoted = [v for v in versions.values() if VersionDecision.of(v.tags, "promoted") is not None]
    assert len(promoted) == len(line)
    assert found["seen"] == sorted(set(found["seen"]))
    assert set(found["seen"]) <= set(line)
    won = sum(outcome.endswith("promoted") for outcome in found["outcomes"])
    assert won >= len(line)
    print(f"{len(qualities)} rivals, {len(line)} champions: {dict(Counter(found['outcomes']))}")


def shuffled(count):
    """Each quality from 0, the best one from two runs of the same training."""
    qualities = [*range(count - 1), count - 2]
    Random(count).shuffle(qualities)
    return qualities


@pytest.mark.parametrize(
    "count", [FEWEST, *(pytest.param(count, marks=LONG) for count in (FEW, MANY))]
)
def test_the_best_of_many_rivals_is_champion_last_on_sqlite(compete, count):
    qualities = shuffled(count)
    assert_order(compete(qualities), qualities)


@pytest.mark.full
@pytest.mark.timeout(FULL_SECONDS)
@pytest.mark.parametrize("count", [FEW, MANY])
def test_the_best_of_many_rivals_is_champion_last_on_postgresql(
    compete, count, postgresql, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", postgresql)
    open_mlflow(Environment.read()).search_experiments()
    qualities = shuffled(count)
    assert_order(compete(qualities), qualities)


@pytest.mark.full
def test_attempts_at_once_with_one_model_leave_one_version(compete):
    found = compete([3] * FEW)
    assert_order(found, [3])
    assert len(open_registry(Environment.read()).versions(NAME)) == 1
