"""Planted bugs that appear only in several processes, or only after a resume.

`SameRowsOnEveryRank` changes the engine itself: no task can reach its sampler otherwise.
"""

import pytest

import rank_bound_tasks as tasks
from planted import Bug, planted, require_caught
from workshop import results_of

ALL = {"severities": {}}  # the workshop leaves these checks out
BUGS: list[Bug] = []
LONG: list[Bug] = []

for long, task_type, check, outcome, hint in (
    (True, tasks.LossPerProcess, "rank_equivalence", "failed", "RANK, collectives"),
    (True, tasks.AmplifiesRoundingPerProcess, "rank_equivalence", "failed", "RANK, collectives"),
    (False, tasks.AmplifiesRounding, "rank_equivalence", "warned", "of another rounding differs"),
    (False, tasks.KeepsMeanInPython, "rank_equivalence", "failed", r"model\.mean changes.*buffer"),
    (True, tasks.SometimesUsed, "rank_equivalence", "failed", "gets no gradient in some updates"),
    (False, tasks.StartsFromRank, "rank_data", "failed", "RANK, the process id"),
    (True, tasks.SameRowsOnEveryRank, "rank_data", "failed", "sampler.*changes the engine"),
    (False, tasks.ForgetsBuffer, "resume_trial", "failed", r"model\.level \(persistent=False\)"),
    (True, tasks.LossesOfAllRanks, "rank_equivalence", "failed", "collectives"),
    (True, tasks.BarrierOnFirstRank, "rank_equivalence", "failed", "only some ranks call"),
    (True, tasks.CachesFirstBatch, "rank_equivalence", "failed", r"model\.first changes"),
    (True, tasks.TransposedWeight, "rank_equivalence", "failed", "not contiguous in memory"),
    (True, tasks.LazyLayer, "rank_equivalence", "failed", "sizes in build_model"),
    (True, tasks.HandWrittenBatchNorm, "rank_equivalence", "warned", "Own batch statistics"),
    (True, tasks.MaskOfOneSeed, "rank_equivalence", "warned", "random numbers of a fixed seed"),
    (True, tasks.StartsFromHash, "rank_data", "failed", "PYTHONHASHSEED"),
    (True, tasks.SeedsEachPass, "rank_data", "failed", "remove manual_seed"),
    (True, tasks.RestoresOneState, "rank_data", "failed", "seed their own generator"),
    (True, tasks.AugmentsFirstBatch, "rank_data", "failed", "look for a cache"),
    (True, tasks.AugmentsAlike, "rank_data", "warned", "fixed seed"),
    (True, tasks.CountsInPython, "resume_trial", "failed", r"model\.passes changes"),
    (True, tasks.DrawsFromOwnGenerator, "resume_trial", "failed", "generator in the task's code"),
    (True, tasks.WeighsByRunningLoss, "resume_trial", "failed", r"task\.running changes"),
):
    bugs = LONG if long else BUGS
    planted(bugs, check, hint, material="binary", outcome=outcome, settings=ALL)(task_type)


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


@pytest.mark.full
@pytest.mark.parametrize("bug", LONG, ids=lambda bug: bug.name)
def test_another_planted_bug_is_caught_by_the_check_meant_for_it(bug, workshop):
    require_caught(bug, workshop)


CHECKS = ("rank_equivalence", "rank_data", "resume_trial")
STEADY = {
    "counts for its log": (tasks.CountsForItsLog, "fsdp", {}),
    "augmentation": (tasks.AugmentsProperly, "fsdp", {}),
    "columns blanked": (tasks.BlanksColumns, "fsdp", {}),
    "random numbers without effect": (tasks.DrawsRarely, "fsdp", {}),
    "random numbers in forward": (tasks.DrawsInForward, "fsdp", {}),
    "shared and frozen weights": (tasks.SharedWeights, "fsdp", {}),
    "memory format under ddp": (tasks.TransposedWeight, "ddp", {"rank_equivalence": "warned"}),
    "random losses": (tasks.MixesUp, "fsdp", {"rank_equivalence": "skipped"}),
    "one process": (
        tasks.WithBatchNorm, "single", {"rank_equivalence": "skipped", "rank_data": "skipped"},
    ),
}  # fmt: skip


def outcomes_of(task_type, workshop, **training):
    subject = workshop.subject(task_type, "binary", training=training, settings=ALL)
    return {check: results_of_one(subject, check) for check in CHECKS}


def results_of_one(subject, check):
    result = results_of(subject, check)[check]
    return result.outcome, result.measured


def test_a_healthy_task_with_batch_norm_and_dropout_passes(workshop):
    found = outcomes_of(tasks.WithBatchNorm, workshop)
    assert {outcome for outcome, _ in found.values()} == {"passed"}, found


@pytest.mark.full
@pytest.mark.parametrize("name", STEADY)
def test_healthy_task_has_no_findings(name, workshop):
    task_type, strategy, exceptions = STEADY[name]
    found = outcomes_of(task_type, workshop, strategy=strategy)
    expected = dict.fromkeys(CHECKS, "passed") | exceptions
    assert {check: outcome for check, (outcome, _) in found.items()} == expected, found
