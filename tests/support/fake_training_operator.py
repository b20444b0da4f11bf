"""The training operator 1.9: PyTorchJobs, whose status was seen on a live one."""

import uuid

from fake_operator import Operator

DONE = "PyTorchJob is successfully completed."


class PyTorchJobs(Operator):
    """A job ends with its master, or with the first pod that fails; what still runs is deleted."""

    title = "PyTorchJob"
    group = "kubeflow.org"
    plural = "pytorchjobs"
    container = "pytorch"
    of_job = "training.kubeflow.org/job-name"
    second = r"worker-0"

    def _bodies(self, job, kinds=("Master", "Worker")):
        name, replicas = job["metadata"]["name"], job["spec"]["pytorchReplicaSpecs"]
        self._condition(job, "Created")
        for kind in kinds:
            for index in range(replicas.get(kind, {}).get("replicas", 0)):
                template = replicas[kind]["template"]
                labels = template["metadata"]["labels"] | {
                    self.of_job: name,
                    "training.kubeflow.org/replica-type": kind.lower(),
                    "training.kubeflow.org/replica-index": str(index),
                }
                yield {
                    "metadata": {
                        "name": f"{name}-{kind.lower()}-{index}", "uid": str(uuid.uuid4()),
                        "labels": labels,
                    },
                    "spec": template["spec"],
                    "status": {"phase": "Pending"},
                }  # fmt: skip

    def _say_running(self, job):
        self._condition(job, "Running")

    def _complete(self, job):
        self._condition(job, "Succeeded", DONE)

    def _fail(self, job, *rest, code=None):
        """With cleanPodPolicy Running."""
        self._condition(job, "Failed", "PyTorchJob is failed because 1 Worker replica(s) failed.")
        for pod in rest:
            if code is None:
                self._drop(pod)
            else:
                self._exit(pod, code)

    def _hold(self, job):
        self._change(job, lambda current, _: current["spec"]["runPolicy"].update(suspend=True))
        self._condition(job, "Suspended", "PyTorchJob is suspended.")

    def _resume(self, job):
        def change(current, conditions):
            current["spec"]["runPolicy"]["suspend"] = False
            conditions.clear()

        self._change(job, change)

    def _condition(self, job, kind, message=""):
        message = message or f"PyTorchJob {job['metadata']['name']} is {kind.lower()}."

        def change(current, conditions):
            if kind in ("Succeeded", "Failed"):
                for found in conditions:
                    if found["type"] == "Running":
                        found["status"] = "False"
            conditions.append({"type": kind, "status": "True", "message": message})

        self._change(job, change)

    # -- scripts ---------------------------------------------------------------------------------

    def _success_of_the_master_first(self, job):
        master, worker = self._run(job)
        self._say_ended(job, is_finished=True)
        self._exit(master, 0)
        self._complete(job)
        self._drop(worker)

    def _claimed_success(self, job):
        master, worker = self._run(job)
        self._exit(master, 0)
        self._complete(job)
        self._drop(worker)

    def _refused_worker(self, job):
        """Pod Security lets the master in only. The operator then keeps no condition up to date."""
        (body,) = self._bodies(job, kinds=["Master"])
        master = self.store.put("pods", body)["metadata"]["name"]
        self._let_run(master)
        self._pause(20)
        self._exit(master, 1)
