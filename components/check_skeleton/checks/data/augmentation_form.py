"""Augmentation's form: it follows its generator, and leaves the given batch as it is."""

import torch

from components.check_skeleton.checks.data.augmenting import NO_AUGMENTATION, augments
from components.check_skeleton.checks.data.encoding import differences, generator_states
from components.check_skeleton.subject import Subject, head_of
from components.check_skeleton.verdict import Judge
from components.contracts.skeleton import CheckResult
from components.engine.task import LABEL, Batch, Task, inputs_of

PROBED_ROWS = 64
AUGMENTED = 8


def augmentation(subject: Subject) -> CheckResult:
    """Does augmentation follow its generator and leave labels' shape and the original alone?"""
    judge = Judge(
        "augmentation",
        expected="the same changes from the same generator, shapes kept, the given batch untouched",
        source="guides: labels flipped by augmentation; resuming needs the generator",
    )
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
            "augment gives other results under the same generator, or uses a global one",
            hint="draw every random number with generator=generator",
        )
    return _judged_form(judge, subject, batch, first)


def _judged_form(judge: Judge, subject: Subject, batch: Batch, first: Batch) -> CheckResult:
    if not all(bool(torch.isfinite(tensor.double()).all()) for tensor in first.values()):
        return judge.failed("augment made values that are not finite", hint="guard its arithmetic")
    changed = _form_changes(batch, first)
    if changed and not _is_learnable(subject, first):
        return judge.failed(
            f"augment changed names, shapes or types of {', '.join(changed)}",
            hint="keep the batch's form",
        )
    if changed:
        return judge.passed(f"changes the form of {', '.join(changed)}, as the model takes it")
    return _judged_changes(judge, subject.task, batch)


def _judged_changes(judge: Judge, task: Task, batch: Batch) -> CheckResult:
    """Whether augmentation that is well behaved also does something."""
    changed, has_drawn = [], False
    for seed in range(AUGMENTED):
        generator = torch.Generator().manual_seed(seed)
        before = generator.get_state()
        changed += differences(batch, task.augment(batch, generator))
        has_drawn |= not torch.equal(before, generator.get_state())
    if has_drawn and not changed:
        return judge.warned(
            f"augment drew random numbers and changed nothing, {AUGMENTED} times",
            hint="what it makes is not returned, or its strength or probability is 0",
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
    """Whether the model and the loss take a batch of another form: crops, labels in shares."""
    model = subject.build_model()
    model.train()
    try:
        losses = subject.task.training_losses(model(**inputs_of(batch)), batch)
    except Exception:  # user code may raise anything
        return False
    return losses.shape == (len(batch[LABEL]),) and bool(torch.isfinite(losses).all())
