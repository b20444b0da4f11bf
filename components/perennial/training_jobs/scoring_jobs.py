"""Scoring jobs: divide a model over machines while a step scores it, as a job of the launcher."""

import logging
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

from typing_extensions import override

from perennial.clients.object_store import file_digests, open_store
from perennial.clients.outages import errors_logged
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.scoring import ScoringSection
from perennial.contracts.section import digest_of
from perennial.engine.evaluation.job_files import (
    FOLDER,
    delete_inputs,
    fetch_results,
    upload_inputs,
)
from perennial.engine.evaluation.processes import (
    Failure,
    ScoringRequest,
    Shards,
    blaming_the_machine,
    failure_file,
    machine_failed,
)
from perennial.engine.handover import fetch_result, folder_for
from perennial.engine.job import RankFailure, ScoringJob
from perennial.reports.text import counted
from perennial.training_jobs.attempts import stopping_on_signals
from perennial.training_jobs.config import ResourcesSection
from perennial.training_jobs.launcher import JobResult, JobState
from perennial.training_jobs.on_cluster import (
    ClusterLauncher,
    is_local,
    open_cluster_launcher,
    require_remote_store,
)

logger = logging.getLogger(__name__)


def open_shards(
    scoring: ScoringSection,
    resources: ResourcesSection,
    model: ModelSection,
    environment: Environment,
) -> Shards:
    """Return the processes that divide a model while this step scores it.

    With a launcher on this machine they all run here, as those of a training do.

    Raises:
        PerennialError: the cluster cannot run the job as configured, or its API cannot be read.
    """
    if scoring.machines == 1 or is_local(resources):
        return Shards(scoring.shards)
    cluster = resources.cluster.model_copy(
        # All of the weights have to be in memory, so fewer machines would not do.
        update={"machines": scoring.machines, "min_machines": None}
    )
    pods = {"num_processes": scoring.shards, "cluster": cluster}
    # The tracking run that the platform opened is for the training.
    own = replace(environment, tracking_run_id="")
    found = JobShards(
        scoring.shards, model=model, resources=resources.model_copy(update=pods), environment=own
    )
    # Now, before hours of work.
    require_remote_store(environment.store_uri)
    found.open_launcher().close()
    return found


@dataclass(frozen=True, kw_only=True)
class JobShards(Shards):
    """Processes of several machines that divide the weights; each scoring is a job of its own.

    A repetition of the step follows the job of the last one, or takes its result. Inputs leave the
    store with the scoring, results when the run ends.
    """

    model: ModelSection
    resources: ResourcesSection
    environment: Environment

    def open_launcher(self) -> ClusterLauncher:
        """Open the launcher of one job."""
        return open_cluster_launcher(self.resources, self.environment)

    @override
    def require(self) -> None:
        """Do nothing: whether there are so many GPUs or cores is the cluster's to decide."""

    @override
    def score(
        self, module: str, request: ScoringRequest, results: int, scratch: Path
    ) -> Iterator[list[str]]:
        places = {name: Path(getattr(request, name)) for name in type(request).inputs}
        job = self._job(module, request, places)
        try:
            with blaming_the_machine():
                is_finished = fetch_result(job)
                if not is_finished:
                    upload_inputs(job, places)
            if is_finished:
                logger.info("scoring=%s was finished before", job.fingerprint[:16])
            else:
                self._run(job)
        finally:
            # Those that a killed step left, too.
            with errors_logged(f"inputs of {job.store_uri} are left", PerennialError):
                delete_inputs(job)
        with blaming_the_machine():
            found = fetch_results(job, scratch, request.target)
        if len(found) != results:
            raise machine_failed(f"the job returned {len(found)} of {results} results")
        for text in found:
            yield [text]

    def _job(self, module: str, request: ScoringRequest, places: dict[str, Path]) -> ScoringJob:
        inputs = {name: file_digests(place) for name, place in places.items()}
        paths = dict.fromkeys(places, "") | {"target": str(bool(request.target))}
        # The paths are those of this machine, which differ in a repetition of the step.
        asked = request.model_copy(update=paths).to_json()
        run_id = self.environment.run_id
        fingerprint = digest_of(
            {
                "run": run_id,
                "code": self.environment.code_digest,
                "module": module,
                "request": asked,
                "inputs": {name: dict(files) for name, files in inputs.items()},
            }
        )
        store = open_store(self.environment.store_uri)
        address = f"{store.uri}/{FOLDER}/{run_id}/{fingerprint[:16]}"
        return ScoringJob(
            fingerprint=fingerprint,
            model=self.model,
            num_processes=self.number,
            folder=str(folder_for(address)),
            store_uri=address,
            module=module,
            request=request.to_json(),
            inputs=inputs,
        )

    def _run(self, job: ScoringJob) -> None:
        """Run attempts until one has a result.

        Raises:
            ShardingError: the cluster ended it, or a process was killed.
            Exception: what ended the first rank that failed.
        """
        with blaming_the_machine():
            launcher = self.open_launcher()
        restarts, most = 0, self.resources.max_restarts
        with stopping_on_signals(launcher.stop), closing(launcher):
            while True:
                with blaming_the_machine():
                    launcher.start(job)
                    result = launcher.wait()
                if result.state is JobState.SUCCEEDED:
                    return
                failure = RankFailure.first_of(job.errors)
                is_outage = failure is not None and failure.is_outage
                if not is_outage and result.state is not JobState.DISPLACED:
                    raise _scoring_failed(job, failure, result, launcher.log)
                if restarts >= most:
                    left = f"no attempt is left after {counted(most, 'restart')}"
                    raise machine_failed(left, result.evidence, "run the step again")
                restarts += 1
                logger.warning(
                    "attempt ended: %s; restart=%d of %d", result.evidence, restarts, most
                )


def _scoring_failed(
    job: ScoringJob, failure: RankFailure | None, result: JobResult, log: str
) -> Exception:
    """Return the error that ended the first rank; others only lost their connection to it."""
    if failure is None or failure.is_consequence:
        lost = f"; rank {failure.rank} lost connection: {failure.message}" if failure else ""
        return machine_failed(
            f"a process of the job was killed{lost}",
            result.evidence,
            "raise resources.cluster.memory_gib_per_process or scoring.shards, so that each holds "
            f"less; the logs of all pods are beside {log}",
        )
    place = f"rank {failure.rank} of {job.num_processes}"
    file = failure_file(job.errors, failure.rank)
    if not file.exists():
        return machine_failed(f"{place}: {failure.type}: {failure.message}", result.evidence)
    return Failure.from_json(file.read_text()).as_error(place)
