"""Check optimizer, schedule and seeds of the training."""

import warnings
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.silent_parameters import find_copies_of_embeddings
from perennial.check_skeleton.models import run_updates, shuffle_batches
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, seeded
from perennial.contracts.errors import PerennialError, join_names
from perennial.contracts.skeleton import CheckResult
from perennial.contracts.toml import toml_line
from perennial.engine.config.training import TrainingSection
from perennial.engine.optimization.optimizer import build_optimizer
from perennial.engine.optimization.schedule import learning_rate

# In float32 a typical first update moves all numbers; in bfloat16, few of those near one.
UNMOVED_SHARE = 0.5
# Points at which the rate is sampled: enough to see a hundredth of the budget twentyfold.
POINTS = 2000
# A cosine is below this for its last 2 percent, a straight line for its last 0.1.
NOTHING = 1e-3
# Of the budget, more has a rate above this share of the peak on all healthy tasks: 0.3 at least.
SPENT, LEAST_BUDGET = 0.05, 0.1
# Shares of the budget that may be idle at the end.
IDLE_WARNED, IDLE_FAILED = 0.1, 0.5
# One cycle climbs for 0.3 of its length, one of the examples for 0.33; guides: 1 to 5 percent.
LONG_WARMUP = 0.5
REACHED = 0.9
# Cosines and lines end low; one that ends above this is made for a longer training.
UNFINISHED = 0.2
DECAYING = ("cosine", "linear", "one_cycle")
# Long recipes for small pictures take 300 epochs (Touvron et al. 2021, arXiv:2012.12877).
MANY_EPOCHS = 500.0
FEW_EPOCHS = 0.1
# The linear rule was shown from 256 to 8,192 examples (Goyal et al. 2017), and with a warm-up.
LARGEST_GROWTH = 32.0
UNWARMED_GROWTH = 8.0
# A share of initial weights that does not affect scores of averaged weights.
INITIAL_SHARE = 0.01
STEPS = 5


