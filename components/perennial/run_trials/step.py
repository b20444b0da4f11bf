"""Study step: run the trials that have not ended, several at a time, and record each of them."""

import math
import shutil
import socket
import tempfile
from pathlib import Path

from perennial.clients.object_store import open_store
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment, leave_run_folder
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.contracts.snapshot import Snapshot
from perennial.run_trials.recording import TrialRecorder
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.steps.journal import Journal
from perennial.studies.driver import Driver
from perennial.studies.katib import search_by_katib
from perennial.studies.planning import StudyConfig, plan_study
from perennial.studies.records import Trial, summarize_trials
from perennial.studies.report import trials_page
from perennial.studies.store import StudyStore
from perennial.studies.trial import TrialRunner
from perennial.training_jobs.attempts import stopping_on_signals


@pipeline_step("run_trials", reads=StudyConfig, outputs=("trials", "report"))
def run_trials_step(
    *, contract: str, worker: str, snapshot: str, trials: str, report: str
) -> StepResult:
    """Run the study's trials until all have ended, by this worker or others.

    `worker` is `1/2` for the first of two workers, which share the trials.
    """
    settings = StudyConfig.from_json(contract)
    environment = Environment.read()
    place = Path(snapshot)
    found = Snapshot.read(place)
    pinned = InitialModel.find(place), Teachers.find(place)
    plan = plan_study(settings, found, environment.code_digest, *pinned)
    store = StudyStore(open_store(environment.store_uri), plan, owner_of(environment, worker))
    store.begin(found)
    # Opened before the folder is unset, which keeps the trials' own progress out of the journal.
    journal = Journal(environment.run_folder)
    leave_run_folder()
    scratch = Path(tempfile.mkdtemp(prefix="trials-"))
    runner = TrialRunner(plan, settings.resources, place, environment, scratch)
    with TrialRecorder(environment, plan, settings.resources) as recorder:

        def show(trial: Trial, ended: int, total: int) -> None:
            recorder.record(trial)
            journal.append("progress", step="run_trials", unit="trial", done=ended, total=total)

        driver = Driver(store, runner, show)
        try:
            if (search := search_by_katib(store, settings.resources)) is not None:
                with stopping_on_signals(search.stop):
                    search.run()
            with stopping_on_signals(driver.stop):
                # The workers share the trials that run at the same time.
                driver.run(math.ceil(plan.study.parallel / int(worker.rpartition("/")[2])))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
        ended = driver.all_trials()
        recorder.finish(ended)
    hand_on(Path(trials), plan, place)
    trials_page(plan, ended).write(Path(report))
    return StepResult(metrics={"trials": float(len(ended))}, summary=summarize_trials(plan, ended))


def owner_of(environment: Environment, worker: str) -> str:
    """Return a name of this worker that its next attempt has too, and no other that is alive.

    In a home, one run of a model is active at a time; a pipeline run has one pod for each worker.
    """
    if environment.run_folder is not None:
        return f"{socket.gethostname()}:{environment.run_folder.parents[1].absolute()} {worker}"
    return f"{environment.run_id} {worker}"
