"""What a Kubeflow Pipelines backend does with a compiled pipeline, on containers of this machine.

The driver resolves a task's inputs; the launcher downloads its input artifacts, runs the compiled
command in the compiled image, reads the executor's output file and uploads the output artifacts.
"""

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

import boto3
import yaml

from containers import Pod

OUTPUT_FILE = "/tmp/kfp_outputs/output_metadata.json"
PARAMETERS = "/tmp/kfp/outputs"
CONDITION = re.compile(r"inputs\.parameter_values\['(?P<name>[^']+)'\]\s*==\s*true")
Values = dict[str, Any]
"""By name: parameters are JSON values, artifacts are described as for an executor."""


@dataclass
class Backend:
    """Runs one compiled pipeline.

    Attributes:
        compiled: The YAML file.
        bucket: Where artifacts are kept.
        pod: The pod of a task, from its image, its variables and its emptyDirs.
        scratch: For the emptyDirs of the pods.
        executed: The tasks that ran, in order.
    """

    compiled: Path
    bucket: str
    pod: Callable[[str, Mapping[str, str], Mapping[Path, str]], Pod]
    scratch: Path
    executed: list[str] = field(default_factory=list)

    def run(self, **parameters: Any) -> dict[str, Values]:
        """Run the pipeline; returns the outputs of its outermost tasks."""
        self.spec = next(iter(yaml.load_all(self.compiled.read_text(), Loader=yaml.CSafeLoader)))
        self.run_id = uuid.uuid4().hex
        self.store = boto3.client("s3")
        known = self.spec["root"].get("inputDefinitions", {}).get("parameters", {})
        defaults = {name: each.get("defaultValue") for name, each in known.items()}
        return self._run_dag(self.spec["root"]["dag"], {**defaults, **parameters}, {})

    def _run_dag(self, dag: Values, parameters: Values, artifacts: Values) -> dict[str, Values]:
        done: dict[str, Values] = {}
        waits = {name: task.get("dependentTasks", ()) for name, task in dag["tasks"].items()}
        for name in TopologicalSorter(waits).static_order():
            task = dag["tasks"][name]
            inputs = task.get("inputs", {})
            values = {
                key: self._parameter(source, parameters, done)
                for key, source in inputs.get("parameters", {}).items()
            }
            given = {
                key: self._artifact(source, artifacts, done)
                for key, source in inputs.get("artifacts", {}).items()
            }
            if not self._is_due(task, values):
                continue
            component = self.spec["components"][task["componentRef"]["name"]]
            if "dag" in component:
                self._run_dag(component["dag"], values, given)
            else:
                done[name] = self._execute(name, component, values, given)
        return done

    @staticmethod
    def _parameter(source: Values, parameters: Values, done: dict[str, Values]) -> Any:
        match source:
            case {"componentInputParameter": name}:
                return parameters[name]
            case {"runtimeValue": {"constant": value}}:
                return value
            case {"taskOutputParameter": {"producerTask": task, "outputParameterKey": key}}:
                return done[task][key]
        raise AssertionError(f"outside of the safe subset of the two worlds: {source}")

    @staticmethod
    def _artifact(source: Values, artifacts: Values, done: dict[str, Values]) -> Any:
        match source:
            case {"componentInputArtifact": name}:
                return artifacts[name]
            case {"taskOutputArtifact": {"producerTask": task, "outputArtifactKey": key}}:
                return done[task][key]
        raise AssertionError(f"outside of the safe subset of the two worlds: {source}")

    @staticmethod
    def _is_due(task: Values, parameters: Values) -> bool:
        condition = task.get("triggerPolicy", {}).get("condition")
        if condition is None:
            return True
        found = CONDITION.fullmatch(condition)
        assert found, f"outside of the safe subset of the two worlds: {condition}"
        return parameters[found["name"]] is True

    def _execute(self, name: str, component: Values, values: Values, given: Values) -> Values:
        folder = self.scratch / f"{len(self.executed)}-{name}"
        store, temporary = folder / "s3", folder / "tmp"
        for each in (store, temporary):  # two emptyDirs, which anybody may write to
            each.mkdir(parents=True)
            each.chmod(0o1777)
        outputs = component.get("outputDefinitions", {})
        made = {
            key: {
                "name": key, "type": each["artifactType"], "metadata": {},
                "uri": f"s3://{self.bucket}/v2/artifacts/{self.run_id}/{name}/{uuid.uuid4()}/{key}",
            }
            for key, each in outputs.get("artifacts", {}).items()
        }  # fmt: skip
        executor_input = {
            "inputs": {"parameterValues": values, "artifacts": _listed(given)},
            "outputs": {
                "parameters": {
                    key: {"outputFile": f"{PARAMETERS}/{key}"}
                    for key in outputs.get("parameters", {})
                },
                "artifacts": _listed(made),
                "outputFile": OUTPUT_FILE,
            },
        }
        for artifact in given.values():
            self._download(artifact["uri"], store)
        for below in store.rglob("*"):  # the launcher's user is the executor's
            below.chmod(0o777)
        executor = self.spec["deploymentSpec"]["executors"][component["executorLabel"]]["container"]
        command = [
            text.replace("{{$}}", json.dumps(executor_input))
            for text in (*executor["command"], *executor["args"])
        ]
        variables = {each["name"]: each["value"] for each in executor.get("env", ())}
        pod = self.pod(executor["image"], variables, {store: "/s3", temporary: "/tmp"})
        ended = pod.run(*command)
        assert ended.returncode == 0, f"{name}: {ended.stdout}\n{ended.stderr}"
        self.executed.append(name)
        return self._collect(temporary, store, made, outputs.get("parameters", {}))

    def _collect(
        self, temporary: Path, store: Path, made: Values, parameters: Mapping[str, Any]
    ) -> Values:
        found: Values = {}
        written = json.loads((temporary / Path(OUTPUT_FILE).relative_to("/tmp")).read_text())
        for key, kind in parameters.items():
            file = temporary / Path(PARAMETERS).relative_to("/tmp") / key
            text = (
                file.read_text() if file.exists() else written.get("parameterValues", {}).get(key)
            )
            is_text = kind["parameterType"] == "STRING" or not isinstance(text, str)
            found[key] = text if is_text else json.loads(text)
        for key, artifact in made.items():
            for found in written.get("artifacts", {}).get(key, {}).get("artifacts", ()):
                artifact["metadata"] = found.get("metadata", {})
            self._upload(artifact["uri"], store)
            found[key] = artifact
        return found

    def _download(self, uri: str, store: Path) -> None:
        prefix = uri.removeprefix(f"s3://{self.bucket}/")
        for key in self.keys(prefix):
            target = store / self.bucket / key
            target.parent.mkdir(parents=True, exist_ok=True)
            self.store.download_file(self.bucket, key, str(target))

    def _upload(self, uri: str, store: Path) -> None:
        prefix = uri.removeprefix("s3://")
        whole = store / prefix
        for file in [whole] if whole.is_file() else sorted(whole.rglob("*")):
            if file.is_file():
                key = file.relative_to(store / self.bucket).as_posix()
                self.store.upload_file(str(file), self.bucket, key)

    def keys(self, prefix: str) -> list[str]:
        """The objects below a prefix."""
        pages = self.store.get_paginator("list_objects_v2").paginate(
            Bucket=self.bucket, Prefix=prefix
        )
        return [each["Key"] for page in pages for each in page.get("Contents", ())]


def _listed(artifacts: Values) -> Values:
    return {key: {"artifacts": [artifact]} for key, artifact in artifacts.items()}
