"""Katib: proposes values for an Experiment, runs each trial's command, and reports its status."""

import os
import random
import re
import subprocess
import sys
import threading


class FakeKatib:
    """Runs the trials of each Experiment, one after the other, as its controller would.

    Args:
        cluster: The fake API server.
        environment: Variables of the trials' processes.
        ends: Condition that the Experiment ends with.
    """

    def __init__(self, cluster, environment, ends="Succeeded"):
        self.cluster, self.environment, self.ends = cluster, environment, ends
        self.outputs = []
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def close(self):
        self._closing.set()
        self._thread.join()

    def _work(self):
        while not self._closing.wait(0.05):
            for found in self.cluster.store.all("experiments"):
                if not found.get("status"):
                    self._run(found)

    def _run(self, experiment):
        spec, chosen = experiment["spec"], random.Random(1)
        succeeded = failed = 0
        for _ in range(spec["maxTrialCount"] if self.ends == "Succeeded" else 0):
            if self._closing.is_set() or not self._is_there(experiment):
                return
            values = {each["name"]: propose(each, chosen) for each in spec["parameters"]}
            output = self._trial(spec["trialTemplate"], values)
            self.outputs.append(output)
            # What the metrics collector reads, by Katib's default filter.
            is_measured = re.search(
                rf"{spec['objective']['objectiveMetricName']}\s*=\s*[+-]?\d", output
            )
            succeeded, failed = succeeded + bool(is_measured), failed + (not is_measured)
            self._report(experiment, succeeded, failed, [])
        condition = {"type": self.ends, "status": "True", "message": "max trials reached"}
        self._report(experiment, succeeded, failed, [condition])

    def _is_there(self, experiment):
        return self.cluster.store.get("experiments", experiment["metadata"]["name"]) is not None

    def _trial(self, template, values):
        by_reference = {
            each["name"]: values[each["reference"]] for each in template["trialParameters"]
        }
        pod = template["trialSpec"]["spec"]["template"]["spec"]
        command = " ".join(pod["containers"][0]["command"])  # its webhook joins them for `sh -c`
        for name, value in by_reference.items():
            command = command.replace(f"${{trialParameters.{name}}}", value)
        command = command.replace("python", sys.executable, 1)
        done = subprocess.run(
            ["sh", "-c", command], env={**os.environ, **self.environment}, capture_output=True, text=True,
            check=False,
        )  # fmt: skip
        return done.stdout + done.stderr

    def _report(self, experiment, succeeded, failed, conditions):
        current = self.cluster.store.get("experiments", experiment["metadata"]["name"])
        if current is not None:
            status = {
                "trialsSucceeded": succeeded,
                "trialsFailed": failed,
                "conditions": conditions,
            }
            self.cluster.store.put("experiments", {**current, "status": status})


def propose(parameter, chosen):
    """A value as text, at random in the feasible space."""
    space = parameter["feasibleSpace"]
    if "list" in space:
        return chosen.choice(space["list"])
    low, high = float(space["min"]), float(space["max"])
    if parameter["parameterType"] == "int":
        return str(chosen.randint(int(low), int(high)))
    return repr(chosen.uniform(low, high))
