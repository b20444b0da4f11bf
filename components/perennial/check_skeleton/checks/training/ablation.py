"""Check of the parts that claim to help: each is left out of a short training in turn."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from pydantic import JsonValue
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from perennial.check_skeleton.baselines import z_score
from perennial.check_skeleton.checks.data.augmentation.augmentation import is_augmenting
from perennial.check_skeleton.checks.model.attention import MASKED_SCORE, SOFTMAXES
from perennial.check_skeleton.checks.training.dynamics import MOST_STEPS, ShortTraining, run
from perennial.check_skeleton.checks.training.learning import NUM_EVALUATIONS, run_plain
from perennial.check_skeleton.checks.training.output_activation import judge_output_activation
from perennial.check_skeleton.free_outputs import compute_constant_losses, find_training_constant
from perennial.check_skeleton.models import (
    build_noisy_model,
    is_own_loss,
    is_trained_otherwise,
    run_model,
    run_updates,
    shuffle_batches,
    simplify,
)
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Floats, Subject, select_head, select_rows
from perennial.contracts.skeleton import CheckResult
from perennial.engine.config.optimization import Sgd
from perennial.engine.evaluation.scoring import ScoredBatch, score_in_parts
from perennial.engine.optimization.parameters import split_by_decay
from perennial.engine.task import LABEL, Batch, NoOptions, Task, inputs_of

PROBED_ROWS = 64
# The third of five evaluations: enough to see harm, at a third of the cost of the training on real
# and on zeroed inputs.
EVALUATION = 3
# Augmentation and smoothing slow the first updates down on healthy tasks. A part that costs half of
# what the model had learned, on two seeds, is more than that: healthy tasks lose a fifth at most.
LOST_SHARE = 0.5
# With such a part, the model is no better than the best constant.
ALL = 1.0
CLEAR_ERRORS = 5.0
# Of an example's gradients: 0.8 to 1 in healthy tasks, but for 0 and 0.25; 0.05 with mixed axes.
LEAST_COSINE = 0.2
RESAMPLES = 50
# Predictions that vary less than this share of what they do without the part are constant: 0.2 to
# 0.3% under an L1 penalty a hundred times too strong. Slow beginnings get four times the updates.
CONSTANT_SHARE = 0.05
LONGER = 4
# Weights are forgotten in 1 / (rate x decay) updates: 2,000 to 100,000 in published recipes. Below
# this, trainings with decay and without it are compared.
SHORTEST_MEMORY = 200
RUINED_SHARE = 0.9
# Loshchilov and Hutter (2019): decays of 0.01 to 0.1 are AdamW's, Adam's are 1e-4 and less.
COUPLED_DECAY = 0.01
TINY = 1e-12
# The gradient of a softmax over a single key is rounding, which Adam turns into small steps.
ROUNDING = 1e-3


@dataclass(frozen=True)
class Arm:
    """A short training with some of the parts, in the order of `PARTS`."""

    is_loss_own: bool = False  # minimises `training_losses` and auxiliary losses
    is_augmented: bool = False
    is_attention_even: bool = False  # every key gets the same weight


PARTS: Sequence[tuple[str, Arm]] = (
    ("the training loss", Arm(is_loss_own=True)),
    ("augmentation", Arm(is_augmented=True)),
    ("attention", Arm(is_attention_even=True)),
)


@check(
    "ablation",
    expects="a different model without each of augmentation, training loss and attention, which "
    "is not clearly better, nor without an activation of the outputs; weight decay that reaches a "
    "parameter and leaves something learned",
    source="guides: change one thing at a time; a part without effect is not applied",
    tolerance=f"{LOST_SHARE:.0%} of what was learned and {CLEAR_ERRORS:g} standard errors, twice",
)
def check_ablation(subject: Subject, judge: Judge) -> CheckResult:
    """Check that each part that claims to help has an effect, and does not clearly harm."""
    for describe, hint in DECAYS:
        if doubtful := describe(subject):
            return judge.warned(doubtful, hint=hint)
    if found := (
        _judge_strong_decay(judge, subject)
        or _judge_idle_loss(judge, subject)
        or judge_output_activation(judge, subject, _choose_steps(subject))
    ):
        return found
    effects = list(_measure_effects(subject))
    if not effects:
        return judge.skipped("no augmentation, training loss of its own or attention")
    shown = "; ".join(map(str, effects))
    evidence: dict[str, JsonValue] = {
        each.part: {"without": each.without, "with": each.having, "z_score": each.z_score}
        for each in effects
    }
    if same := [each.part for each in effects if each.is_idle]:
        return judge.failed(
            f"the training is the same without {' and '.join(same)}",
            hint="it is drawn or computed, but its result is not used: is the changed tensor "
            "returned, and is there more than one key to attend to?",
            **evidence,
        )
    if harmful := [each for each in effects if each.lost > LOST_SHARE]:
        worst = max(harmful, key=lambda each: each.lost)
        # Class weights raise the measured loss above the constant's by design, along its gradient.
        is_ruined = worst.is_constant or (
            worst.lost >= ALL and (worst.part != PARTS[0][0] or _leads_elsewhere(subject))
        )
        much = "all" if is_ruined else "more than half"
        return (judge.failed if is_ruined else judge.warned)(
            shown,
            hint=f"{worst.part} undoes {much} of what is learned without: try it with less "
            "strength, look whether labels and inputs still match, or leave it out",
            **evidence,
        )
    return judge.passed(shown, **evidence)


@dataclass(frozen=True)
class Effect:
    """What a part changes: mean validation losses without and with it."""

    part: str
    without: float
    having: float
    z_score: float  # standard errors by which the loss with the part is lower
    is_idle: bool  # whether every loss is the same, bit for bit; for attention, up to rounding
    lost: float  # share of what is learned without the part that it costs; 0 if not clearly
    is_constant: bool = False  # whether all rows get nearly the same prediction with it

    def __str__(self) -> str:
        return (
            f"validation loss {self.having:.4g} with {self.part}, {self.without:.4g} without: "
            f"{self.z_score:+.1f} standard errors"
        )


def _describe_idle_decay(subject: Subject) -> str:
    """Describe weight decay that the contract names and no parameter gets; empty otherwise."""
    optimizer = subject.training.optimizer
    if "weight_decay" not in optimizer.model_fields_set or not optimizer.weight_decay:
        return ""
    decayed, _ = split_by_decay(subject.build_model(), optimizer.no_decay, ())
    if decayed:
        return ""
    return f"weight_decay = {optimizer.weight_decay:g} applies to no parameter"


def _describe_coupled_decay(subject: Subject) -> str:
    """Describe a decay of AdamW's size that is added to Adam's gradients; empty otherwise."""
    optimizer = subject.training.optimizer
    if optimizer.name != "adam" or optimizer.weight_decay < COUPLED_DECAY:
        return ""
    return f"weight_decay = {optimizer.weight_decay:g} with adam, which adds it to the gradients"


DECAYS: Sequence[tuple[Callable[[Subject], str], str]] = (
    (
        _describe_idle_decay,
        "biases, norms and embeddings get none: remove weight_decay, or narrow optimizer.no_decay",
    ),
    (
        _describe_coupled_decay,
        "adam divides it by the gradients' size, so that it decides where these are small: take "
        "adamw, for which such values are meant, or 1e-4 and less",
    ),
)


def _judge_strong_decay(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge weight decay that outweighs the gradients; None where it is weak or costs little."""
    training, optimizer = subject.training, subject.training.optimizer
    share = optimizer.peak_rate(training.global_batch_size) * optimizer.weight_decay
    if isinstance(optimizer, Sgd):
        share /= 1 - optimizer.momentum  # it repeats each step's decay
    if share * SHORTEST_MEMORY < 1:
        return None
    trial = ShortTraining.of(subject)
    free = trial.training.optimizer.model_copy(update={"weight_decay": 0.0})
    without = replace(trial, training=trial.training.model_copy(update={"optimizer": free}))
    steps = min(training.steps, MOST_STEPS)
    decayed, plain = (run(subject, each, 1.0, steps) for each in (trial, without))
    lost = (decayed.end - plain.end) / max(plain.start - plain.end, TINY)
    if plain.errors < CLEAR_ERRORS or lost <= LOST_SHARE:
        return None
    conclude = judge.failed if lost >= RUINED_SHARE else judge.warned
    return conclude(
        f"loss {decayed} in {steps} updates with weight_decay = {optimizer.weight_decay:g}, and "
        f"{plain} without: each update takes {share:.2g} of the weights",
        hint="the decay outweighs the gradients: lower optimizer.weight_decay tenfold or more; "
        "values for adamw are too strong for sgd, whose rate and momentum multiply them",
    )


