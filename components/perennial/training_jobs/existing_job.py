"""Existing job: decide what to do with a job that already has the name."""

from dataclasses import dataclass
from typing import Literal

from perennial.training_jobs.job_kind import JobView


@dataclass(frozen=True)
class ExistingJobPolicy:
    """The decision on a job that was found.

    Attributes:
        action: Follow it; or delete it, wait until it is gone, and create ours; or only wait.
        reason: Reason for the decision.
    """

    action: Literal["adopt", "replace", "wait"]
    reason: str


def decide_on_existing_job(found: JobView, run_id: str, spec_digest: str) -> ExistingJobPolicy:
    """Decide whether to follow a job of the same name, which is of the same training.

    Args:
        found: The job that exists.
        run_id: Our run.
        spec_digest: Digest of the manifest that we would have created.
    """
    if found.is_leaving:
        return ExistingJobPolicy("wait", "it is being deleted")
    if found.outcome is not None:
        return ExistingJobPolicy("replace", f"it has {found.outcome} and will not resume")
    if found.run_id != run_id:
        return ExistingJobPolicy("adopt", f"run {found.run_id} runs the same training")
    if found.spec_digest != spec_digest:
        return ExistingJobPolicy("replace", "this run requests other resources")
    return ExistingJobPolicy("adopt", "an earlier attempt of this step started it")
