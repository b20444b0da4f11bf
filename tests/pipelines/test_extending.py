"""The examples of docs/extending.md work: a copy of the sources with their changes trains."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "extending.md").read_text()
NEW_FILES = re.findall(r"^`([\w./]+\.py)`[^\n]*:\n\n```python\n(.*?)```", GUIDE, re.S | re.M)
CHANGES = re.findall(r"^```diff\n(.*?)```", GUIDE, re.S | re.M)

# Slurm's command, as far as the launcher uses it.
SRUN = """#!/bin/sh
case "$1 $2" in "--ntasks=1 --cpus-per-task=2") shift 2; exec "$@";; esac
exit 64
"""
METRICS = """
import numpy as np
from late_flights import LateFlights
from perennial.contracts.data import TaskColumns
from perennial.engine.metrics.catalogue import find_metric

error = np.array([0.5, -2.0])
found = find_metric("log_cosh").measure(error, np.zeros(2))
assert abs(found - np.log(np.cosh(error)).mean()) < 1e-12, found

task = LateFlights(LateFlights.Options(), TaskColumns(label="late", features={"x": "Float64"}))
scores = task.score(np.array([0.9, 0.1, 0.2, 0.8]), np.array([1.0, 1.0, 0.0, 0.0]))
assert scores["cost"] == 10 * 0.25 + 0.25, scores
assert {"roc_auc", "log_loss"} <= set(scores)
"""
TRAINING = """
import sys
from pathlib import Path
from perennial.training_jobs.attempts import run_to_end
from perennial.training_jobs.on_cluster import open_launcher
from perennial.training_jobs.config import ResourcesSection
from tiny_training import tiny_job, write_snapshot

folder = Path(sys.argv[1])
write_snapshot(folder)
options = {"optimizer": {"name": "radam", "weight_decay": 0.1}, "steps": 20}
job = tiny_job(folder, **options)
launcher = open_launcher(ResourcesSection(launcher="slurm"), None)
run_to_end(job, launcher, max_restarts=0)
print(type(launcher).__name__, job.training.optimizer.name, launcher.log)
"""

CHECK = """
import sys
from pathlib import Path
from perennial.check_skeleton.registry import check_names
from perennial.tasks.image_classification import ImageClassification
from workshop import Workshop, results_of

class Frozen(ImageClassification):
    def build_model(self):
        return super().build_model().requires_grad_(False)

assert "frozen_weights" in check_names()
workshop = Workshop(Path(sys.argv[1]))
for task, outcome in ((ImageClassification, "passed"), (Frozen, "warned")):
    found = results_of(workshop.subject(task, "digits"), "frozen_weights")["frozen_weights"]
    assert found.outcome == outcome, found
"""
STEP = """
import sys
from pathlib import Path
from perennial.check_partitions.step import check_partitions_step
from perennial.compilation import compile_pipeline
from perennial.contracts.errors import BadDataError
from perennial.contracts.snapshot import Snapshot
from perennial.runs import FLOW
from tiny_training import write_snapshot

folder = Path(sys.argv[1])
snapshot = Snapshot.read(write_snapshot(folder))
paths = {"snapshot": str(folder / "taken"), "report": str(folder / "r")}
(file,) = snapshot.files
for rows, message in ((300, ""), (20, "is not complete")):
    files = (file, file, file.model_copy(update={"rows": rows}))
    snapshot.model_copy(update={"files": files}).write(folder / "taken")
    try:
        check_partitions_step(**paths)
        assert not message
    except BadDataError as error:
        assert message in str(error)
    assert "Check partitions" in (folder / "r").read_text()
compile_pipeline("continuous_training", folder / "pipeline.yaml")
assert "exec-check-partitions" in (folder / "pipeline.yaml").read_text()
assert "check_partitions" in FLOW["continuous_training"]
"""


@pytest.fixture(scope="module")
def extended(tmp_path_factory):
    """The sources with all changes of the guide, and its new files."""
    folder = tmp_path_factory.mktemp("extended")
    for root in ("components", "pipelines"):
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / root, folder / root, ignore=ignored)
    for name, text in NEW_FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    for change in CHANGES:
        command = ["git", "apply", "-C1", "-"]
        done = subprocess.run(
            command, input=change, cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{done.stderr}\n{change}"
    return folder


def run(extended, program, *arguments):
    paths = [extended, extended / "components", extended / "pipelines", ROOT / "tests/support"]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(map(str, paths)),
        "PATH": f"{extended}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_metrics_measure(extended):
    run(extended, METRICS)


@pytest.mark.full
def test_the_optimizer_trains_through_the_launcher(extended, tmp_path):
    srun = extended / "srun"
    srun.write_text(SRUN)
    srun.chmod(0o755)

    printed = run(extended, TRAINING, tmp_path)

    assert printed.split()[:2] == ["SlurmLauncher", "radam"]
    assert "step=20 finished=True" in next(tmp_path.rglob("rank-1.log")).read_text()


def test_the_check_finds_its_bug_and_passes_a_healthy_task(extended, tmp_path):
    run(extended, CHECK, tmp_path)


def test_the_step_runs_and_is_in_the_pipeline(extended, tmp_path, monkeypatch):
    monkeypatch.setenv("PERENNIAL_STORE_URI", str(tmp_path / "store"))
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///unused")
    run(extended, STEP, tmp_path)
