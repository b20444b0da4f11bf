"""Kubeflow Trainer 2.3: a TrainJob becomes a JobSet, that one batch Job, and that its pods.

Of the chain only the ends are kept, the TrainJob and the pods; what the controllers between them do
was read in Trainer 2.3.0, JobSet 0.12 and Kubernetes 1.31.
"""

import random
import uuid
from datetime import UTC, datetime
from pathlib import Path

import yaml

from fake_operator import EXIT_TERMINATED, Operator

ROOT = Path(__file__).resolve().parents[2]
RUNTIME = ROOT / "k8s" / "components" / "training-runtime" / "training-runtime.yaml"
SUFFIX = "bcdfghjklmnpqrstvwxz2456789"  # what Kubernetes makes names unique with


class TrainJobs(Operator):
    """A job succeeds with its last pod; when one fails, the others are deleted first."""

    title = "TrainJob"
    group = "trainer.kubeflow.org"
    plural = "trainjobs"
    container = "node"
    of_job = "jobset.sigs.k8s.io/jobset-name"
    second = rf"node-0-1-[{SUFFIX}]{{5}}"

    def _bodies(self, job):
        """The runtime's pod with the TrainJob's fields; of its labels, pods get none."""
        name, trainer = job["metadata"]["name"], job["spec"]["trainer"]
        (replicated,) = self._runtime()["spec"]["template"]["spec"]["replicatedJobs"]
        template = replicated["template"]["spec"]["template"]
        batch_job = f"{name}-{replicated['name']}-0"
        (container,) = template["spec"]["containers"]
        container |= {field: trainer[field] for field in ("image", "command", "env")}
        container["resources"] = trainer["resourcesPerNode"]
        for index in range(trainer["numNodes"]):
            labels = template["metadata"]["labels"] | {
                self.of_job: name,
                "jobset.sigs.k8s.io/replicatedjob-name": replicated["name"],
                "jobset.sigs.k8s.io/job-index": "0",
                "batch.kubernetes.io/job-name": batch_job,
                "batch.kubernetes.io/job-completion-index": str(index),
            }
            suffix = "".join(random.choices(SUFFIX, k=5))
            yield {
                "metadata": {
                    "name": f"{batch_job}-{index}-{suffix}", "uid": str(uuid.uuid4()),
                    "labels": labels, "annotations": template["metadata"]["annotations"],
                },
                "spec": template["spec"],
                "status": {"phase": "Pending"},
            }  # fmt: skip

    def _runtime(self):
        return yaml.safe_load(RUNTIME.read_text())

    def _say_running(self, job):
        """Nothing: a TrainJob has no condition for it."""

    def _complete(self, job):
        self._condition(job, "Complete", "AllJobsCompleted", "jobset completed successfully")

    def _fail(self, job, *rest, code=None):
        """With backoffLimit 0 and no restarts; a Job has failed once none of its pods is left."""
        self._delete(rest, code or EXIT_TERMINATED)
        why = "jobset failed due to reaching max number of restarts"
        batch_job = f"{job['metadata']['name']}-node-0"
        self._condition(
            job, "Failed", "ReachedMaxRestarts", f"{why} (first failed job: {batch_job})"
        )

    def _hold(self, job):
        self._suspend(job, is_suspended=True)
        self._condition(job, "Suspended", "Suspended", "TrainJob is suspended")

    def _resume(self, job):
        self._suspend(job, is_suspended=False)
        self._condition(job, "Suspended", "Resumed", "TrainJob is resumed", status="False")

    def _suspend(self, job, *, is_suspended):
        self._change(job, lambda current, _: current["spec"].update(suspend=is_suspended))

    def _condition(self, job, kind, reason, message, *, status="True"):
        made = {
            "type": kind, "status": status, "reason": reason, "message": message,
            "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        }  # fmt: skip

        def change(_, conditions):
            conditions[:] = [*(each for each in conditions if each["type"] != kind), made]

        self._change(job, change)

    # -- scripts ---------------------------------------------------------------------------------

    def _job_deadline(self, job):
        """The Trainer deletes the JobSet, and with it every pod; the ranks get SIGTERM, and save."""
        assert job["spec"]["activeDeadlineSeconds"] > 0
        pods = self._run(job)
        self._condition(job, "Failed", "DeadlineExceeded", "TrainJob exceeded its active deadline")
        self._pause(2)
        self._say_ended(job, is_finished=False)
        self._delete(pods, EXIT_TERMINATED)
