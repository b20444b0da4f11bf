"""Check `augmentation`: it follows its generator and leaves the given batch unchanged."""

import numpy as np
import torch
from torch import Tensor

from perennial.check_skeleton.checks.data.augmenting import NO_AUGMENTATION, augments
from perennial.check_skeleton.checks.data.encoding import differences, generator_states
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, head_of
from perennial.contracts.skeleton import CheckResult
from perennial.engine.task import LABEL, Batch, Task, inputs_of

PROBED_ROWS = 64
FEWEST_NUMBERS = 8
SAME_NOISE = 0.99
AUGMENTED = 8
FEWEST_WRAPPED = 4


@check(
    "augmentation",
    expects="the same changes from the same generator, shapes kept, the given batch unchanged",
    source="guides: labels flipped by augmentation; resuming needs the generator",
    needs_losses=False,
)
def check_augmentation(subject: Subject, judge: Judge) -> CheckResult:
    """Check that augmentation follows its generator and keeps shapes and the given batch."""
    task = subject.task
    if not augments(task):
        return judge.skipped(NO_AUGMENTATION)
    original = head_of(subject.train, PROBED_ROWS)
    batch = {name: tensor.clone() for name, tensor in original.items()}
    before = generator_states()
    first = task.augment(batch, torch.Generator().manual_seed(subject.seed))
    if changed := differences(original, batch):
        return judge.failed(
            f"augment changes its input in place: {', '.join(changed)}",
            hint="clone before writing; the batch may be used again",
        )
    again = task.augment(batch, torch.Generator().manual_seed(subject.seed))
    if generator_states() != before or differences(first, again):
        return judge.failed(
            "augment returns different results for the same generator, or uses a global generator",
            hint="draw every random number with generator=generator",
        )
    return _judge_form(judge, subject, batch, first)


def _judge_form(judge: Judge, subject: Subject, batch: Batch, first: Batch) -> CheckResult:
    if not all(bool(torch.isfinite(tensor.double()).all()) for tensor in first.values()):
        return judge.failed(
            "augment returns values that are not finite", hint="guard its arithmetic"
        )
    changed = _form_changes(batch, first)
    if changed and not _is_learnable(subject, first):
        return judge.failed(
            f"augment changed names, shapes or types of {', '.join(changed)}",
            hint="keep the batch's form",
        )
    if changed:
        return judge.passed(f"changes the form of {', '.join(changed)}, which the model accepts")
    if name := _shared_noise(subject.task, batch):
        return judge.failed(
            f"augment adds the same noise to the label as to {name}, or hides the same places in "
            "both",
            hint="nothing is left to restore: a model that copies its input is always right. Take "
            "the label from before the noise is added",
        )
    if name := _wrapped(subject.task, batch):
        return judge.failed(
            f"augment turns the brightest values of {name} dark: the values overflow and wrap "
            "around",
            hint="the type has too few bits (bytes, for example): cast to float32 first, then clip",
        )
    return _judge_changes(judge, subject.task, batch)


def _judge_changes(judge: Judge, task: Task, batch: Batch) -> CheckResult:
    """Judge whether augmentation changes anything at all."""
    changed, has_drawn = [], False
    for seed in range(AUGMENTED):
        generator = torch.Generator().manual_seed(seed)
        before = generator.get_state()
        changed += differences(batch, task.augment(batch, generator))
        has_drawn |= not torch.equal(before, generator.get_state())
    if has_drawn and not changed:
        return judge.warned(
            f"augment drew random numbers but changed nothing in {AUGMENTED} calls",
            hint="the changed tensors are not returned, or the strength or probability is 0",
        )
    return judge.passed(f"changes {', '.join(dict.fromkeys(changed)) or 'nothing'}")


def _form_changes(batch: Batch, changed: Batch) -> list[str]:
    return [
        name
        for name in sorted({*batch, *changed})
        if name not in batch
        or name not in changed
        or (batch[name].shape, batch[name].dtype) != (changed[name].shape, changed[name].dtype)
    ]


def _is_learnable(subject: Subject, batch: Batch) -> bool:
    """Whether model and loss accept a batch of another form, such as crops or soft labels."""
    model = subject.build_model()
    model.train()
    try:
        losses = subject.task.training_losses(model(**inputs_of(batch)), batch)
    except Exception:  # user code may raise anything
        return False
    return losses.shape == (len(batch[LABEL]),) and bool(torch.isfinite(losses).all())


def _shared_noise(task: Task, batch: Batch) -> str:
    """Return the input whose noise the label shares; empty if there is none.

    Probed with constant examples, which flips, crops, scales and mixtures leave constant.
    """
    label = batch[LABEL]
    if label[0].numel() < FEWEST_NUMBERS:
        return ""
    for name, tensor in inputs_of(batch).items():
        if tensor[0].numel() != label[0].numel():
            continue
        even = {each: torch.full_like(batch[each], batch[each].flatten().median().item())
                for each in (name, LABEL)}  # fmt: skip
        try:
            after = task.augment({**batch, **even}, torch.Generator().manual_seed(0))
            moved, given = (after[each].double() - even[each].double() for each in (LABEL, name))
        except Exception:  # augmentation may refuse even examples, or change their form
            return ""
        if _is_noise(moved) and _likeness(moved.flatten(1), given.flatten(1)) > SAME_NOISE:
            return name
    return ""


def _wrapped(task: Task, batch: Batch) -> str:
    """Return the name of a picture whose values wrap around in every channel; empty if none."""
    for name, tensor in inputs_of(batch).items():
        if tensor.ndim != 4:
            continue
        for seed in range(AUGMENTED):
            after = task.augment(batch, torch.Generator().manual_seed(seed))[name]
            if after.shape != tensor.shape:
                break
            each = zip(tensor.flatten(2).double(), after.flatten(2).double(), strict=True)
            wrapped = [all(map(_begins_again, one, other)) for one, other in each]
            if sum(wrapped) >= FEWEST_WRAPPED:
                return name
    return ""


def _begins_again(before: Tensor, after: Tensor) -> bool:
    """Whether values map to values that only rise, except for falls by over half their range."""
    values, places = (torch.from_numpy(each) for each in np.unique(before, return_inverse=True))
    if len(values) < FEWEST_NUMBERS:
        return False
    made = torch.zeros(len(values), dtype=after.dtype).index_copy(0, places, after)
    if not torch.equal(made[places], after):
        return False  # no mapping of single values: pictures were turned or mixed
    rises, span = made.diff(), made.max() - made.min()
    falls = rises < 0
    return bool(
        falls.any()
        and int(falls.sum()) * 4 <= len(rises)
        and (rises[falls] < -span / 2).all()
        and int((rises > 0).sum()) * 2 >= len(rises)
    )


def _is_noise(moved: Tensor) -> bool:
    """Whether examples vary along each of their dimensions; shifts of a channel do not."""
    sizes = [axis for axis in range(1, moved.ndim) if moved.shape[axis] > 1]
    varies = [moved.std(dim=axis).reshape(len(moved), -1).amax(dim=1) > 0 for axis in sizes]
    return float(torch.stack(varies).all(dim=0).double().mean()) > 0.5


def _likeness(first: Tensor, second: Tensor) -> float:
    """Return the correlation of two tensors [B, N] within their rows."""
    one, other = (each - each.mean(dim=1, keepdim=True) for each in (first, second))
    return float((one * other).sum() / (one.norm() * other.norm()).clamp_min(1e-12))
