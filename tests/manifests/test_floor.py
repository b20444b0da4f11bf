"""The backend's overhead sets the floor of a run; the compiled pipelines stay within the budget."""

import importlib.util
import re
import sys

import pytest
import yaml

from cluster_manifests import K8S, ROOT

GOLDEN = ROOT / "tests" / "pipelines" / "golden"
SCALING = K8S / "scaling.md"
DRIVER, TASK = 10, 20  # seconds, seen on a live backend
MOST_TASKS, MOST_LEVELS = 9, 2


def shape(spec, dag, *, quiet=False):
    """Steps, and nested levels, of a DAG; a quiet one takes no condition, whose driver still runs."""
    steps = levels = 0
    for name, task in dag["tasks"].items():
        component = spec["components"][task["componentRef"]["name"]]
        if "dag" not in component:
            steps += 1
        elif quiet and name.startswith("condition"):
            levels = max(levels, 1)
        else:
            inner = shape(spec, component["dag"], quiet=quiet)
            steps, levels = steps + inner[0], max(levels, 1 + inner[1])
    return steps, levels


def compiled(name):
    return next(iter(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text())))


@pytest.mark.parametrize(
    ("row", "quiet", "most"),
    [
        ("`continuous_training`", False, (MOST_TASKS, MOST_LEVELS)),
        ("`drift_monitoring`, quiet", True, (MOST_TASKS, MOST_LEVELS)),
        # A training behind monitoring's four tasks, less its own first two, and one condition.
        ("`drift_monitoring`, retraining", False, (MOST_TASKS + 4, MOST_LEVELS + 1)),
    ],
)
def test_a_pipeline_stays_within_the_budget_and_its_floor_is_the_documented_one(row, quiet, most):
    spec = compiled(row.split("`")[1])
    steps, levels = shape(spec, spec["root"]["dag"], quiet=quiet)
    assert steps <= most[0]
    assert levels <= most[1]
    floor = DRIVER * (1 + levels) + TASK * steps
    (found,) = re.findall(rf"^\| {re.escape(row)} \|(.*)$", SCALING.read_text(), re.M)
    assert [int(number) for number in re.findall(r"\d+", found)] == [steps, levels, floor]


@pytest.fixture(scope="module")
def scale():
    """The script that the page's figures come from."""
    spec = importlib.util.spec_from_file_location("scale", ROOT / "benchmarks" / "scale.py")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


def test_figures_are_of_the_pipelines_as_they_are_compiled(scale):
    for chain, name, quiet in (
        (scale.TRAINING, "continuous_training", False),
        (scale.MONITORING, "drift_monitoring", True),
        (scale.RETRAINING, "drift_monitoring", False),
    ):
        spec = compiled(name)
        assert (len(chain.work), chain.levels) == shape(spec, spec["root"]["dag"], quiet=quiet)


def test_the_page_has_the_figures_of_the_script(scale):
    page, kept = SCALING.read_text(), (ROOT / "benchmarks" / "results" / scale.RESULTS).read_text()
    (all_at_once, hour, day) = scale.models_table()[2:]
    for line in (all_at_once, hour, day):
        assert line in kept, "python -m benchmarks.scale --write"
    rows = {
        "monitoring all at 05:30": all_at_once,
        "spread over an hour": hour,
        "spread over the day": day,
    }
    for row, line in rows.items():
        most, _, rate = (float(cell.replace(",", "")) for cell in line.split("|")[2:5])
        digits = 0 if rate > 10 else 1 if rate > 1 else 2
        assert f"| {row} | {most:,.0f} runs at once, {rate:.{digits}f} pods a second" in page
