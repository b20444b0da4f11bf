"""Operators on the fake API server: what becomes of a training, whatever kind of job it is.

What differs between the kinds is in `fake_training_operator` and `fake_trainer`. Times are scaled:
a second of a real cluster is a few milliseconds here.
"""

import json
import threading
import time
from abc import ABC, abstractmethod
from typing import ClassVar

from fake_kueue import ADMITTED, WAITING, workload
from perennial.clients.object_store import open_store
from perennial.contracts.environment import CACHE, RUN_FOLDER
from perennial.engine.job import AttemptEnd, RankFailure

TICK = 0.02
EXIT_TERMINATED = 143


def become_step(found, monkeypatch, tmp_path, bucket, s3_endpoint):
    """Make this process a step on a cluster, with a store of its own."""
    monkeypatch.setenv("PERENNIAL_STORE_URI", f"{bucket}/on-a-cluster")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("PERENNIAL_RUN_ID", "run-1")
    monkeypatch.setenv(RUN_FOLDER, "")
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    for name, value in found.environment("step-1").items():
        monkeypatch.setenv(name, value)
    pod = step_pod()
    pod["spec"]["containers"][1]["env"] = [
        {"name": "PERENNIAL_STORE_URI", "value": f"{bucket}/on-a-cluster"},
        {"name": "AWS_ENDPOINT_URL_S3", "value": s3_endpoint},
        {"name": "AWS_DEFAULT_REGION", "value": "us-east-1"},
        {"name": "AWS_ACCESS_KEY_ID", "value": "nobody"},
        {"name": "AWS_SECRET_ACCESS_KEY",
         "valueFrom": {"secretKeyRef": {"name": "s3", "key": "secret"}}},
    ]  # fmt: skip
    found.store.put("pods", pod)


def step_pod(name="step-1", run_id="run-1"):
    """The pod that KFP makes of a step."""
    return {
        "metadata": {
            "name": name, "uid": f"uid-{name}", "labels": {"pipeline/runid": run_id},
            "ownerReferences": [
                {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow", "name": f"wf-{run_id}",
                 "uid": f"wf-uid-{run_id}", "controller": True, "blockOwnerDeletion": True}
            ],
        },
        "spec": {
            "containers": [
                {"name": "wait", "image": "argoexec"},
                {
                    "name": "main", "image": "registry/trainer@sha256:" + "a" * 64,
                    "env": [
                        {"name": "PERENNIAL_STORE_URI", "value": "s3://bucket"},
                        {"name": "PERENNIAL_SECRET_FILES",
                         "value": "AWS_SECRET_ACCESS_KEY=s3/secret"},
                        {"name": "ARGO_NODE_ID", "value": "not for the training"},
                    ],
                },
            ]
        },
    }  # fmt: skip


