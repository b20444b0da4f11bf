"""Judgement: score the confirmations on the test rows, and reach the study's verdict."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np

from perennial.clients.object_store import ObjectStore
from perennial.contracts.data import Split
from perennial.contracts.environment import NO_RUN
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.gate import Repeats
from perennial.contracts.section import digest_of
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.study import Confirmed, Decision, ScientificAnswer, StudyJudgement
from perennial.contracts.training import TrainingResult, both_names
from perennial.data.dataset import Dataset
from perennial.engine.checkpoints.checkpointer import load_checkpoint_model
from perennial.engine.evaluation.resampling import (
    Blocks,
    block_columns,
    blocks_of,
    influences,
    resample,
    sign_of,
)
from perennial.engine.evaluation.running_statistics import (
    normalizations,
    recompute_statistics,
    sampled_rows,
    training_batches,
)
from perennial.engine.evaluation.scoring import Scored, score_split, scoring_device
from perennial.engine.metrics.arrays import all_finite
from perennial.engine.task import Task
from perennial.gate.comparison import conditions_of
from perennial.gate.config import GateSection
from perennial.gate.repeats import PastTest, claim_test, days_of
from perennial.studies.analysis.confirmation import (
    HeldOutRows,
    Measured,
    compare_candidates,
    name_values,
)
from perennial.studies.analysis.search import Floats, Search, best_by_value, finalists
from perennial.studies.records import StudyPlan, Trial, TrialTraining

LEVEL = 0.05
"""Probability that any of the intervals of a study misses its true value; earlier studies of the
same baseline on the same test days have spent some of it."""
BASELINE = 0


@dataclass(frozen=True)
class Measurements:
    """All confirmations, measured.

    Attributes:
        candidates: Number of the trial → its confirmations; the baseline is 0.
        repeats: Earlier studies of the same baseline on the same rows.
        count: Number of rows.
    """

    candidates: Mapping[int, Measured]
    rows: HeldOutRows
    repeats: Repeats
    count: int


def judge_study(
    plan: StudyPlan,
    trials: Sequence[Trial],
    gate: GateSection,
    snapshot: Path,
    store: ObjectStore,
) -> StudyJudgement:
    """Score the confirmations of finalists and baseline on the test rows, and decide.

    Raises:
        PerennialError: a confirmation's training or checkpoint is gone, or labels differ.
    """
    if ended := _none_completed(trials):
        return _nothing_judged(plan, ended)
    confirmed = confirmations_of(plan, trials)
    if BASELINE not in confirmed or len(confirmed) < 2:
        missing = "the baseline" if BASELINE not in confirmed else "a finalist"
        return _nothing_judged(plan, f"{missing} has fewer than two confirmations")
    dataset = Dataset(Snapshot.read(snapshot))
    judged = measure_confirmations(plan, confirmed, dataset, store, gate.resamples)
    return decide_study(plan, trials, judged, _too_small(gate, judged))


def _none_completed(trials: Sequence[Trial]) -> str:
    """Return how the trials of a search ended of which none completed, and why; else empty."""
    search = [each for each in trials if each.stage != "confirm" and each.number != BASELINE]
    if not search or any(each.is_usable for each in search):
        return ""
    states = Counter(each.state for each in search)
    ends = " and ".join(f"{number} {state}" for state, number in states.items())
    reasons = (f"; trial {each.number}: {each.reason}" for each in search if each.reason)
    reason = next(reasons, "").partition("\n")[0]
    return f"no trial but the baseline completed ({ends}){reason}"


def confirmations_of(plan: StudyPlan, trials: Sequence[Trial]) -> dict[int, list[Trial]]:
    """Return candidate → its confirmations, where two or more can be measured."""
    wanted = (BASELINE, *finalists(plan, trials))
    found: dict[int, list[Trial]] = {number: [] for number in wanted}
    for trial in sorted(trials, key=lambda each: each.number):
        is_result = trial.is_usable or trial.state == "infeasible"
        if trial.stage == "confirm" and trial.candidate in found and is_result:
            found[trial.candidate].append(trial)
    return {
        number: group
        for number, group in found.items()
        if sum(trial.is_usable for trial in group) > 1
    }


def decide_study(
    plan: StudyPlan, trials: Sequence[Trial], judged: Measurements, too_small: str = ""
) -> StudyJudgement:
    """Return the verdict on measured confirmations, and the answers to scientific questions.

    `too_small` is why the test rows are too few for any verdict; empty if they are not.
    """
    search = Search.of(plan, trials)
    study, confidence = plan.study, 1.0 - judged.repeats.level
    baseline = judged.candidates[BASELINE]
    trained = {each.number: [one.fingerprint for one in each.trainings] for each in trials}
    # A trial with the contract's own values is the baseline: more confirmations would show nothing.
    rivals = [one for one in judged.candidates.values() if trained[one.trial] != trained[BASELINE]]
    shown = {trial.number: search.sign * (trial.value or 0.0) for trial in search.usable}
    comparisons = compare_candidates(
        [(each, baseline) for each in rivals],
        judged.rows,
        sign=search.sign,
        confidence=confidence,
        least=study.min_improvement,
        searched={
            (each.trial, BASELINE): shown[each.trial] - shown[BASELINE]
            for each in rivals
            if BASELINE in shown
        },
    )
    values = {trial.number: trial.values for trial in search.trials}
    comparisons = tuple(
        each.model_copy(update={"values": values[each.trial]}) for each in comparisons
    )
    decision, winner, summary = _verdict(plan, comparisons, too_small)
    changes = {**study.fixed, **winner.values} if winner is not None else {}
    return StudyJudgement(
        study=plan.study_digest,
        model=plan.model,
        snapshot=plan.snapshot,
        metric=plan.metric,
        decision=decision,
        winner=winner.trial if winner else None,
        changes=changes,
        fixed=study.fixed,
        min_improvement=study.min_improvement,
        confidence=confidence,
        comparisons=comparisons,
        answers=_answers(search, judged),
        repeats=judged.repeats,
        test_rows=judged.count,
        test_blocks=judged.rows.blocks.count,
        unit=judged.rows.blocks.unit,
        summary=summary,
    )


def _too_small(gate: GateSection, judged: Measurements) -> str:
    """Return why the test rows are too few for any verdict; the limits are the gate's."""
    if judged.count < gate.min_test_rows:
        return f"{judged.count} test rows are fewer than gate.min_test_rows = {gate.min_test_rows}"
    blocks = judged.rows.blocks
    if blocks.count < gate.min_test_blocks:
        return (
            f"{blocks.count} test {blocks.unit}s are fewer than "
            f"gate.min_test_blocks = {gate.min_test_blocks}"
        )
    return ""


