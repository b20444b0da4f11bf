"""Check of `training.frozen` and `training.stages`: what is frozen stays, what is trained moves."""

import torch
from torch import Tensor, nn

from perennial.check_skeleton.registry import Judge, check, join_names
from perennial.check_skeleton.subject import Subject
from perennial.contracts.errors import PerennialError
from perennial.contracts.skeleton import CheckResult
from perennial.engine.config.training import TrainingSection
from perennial.engine.objective import weighted_losses
from perennial.engine.optimization.optimizer import build_optimizer, follow_schedule
from perennial.engine.optimization.parameters import freeze
from perennial.engine.task import inputs_of

# An adapter whose last matrix starts at zero passes a gradient on from the second update.
UPDATES = 3


@check(
    "frozen_parameters",
    expects="in each stage, frozen parts are unchanged and trained parameters have a gradient",
    source="guides: verify which parameters change before fine-tuning",
)
def check_frozen_parameters(subject: Subject, judge: Judge) -> CheckResult:
    """Check that freezing holds, and that it cuts no gradient off."""
    training = subject.training.model_copy(update={"stages": subject.stages})
    if not (training.frozen or training.stages):
        return judge.skipped("no parameter is frozen and there are no stages")
    whole = training.model_copy(update={"frozen": (), "stages": ()})
    silent_anyway, _, _ = _update(subject, whole, 0)
    counts, start = list[str](), 0
    for stage in training.stages or (training.stage_at(0).stage,):
        try:
            silent, changed, trained = _update(subject, training, start)
        except PerennialError as error:
            return judge.failed(error.problem, hint=error.action)
        if changed:
            return judge.failed(
                f"{len(changed)} frozen tensors changed within {UPDATES} updates: "
                f"{join_names(sorted(changed))}",
                hint="the model changes them itself, as in an Embedding with max_norm, running "
                "statistics of its own, or an assignment in forward",
            )
        if cut := sorted(silent - silent_anyway):
            return judge.failed(
                f"{len(cut)} trained parameters have no gradient because others are frozen: "
                f"{join_names(cut)}",
                hint="gradients must pass through frozen parts to what is below them: look for "
                "no_grad or detach that depends on requires_grad",
            )
        counts.append(f"{trained:,}")
        start += stage.steps
    return judge.passed(f"trained parameters: {', then '.join(counts)}")


def _update(
    subject: Subject, training: TrainingSection, step: int
) -> tuple[set[str], set[str], int]:
    """Train for some updates: names without a gradient, names of frozen tensors that changed.

    Also the number of trained values.
    """
    task, model = subject.task, subject.build_model()
    freeze(model, training, step)
    model.train()
    optimizer = build_optimizer(model, training, find_blocks=lambda: task.blocks(model))
    trained = {name for name, each in model.named_parameters() if each.requires_grad}
    kept = {name: value.clone() for name, value in _frozen_tensors(model).items()}
    batch, silent = subject.balanced(subject.settings.batch_rows), set(trained)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        follow_schedule(optimizer, training, step)
        losses = weighted_losses(task, model(**inputs_of(batch)), batch)
        torch.autograd.backward(losses.mean())
        for name in [name for name in silent if _has_gradient(model.get_parameter(name))]:
            silent.remove(name)
        optimizer.step()
    now = _frozen_tensors(model)
    changed = {name for name, value in kept.items() if not torch.equal(value, now[name])}
    return silent, changed, sum(model.get_parameter(name).numel() for name in trained)


def _frozen_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the frozen parameters, and the buffers of modules that have no other ones."""
    found: dict[str, Tensor] = {
        name: each for name, each in model.named_parameters() if not each.requires_grad
    }
    for place, module in model.named_modules():
        own = list(module.parameters(recurse=False))
        if own and not any(each.requires_grad for each in own):
            found |= dict(module.named_buffers(prefix=place, recurse=False))
    return found


def _has_gradient(parameter: nn.Parameter) -> bool:
    return parameter.grad is not None and bool(parameter.grad.any())