class Operator(ABC):
    """Makes pods of jobs, and lets each attempt go by its script.

    Args:
        cluster: The fake.
        scripts: What becomes of the first job, the second, …; the last one repeats.
    """

    title: ClassVar[str]
    group: ClassVar[str]
    plural: ClassVar[str]
    container: ClassVar[str]
    of_job: ClassVar[str]  # the label with which its pods name their job
    second: ClassVar[str]  # pattern of what the second machine's pod is called, behind the job

    def __init__(self, cluster, *scripts):
        self.cluster, self.store = cluster, cluster.store
        self.scripts = list(scripts) or ["success"]
        self.runs = {}
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._reconcile, daemon=True)
        self.thread.start()

    @classmethod
    def has(cls, script):
        """Whether that can become of its jobs."""
        return hasattr(cls, f"_{script}")

    def close(self):
        self.closed.set()
        self.thread.join()

    def _reconcile(self):
        while not self.closed.wait(TICK):
            jobs = self.store.all(self.plural)
            for job in jobs:
                metadata = job["metadata"]
                if "deletionTimestamp" in metadata:
                    self._finalize(job)
                elif metadata["uid"] not in self.runs:
                    script = self.scripts[min(len(self.runs), len(self.scripts) - 1)]
                    self.runs[metadata["uid"]] = script
                    act = getattr(self, f"_{script}")
                    threading.Thread(target=self._guarded, args=(act, job), daemon=True).start()
            self._collect({job["metadata"]["name"] for job in jobs})

    def _guarded(self, act, job):
        try:
            act(job)
        except KeyError:
            pass  # the job was deleted under the script's feet
        except Exception:
            if not self.closed.is_set():  # else the test is over, and its bucket gone
                raise

    def _finalize(self, job):
        name = job["metadata"]["name"]
        for pod, of_job in self._pods_of_jobs():
            if of_job == name:
                self._drop(pod)
        self.store.drop(self.plural, name)

    def _collect(self, names):
        """The garbage collector's part: pods of jobs that are not any more."""
        for pod, of_job in self._pods_of_jobs():
            if of_job not in names:
                self._drop(pod)

    def _pods_of_jobs(self):
        for pod in self.store.all("pods"):
            of_job = pod["metadata"].get("labels", {}).get(self.of_job)
            if of_job is not None:
                yield pod["metadata"]["name"], of_job

    # -- what differs between the kinds ------------------------------------------------------------

    @abstractmethod
    def _bodies(self, job):
        """The pods of a job, the first rank's first."""

    @abstractmethod
    def _say_running(self, job):
        """The job's status once its pods run."""

    @abstractmethod
    def _complete(self, job):
        """Every pod has succeeded."""

    @abstractmethod
    def _fail(self, job, *rest, code=None):
        """A pod has failed.

        Args:
            job: Whose.
            rest: The pods that still run.
            code: With which those end; None where they are deleted before they can.
        """

    @abstractmethod
    def _hold(self, job):
        """The job is suspended."""

    @abstractmethod
    def _resume(self, job):
        """It is not any more."""

    # -- what pods do ----------------------------------------------------------------------------

    def _pods(self, job):
        made = [self.store.put("pods", body) for body in self._bodies(job)]
        return [pod["metadata"]["name"] for pod in made]

    def _pod(self, name, phase, *, scheduled=True, state=None, why="", **status):
        pod = json.loads(json.dumps(self.store.objects["pods"][name]))
        conditions = [{"type": "PodScheduled", "status": "True" if scheduled else "False"}]
        if not scheduled:
            conditions[0] |= {"reason": "Unschedulable", "message": why}
        conditions += status.pop("conditions", [])
        pod["status"] = {"phase": phase, "conditions": conditions, **status}
        if state:
            pod["status"]["containerStatuses"] = [{"name": self.container, "state": state}]
        self.store.put("pods", pod)

    def _begin(self, job):
        pods = self._pods(job)
        for pod in pods:
            self._pod(pod, "Pending", state={"waiting": {"reason": "ContainerCreating"}})
        self._pause(2)
        for rank, pod in enumerate(pods):
            self._let_run(pod, rank)
        self._say_running(job)
        return pods

    def _let_run(self, pod, rank=0):
        self.store.write_log(pod, f"INFO rank={rank} begins")
        self._pod(pod, "Running", state={"running": {}})

    def _run(self, job, lines=3):
        pods = self._begin(job)
        self._training(job).write("joined", b"")
        self._training(job).write("first-step", b"")
        for line in range(lines):
            self._pause()
            self.store.write_log(pods[0], f"INFO rank=0 step={line}")
        return pods

    def _exit(self, pod, code, reason="", **status):
        phase = "Succeeded" if code == 0 else "Failed"
        ended = {"exitCode": code, "reason": reason or ("Completed" if code == 0 else "Error")}
        if pod in self.store.objects["pods"]:
            self._pod(pod, phase, state={"terminated": ended}, **status)
            self._end_log(pod)

    def _end_log(self, pod):
        self.store.close_log(pod)

    def _drop(self, pod):
        self._end_log(pod)
        self.store.drop("pods", pod)

    def _delete(self, pods, code, ticks=1):
        """Those that run end first; a batch Job's finalizer holds them until it has counted them."""
        for name in pods:
            pod = json.loads(json.dumps(self.store.objects["pods"][name]))
            pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
            self.store.put("pods", pod)
        self._pause()
        for name in pods:
            if self.store.objects["pods"][name]["status"]["phase"] == "Running":
                self._exit(name, code)
        self._pause(ticks)
        for name in pods:
            self._drop(name)

    def _wait(self, is_true):
        while not is_true() and not self.closed.is_set():
            self._pause()

    def _pause(self, ticks=1):
        time.sleep(ticks * TICK)

    def _change(self, job, change):
        """Write what is changed of a job, unless another one has its name by now."""
        name = job["metadata"]["name"]
        with self.store.lock:  # else a deletion in between would be undone
            current = self.store.objects[self.plural][name]
            if current["metadata"]["uid"] != job["metadata"]["uid"]:
                raise KeyError(name)
            current = json.loads(json.dumps(current))
            change(current, current.setdefault("status", {}).setdefault("conditions", []))
            self.store.put(self.plural, current)

    def _training(self, job):
        annotations = job["metadata"]["annotations"]
        attempt = annotations["perennial/attempt"]
        return open_store(f"{annotations['perennial/store-uri']}/attempts/{attempt}")

    def _say_ended(self, job, *, is_finished, ranks=(0, 1)):
        attempt = job["metadata"]["annotations"]["perennial/attempt"]
        end = AttemptEnd(attempt=attempt, is_finished=is_finished, ranks=ranks)
        self._training(job).write("ended.json", end.to_json().encode())

    # -- scripts ---------------------------------------------------------------------------------

    def _success(self, job, lines=3):
        pods = self._run(job, lines)
        self._say_ended(job, is_finished=True, ranks=tuple(range(len(pods))))
        for pod in pods:
            self._exit(pod, 0)
        self._complete(job)

    def _worker_failure(self, job):
        first, second = self._run(job)
        failure = RankFailure(
            rank=1, step=7, type="KeyError", message="'price'", traceback="Traceback: KeyError",
            time=1.0, is_consequence=False,
        )  # fmt: skip
        self._training(job).write("errors/rank-1.json", failure.to_json().encode())
        self._exit(second, 1)
        self._pause(3)
        self._fail(job, first)

    def _out_of_memory(self, job):
        first, second = self._run(job)
        self._exit(second, 137, "OOMKilled")
        self._fail(job, first, code=1)

    def _evicted(self, job):
        first, second = self._run(job)
        self._pod(second, "Failed", reason="Evicted", message="The node was low on resource")
        self._end_log(second)
        self._fail(job, first, code=1)

    def _preempted(self, job):
        pods = self._run(job)
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        self._say_ended(job, is_finished=False)
        for pod in reversed(pods):
            self._exit(pod, 1, conditions=[target])
        self._fail(job)

    def _deadline(self, job):
        first, second = self._run(job)
        self._pod(
            second, "Failed", reason="DeadlineExceeded", message="active on the node too long"
        )
        self._end_log(second)
        self._fail(job, first, code=143)

    def _first_failure_before_the_second_starts(self, job):
        first, second = self._pods(job)
        self._pod(second, "Pending", state={"waiting": {"reason": "PodInitializing"}})
        self._let_run(first)
        self._pause(20)
        self._exit(first, 1)
        self._fail(job, second)

    def _never_scheduled(self, job):
        for pod in self._pods(job):
            why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            self._pod(pod, "Pending", scheduled=False, why=why)

    def _image_pull_error(self, job):
        for pod in self._pods(job):
            state = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            self._pod(pod, "Pending", state={"waiting": state})

    def _never_meets(self, job):
        """Every pod runs, and waits for another that it cannot reach."""
        self._begin(job)

    def _forever(self, job):
        pods = self._run(job)
        while job["metadata"]["uid"] in {
            each["metadata"]["uid"] for each in self.store.all(self.plural)
        }:
            self.store.write_log(pods[0], "INFO rank=0 still there")
            if self.closed.wait(TICK):
                return

    def _suspended(self, job):
        """As Kueue's webhook leaves it; nobody answers for it."""
        self._hold(job)

    def _admitted_but_suspended(self, job):
        self._hold(job)
        self.store.put("workloads", workload(job, ADMITTED))

    def _admitted_after_a_while(self, job):
        self._hold(job)
        self.store.put("workloads", workload(job, WAITING))
        self._pause(60)
        self.store.put("workloads", workload(job, ADMITTED))
        self._pause(10)
        self._resume(job)
        self._success(job, lines=30)  # long enough to be seen while it runs

    def _suspended_with_pods_that_stay(self, job):
        """Longer than the grace period, as on a machine that does not answer."""
        self._suspended_while_it_runs(job, ticks=150)

    def _suspended_while_it_runs(self, job, ticks=1):
        """Kueue takes the quota back, and gives it again: the job stays, its pods go."""
        pods = self._run(job)
        self._hold(job)
        self._delete(pods, EXIT_TERMINATED, ticks)
        training = self._training(job)
        self._wait(lambda: training.read("joined") is None)  # the launcher has seen the end
        last = training.read("launcher")
        self._wait(lambda: training.read("launcher") != last)  # and follows the job again
        self._resume(job)
        self._success(job)
