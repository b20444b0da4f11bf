"""Check of frozen parameters, stages and adapters: what is frozen stays, what is trained moves."""

import torch
from torch import Tensor, nn

from perennial.check_skeleton.checks.model.silent_parameters import find_drawn_at_random
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, seeded
from perennial.contracts.errors import PerennialError, join_names
from perennial.contracts.skeleton import CheckResult
from perennial.engine.adapters import build_starting_model, is_own
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
    own = {"stages": subject.stages, "adapter": subject.adapter}
    training = subject.training.model_copy(update=own)
    if not (training.frozen or training.stages or training.adapter):
        return judge.skipped("no parameter is frozen, there are no stages and no adapter")
    whole = training.model_copy(update={"frozen": (), "stages": (), "adapter": None})
    silent_anyway, _, _ = _update(subject, whole, 0)
    counts, moved, start = list[str](), set[str](), 0
    for stage in training.stages or (training.stage_at(0).stage,):
        try:
            silent, changed, trained = _update(subject, training, start)
        except PerennialError as error:
            found = f" ({error.evidence})" if error.evidence else ""
            return judge.failed(error.problem, hint=f"{error.action}{found}")
        if changed:
            return judge.failed(
                f"{len(changed)} frozen tensors changed within {UPDATES} updates: "
                f"{join_names(sorted(changed))}",
                hint="the model changes them itself, as in an Embedding with max_norm, running "
                "statistics of its own, an assignment in forward, or a `train` that thaws them",
            )
        cut = sorted(silent - silent_anyway)
        if idle := [name for name in cut if is_own(name)]:
            return judge.failed(
                f"{len(idle)} adapter matrices have no gradient: {join_names(idle)}",
                hint="the model reads these modules' weights without calling them (as of an "
                "attention's out_proj), calls them under no_grad, or never: change the model, or "
                "training.adapter.targets",
            )
        if cut:
            return judge.failed(
                f"{len(cut)} trained parameters have no gradient because others are frozen: "
                f"{join_names(cut)}",
                hint="gradients must pass through frozen parts to what is below them: look for "
                "no_grad or detach that depends on requires_grad",
            )
        counts.append(f"{sum(trained.values()):,}")
        moved |= trained.keys()
        start += stage.steps
    shown = f"trained parameters: {', then '.join(counts)}"
    return _judge_untrained(judge, subject, moved) or judge.passed(shown)


def _judge_untrained(judge: Judge, subject: Subject, trained: set[str]) -> CheckResult | None:
    """Judge what no stage trains: an adapter's base and weights from elsewhere may stay."""
    if subject.adapter is not None or subject.initial is not None:
        return None
    kept = [name for name, _ in subject.build_model().named_parameters() if name not in trained]
    if not (drawn := find_drawn_at_random(subject, kept)):
        return None
    return judge.failed(
        f"{len(drawn)} parameters are frozen at random initial values: {join_names(drawn)}",
        hint="no stage trains them and model.initial loads nothing: name the model that they come "
        "from under [model.initial], or let them learn",
    )


def _update(
    subject: Subject, training: TrainingSection, step: int
) -> tuple[set[str], set[str], dict[str, int]]:
    """Train for some updates: names without a gradient, names of frozen tensors that changed.

    Also the names of all trained parameters, with their sizes.
    """
    task, model = subject.task, _build_model(subject, training)
    freeze(model, training, step)
    trained = {name: each.numel() for name, each in model.named_parameters() if each.requires_grad}
    kept = {name: value.clone() for name, value in _frozen_tensors(model).items()}
    model.train()  # afterwards, because it may thaw what is frozen
    optimizer = build_optimizer(model, training, find_blocks=lambda: task.blocks(model))
    batch, silent = subject.balanced(subject.settings.batch_rows), set(trained)
    for _ in range(UPDATES):
        optimizer.zero_grad()
        follow_schedule(optimizer, training, step)
        losses = weighted_losses(task, model(**inputs_of(batch)), batch)
        torch.autograd.backward(losses.mean())
        for name in [name for name in silent if _has_gradient(model.get_parameter(name))]:
            silent.remove(name)
        optimizer.step()
    now = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    changed = {name for name, value in kept.items() if not torch.equal(value, now[name])}
    return silent, changed, trained


def _build_model(subject: Subject, training: TrainingSection) -> nn.Module:
    if training.adapter is None:
        return subject.build_model()
    with seeded(subject.seed):
        return build_starting_model(subject.task, training, subject.initial)


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
