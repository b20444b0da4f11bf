"""The backend's overhead sets the floor of a run; the compiled pipelines stay within the budget."""

import re

import pytest
import yaml

from cluster_manifests import K8S, ROOT

GOLDEN = ROOT / "tests" / "pipelines" / "golden"
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
        # The same tasks behind four more and one condition.
        ("`drift_monitoring`, retraining", False, (MOST_TASKS + 4, MOST_LEVELS + 1)),
    ],
)
def test_a_pipeline_stays_within_the_budget_and_its_floor_is_the_documented_one(row, quiet, most):
    spec = compiled(row.split("`")[1])
    steps, levels = shape(spec, spec["root"]["dag"], quiet=quiet)
    assert steps <= most[0]
    assert levels <= most[1]
    floor = DRIVER * (1 + levels) + TASK * steps
    (found,) = re.findall(rf"^\| {re.escape(row)} \|(.*)$", (K8S / "scaling.md").read_text(), re.M)
    assert [int(number) for number in re.findall(r"\d+", found)] == [steps, levels, floor]
