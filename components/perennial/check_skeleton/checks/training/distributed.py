"""Check trainings in two processes and resumed trainings: `rank_equivalence` and others."""

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject
from perennial.check_skeleton.trials.plan import SAVED_AFTER, STEPS, RankRecord, StepRecord
from perennial.check_skeleton.trials.supervisor import (
    Outcome,
    Trials,
    make_trials,
    repeat_exact_trials,
    run_rounded_trial,
)
from perennial.contracts.skeleton import CheckResult
from perennial.contracts.user_code import place_in

DIVISION = (
    "one process that splits the batch into two passes differs in the same way: losses depend on "
    "how a batch is divided. Own batch statistics, random numbers of a fixed seed, or a loss "
    "scaled by the batch size make the result depend on micro_batch_size and num_processes"
)
# Augmentation that blanks columns or tokens makes some rows equal by chance; a cached batch repeats
# three fifths of an epoch, which is two and a half batches long.
REPEATED_SHARE = 0.5
ALONE = "the contract trains in one process: training.strategy = 'single'"
# Rounding moves healthy tasks by 1e-6; the smallest planted bug by 1e-2.
TOLERANCE = 1e-3
ROUNDING = 1e-6  # of float32 numbers, after a few sums
# At a ReLU's zero, or where a pooling has two equal maxima, rounding makes a gradient jump and no
# loss: measured up to 4e-3 of the weights' movement, from one start in three. Faults are in all.
JUMP, LOSS_AT_JUMP = 1e-2, 1e-4
# Before batch normalisation a jump in one update grows to 3e-1 within the others. If the losses of
# the first three, and so two gradients, are equal, another start tells: a fault comes back.
EQUAL_LOSS, EQUAL_UPDATES = 1e-5, 3
REPEATS = 2
# Differences below this multiple of what a rounding of the initial weights causes are no faults'.
AMPLIFIED = 30.0

DIVERGED = "TrainingFailedError"
# "auto" takes ddp as long as the model fits.
MIXED_TYPES = (
    "FSDP shards parameters of one type together, and these are of several, as complex and real: "
    'set training.strategy = "ddp", or keep complex weights as real and imaginary parts '
    "(torch.view_as_real)"
)
CAUSES: tuple[tuple[str, str], ...] = (
    (r"uniform original parameter dtype", MIXED_TYPES),
    (
        r"finished reduction in the prior iteration|unused parameters|parameter indices which did",
        "a parameter gets no gradient in some updates, and DDP waits for it: use every parameter "
        "in every forward pass (add 0 times its sum where it is not used)",
    ),
    (
        r"not contiguous|non-contiguous|memory format",
        "a weight is not contiguous in memory (channels_last, transpose): call contiguous(), "
        'or set training.strategy = "ddp".',
    ),
    (
        DIVERGED,
        "loss or gradient is not finite within six short updates: look at the scale of inputs and "
        "initial weights, logarithms and divisions",
    ),
    (
        r"lazy|[Uu]ninitialized",
        "parameters are created in the first forward pass: give layers their sizes in build_model",
    ),
    (
        r"asked for, but the model runs as|already wrapped",
        "the task wraps or shards its model itself: leave that to the engine",
    ),
    (
        r"/gloo/|[Cc]onnection (closed|reset)",
        "the ranks exchange tensors that do not match: look for parameters that only some ranks "
        "use in an update, and for torch.distributed in the task's own code",
    ),
    (
        r"backend type|process group|all_reduce|broadcast|has not been initialized",
        "a collective fails: look for torch.distributed in the task's own code",
    ),
    (
        r"state_dict|[Mm]issing key|names differ|size mismatch",
        "the model's state_dict changes while it trains: make every parameter and buffer in "
        "build_model, none in forward",
    ),
    (
        r"view of a leaf|in-?place operation|modified by an inplace",
        "a weight or an input is changed in place: clone it first",
    ),
)
HANGS = (
    "one rank waits for another and hangs: look for a collective that only some ranks call, a "
    "branch on the rank or on the data around a sharded layer, and for locks"
)


