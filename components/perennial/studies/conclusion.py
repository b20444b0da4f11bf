"""Conclusion: analyse a study from its records, judge its finalists, and store what follows."""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue, ValidationError

from perennial.clients.object_store import LocalObjectStore, ObjectStore
from perennial.contracts.errors import PerennialError
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.study import StudyJudgement
from perennial.engine.checkpoints.checkpoint_store import open_checkpoint_store
from perennial.engine.job import training_contract, training_fingerprint
from perennial.engine.task import check_options, load_task_type
from perennial.gate.config import GateSection
from perennial.studies.analysis.coverage import (
    Accepts,
    count_good_points,
    find_boundaries,
    find_infeasible_regions,
)
from perennial.studies.analysis.effects import explain_values, isolate
from perennial.studies.analysis.length import advise_length
from perennial.studies.analysis.noise import measure_noise
from perennial.studies.analysis.search import Search, finalists
from perennial.studies.findings import StudyFindings
from perennial.studies.judgement import judge_study
from perennial.studies.next_study import FILE_NAME, propose_next, write_study
from perennial.studies.records import StudyPlan, Trial
from perennial.studies.report import write_page
from perennial.studies.space import read_with
from perennial.studies.store import StudyStore, read_record
from perennial.training_jobs.config import TrainModelConfig

PAGE_NAME = "report.html"
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conclusion:
    """Findings and judgement of a study."""

    findings: StudyFindings
    judgement: StudyJudgement

    @property
    def scalars(self) -> dict[str, float]:
        """Return the scalars for dashboards."""
        found = {f"trials/{state}": float(n) for state, n in self.findings.trials.items()}
        found["adopt"] = float(self.judgement.decision == "adopt")
        for each in self.judgement.comparisons:
            if each.improvement is not None:
                found[f"improvement/trial_{each.trial}"] = each.improvement.estimate
        return found


def conclude_study(
    plan: StudyPlan, gate: GateSection, snapshot: Path, store: ObjectStore, page: Path
) -> Conclusion:
    """Analyse and judge a study from its stored records, without training anything.

    Results are stored beside the records; equal records give equal results, bit for bit. Once
    finalists were compared, checkpoints that nothing uses again are deleted.

    Raises:
        PerennialError: no trial has ended, or a record, training or checkpoint is damaged or gone.
    """
    trials = read_trials(store, plan)
    if not trials:
        raise PerennialError(
            f"no trial of the study {plan.study_digest[:16]} has ended",
            evidence=f"{store.uri}/{plan.prefix}/trials is empty",
            action="run it with `perennial study run`",
        )
    findings = analyze_search(plan, trials)
    judgement = judge_study(plan, trials, gate, snapshot, store)
    proposed = propose_next(plan, trials, findings, judgement)
    text = write_study(*proposed) if proposed is not None else ""
    write_page(page, plan, trials, findings, judgement, next_study=text)
    for record in (findings, judgement):
        store.write(f"{plan.prefix}/{record.file_name}", record.to_json().encode())
    store.write(f"{plan.prefix}/{FILE_NAME}", text.encode())
    store.write(f"{plan.prefix}/{PAGE_NAME}", page.read_bytes())
    # Before there is a comparison, trials that have not ended may become finalists.
    if judgement.comparisons:
        delete_checkpoints(plan, trials, Snapshot.read(snapshot), store)
    return Conclusion(findings, judgement)


def analyze_search(plan: StudyPlan, trials: Sequence[Trial]) -> StudyFindings:
    """Return everything that the search shows; equal trials give equal findings, bit for bit.

    `trials` are those that have ended, confirmations included, in the order of their numbers.
    """
    search = Search.of(plan, trials)
    noise = measure_noise(search, trials)
    return StudyFindings(
        study=plan.study_digest,
        trials=dict(sorted(Counter(trial.state for trial in search.trials).items())),
        best=search.ranked[0].number if search.ranked else None,
        boundaries=find_boundaries(search, accepts_values(plan)),
        good_points=count_good_points(search, noise.deviation),
        infeasible=find_infeasible_regions(search),
        isolation=isolate(search, noise.deviation),
        effects=explain_values(search),
        noise=noise,
        length=advise_length(search),
    )


def delete_checkpoints(
    plan: StudyPlan, trials: Sequence[Trial], snapshot: Snapshot, store: ObjectStore
) -> None:
    """Delete the checkpoints of search trainings that nothing uses again; curves and logs stay.

    Kept are those of the confirmations, which the verdict is repeated from, of the baseline, which
    is the contract's own training, and of the finalists, one of which is the training of the
    contract that adopts it.
    """
    kept = {0, *finalists(plan, trials)}
    groups: dict[bool, set[str]] = {True: set(), False: set()}
    for trial in trials:
        if trial.stage != "confirm":
            groups[trial.number in kept] |= set(fingerprints(plan, trial, snapshot))
    root = store.root if isinstance(store, LocalObjectStore) else store.uri
    deleted = 0
    # Trials with equal settings share a training, and a kept trial may be one of them.
    for fingerprint in groups[False] - groups[True]:
        checkpoints = open_checkpoint_store(f"{root}/training/{fingerprint[:16]}/checkpoints")
        steps = checkpoints.steps()
        for step in steps:
            checkpoints.delete(step)
        deleted += len(steps)
    if deleted:
        logger.info("checkpoints=%d of search trials deleted: nothing uses them again", deleted)


def fingerprints(plan: StudyPlan, trial: Trial, snapshot: Snapshot) -> Iterator[str]:
    """Yield the fingerprints of a search trial's trainings, also of those that ended early."""
    for index in range(plan.study.seeds_per_trial):
        seed = plan.search_seed(index)
        try:
            settings = read_with(
                TrainModelConfig, plan.contract, {**trial.values, "training.seed": seed}
            )
        except ValidationError:  # the contract refused the values: nothing was trained
            return
        contract = training_contract(snapshot, settings.model, settings.training, plan.code)
        for name, pinned in (("initial", plan.initial), ("teachers", plan.teachers)):
            if pinned:
                contract[name] = pinned
        yield training_fingerprint(contract)


def read_trials(store: ObjectStore, plan: StudyPlan) -> list[Trial]:
    """Return the trials that have ended and count, in the order of their numbers.

    Raises:
        PerennialError: a record is damaged.
    """
    keys = [found.key for found in store.list(f"{plan.prefix}/trials/")]
    trials = [found for key in keys if (found := read_record(Trial, store, key)) is not None]
    # Workers of earlier versions recorded trials behind the end of a stage that the budget cut.
    records = StudyStore(store, plan, owner="")
    ends = {stage: records.end_of(stage) for stage in {trial.stage for trial in trials}}
    counted = [
        trial for trial in trials if (end := ends[trial.stage]) is None or trial.number <= end
    ]
    return sorted(counted, key=lambda each: each.number)


def accepts_values(plan: StudyPlan) -> Accepts:
    """Return whether the plan's contract, and its task, take a value of an option."""
    names = TrainModelConfig.model_fields
    contract = {name: found for name, found in plan.contract.items() if name in names}

    def accepts(option: str, value: JsonValue) -> bool:
        try:
            settings = read_with(TrainModelConfig, contract, {**plan.study.fixed, option: value})
            check_options(load_task_type(settings.model.task), settings.model.options)
        except (PerennialError, ValidationError):
            return False
        return True

    return accepts
