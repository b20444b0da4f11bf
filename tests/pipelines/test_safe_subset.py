"""Compiled pipelines use only what runs alike on one machine and on Kubeflow's backend.

What is left out works locally and fails or misleads on a cluster: loops inside an exit handler over
a parameter, loops over artifacts, importers, groups that take artifacts alone, a task that ignores failures
upstream, a choice between artifacts of branches.
"""

import re
from pathlib import Path

import pytest
import yaml
from kfp import compiler, dsl

from perennial.compilation import PIPELINES

GOLDEN = Path(__file__).with_name("golden")
CONDITION = re.compile(
    r"inputs\.parameter_values\['[\w-]+'\] == (true|false|'[\w .-]*'|int\(-?\d+\)|-?\d+)"
)


def departures(spec):
    """What a compiled pipeline has that the subset has not."""
    components = spec["components"]
    at_exit = 0

    def walk(dag, level):
        nonlocal at_exit
        for name, task in dag["tasks"].items():
            policy = task.get("triggerPolicy", {})
            if policy.get("strategy") == "ALL_UPSTREAM_TASKS_COMPLETED":
                at_exit += 1
                if level > 0:
                    yield f"{name}: an exit task or ignored failure below the top"
            if "condition" in policy and CONDITION.fullmatch(policy["condition"]) is None:
                yield f"{name}: condition {policy['condition']}"
            if "artifactIterator" in task:
                yield f"{name}: artifactIterator"
            # A list of the definition works inside an exit handler; one of a parameter does not.
            if "raw" not in task.get("parameterIterator", {"items": {"raw": ""}})["items"]:
                yield f"{name}: a loop over a parameter"
            component = components[task["componentRef"]["name"]]
            if "dag" not in component:
                continue
            if "parameters" not in component.get("inputDefinitions", {}):
                yield f"{name}: a group without parameters"
            for output in component["dag"].get("outputs", {}).get("artifacts", {}).values():
                if len(output.get("artifactSelectors", ())) > 1:
                    yield f"{name}: one of several artifacts"
            yield from walk(component["dag"], level + 1)

    yield from walk(spec["root"]["dag"], 0)
    if at_exit != 1:
        yield f"{at_exit} exit tasks"
    for name, executor in spec["deploymentSpec"]["executors"].items():
        if "container" not in executor:
            yield f"{name}: an importer"


@pytest.mark.parametrize("name", PIPELINES)
def test_a_pipeline_stays_within_the_subset(name):
    spec = next(yaml.safe_load_all((GOLDEN / f"{name}.yaml").read_text()))
    assert list(departures(spec)) == []


@dsl.component(base_image="image", install_kfp_package=False)
def work(text: str = "") -> bool:
    return bool(text)


@dsl.component(base_image="image", install_kfp_package=False)
def make(data: dsl.Output[dsl.Dataset]) -> None:
    Path(data.path).touch()


@dsl.component(base_image="image", install_kfp_package=False)
def read(data: dsl.Input[dsl.Dataset]) -> None:
    Path(data.path).read_bytes()


@dsl.pipeline(name="loop")
def loop(texts: list[str]):
    with dsl.ExitHandler(work()), dsl.ParallelFor(texts) as item:
        work(text=item)


@dsl.pipeline(name="two-at-exit")
def ignores_failures():
    with dsl.ExitHandler(work()):
        first = work()
        work(text="last").after(first).ignore_upstream_failure()


@dsl.pipeline(name="importer")
def imports():
    with dsl.ExitHandler(work()):
        dsl.importer(artifact_uri="s3://bucket/data", artifact_class=dsl.Dataset)


@dsl.pipeline(name="no-exit")
def cleans_nothing_up():
    work()


@dsl.pipeline(name="condition")
def wild_condition(text: str):
    with dsl.ExitHandler(work()):
        first = work()
        with dsl.If(first.output != "a"):
            work()


@dsl.pipeline(name="one-of")
def chooses(text: str):
    with dsl.ExitHandler(work()):
        with dsl.If(text == "a"):
            first = make()
        with dsl.Else():
            second = make()
        read(data=dsl.OneOf(first.outputs["data"], second.outputs["data"]))


@dsl.pipeline(name="group")
def reads(data: dsl.Input[dsl.Dataset]):
    read(data=data)


@dsl.pipeline(name="nested")
def nests():
    with dsl.ExitHandler(work()):
        reads(data=make().outputs["data"])


@pytest.mark.parametrize(
    ("planted", "found"),
    [
        (chooses, "one of several artifacts"),
        (nests, "a group without parameters"),
        (loop, "a loop over a parameter"),
        (ignores_failures, "ignored failure below the top"),
        (imports, "an importer"),
        (cleans_nothing_up, "0 exit tasks"),
        (wild_condition, "condition "),
    ],
    ids=lambda given: getattr(given, "name", None),
)
def test_what_is_outside_the_subset_is_seen(tmp_path, planted, found):
    compiler.Compiler().compile(planted, str(tmp_path / "compiled.yaml"))
    spec = next(yaml.safe_load_all((tmp_path / "compiled.yaml").read_text()))
    assert any(found in departure for departure in departures(spec))