def _verdict(
    plan: StudyPlan, comparisons: Sequence[Confirmed], too_small: str
) -> tuple[Decision, Confirmed | None, str]:
    least = plan.study.min_improvement
    if too_small:
        return "inconclusive", None, f"{too_small}: they decide nothing"
    if not comparisons:
        return "reject", None, "no finalist has other values than the contract"
    best = max(comparisons, key=_estimate)
    adopted = [each for each in comparisons if each.decision == "adopt"]
    if adopted:
        winner = max(adopted, key=_estimate)
        than = f" by more than {least:g}" if least else ""
        return "adopt", winner, f"{winner.text}: better{than} on rows that chose nothing"
    if all(each.decision == "reject" for each in comparisons):
        worth = f" by {least:g}" if least else ""
        return "reject", None, f"{best.text}; no finalist improves on it{worth}"
    return "inconclusive", None, best.text


def _estimate(found: Confirmed) -> float:
    return found.improvement.estimate if found.improvement is not None else -math.inf


def _answers(search: Search, judged: Measurements) -> tuple[ScientificAnswer, ...]:
    """Return one sentence for each scientific question, with the comparisons that it rests on."""
    answers, chosen = [], best_by_value(search)
    least = search.plan.study.min_improvement
    for option in search.plan.study.scientific:
        known = {
            value: judged.candidates[number]
            for value, number in chosen.get(option, {}).items()
            if number in judged.candidates
        }
        pairs = list(combinations(known, 2))
        if not pairs:
            text = f"{option}: fewer than two of its values were confirmed"
            answers.append(ScientificAnswer(option=option, text=text))
            continue
        found = compare_candidates(
            [(known[first], known[second]) for first, second in pairs],
            judged.rows,
            sign=search.sign,
            confidence=1.0 - judged.repeats.level,
            least=least,
        )
        texts = [
            name_values(*names, each, least, known[names[0]].seeds)
            for names, each in zip(pairs, found, strict=True)
        ]
        text = f"{option}: {'; '.join(texts)}"
        answers.append(ScientificAnswer(option=option, comparisons=found, text=text))
    return tuple(answers)


def _nothing_judged(plan: StudyPlan, why: str) -> StudyJudgement:
    return StudyJudgement(
        study=plan.study_digest,
        model=plan.model,
        snapshot=plan.snapshot,
        metric=plan.metric,
        decision="inconclusive",
        winner=None,
        fixed=plan.study.fixed,
        min_improvement=plan.study.min_improvement,
        confidence=1.0 - LEVEL,
        summary=f"nothing was compared on test rows: {why}",
    )


