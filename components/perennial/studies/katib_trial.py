"""A trial of Katib: trains with the values that it assigned, and prints what became of them.

    python -m perennial.studies.katib_trial STUDY NAME=VALUE…

Katib reads the line `value=…`. The record goes to the study's folder, as any other trial's.
"""

import logging
import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from perennial.clients.object_store import ObjectStore, open_store
from perennial.contracts.environment import Environment, load_secrets
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import canonical_json
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.user_code import RunStopped, explain
from perennial.studies.katib import VALUE, read_assignments
from perennial.studies.records import StudyPlan
from perennial.studies.sampling import space_of
from perennial.studies.store import StudyStore, read_record
from perennial.studies.trial import TrialRunner, Work
from perennial.training_jobs.attempts import stopping_on_signals
from perennial.training_jobs.config import ResourcesSection

SOURCE = "katib"
FAILED = 1  # as Katib counts a trial without a value
logger = logging.getLogger(__name__)


def main(prefix: str, *assigned: str) -> int:
    """Run one trial; 0 if it has a value.

    Raises:
        PerennialError: there is no such study, its trials have all ended, or the assignments are
            not of its space.
        RunStopped: by SIGTERM; Katib may start the trial again.
    """
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    load_secrets()
    environment = Environment.read()
    store = open_store(environment.store_uri)
    plan, snapshot = _study(store, prefix)
    values = read_assignments(space_of(plan), dict(each.split("=", 1) for each in assigned))
    own = StudyStore(store, plan, f"{SOURCE} {os.uname().nodename}")
    number = _claim(own, plan)
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        snapshot.write(folder / "snapshot")
        runner = TrialRunner(
            plan, _resources(plan), folder / "snapshot", environment, folder / "encoded"
        )
        seeds = [plan.search_seed(index) for index in range(plan.study.seeds_per_trial)]
        try:
            with stopping_on_signals(runner.stop), own.renewing():
                trial = runner.run(Work(number, values, seeds))
        # Another pod may run it again: under its own name, it would wait until the claim is stale.
        except BaseException:
            own.release(number)
            raise
        trial = own.finish(trial.model_copy(update={"source": SOURCE}))
    if trial.value is None:
        logger.error("%s: %s", trial.state, trial.reason)
        return FAILED
    sys.stdout.write(f"{VALUE}={trial.value!r}\n")
    return 0


def _study(store: ObjectStore, prefix: str) -> tuple[StudyPlan, Snapshot]:
    plan = read_record(StudyPlan, store, f"{prefix}/{StudyPlan.file_name}")
    snapshot = read_record(Snapshot, store, f"{prefix}/{Snapshot.file_name}")
    if plan is None or snapshot is None:
        raise PerennialError(
            f"there is no study in {prefix}",
            action="start it with `perennial study run`, which also makes Katib's Experiment",
        )
    return plan, snapshot


def _claim(store: StudyStore, plan: StudyPlan) -> int:
    """Claim the first trial of the search that nobody has run; trial 0 is the baseline."""
    for number in range(1, plan.study.trials + 1):
        if store.claim(number):
            return number
    raise PerennialError(
        "all trials of the study have ended or are running",
        evidence=f"it has {plan.study.trials}",
        action="delete the Experiment; the study's own step goes on by itself",
    )


def _resources(plan: StudyPlan) -> ResourcesSection:
    """Return the resources that count, for processes of this pod."""
    counted = plan.contract["resources"]
    options = dict(counted) if isinstance(counted, dict) else {}
    return ResourcesSection.from_json(canonical_json({**options, "launcher": "local"}))


if __name__ == "__main__":
    try:
        sys.exit(main(*sys.argv[1:]))
    except PerennialError as error:
        sys.exit(explain(error))
    except RunStopped as stopped:
        sys.exit(stopped.code)