@check(
    "optimizer_coverage",
    expects="every trainable parameter in the optimizer once, and moved by its update",
    source="the engine updates model.parameters(); a layer that is missing there silently "
    "keeps its initial weights",
)
def check_optimizer_coverage(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the contract's optimizer updates every registered parameter exactly once."""
    model = subject.build_model()
    registered = _find_registered(model)
    trainable = {name: each for name, each in registered.items() if each.requires_grad}
    if not trainable:
        return judge.skipped("no parameter is trainable: see parameter_gradients")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about duplicates, which are checked here
            optimizer = build_optimizer(
                model, subject.training, find_blocks=lambda: subject.task.blocks(model)
            )
    except (PerennialError, ValueError) as error:
        return judge.failed(
            f"the optimizer cannot be built: {getattr(error, 'problem', error)}",
            hint=getattr(error, "action", "") or "parameters() returns a parameter in two groups",
        )
    updated = Counter(id(each) for group in optimizer.param_groups for each in group["params"])
    names = {id(each): name for name, each in reversed(registered.items())}
    if missing := [name for name, each in trainable.items() if id(each) not in updated]:
        return judge.failed(
            f"{len(missing)} of {len(trainable)} trainable parameters are never updated: "
            f"{join_names(missing)}",
            hint="model.parameters() leaves them out: remove the override of parameters() or "
            "named_parameters(), or set requires_grad_(False) on what is meant to be frozen",
            missing=missing,
        )
    if twice := [names.get(key, "unnamed") for key, count in updated.items() if count > 1]:
        return judge.failed(
            f"{len(twice)} parameters are updated more than once per step: {join_names(twice)}",
            hint="model.parameters() returns them several times: remove the override of "
            "parameters(), or let it return each parameter once",
            twice=twice,
        )
    return _judge_memory(judge, model, trainable, optimizer) or _judge_written(
        judge, subject, optimizer
    )


def _judge_written(judge: Judge, subject: Subject, optimizer: torch.optim.Optimizer) -> CheckResult:
    """Judge the contract's optimizer beside the one that the task's own code writes."""
    written = dict(subject.task.written_training())
    stated = written.get("optimizer")
    used = subject.training.optimizer.model_dump(mode="json")
    if isinstance(stated, Mapping) and (
        other := {name: value for name, value in stated.items() if used.get(name) != value}
    ):
        shown = ", ".join(f"{name} {value} ({used.get(name)})" for name, value in other.items())
        lines = "; ".join(toml_line(name, value) for name, value in written.items())
        return judge.warned(
            f"the task's code states another optimizer than the contract (in brackets): {shown}",
            hint=f"the contract decides; to train as the code does, write in [training]: {lines}",
        )
    groups = optimizer.param_groups
    moved = sum(len(each["params"]) for each in groups)
    decayed = sum(len(each["params"]) for each in groups if each["weight_decay"])
    return judge.passed(
        f"{type(optimizer).__name__} moves {moved} parameters, {decayed} with weight decay"
    )


def _find_registered(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return each parameter of a module by its first name, whatever parameters() returns."""
    found: dict[nn.Parameter, str] = {}
    for prefix, module in model.named_modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                found.setdefault(parameter, f"{prefix}.{name}" if prefix else name)
    return {name: parameter for parameter, name in found.items()}


def _judge_memory(
    judge: Judge,
    model: nn.Module,
    trainable: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
) -> CheckResult | None:
    """Judge shared tensors, copies in place of ties, and updates without effect; None if none."""
    ranges = sorted(
        (each.data_ptr(), each.data_ptr() + each.numel() * each.element_size(), name)
        for name, each in trainable.items()
        if each.is_contiguous() and each.numel()
    )
    if shared := [
        f"{first[2]} and {second[2]}" for first, second in pairwise(ranges) if second[0] < first[1]
    ]:
        return judge.failed(
            f"{len(shared)} pairs of parameters share memory: {join_names(shared)}",
            hint="tie weights by assigning the same nn.Parameter to both modules; .data or a view "
            "makes two parameters, which are updated twice, with two states",
            shared=shared,
        )
    embeddings = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    others = {name: each for name, each in trainable.items() if id(each) not in embeddings}
    names = {id(each): name for name, each in trainable.items()}
    if copied := [
        f"{name} equals {names.get(id(embedding), 'an embedding')}"
        for name, embedding in find_copies_of_embeddings(model, others)
    ]:
        return judge.warned(
            f"an embedding starts as a copy: {join_names(copied)}",
            hint="if the weights should be tied, assign the embedding's nn.Parameter itself: "
            "copies diverge from the first update on",
            copied=copied,
        )
    if idle := _find_unmoved(trainable, optimizer):
        types = sorted({str(trainable[name].dtype) for name in idle})
        # A bias of a million is correct where labels are millions; small steps do not move it.
        is_whole = all(trainable[name].dtype == torch.float32 for name in idle)
        conclude = judge.warned if is_whole and len(idle) < len(trainable) / 2 else judge.failed
        return conclude(
            f"{len(idle)} of {len(trainable)} parameters do not move in an update: "
            f"{join_names(idle)} ({', '.join(types)})",
            hint="keep weights in float32, where small steps are not rounded away: remove half() "
            "or bfloat16() from build_model and set training.precision",
            idle=idle,
        )
    return None


def _find_unmoved(
    trainable: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> list[str]:
    """Return parameters of which an update, with gradients of one, moves less than half."""
    before = {name: each.detach().clone() for name, each in trainable.items()}
    for each in trainable.values():
        each.grad = torch.ones_like(each)
    optimizer.step()
    return [
        name
        for name, each in trainable.items()
        if float((each == before[name]).double().mean()) > UNMOVED_SHARE
    ]


@dataclass(frozen=True)
class _Finding:
    """A problem, and what to do about it."""

    measured: str
    hint: str
    is_fatal: bool = False


@check(
    "schedule_fit",
    expects="a rate that reaches its peak early and stays above a thousandth of it for nine "
    f"tenths of the budget; {FEW_EPOCHS:g} to {MANY_EPOCHS:g} epochs; several evaluations",
    source="guides: a schedule copied from another data set, or a decay that ends early, "
    "fails silently; the linear scaling rule holds with a warm-up and up to a point",
)
def check_schedule_fit(subject: Subject, judge: Judge) -> CheckResult:
    """Check that warm-up, decay, rate, epochs and evaluations fit the budget and the data."""
    training, rows = subject.training, subject.train_split_rows
    last = training.steps - 1
    steps = sorted({round(each) for each in np.linspace(0, last, min(POINTS, last + 1))})
    # The rates over the budget, as shares of the peak.
    rates = {s: learning_rate(1.0, training.schedule, s, training.length_at(s)) for s in steps}
    most = max(rates.values())
    climb = next(step for step, share in rates.items() if share >= most - 1e-9)
    peak = training.optimizer.peak_rate(training.global_batch_size)
    epochs = training.steps * training.global_batch_size / rows
    shown = (
        f"rate {peak * rates[0]:.3g} at update 1, at most {peak * most:.3g} from update "
        f"{climb + 1}, {peak * rates[last]:.3g} at update {training.steps}; {epochs:.3g} epochs "
        f"of {rows} rows"
    )
    lines = [[float(step), peak * share] for step, share in rates.items()]
    curve = {"learning rate": lines[:: max(1, len(lines) // 100)]}
    evidence = {"schedule": curve, "epochs": epochs}
    findings = [*_find_course_problems(rates, climb, training)]
    findings += _find_budget_problems(training, rows, epochs)
    if not findings:
        return judge.passed(shown, **evidence)
    findings.sort(key=lambda finding: not finding.is_fatal)
    measured = "; ".join(finding.measured for finding in findings)
    conclude = judge.failed if findings[0].is_fatal else judge.warned
    return conclude(f"{measured} ({shown})", hint="; ".join(f.hint for f in findings), **evidence)


def _find_course_problems(
    rates: Mapping[int, float], climb: int, training: TrainingSection
) -> Iterator[_Finding]:
    """Yield problems of the rate over the budget; `climb` is the update with the highest rate."""
    most, last = max(rates.values()), rates[training.steps - 1]
    length = training.schedule.steps or training.steps
    other = f"schedule.steps = {length} is another training's length"
    if most < REACHED:
        yield _Finding(
            f"the rate climbs to {most:.0%} of its peak and no further",
            f"the warm-up is longer than the budget: {other}; remove it, or shorten the warm-up",
            is_fatal=True,
        )
        return
    if climb > LONG_WARMUP * training.steps:
        yield _Finding(
            f"the rate climbs for {climb / training.steps:.0%} of the budget",
            "shorten the warm-up: 1 to 10 percent of the updates are usual",
        )
    busy = max((step for step, share in rates.items() if share >= NOTHING), default=-1)
    idle = 1.0 - (busy + 1) / training.steps
    if idle > IDLE_WARNED:
        cause = other if length < training.steps else "its milestones are early"
        yield _Finding(
            f"the rate is below a thousandth of its peak for the last {idle:.0%} of the budget",
            f"the decay ends long before the training does: {cause}",
            is_fatal=idle > IDLE_FAILED,
        )
    spent = float(np.mean([share <= SPENT for share in rates.values()]))
    if idle <= IDLE_FAILED and spent > 1.0 - LEAST_BUDGET:
        yield _Finding(
            f"the rate is at most {SPENT:.0%} of its peak in {spent:.0%} of the updates",
            "the schedule is over when the training has hardly begun: give its milestones or "
            "fractions as shares of this training's steps",
            is_fatal=True,
        )
    is_cut = training.schedule.shape in DECAYING and length > training.steps
    if is_cut and last > UNFINISHED:
        yield _Finding(
            f"the rate is still {last:.0%} of its peak at the last update",
            f"the decay continues after the end: {other}; to train the first part of a longer "
            "training, use shape = 'wsd'",
        )


def _find_budget_problems(
    training: TrainingSection, rows: int, epochs: float
) -> Iterator[_Finding]:
    """Yield problems of the budget, the batch and the evaluations."""
    if epochs < FEW_EPOCHS:
        yield _Finding(
            f"the budget ends after {epochs:.2g} of an epoch",
            "most rows are never used: raise training.steps or global_batch_size, or snapshot less",
        )
    if epochs > MANY_EPOCHS:
        yield _Finding(
            f"every row is used {epochs:.0f} times",
            "steps and global_batch_size are those of a larger data set: lower one of them",
        )
    if training.evaluate_every_steps >= training.steps > 1:
        yield _Finding(
            f"evaluate_every_steps = {training.evaluate_every_steps} leaves a single evaluation",
            "evaluate five times or more, so that there are checkpoints to choose from",
        )
    if reference := training.optimizer.reference_batch_size:
        growth = training.global_batch_size / reference
        if not 1 / LARGEST_GROWTH <= growth <= LARGEST_GROWTH:
            yield _Finding(
                f"the rate was tuned with batches of {reference}, but batches have "
                f"{training.global_batch_size} examples",
                "the scaling rule of optimizer.reference_batch_size is valid for a few doublings: "
                "tune the learning rate for this batch",
            )
        is_unwarmed = learning_rate(1.0, training.schedule, 0, training.length_at(0)) == 1.0
        if training.optimizer.batch_exponent == 1.0 and growth >= UNWARMED_GROWTH and is_unwarmed:
            yield _Finding(
                f"the rate is scaled up {growth:g} times and used in full from the first update",
                "large scaled rates need a warm-up: set schedule.warmup_fraction to 0.05",
            )
    averaging = training.averaging
    if averaging is not None and not averaging.warm_up:
        kept = averaging.decay**training.steps
        if kept > INITIAL_SHARE:
            yield _Finding(
                f"the averaged weights are still {kept:.0%} initial weights at the end",
                "lower averaging.decay, or set averaging.warm_up = true",
            )


@check(
    "reproducibility",
    expects=f"equal initial weights and equal losses for {STEPS} updates, twice",
    source="guides: fix every random seed",
)
def check_reproducibility(subject: Subject, judge: Judge) -> CheckResult:
    """Check that initial weights and losses depend only on the seed."""
    (first, first_losses), (again, losses_again) = (_run(subject) for _ in range(2))
    if not all(torch.equal(a, b) for a, b in zip(first, again, strict=True)):
        return judge.failed(
            "the initial weights differ under one seed",
            hint="initialise with torch's global generator only; the engine seeds it",
        )
    if not np.array_equal(first_losses, losses_again, equal_nan=True):
        return judge.failed(
            f"the losses differ: {first_losses[-1]:.6g} and {losses_again[-1]:.6g}",
            hint="the model or the loss draws numbers from an unseeded generator",
        )
    draws = []
    for seed in (subject.seed, subject.seed + 1):
        with seeded(seed):
            subject.task.build_model()
            draws.append(float(torch.rand(())))
    if draws[0] == draws[1]:
        return judge.failed(
            "build_model sets the global seed",
            hint="remove manual_seed from the task: it makes all ranks and all dropout masks equal",
        )
    return judge.passed(f"loss {losses_again[-1]:.6g} after {STEPS} updates, twice")


def _run(subject: Subject) -> tuple[list[Tensor], list[float]]:
    """Return initial weights and losses of a few updates, with dropout, as in training."""
    with seeded(subject.seed):
        model = subject.task.build_model()
        model.train()
        start = [value.detach().clone() for value in model.state_dict().values()]
        batches = shuffle_batches(subject, subject.train, STEPS)
        rate = subject.settings.learning_rates[0]
        return start, [
            float(loss.detach()) for loss in run_updates(subject.task, model, batches, rate)
        ]