def measure_confirmations(
    plan: StudyPlan,
    confirmed: Mapping[int, list[Trial]],
    dataset: Dataset,
    store: ObjectStore,
    resamples: int,
) -> Measurements:
    """Score every confirmation on the test rows, one model in memory at a time."""
    data = dataset.snapshot.data
    rows: HeldOutRows | None = None
    repeats, labels = None, np.empty(0)
    candidates: dict[int, Measured] = {}
    for number, group in confirmed.items():
        measured = []
        for trial in group:
            if not trial.is_usable:
                continue
            task, scored = _score(plan, trial.trainings[0], dataset, store)
            if rows is None:
                blocks = blocks_of(scored.rows, data, dataset.snapshot.split)
                conditions = conditions_of(dataset, scored.rows, task.kind)
                rows = HeldOutRows(blocks, blocks.draws(resamples), conditions)
                days = days_of(scored.rows, data.time) if blocks.unit == "day" else ()
                repeats, labels = _claim(plan, store, blocks, days), scored.labels
            if task.kind != "statistic" and not np.array_equal(labels, scored.labels):
                raise PerennialError(
                    f"trial {number} encodes the labels of the test rows differently",
                    evidence=f"than {next(iter(candidates), number)}, so nothing can be compared",
                    action="take hyperparameters that change the labels out of the study",
                )
            measured.append(_figures(plan, task, scored, rows))
        candidates[number] = Measured(
            number,
            np.array([value for value, _, _ in measured]),
            np.stack([draws for _, draws, _ in measured]),
            np.stack([found for _, _, found in measured]),
            diverged=sum(trial.state == "infeasible" for trial in group),
        )
    if rows is None or repeats is None:
        raise PerennialError("no confirmation was scored")
    return Measurements(candidates, rows, repeats, len(labels))


def _score(
    plan: StudyPlan, training: TrialTraining, dataset: Dataset, store: ObjectStore
) -> tuple[Task, Scored]:
    """Score the best kept weights of a training, or moving average of them, on the test rows."""
    key = f"training/{training.fingerprint[:16]}/{TrainingResult.file_name}"
    content = store.read(key)
    if content is None:
        raise PerennialError(
            f"the training {training.fingerprint[:16]} of a confirmation is gone",
            evidence=f"{store.uri}/{key} does not exist",
            action="run the study again with `perennial study run`: it trains what is missing",
        )
    result = TrainingResult.from_json(content)
    sign = sign_of(plan.direction)
    known = [
        (sign * each.metrics[name], each.uri, name != plan.metric)
        for each in result.checkpoints
        for name in both_names(plan.metric)
        if name in each.metrics
    ]
    unknown = (0.0, result.checkpoints[0].uri, False)
    _, uri, averaged = max(known, key=lambda found: found[0], default=unknown)
    task, model = load_checkpoint_model(uri, result, averaged=averaged)
    model.to(scoring_device())
    if averaged and normalizations(model):
        # As in the selection of a checkpoint: the stored ones are those of the trained weights.
        batches = training_batches(task, sampled_rows(dataset), scoring_device())
        recompute_statistics(model, batches)
    keep = block_columns(dataset.snapshot.data)
    scored = score_split(task, model, dataset, Split.TEST, keep=keep)
    if not (all_finite(scored.losses) and all_finite(scored.predictions)):
        raise BadTaskError(
            f"the training {training.fingerprint[:16]} of a confirmation predicts values that are "
            "not finite on test rows",
            action="look at its training with `perennial study status`",
        )
    return task, scored


def _figures(
    plan: StudyPlan, task: Task, scored: Scored, rows: HeldOutRows
) -> tuple[float, Floats, Floats]:
    value = scored.metric(task, plan.metric)
    draws = resample(task, plan.metric, scored, rows.blocks, rows.draws)
    return value, draws, influences(task, plan.metric, scored, rows.blocks)


def _claim(plan: StudyPlan, store: ObjectStore, blocks: Blocks, days: Sequence[object]) -> Repeats:
    """Record this study's test; return how often its days tested studies of the same baseline."""
    own = {name: plan.contract.get(name) for name in ("model", "training")}
    asked = digest_of([own, plan.study.fixed, plan.study.steps, plan.metric])
    test = PastTest.model_validate(
        {
            # A baseline has no registered weights: what it is trained from stands for them.
            "champion": "baseline",
            "champion_sha256": asked,
            "challenger_sha256": plan.study_digest,
            # The study's digest identifies the test, whichever run repeats it.
            "run_id": NO_RUN,
            "blocks": blocks.count,
            "days": tuple(days),
        }
    )
    return claim_test(store, plan.model, test, LEVEL, place="studies")