@dataclass(frozen=True)
class Difference:
    """The difference between two trials that should be equal."""

    first_step: int  # the first update whose loss differs; 0 if none does
    loss: float  # the largest difference of a loss, relative to it
    tensor: str  # the tensor that differs most
    weight: float  # the difference, relative to the largest change of a parameter
    equal: int  # the number of updates, from the first on, whose losses differ by rounding alone

    @property
    def is_large(self) -> bool:
        """Whether the difference is beyond rounding."""
        return self.loss > TOLERANCE or self.weight > TOLERANCE

    def __str__(self) -> str:
        where = f" from update {self.first_step} on" if self.first_step else ""
        tensor = f" ({self.tensor})" if self.is_large else ""
        return f"losses differ by {self.loss:.1g}{where}, weights by {self.weight:.1g}{tensor}"


@check(
    "rank_equivalence",
    expects=f"equal losses and weights in {STEPS} updates of one process and of two, under ddp "
    "and fsdp",
    source="measured: rounding changes healthy tasks by 1e-6 of the weights' movement, "
    "rank-dependent code by 1e-2 and more",
    tolerance=f"{TOLERANCE:g} of the weights' movement, and of the loss",
)
def check_rank_equivalence(subject: Subject, judge: Judge) -> CheckResult:
    """Check that two processes, replicated and sharded, compute the same as one."""
    if subject.training.strategy == "single":
        return judge.skipped(ALONE)
    trials = make_trials(subject)
    if trials.reason:
        return judge.unmeasured(trials.reason)
    alone = trials["alone"]
    if alone.obstacle:
        return judge.unmeasured(alone.obstacle)
    if not alone.is_complete:
        # Plain gradient descent may diverge where the contract's optimizer does not.
        diverged = alone.failure is not None and alone.failure.type == DIVERGED
        shown = f"the engine cannot train the task in one process: {alone.problem}"
        return (judge.warned if diverged else judge.failed)(shown, hint=explain_failure(alone))
    if trials.randomness_off == "noise":
        return judge.skipped("the loss draws random numbers that evaluation mode does not turn off")
    for repeat in range(1, REPEATS + 1):
        if not may_be_rounding(trials):
            break
        again = repeat_exact_trials(subject, repeat)
        if again.reason or not all(each.is_complete for each in again.outcomes.values()):
            break
        trials = again
    judged = judge_equivalence(judge, trials, subject.training.strategy)
    is_doubtful = judged.outcome == "failed" or judged.hint == DIVISION
    rounded = _describe_rounding(subject, trials) if is_doubtful else ""
    return judge.warned(judged.measured, rounded, **judged.evidence) if rounded else judged


@check(
    "rank_data",
    expects="equal initial weights on every rank; each row once per epoch on one rank, in "
    "another order each epoch; different random numbers on each rank",
    source="guides: the same seed for weights, different ones for data, dropout and "
    "augmentation; ranks with duplicated data are a silent waste",
)
def check_rank_data(subject: Subject, judge: Judge) -> CheckResult:
    """Check that ranks start from equal weights and use different rows that cover all."""
    if subject.training.strategy == "single":
        return judge.skipped(ALONE)
    trials = make_trials(subject)
    if trials.reason:
        return judge.unmeasured(trials.reason)
    straight = trials["straight"]
    if not straight.is_complete:
        return judge.unmeasured(straight.obstacle or f"needs a full training: {straight.problem}")
    ranks = [straight.ranks[rank] for rank in sorted(straight.ranks)]
    if len({trials.initial, *(rank.initial for rank in ranks)}) > 1:
        return judge.failed(
            "the initial weights differ between processes",
            hint="build_model depends on the process: look for RANK, the process id, the time, "
            "hashes of text (PYTHONHASHSEED) and own generators",
        )
    epochs, rows = list_shared_order(ranks, trials.rows), trials.rows
    missing = [rows - len(set(epoch)) for epoch in epochs]
    is_same = len(epochs) > 1 and epochs[0] == epochs[1]
    problem = "both epochs have the same order" if is_same else ""
    if any(missing):
        number, count = next((n, count) for n, count in enumerate(missing, start=1) if count)
        problem = f"{count} of {rows} rows are missing in epoch {number}, others are repeated"
    if problem:
        return judge.failed(
            problem,
            hint="every update must use the rows that the engine hands to this rank: look for a "
            "sampler, a cache or a slice in the task's own code, and for code that changes "
            "the engine's",
        )
    return _judge_randomness(judge, ranks, trials.rows)