def _judge_idle_loss(judge: Judge, subject: Subject) -> CheckResult | None:
    """Judge a training loss that is the measured loss, bit for bit, with its gradients."""
    task = subject.task
    if not is_own_loss(task):
        return None
    batch = _select_across_labels(subject, max(PROBED_ROWS, 2 * task.scored_together))
    try:
        if is_augmenting(task):
            batch = task.augment(batch, torch.Generator().manual_seed(subject.seed))
        # Two outputs: where the model starts at zero, terms may vanish.
        for model in (subject.build_model(), build_noisy_model(subject)):
            output = run_model(model, batch)
            own, measured = (
                _compute_with_gradient(losses, output, batch)
                for losses in (task.training_losses, task.losses)
            )
            # Values may differ by a constant that no model changes, such as an entropy of labels.
            if not all(map(torch.equal, own, measured)):
                return None
    except Exception:  # the measured loss may reject labels that augmentation mixed
        return None
    # Options switch a part off; without any, what is written is meant to work.
    is_switched = type(task).Options is not NoOptions
    if is_switched:
        return None
    return judge.failed(
        "training_losses gives the values and gradients of losses, bit for bit: it has no effect",
        hint="a weight that is divided out again by a mean over one example, a term that is "
        "detached, or a factor of 0: correct it, or remove training_losses",
    )


