"""Simplified: a training without augmentation and regularisation, to look for bugs.

The guides ask for it first: what these hide, or cause, is then out of the way.
"""

from collections.abc import Iterator

from torch import nn
from torch.nn.modules.dropout import _DropoutNd

from perennial.engine.config.training import TrainingSection
from perennial.engine.task import Task

# Names of other modules' numbers: attention and recurrent layers keep their dropout as one, and
# residual branches are dropped by modules of several libraries.
DROPPING = ("dropout", "drop_prob", "drop_path", "drop_rate")
DROPPED_PATHS = ("StochasticDepth", "DropPath")


def turn_off_dropout(model: nn.Module) -> int:
    """Set every share of dropped values to 0, in place; return how many there were.

    A share that a model's own `forward` writes as a number is not found.
    """
    found = 0
    for module in model.modules():
        for name in list(dropped_shares(module)):
            setattr(module, name, 0.0)
            found += 1
    return found


def dropped_shares(module: nn.Module) -> Iterator[str]:
    """Yield the attributes of a module that are the share of values it drops."""
    is_dropout = isinstance(module, _DropoutNd) or type(module).__name__ in DROPPED_PATHS
    for name, value in vars(module).items():
        is_share = (is_dropout and name == "p") or any(part in name for part in DROPPING)
        if is_share and isinstance(value, float) and value > 0.0:
            yield name


def list_turned_off(task: Task, model: nn.Module, section: TrainingSection) -> list[str]:
    """Return what a simplified training does without, for people."""
    plain, kind = section.without_extras(), type(task)
    found = []
    if section.optimizer.weight_decay:
        found.append(f"training.optimizer.weight_decay = {section.optimizer.weight_decay:g}")
    if section.schedule.shape != plain.schedule.shape:
        found.append(f'training.schedule.shape = "{section.schedule.shape}"')
    if section.stages != plain.stages:
        found.append("the schedules of training.stages")
    if section.averaging is not None:
        found.append(f"training.averaging (decay {section.averaging.decay:g})")
    shares = sum(1 for module in model.modules() for _ in dropped_shares(module))
    if shares:
        found.append(f"dropout in {shares} place{'s' if shares > 1 else ''} of the model")
    if kind.augment is not Task.augment:
        found.append(f"{kind.__name__}.augment")
    if kind.training_losses is not Task.training_losses and not task.needs_whole_batch:
        found.append(f"what {kind.__name__}.training_losses adds to its losses")
    return found
