"""Check what training minimises, where that is not the measured loss."""

import torch
from torch import Tensor

from perennial.check_skeleton.checks.loss.losses import (
    FAR,
    HIGHEST_FLOOR,
    ONE_EACH,
    SHIFTED,
    measure_difference,
    measure_gradients,
    measure_order_effect,
)
from perennial.check_skeleton.checks.loss.rewards import find_reward
from perennial.check_skeleton.free_outputs import (
    choose_domain,
    find_best_outputs,
    find_output_domain,
    is_per_token,
    minimise,
    probe,
)
from perennial.check_skeleton.minimum import OutputDomain
from perennial.check_skeleton.models import Losses, build_noisy_model, measure_loss, run_model
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, seeded
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch, Task

# Smoothing of 0.3 leaves 24 % of the loss with two classes, 12 % with ten; wrong labels leave all.
MISLED = 0.6
REWARDED = "the sign of a penalty is wrong: subtracted, it rewards what it should hold down"


@check(
    "training_losses",
    expects=f"outputs that minimise `training_losses` have less than {MISLED:.0%} of the best "
    "constant's loss, and every example has a gradient",
    source="guides: wrong labels and clipped losses fail silently; checks and evaluation see "
    "`losses` only",
)
def check_training_losses(subject: Subject, judge: Judge) -> CheckResult:
    """Check that minimising the training loss also minimises the measured loss."""
    reward = find_reward(subject)
    if reward is not None and not reward.is_held:
        return judge.failed(str(reward), hint=f"{REWARDED}, and weights grow without end. Add it")
    found = _judge_training_losses(judge, subject)
    if reward is None or found.outcome in ("failed", "warned"):
        return found
    return judge.warned(
        str(reward),
        hint=f"{REWARDED}. Correct where training counts a part of `losses` less, as a divergence "
        "by a factor below 1, or lets members of an ensemble differ",
    )


def _judge_training_losses(judge: Judge, subject: Subject) -> CheckResult:
    task, batch = subject.task, probe(subject)
    if type(task).training_losses is Task.training_losses:
        return judge.skipped("training minimises `losses` itself")
    output = run_model(build_noisy_model(subject), batch)
    losses = task.training_losses(output, batch)
    if losses.shape != (len(batch[LABEL]),) or not bool(torch.isfinite(losses).all()):
        return judge.failed(
            f"training losses have shape {list(losses.shape)} for {len(batch[LABEL])} examples, or "
            "are not finite",
            hint=ONE_EACH,
        )
    draws = bool(measure_difference(task.training_losses(output, batch), losses))
    difference = measure_order_effect(task.training_losses, output, batch, group=1)
    if difference and not draws:
        return judge.failed(
            f"training losses differ by up to {difference:.3g} when the same examples come in "
            "reverse order",
            hint=SHIFTED,
        )
    measured, trained = (
        _reads_labels(each, output, batch, subject.seed)
        for each in (task.losses, task.training_losses)
    )
    if measured and not trained:
        return judge.failed(
            "training losses are the same with the labels of other examples, and losses are not",
            hint="training_losses compares outputs with something else, as a denoiser's with its "
            "own input: take the label",
        )
    if is_per_token(output, batch[LABEL]):
        return judge.passed(f"one per example, mean {float(losses.mean()):.4g}")
    return _judge_minimum(judge, subject, output, batch)


def _reads_labels(losses: Losses, output: Tensor, batch: Batch, seed: int) -> bool:
    """Whether the losses of outputs change if each example gets the label of the one before."""
    other = {**batch, LABEL: batch[LABEL].roll(1, 0)}
    found = []
    for each in (batch, other):
        with torch.no_grad(), seeded(seed):
            found.append(losses(output, each))
    return not torch.equal(*found)


def _judge_minimum(judge: Judge, subject: Subject, output: Tensor, batch: Batch) -> CheckResult:
    """Judge outputs that minimise the training loss by the measured loss."""
    task = subject.task
    free = find_best_outputs(subject)
    if not free.is_bound:
        return judge.passed("outputs that are all alike leave no loss: nothing to compare with")
    # Examples that are compared get no gradient if all outputs are equal.
    start = output if task.scored_together > 1 else free.constant.expand_as(output)
    reached, least = minimise(subject, task.training_losses, (start.clone(),), batch)
    # A search may stop at a kink, where an error without a square is multiplied by another output.
    of_ideal = measure_loss(task.training_losses, free.ideal, batch)
    if of_ideal < least:
        reached, least = free.ideal, of_ideal
    loss = measure_loss(task.losses, reached, batch)
    share = (loss - free.floor) / max(free.constant_loss - free.floor, 1e-12)
    most = free.constant_loss
    shown = f"at the training loss's minimum the loss is {loss:.4g}, best constant {most:.4g}"
    if share > MISLED:
        return judge.failed(
            f"{shown}, but {free.floor:.4g} can be reached",
            hint="training_losses and losses disagree on the labels: their order, their shift, a "
            "wrong dimension, or unused labels",
        )
    if task.scored_together > 1:
        return judge.passed(shown)

    def is_silent(domain: OutputDomain) -> bool:
        norms, _ = measure_gradients(subject, task.training_losses, free, batch, domain)
        return any(bool((norm == 0).any()) for distance, norm in norms.items() if distance < FAR)

    if is_silent(choose_domain(subject)) and is_silent(find_output_domain(subject)):
        return judge.failed(
            f"{shown}, but some badly wrong examples have no gradient",
            hint="the training loss is clipped or saturates; use training.clipping instead",
        )
    most = measure_loss(task.training_losses, free.constant.expand_as(output), batch)
    if least > HIGHEST_FLOOR * most:
        return judge.warned(
            f"{shown}, but the training loss falls only from {most:.4g} to {least:.4g}",
            hint="sigmoid or softmax is applied before a loss that applies it; correct for label "
            "smoothing of more than 0.2",
        )
    return judge.passed(shown)