def _leads_elsewhere(subject: Subject) -> bool:
    """Whether the gradients of the training loss have little to do with those of the measured one.

    As where outputs are reshaped in one of them and transposed in the other.
    """
    task = subject.task
    batch = _select_across_labels(subject, max(PROBED_ROWS, 2 * task.scored_together))
    try:
        output = run_model(build_noisy_model(subject), batch)
        own, measured = (
            _compute_with_gradient(losses, output, batch)[1].flatten(1)
            for losses in (task.training_losses, task.losses)
        )
    except Exception:  # outputs of several tensors, or a loss that reads none
        return False
    return float(functional.cosine_similarity(own, measured).median()) < LEAST_COSINE


def _select_across_labels(subject: Subject, rows: int) -> Batch:
    """Select examples from the smallest label to the largest: a rare class may have a weight."""
    labels = subject.train[LABEL]
    if labels.ndim != 1 or subject.task.scored_together > 1:
        return select_head(subject.train, rows)
    places = torch.linspace(0, len(labels) - 1, min(rows, len(labels))).round().long()
    return select_rows(subject.train, labels.argsort(stable=True)[places])


def _compute_with_gradient(
    losses: Callable[[Tensor, Batch], Tensor], output: Tensor, batch: Batch
) -> tuple[Tensor, Tensor]:
    free = output.detach().clone().requires_grad_()
    found = losses(free, batch)
    (gradient,) = torch.autograd.grad(found.sum(), free)
    return found.detach(), gradient


def _choose_steps(subject: Subject) -> int:
    plain = run_plain(subject).losses
    return sorted(plain)[EVALUATION - 1] if len(plain) == NUM_EVALUATIONS else max(plain)


def _measure_effects(subject: Subject) -> Iterator[Effect]:
    """Yield the effect of each part, added to those before it; attention is taken out instead."""
    plain, steps = run_plain(subject).losses, _choose_steps(subject)
    arm, without = Arm(), plain[steps]
    has_part = (
        is_trained_otherwise(subject.task),
        is_augmenting(subject.task),
        uses_attention(subject),
    )
    for (name, changed), is_there in zip(PARTS, has_part, strict=True):
        if not is_there:
            continue
        if changed.is_attention_even:
            even = train_arm(subject, changed, steps)[0].losses
            yield _compare(subject, name, (even, plain[steps]), (changed, Arm()), steps)
            continue
        wider = replace(arm, **{key: True for key, on in vars(changed).items() if on})
        scored, has_drawn = train_arm(subject, wider, steps)
        if name == "augmentation" and not has_drawn:
            continue  # switched off by an option
        yield _compare(subject, name, (without, scored.losses), (arm, wider), steps)
        arm, without = wider, scored.losses


def _compare(
    subject: Subject, name: str, losses: tuple[Floats, Floats], arms: tuple[Arm, Arm], steps: int
) -> Effect:
    without, having = losses
    lost, is_constant = _measure_lost(subject, losses), False
    if lost > LOST_SHARE:
        again, is_constant = _measure_lost_again(subject, arms, steps)
        lost = min(lost, again)
    rounding = ROUNDING if any(arm.is_attention_even for arm in arms) else 0.0
    is_same = bool(np.allclose(without, having, rtol=rounding, atol=rounding))
    # Of a training loss with equal gradients, the values decide: see `_judge_idle_loss`.
    is_loss = name == PARTS[0][0]
    return Effect(
        name, float(without.mean()), float(having.mean()), z_score(without - having),
        is_same and not is_loss, lost, is_constant,
    )  # fmt: skip


