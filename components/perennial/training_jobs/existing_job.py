"""Adoption: what becomes of a job that has the name already?"""

from dataclasses import dataclass
from typing import Literal

from perennial.training_jobs.job_kind import JobView


@dataclass(frozen=True)
class ExistingJobPolicy:
    """What to do about the job that was found.

    Attributes:
        action: Follow it; or delete it, wait until it is gone, and create ours; or only wait.
        reason: Why.
    """

    action: Literal["adopt", "replace", "wait"]
    reason: str


def decide_on_existing_job(found: JobView, run_id: str, spec_digest: str) -> ExistingJobPolicy:
    """The name says that it is the same training; is it one to follow?

    Args:
        found: The job that exists.
        run_id: Our run.
        spec_digest: Of the manifest that we would have created.
    """
    if found.is_leaving:
        return ExistingJobPolicy("wait", "it is being deleted")
    if found.outcome is not None:
        return ExistingJobPolicy("replace", f"it has {found.outcome} and is not coming back")
    if found.run_id != run_id:
        return ExistingJobPolicy("adopt", f"run {found.run_id} trains the same, bit for bit")
    if found.spec_digest != spec_digest:
        return ExistingJobPolicy("replace", "this run asks for other resources than it had")
    return ExistingJobPolicy("adopt", "an earlier attempt of this step started it")