@check(
    "resume_trial",
    expects=f"resumed in new processes from the checkpoint of update {SAVED_AFTER}: the losses "
    f"and weights of update {STEPS}, bit for bit",
    source="guides: a resume that loses state silently trains something else; measured: "
    "the engine resumes bit for bit",
    tolerance="none",
)
def check_resume_trial(subject: Subject, judge: Judge) -> CheckResult:
    """Check that a resumed training equals one without interruption."""
    trials = make_trials(subject)
    if trials.reason:
        return judge.unmeasured(trials.reason)
    straight, resumed = trials["straight"], trials["resumed"]
    if not straight.is_complete and subject.training.strategy != "single":
        return judge.unmeasured(f"needs a full training: {straight.problem}")
    if obstacles := [each.obstacle for each in (straight, resumed) if each.obstacle]:
        return judge.unmeasured(obstacles[0])
    for outcome, place in ((straight, "before"), (resumed, "resumed")):
        if outcome.failure or outcome.is_hung:
            return judge.failed(f"{place}: {outcome.problem}", hint=explain_failure(outcome))
    if not resumed.is_complete:
        return judge.unmeasured(f"needs a checkpoint: {resumed.problem}")
    return _judge_resume(judge, straight.ranks[0], resumed)


def list_requested_strategies(strategy: str) -> Sequence[str]:
    """Return which of the tested strategies the contract may run."""
    return ("ddp", "fsdp") if strategy == "auto" else ("ddp",) if strategy == "ddp" else ("fsdp",)


def judge_equivalence(judge: Judge, trials: Trials, wanted: str) -> CheckResult:
    """Judge the strategies' trainings by that of one process."""
    found = [(name, *_find_difference(trials, name)) for name in ("ddp", "fsdp")]
    wrong = [(name, measured, hint) for name, measured, hint in found if hint]
    notes = ["plain gradient descent in float32, without augmentation and dropout"]
    if trials.randomness_off == "evaluation":
        notes.append("in evaluation mode, because forward draws random numbers by itself")
    if trials.has_batch_norm:
        notes.append("batch normalisation over all processes, as under batch_norm = 'sync'")
    if trials.repeat:
        notes.append("repeated from other initial weights, as rounding can make a gradient jump")
    how = {"how": "; ".join(notes)}
    if not wrong and not all(trials[name].is_complete for name, _, _ in found):
        obstacles = [each.obstacle for each in trials.outcomes.values() if each.obstacle]
        return judge.unmeasured((obstacles or [found[0][1]])[0])
    if not wrong:
        return judge.passed("; ".join(f"{name}: {text}" for name, text, _ in found), **how)
    measured = "; ".join(f"{name}: {text}" for name, text, _ in wrong)
    hint = ". ".join(dict.fromkeys(hint for _, _, hint in wrong))
    works = [name for name, _, hint in found if not hint and trials[name].is_complete]
    needed = (
        ["ddp"] if hint == MIXED_TYPES and wanted == "auto" else list_requested_strategies(wanted)
    )
    if set(needed) <= set(works):
        hint = f"{hint}. The contract asks for {wanted!r}, which works"
        return judge.warned(measured, hint, **how)
    if _is_division(trials, [name for name, _, _ in wrong]):
        return judge.warned(measured, DIVISION, **how)
    return judge.failed(measured, hint, **how)


def may_be_rounding(trials: Trials) -> bool:
    """Whether processes differ from one, but by no more than a gradient that rounding moves."""
    found = _measure_equal_ranks(trials)
    return any(each.is_large for each in found) and all(
        each.equal >= EQUAL_UPDATES or (each.loss <= LOSS_AT_JUMP and each.weight <= JUMP)
        for each in found
    )


def _measure_equal_ranks(trials: Trials) -> list[Difference]:
    """Return how each strategy differs from one process; none if its ranks or attributes do."""
    alone, others = trials["alone"].ranks[0], [trials[name] for name in ("ddp", "fsdp")]
    if alone.drifting or not all(each.is_complete for each in others):
        return []
    if any(rank.final != each.ranks[0].final for each in others for rank in each.ranks.values()):
        return []
    return [measure_difference(alone, each.ranks[0]) for each in others]


def _describe_rounding(subject: Subject, trials: Trials) -> str:
    """Return advice if a rounding of the initial weights moves one process as far; or empty.

    Kinks, such as of a sparse softmax, and batch statistics may amplify it.
    """
    found = _measure_equal_ranks(trials)
    if not found or any(each.first_step == 1 for each in found):
        return ""
    rounded = run_rounded_trial(subject, trials.repeat)
    if rounded.reason or not rounded["alone"].is_complete:
        return ""
    own = measure_difference(trials["alone"].ranks[0], rounded["alone"].ranks[0])
    if any(
        each.loss > AMPLIFIED * own.loss or each.weight > AMPLIFIED * own.weight for each in found
    ):
        return ""
    return (
        f"one process that starts from weights of another rounding differs in the same way "
        f"({own}): the task amplifies rounding within {STEPS} updates of plain gradient descent, "
        "so that processes cannot be compared, and repeated trainings agree only in the mean"
    )


