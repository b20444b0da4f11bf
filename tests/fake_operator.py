"""A training operator on the fake API server: the condition sequences that were seen on a live one.

Times are scaled: a second of a real cluster is a few milliseconds here.
"""

import contextlib
import json
import threading
import time
import uuid

from components.clients.object_store import open_store
from components.engine.job import AttemptEnd, RankFailure

PLURAL = "pytorchjobs"
TICK = 0.02


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
                        {"name": "AWS_SECRET_ACCESS_KEY",
                         "valueFrom": {"secretKeyRef": {"name": "s3", "key": "secret"}}},
                        {"name": "ARGO_NODE_ID", "value": "not for the training"},
                    ],
                },
            ]
        },
    }  # fmt: skip


# Conditions that Kueue 0.19 gives a Workload: type, status, reason, message.
WAITING = [
    ("QuotaReserved", "False", "Pending",
     "couldn't assign flavors to pod set master: insufficient unused quota for nvidia.com/gpu in "
     "flavor a100, 2 more needed"),
]  # fmt: skip
ADMITTED = [
    ("QuotaReserved", "True", "QuotaReserved", "Quota reserved in ClusterQueue team-a"),
    ("Admitted", "True", "Admitted", "The workload is admitted"),
]


def workload(job, conditions, **status):
    """What Kueue makes of a job that names a queue."""
    metadata = job["metadata"]
    now = "2026-01-01T00:00:00Z"
    owner = {
        "apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "name": metadata["name"],
        "uid": metadata["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip
    told = [
        {"type": kind, "status": value, "reason": reason, "message": message,
         "lastTransitionTime": now, "observedGeneration": 1}
        for kind, value, reason, message in conditions
    ]  # fmt: skip
    return {
        "apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "Workload",
        "metadata": {
            "name": f"pytorchjob-{metadata['name']}-5e3de", "uid": f"w-{metadata['uid']}",
            "labels": {"kueue.x-k8s.io/job-uid": metadata["uid"]}, "ownerReferences": [owner],
            "creationTimestamp": now, "generation": 1,
        },
        "spec": {
            "active": True, "queueName": "team", "priority": 0,
            "podSets": [
                {"name": name.lower(), "count": replica["replicas"],
                 "template": {"spec": replica["template"]["spec"]}}
                for name, replica in job["spec"]["pytorchReplicaSpecs"].items()
            ],
        },
        "status": {"conditions": told, **status},
    }  # fmt: skip


class Operator:
    """Makes pods of jobs, and lets each attempt go as its script says.

    Args:
        cluster: The fake.
        scripts: What becomes of the first job, the second, …; the last one repeats.
    """

    def __init__(self, cluster, *scripts):
        self.cluster, self.store = cluster, cluster.store
        self.scripts = list(scripts) or ["success"]
        self.runs = {}
        self.closed = threading.Event()
        self.thread = threading.Thread(target=self._reconcile, daemon=True)
        self.thread.start()

    def close(self):
        self.closed.set()
        self.thread.join()

    def _reconcile(self):
        while not self.closed.wait(TICK):
            for job in self.store.all(PLURAL):
                metadata = job["metadata"]
                if "deletionTimestamp" in metadata:
                    self._finalize(job)
                elif metadata["uid"] not in self.runs:
                    script = self.scripts[min(len(self.runs), len(self.scripts) - 1)]
                    self.runs[metadata["uid"]] = script
                    act = getattr(self, f"_{script}")
                    threading.Thread(target=self._guarded, args=(act, job), daemon=True).start()

    def _guarded(self, act, job):
        with contextlib.suppress(KeyError):  # the job was deleted under the script's feet
            act(job)

    def _finalize(self, job):
        name = job["metadata"]["name"]
        for pod in self.store.all("pods"):
            if pod["metadata"].get("labels", {}).get("training.kubeflow.org/job-name") == name:
                self._end_log(pod["metadata"]["name"])
                self.store.drop("pods", pod["metadata"]["name"])
        self.store.drop(PLURAL, name)

    # -- what pods do ----------------------------------------------------------------------------

    def _pods(self, job, kinds=("Master", "Worker")):
        name = job["metadata"]["name"]
        replicas = job["spec"]["pytorchReplicaSpecs"]
        made = []
        for kind in kinds:
            for index in range(replicas.get(kind, {}).get("replicas", 0)):
                labels = dict(replicas[kind]["template"]["metadata"]["labels"])
                labels |= {
                    "training.kubeflow.org/job-name": name,
                    "training.kubeflow.org/replica-type": kind.lower(),
                    "training.kubeflow.org/replica-index": str(index),
                }
                pod = {
                    "metadata": {
                        "name": f"{name}-{kind.lower()}-{index}", "uid": str(uuid.uuid4()),
                        "labels": labels,
                    },
                    "spec": replicas[kind]["template"]["spec"],
                    "status": {"phase": "Pending"},
                }  # fmt: skip
                made.append(self.store.put("pods", pod)["metadata"]["name"])
        self._condition(job, "Created")
        return made

    def _pod(self, name, phase, *, scheduled=True, state=None, why="", **status):
        pod = json.loads(json.dumps(self.store.objects["pods"][name]))
        conditions = [{"type": "PodScheduled", "status": "True" if scheduled else "False"}]
        if not scheduled:
            conditions[0] |= {"reason": "Unschedulable", "message": why}
        conditions += status.pop("conditions", [])
        pod["status"] = {"phase": phase, "conditions": conditions, **status}
        if state:
            pod["status"]["containerStatuses"] = [{"name": "pytorch", "state": state}]
        self.store.put("pods", pod)

    def _run(self, job, lines=3):
        pods = self._pods(job)
        for pod in pods:
            self._pod(pod, "Pending", state={"waiting": {"reason": "ContainerCreating"}})
        time.sleep(2 * TICK)
        for rank, pod in enumerate(pods):
            self.store.write_log(pod, f"INFO rank={rank} begins")
            self._pod(pod, "Running", state={"running": {}})
        self._condition(job, "Running")
        self._training(job).write("joined", b"")
        self._training(job).write("first-step", b"")
        for line in range(lines):
            time.sleep(TICK)
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

    def _condition(self, job, kind, message=""):
        name = job["metadata"]["name"]
        current = self.store.objects[PLURAL][name]
        if current["metadata"]["uid"] != job["metadata"]["uid"]:
            raise KeyError(name)
        current = json.loads(json.dumps(current))
        conditions = current.setdefault("status", {}).setdefault("conditions", [])
        if kind in ("Succeeded", "Failed"):
            for found in conditions:
                if found["type"] == "Running":
                    found["status"] = "False"
        message = message or f"PyTorchJob {name} is {kind.lower()}."
        conditions.append({"type": kind, "status": "True", "message": message})
        self.store.put(PLURAL, current)

    def _training(self, job):
        annotations = job["metadata"]["annotations"]
        attempt = annotations["perennial/attempt"]
        return open_store(f"{annotations['perennial/store-uri']}/attempts/{attempt}")

    def _say_ended(self, job, *, is_finished, ranks=(0, 1)):
        attempt = job["metadata"]["annotations"]["perennial/attempt"]
        end = AttemptEnd(attempt=attempt, is_finished=is_finished, ranks=ranks)
        self._training(job).write("ended.json", end.to_json().encode())

    def _fail(self, job, message="1 Worker replica(s) failed."):
        self._condition(job, "Failed", f"PyTorchJob is failed because {message}")

    # -- scripts ---------------------------------------------------------------------------------

    def _success(self, job):
        pods = self._run(job)
        self._say_ended(job, is_finished=True)
        for pod in pods:
            self._exit(pod, 0)
        self._condition(job, "Succeeded", "PyTorchJob is successfully completed.")

    def _success_of_the_master_first(self, job):
        master, worker = self._run(job)
        self._say_ended(job, is_finished=True)
        self._exit(master, 0)
        self._condition(job, "Succeeded", "PyTorchJob is successfully completed.")
        self._end_log(worker)
        self.store.drop("pods", worker)

    def _claimed_success(self, job):
        master, worker = self._run(job)
        self._exit(master, 0)
        self._condition(job, "Succeeded", "PyTorchJob is successfully completed.")
        self._end_log(worker)
        self.store.drop("pods", worker)

    def _worker_failure(self, job):
        master, worker = self._run(job)
        failure = RankFailure(
            rank=1, step=7, type="KeyError", message="'price'", traceback="Traceback: KeyError",
            time=1.0, is_consequence=False,
        )  # fmt: skip
        self._training(job).write("errors/rank-1.json", failure.to_json().encode())
        self._exit(worker, 1)
        time.sleep(3 * TICK)
        self._fail(job)
        self._end_log(master)
        self.store.drop("pods", master)

    def _out_of_memory(self, job):
        master, worker = self._run(job)
        self._exit(worker, 137, "OOMKilled")
        self._fail(job)
        self._exit(master, 1)

    def _never_scheduled(self, job):
        for pod in self._pods(job):
            why = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            self._pod(pod, "Pending", scheduled=False, why=why)

    def _suspended(self, job):
        """As Kueue's webhook leaves it; nobody answers for it."""
        held = json.loads(json.dumps(self.store.objects[PLURAL][job["metadata"]["name"]]))
        held["spec"]["runPolicy"]["suspend"] = True
        self.store.put(PLURAL, held)
        self._condition(job, "Suspended", "PyTorchJob is suspended.")

    def _admitted_but_suspended(self, job):
        self._suspended(job)
        self.store.put("workloads", workload(job, ADMITTED))

    def _admitted_after_a_while(self, job):
        self._suspended(job)
        self.store.put("workloads", workload(job, WAITING))
        time.sleep(60 * TICK)
        self.store.put("workloads", workload(job, ADMITTED))
        time.sleep(10 * TICK)
        resumed = json.loads(json.dumps(self.store.objects[PLURAL][job["metadata"]["name"]]))
        resumed["spec"]["runPolicy"]["suspend"] = False
        resumed["status"]["conditions"] = []
        self.store.put(PLURAL, resumed)
        self._success(job)

    def _refused_worker(self, job):
        """Pod Security lets the master in only. The operator then keeps no condition up to date."""
        (master,) = self._pods(job, kinds=["Master"])
        self._pod(master, "Running", state={"running": {}})
        time.sleep(20 * TICK)
        self._exit(master, 1)

    def _master_failure_before_the_worker_starts(self, job):
        master, worker = self._pods(job)
        self._pod(worker, "Pending", state={"waiting": {"reason": "PodInitializing"}})
        self._pod(master, "Running", state={"running": {}})
        time.sleep(20 * TICK)
        self._exit(master, 1)
        self._fail(job, "1 Master replica(s) failed.")
        self.store.drop("pods", worker)

    def _image_pull_error(self, job):
        for pod in self._pods(job):
            state = {"reason": "ImagePullBackOff", "message": "Back-off pulling image"}
            self._pod(pod, "Pending", state={"waiting": state})

    def _evicted(self, job):
        master, worker = self._run(job)
        self._pod(worker, "Failed", reason="Evicted", message="The node was low on resource")
        self._end_log(worker)
        self._fail(job)
        self._exit(master, 1)

    def _preempted(self, job):
        master, worker = self._run(job)
        target = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        self._say_ended(job, is_finished=False)
        for pod in (worker, master):
            self._exit(pod, 1, conditions=[target])
        self._fail(job)

    def _deadline(self, job):
        master, worker = self._run(job)
        self._pod(
            worker, "Failed", reason="DeadlineExceeded", message="active on the node too long"
        )
        self._end_log(worker)
        self._fail(job)
        self._exit(master, 143)

    def _forever(self, job):
        pods = self._run(job)
        while job["metadata"]["uid"] in {
            each["metadata"]["uid"] for each in self.store.all(PLURAL)
        }:
            self.store.write_log(pods[0], "INFO rank=0 still there")
            if self.closed.wait(TICK):
                return
