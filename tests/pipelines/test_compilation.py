"""What is executed here is what would be uploaded: the same bytes, every time, without secrets."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from perennial.compilation import PIPELINES, compile_pipeline
from perennial.runs import FLOW

GOLDEN = Path(__file__).with_name("golden")


@pytest.mark.parametrize("name", PIPELINES)
def test_pipeline_equals_its_golden_file(name, tmp_path):
    compiled = compile_pipeline(name, tmp_path / f"{name}.yaml").read_text()
    assert compiled == (GOLDEN / f"{name}.yaml").read_text(), "run `make golden` and read the diff"


@pytest.mark.parametrize("name", PIPELINES)
def test_compilation_is_stable_across_processes(name, tmp_path):
    program = (
        "import sys; from pathlib import Path; from perennial.compilation import compile_pipeline;"
        "compile_pipeline(sys.argv[1], Path(sys.argv[2]))"
    )
    contents = []
    for seed in ("1", "2"):
        target = tmp_path / f"{seed}.yaml"
        subprocess.run(
            [sys.executable, "-c", program, name, str(target)],
            check=True,
            env={"PYTHONHASHSEED": seed},
        )
        contents.append(target.read_bytes())
    assert contents[0] == contents[1]


@pytest.mark.parametrize("name", PIPELINES)
def test_every_component_has_our_image_and_installs_nothing(name):
    documents = list(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    executors = documents[0]["deploymentSpec"]["executors"]
    assert executors
    for executor in executors.values():
        container = executor["container"]
        assert container["image"] in ("perennial-data", "perennial-trainer", "perennial-control")
        assert "pip install" not in " ".join(container["command"] + container["args"])


@pytest.mark.parametrize("name", PIPELINES)
def test_flow_names_the_pipelines_own_steps(name):
    text = (GOLDEN / f"{name}.yaml").read_text()
    compiled = {found.replace("-", "_") for found in re.findall(r"exec-([a-z-]+):", text)}
    assert compiled - {"snapshot_data_2", "validate_data_2", "clean_up"} == set(FLOW[name])
    assert "clean_up" in compiled


def test_training_stays_within_the_budget_of_tasks_and_levels():
    """A live backend spends about 20 s on each task and 10 s on each level before any work."""
    spec = next(yaml.safe_load_all((GOLDEN / "continuous_training.yaml").read_text()))
    tasks = [name for name in spec["components"] if name.startswith("comp-")]
    executed = [name for name in tasks if "executorLabel" in spec["components"][name]]
    assert len(executed) <= 8
    assert len(tasks) - len(executed) == 1  # the exit handler
    assert not [name for name in tasks if "condition-" in name or name.endswith("-2")]


@pytest.mark.parametrize("name", PIPELINES)
def test_the_dashboard_shows_metrics_once_and_each_artifact_under_its_own_name(name):
    spec = next(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    kinds = {
        (component.removesuffix("-2"), output): definition["artifactType"]["schemaTitle"]
        for component, content in spec["components"].items()
        if "executorLabel" in content
        for output, definition in content.get("outputDefinitions", {}).get("artifacts", {}).items()
    }
    outputs = [output for _, output in kinds]
    measured = [component for (component, _), kind in kinds.items() if kind == "system.Metrics"]
    is_study = name == "hyperparameter_study"
    assert measured == ["comp-analyze-study" if is_study else "comp-evaluate-model"]
    for generic in ("report", "metrics"):
        assert outputs.count(generic) <= 1
    reports = [output for output in outputs if output.endswith("report")]
    assert len(reports) == len(set(reports))


def test_answers_that_depend_on_the_world_are_never_cached():
    """The other steps' answers could be, and never are: each takes the snapshot, whose artifact is
    new in every run, and Kubeflow's key names the artifact, not its content."""
    spec = next(yaml.safe_load_all((GOLDEN / "drift_monitoring.yaml").read_text()))
    found = {}

    def walk(dag):
        for name, task in dag["tasks"].items():
            found[name] = task.get("cachingOptions", {}).get("enableCache", False)

    walk(spec["root"]["dag"])
    for component in spec["components"].values():
        if "dag" in component:
            walk(component["dag"])
    for name in (
        "snapshot-data",
        "check-skeleton",
        "detect-drift",
        "decide-retraining",
        "evaluate-model",
        "register-model",
    ):
        assert found[name] is False, name
    for name in ("validate-data", "train-model", "select-checkpoint"):
        assert found[name] is True, name