def _measure_lost(subject: Subject, losses: tuple[Floats, Floats]) -> float:
    """Return the share that a part costs of what the training learns without it; 0 if unclear."""
    without, having = losses
    constant = compute_constant_losses(
        subject, find_training_constant(subject)[0], subject.validation
    )
    learned = float(constant.double().mean()) - float(without.mean())
    lost = float(having.mean() - without.mean())
    is_clear = learned > 0 and z_score(having - without) >= CLEAR_ERRORS
    return max(lost / learned, 0.0) if is_clear else 0.0


def _measure_lost_again(subject: Subject, arms: tuple[Arm, Arm], steps: int) -> tuple[float, bool]:
    """Return the same share under another seed, and whether predictions are constant with the part.

    The share is 0 unless they are, or each metric is worse, too.
    """
    other = subject.training.model_copy(update={"seed": subject.seed + 1})
    again = replace(subject, training=other)
    without, having = (train_arm(again, arm, steps)[0] for arm in arms)
    is_constant = _is_constant(subject.task, without, having)
    if is_constant:
        longer, _ = train_arm(again, arms[1], LONGER * steps)
        is_constant = _is_constant(subject.task, without, longer)
    # Weights of classes and smoothing raise the measured loss by design, but no metric of ranks.
    is_worse = is_constant or all(
        _lose_metric(subject.task, name, without, having, subject.seed)
        for name in subject.task.metrics
    )
    lost = _measure_lost(again, (without.losses, having.losses)) if is_worse else 0.0
    return lost, is_constant


def _is_constant(task: Task, without: ScoredBatch, having: ScoredBatch) -> bool:
    """Whether predictions hardly vary with a part, beside those without it."""
    if task.kind == "statistic":  # what is scored is no prediction
        return False
    varied, left = (float(np.std(each.predictions, axis=0).mean()) for each in (without, having))
    return left < CONSTANT_SHARE * varied


def _lose_metric(
    task: Task, name: str, without: ScoredBatch, having: ScoredBatch, seed: int
) -> bool:
    """Whether a metric is clearly worse, by the same rows drawn again and again."""
    sign = 1 if task.metrics[name] == "maximize" else -1
    rows, rng, gains = len(without.labels), np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        drawn = rng.integers(0, rows, rows)
        values = [
            task.score(each.predictions[drawn], each.labels[drawn]).get(name, np.nan)
            for each in (without, having)
        ]
        gains.append(sign * (values[1] - values[0]))
    found = np.array(gains)
    return bool(np.nanmean(found) < -2 * np.nanstd(found))


def train_arm(subject: Subject, arm: Arm, steps: int) -> tuple[ScoredBatch, bool]:
    """Train with some parts and score the validation sample; whether augmentation drew numbers."""
    task, model = subject.task, simplify(subject.build_model())
    generator = torch.Generator().manual_seed(subject.seed)
    start = generator.get_state()
    batches = shuffle_batches(subject, subject.train, steps)
    if arm.is_augmented:
        batches = (task.augment(batch, generator) for batch in batches)
    rate = subject.settings.learning_rates[0]
    with EvenAttention() if arm.is_attention_even else nullcontext():
        for _ in run_updates(task, model, batches, rate, as_trained=arm.is_loss_own):
            pass
        scored = score_in_parts(task, model, subject.validation)
    return scored, not torch.equal(start, generator.get_state())


class EvenAttention(TorchFunctionMode):
    """Gives every key that is not masked the same weight."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0  # of the attention operations that were changed

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> object:
        given = kwargs or {}
        if func is functional.scaled_dot_product_attention and args:
            self.count += 1
            args = (args[0] * 0, *args[1:])
        elif func in SOFTMAXES and args and _is_square(args[0]):
            self.count += 1
            scores = args[0]
            args = (torch.where(scores > MASKED_SCORE, scores * 0, scores), *args[1:])
        return func(*args, **given)


def _is_square(scores: Tensor) -> bool:
    queries, keys = map(int, scores.shape[-2:] if scores.ndim > 2 else (0, 1))
    return queries == keys and keys > 1


def uses_attention(subject: Subject) -> bool:
    """Whether the model attends from positions to positions."""
    batch = select_head(subject.train, 2 * subject.task.scored_together)
    mode = EvenAttention()
    with torch.no_grad(), mode:
        simplify(subject.build_model())(**inputs_of(batch))
    return mode.count > 0