def _find_difference(trials: Trials, name: str) -> tuple[str, str]:
    """Return the measurement under a strategy, and the likely cause; empty without a fault."""
    outcome, alone = trials[name], trials["alone"].ranks[0]
    if not outcome.is_complete:
        is_fault = outcome.codes and not outcome.obstacle
        return outcome.problem, explain_failure(outcome) if is_fault else ""
    if len({rank.initial for rank in outcome.ranks.values()}) > 1:
        return (
            "the ranks build different models",
            "build_model depends on the process: see the advice of rank_data",
        )
    difference = measure_difference(alone, outcome.ranks[0])
    if any(rank.final != outcome.ranks[0].final for rank in outcome.ranks.values()):
        return (
            f"the ranks end with different weights, {difference}",
            "a parameter or buffer changes on one rank only: look for tensors made or changed in "
            "forward, outside the gradients that the engine adds up",
        )
    return str(difference), _explain_likely_cause(difference, alone) if difference.is_large else ""


def _explain_likely_cause(difference: Difference, alone: RankRecord) -> str:
    if kept := ", ".join(alone.drifting[:6]):
        return (
            f"{kept} changes in training but is neither a parameter nor a registered buffer, so "
            "every rank has its own: register it as a buffer, or remove it"
        )
    if difference.first_step == 1:
        return (
            "the first loss already differs: the loss or the forward pass depends on the rank or "
            "on the size of its share. Look for RANK, collectives in the task's code, and sums "
            "divided by the batch size"
        )
    return (
        "losses are equal at first, but gradients differ: look for collectives or hooks in the "
        "task's code, weights changed in forward, and parameters that not every batch uses"
    )


def _is_division(trials: Trials, names: Sequence[str]) -> bool:
    """Whether one process with two passes differs exactly as the processes do."""
    passes, origin = trials.outcomes.get("passes"), trials["alone"].ranks[0]
    if passes is None or not passes.is_complete or origin.drifting:
        return False
    return all(
        trials[name].is_complete
        and not measure_difference(passes.ranks[0], trials[name].ranks[0], origin).is_large
        for name in names
    )


def _judge_randomness(judge: Judge, ranks: Sequence[RankRecord], rows: int) -> CheckResult:
    if not all(step.is_seed_kept for rank in ranks for step in rank.steps):
        return judge.failed(
            "the task sets the global seed while it trains",
            hint="remove manual_seed from forward, losses and augment: it makes the dropout of "
            "all ranks and updates equal",
        )
    repeated, expected = count_seen_twice(ranks, rows)
    if repeated > expected + REPEATED_SHARE * rows:
        return judge.failed(
            f"{repeated} examples of an epoch reach the model twice, {expected} expected from "
            "repeated rows",
            hint="different rows become the same inputs in `augment`: look for a cache, a fixed "
            "index, or a generator that is created in each call",
        )
    probes = [rank.probe for rank in ranks if rank.probe is not None]
    if all(p.is_random and torch.equal(p.losses, probes[0].losses) for p in probes):
        return judge.failed(
            "every rank draws the same dropout masks",
            hint="forward or losses seed their own generator: draw from the global generator, "
            "which the engine seeds for each rank and update",
        )
    augmented = {probe.augmented for probe in probes}
    if len(augmented) == 1 and augmented != {""}:
        return judge.warned(
            "every rank makes the same augmentations: the generator has no effect",
            hint="augment draws from its own generator with a fixed seed, or not at all; pass "
            "generator=generator to every draw",
        )
    return judge.passed(
        f"{rows} rows, each once per epoch on one of {len(ranks)} ranks; one initialisation"
    )


