"""Each benchmark starts, in its smallest form, and each result names the commit it was measured at."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ports import get_free_port

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results"
ONE_RANK = {
    "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
    "MASTER_ADDR": "127.0.0.1",
}  # fmt: skip

# Benchmark → arguments under which it takes seconds.
SMALLEST = {
    "continued": ["--steps", "80", "--write"],
    "drift_streams": ["--repeats", "1", "--only", "Changed streams"],
    "executors": ["--partitions", "8", "--rows", "500", "--tasks", "50", "--write"],
    "facts": ["--partitions", "1", "--rows", "3000", "--flights", "none", "--write"],
    "gate_streams": ["--trials", "4"],
    "memory_plan": ["--process", "mlp", "0", "figures.json"],
    "planted_bugs": ["--only", "softmax before"],
    "scale": ["--write"],
    "scoring_memory": ["--rows", "4000", "--write"],
    "snapshots": ["--objects", "1500", "--port", str(get_free_port()), "--write"],
    "selection_regret": ["--trainings", "20", "--write"],
    "streaming": ["--rows", "24000", "--rounds", "1", "--ways", "streaming-0", "--write"],
    "throughput": ["--only", "tabular single", "--rounds", "1", "--updates", "4"],
}
# These only show their help, so that all they import must exist. Why they do not start here:
IMPORTED = {
    "accelerator": "its parts take minutes on a CPU",
    "checkpoint_cost": "306 MB are written by five ways in two worlds",
    "drift_false_alarms": "needs a year of flights",
    "examination": "one case is a whole `perennial sanity`",
    "gate_characteristics": "needs a year of flights; its simulated part is gate_streams",
    "overhead": "a whole run of the flights example",
    "real_tables": "a whole run of each table",
    "recovery": "a training that is killed, three times",
    "replay": "a year of flights, trained month by month",
    "report_picture": "needs a promoted champion",
    "skeleton_cost": "needs the data of the three examples",
    "streaming_curves": "27 trainings of the three examples",
    "study_decisions": "simulates thousands; a small version is tests/unit/studies/test_decisions.py",
    "study_overhead": "trains a dozen trials, and four by hand",
    "study_questions": "whole studies of flights and digits",
    "suite_verdicts": "Great Expectations is imported five times; tests/unit/validate_data/suites compares",
    "two_machines": "needs podman and the images",
    "warm_start": "months of flights or text, each trained in three ways",
}
# Even their smallest forms take 10 to 60 s, so that make full runs them; help is shown anyway.
LONG = (
    "continued",
    "executors",
    "facts",
    "memory_plan",
    "planted_bugs",
    "scoring_memory",
    "snapshots",
    "streaming",
    "throughput",
)
SHOW_HELP = """
import runpy, sys
for name in sys.argv[1:]:
    sys.argv = [name, "--help"]
    try:
        runpy.run_module(f"benchmarks.{name}", run_name="__main__", alter_sys=True)
    except SystemExit as end:
        assert not end.code, name
    else:
        raise AssertionError(f"{name} does not know --help")
"""


def start(arguments, results, **environment):
    return subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'tests/support'}", "BENCHMARK_RESULTS": str(results),
             **environment},
    )  # fmt: skip


def test_every_benchmark_is_started_or_imported():
    found = {path.stem for path in (ROOT / "benchmarks").glob("*.py")} - {"record"}
    found |= {path.parent.name for path in (ROOT / "benchmarks").glob("*/__main__.py")}
    assert found == set(SMALLEST) | set(IMPORTED)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.full if name in LONG else ()) for name in SMALLEST],
)
def test_a_benchmark_runs_in_its_smallest_form(name, tmp_path):
    arguments = [
        str(tmp_path / each) if each.endswith(".json") else each for each in SMALLEST[name]
    ]
    environment = {**ONE_RANK, "MASTER_PORT": str(get_free_port())} if name == "memory_plan" else {}
    done = start(["-m", f"benchmarks.{name}", *arguments], tmp_path, **environment)
    assert done.returncode == 0, done.stderr
    for page in tmp_path.glob("*.md"):
        assert re.search(r"^Measured at commit \S+\.$", page.read_text(), re.M), page.name


def test_the_others_import_and_show_their_help(tmp_path):
    done = start(["-c", SHOW_HELP, *IMPORTED, *LONG], tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.*")), ids=lambda path: path.name)
def test_a_result_names_its_commit(path):
    if path.suffix == ".svg" or path.name == "examination_reviewed.json":
        pytest.skip("drawn from the page of the same name, or judged by a person")
    if path.suffix == ".json":
        assert re.fullmatch(r"[0-9a-f]{7,40}(-dirty)?", json.loads(path.read_text())["commit"])
    else:
        assert re.search(r"^Measured at commits? [0-9a-f]{7,40}", path.read_text(), re.M)