def _judge_resume(judge: Judge, whole: RankRecord, resumed: Outcome) -> CheckResult:
    rest = resumed.ranks[0]
    losses = {step.step: step.loss for step in rest.steps}
    before = {step.step: step.loss for step in whole.steps if step.step in losses}
    differing = [step for step, loss in losses.items() if loss != before[step]]
    if not differing and whole.final == rest.final:
        strategy = resumed.trial.training.strategy
        return judge.passed(f"loss {losses[STEPS]:.6g} of update {STEPS}, twice, under {strategy}")
    step, names = (*differing, STEPS)[0], sorted({*whole.final, *rest.final})
    moved = [name for name in names if whole.final.get(name) != rest.final.get(name)]
    kept = ", ".join(whole.drifting[:6])
    return judge.failed(
        f"update {step}: loss {losses[step]:.8g} after the resume, {before[step]:.8g} without; "
        f"{len(moved)} tensors end different: {', '.join(moved[:4])}",
        hint=f"{kept} changes in training and is in no checkpoint: make it a registered buffer "
        "(persistent), or a function of the inputs"
        if kept
        else "something outside the state_dict changes in training: a generator in the task's "
        "code, a module-level cache, a file; draw from the global generators, keep state in "
        "buffers",
        drifting=list(whole.drifting),
    )


def measure_difference(
    one: RankRecord, other: RankRecord, origin: RankRecord | None = None
) -> Difference:
    """Compare two trials of equal length; `origin`, or the first, has the initial weights."""
    origin = origin or one
    scale = max(abs(step.loss) for step in one.steps) or 1.0
    gaps = {
        step.step: _measure_size(step.loss - twin.loss) / scale
        for step, twin in zip(one.steps, other.steps, strict=True)
    }
    first = next((step for step, gap in gaps.items() if gap > TOLERANCE), 0)
    equal = next((n for n, gap in enumerate(gaps.values()) if gap > EQUAL_LOSS), len(gaps))
    apart = _measure_weights_apart(one, other, origin)
    worst = max(apart, key=lambda name: apart[name], default="")
    return Difference(first, max(gaps.values()), worst, apart.get(worst, 0.0), equal)


def _measure_weights_apart(
    one: RankRecord, other: RankRecord, origin: RankRecord
) -> dict[str, float]:
    """Return differences by tensor: parameters relative to their change, buffers to their size."""
    moved = [
        _measure_size(origin.weights[name] - start)
        for name, start in origin.start.items()
        if name in origin.parameters and start.numel()
    ]
    way = max(moved, default=0.0) or 1.0
    apart = dict.fromkeys(one.weights.keys() ^ other.weights.keys(), math.inf)
    for name in one.weights.keys() & other.weights.keys():
        tensor = one.weights[name]
        if tensor.is_floating_point() and tensor.numel():
            size, gap = _measure_size(tensor), _measure_size(tensor - other.weights[name])
            # The rounding error of large numbers is not a difference, however little they changed.
            gap = 0.0 if gap <= ROUNDING * size else gap
            apart[name] = gap / (way if name in origin.parameters else max(size, 1e-6))
    return apart


def _measure_size(values: Tensor | float) -> float:
    """Return the largest absolute value; NaN counts as infinite."""
    size = float(torch.as_tensor(values).abs().max())
    return math.inf if math.isnan(size) else size


def _list_steps(ranks: Sequence[RankRecord]) -> Iterator[StepRecord]:
    """Return the updates of all ranks, in the order of the updates."""
    return chain.from_iterable(zip(*(rank.steps for rank in ranks), strict=True))


def list_shared_order(ranks: Sequence[RankRecord], rows: int) -> list[tuple[int, ...]]:
    """Return the rows that all ranks saw together, cut into whole epochs."""
    stream = [row for step in _list_steps(ranks) for row in step.rows.tolist()]
    return [tuple(stream[start : start + rows]) for start in range(0, len(stream) - rows + 1, rows)]


def count_seen_twice(ranks: Sequence[RankRecord], rows: int) -> tuple[int, int]:
    """Count examples of the first epoch that repeat another's inputs, and the expected count.

    The expected count is a rank's own count of rows with equal inputs in the stored data.
    """
    epoch = [each for step in _list_steps(ranks) for each in step.examples][:rows]
    return len(epoch) - len(set(epoch)), ranks[0].twins


def explain_failure(outcome: Outcome) -> str:
    """Return the likely cause of a trial that raised or hung."""
    if outcome.is_hung:
        return HANGS
    text = f"{outcome.failure.type}: {outcome.failure.message}" if outcome.failure else ""
    trace = outcome.failure.traceback if outcome.failure else ""
    for pattern, cause in CAUSES:
        if re.search(pattern, text):
            return cause
    place = place_in(trace)
    return f"the exception comes from {place or 'errors/ of the training'}"
