"""Parameters: their names without wrappers, which are trained, decayed, and at which rate."""

from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel

from perennial.contracts.errors import PerennialError
from perennial.engine.config.training import TrainingSection


def named_weights(model: nn.Module) -> dict[str, nn.Parameter]:
    """Return parameters by the names that checkpoints use; a tied one under each of its names."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    return {
        name: value
        for name, value in inner.state_dict(keep_vars=True).items()
        if isinstance(value, nn.Parameter)
    }


def local(tensor: Tensor) -> Tensor:
    """Return this rank's part, sharing its memory."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def split_by_decay(
    model: nn.Module, no_decay: Sequence[str] = (), names: Collection[str] = ()
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """Split parameters: with weight decay (matrices), without (biases, norms, embeddings).

    Args:
        model: Sharded or not.
        no_decay: Patterns of the names of further parameters without.
        names: Names of the whole model's parameters where `model` is a stage of a pipeline, which
            may have none of the parameters that a pattern is for.

    Raises:
        PerennialError: a pattern matches no parameter.
    """
    exempt = _matching(model, no_decay, names, "optimizer.no_decay") | {
        id(parameter)
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        for parameter in module.parameters(recurse=False)
    }
    groups: tuple[list[nn.Parameter], list[nn.Parameter]] = ([], [])
    for parameter in model.parameters():
        if parameter.requires_grad:
            groups[parameter.ndim < 2 or id(parameter) in exempt].append(parameter)
    return groups


def freeze(model: nn.Module, training: TrainingSection, step: int = 0) -> None:
    """Let only the parameters of an update's stage be trained, in place, before sharding.

    Batch normalisations of frozen parts keep their running statistics.

    Raises:
        PerennialError: a pattern matches no parameter, or no parameter is left to train.
    """
    if not (training.frozen or training.stages or training.adapter):
        return
    # Of all stages, because a mistake in the last one would be noticed after the others.
    for number, each in enumerate(training.stages):
        _matching(model, each.trainable, (), f"stages[{number}].trainable")
    frozen = _matching(model, training.frozen, (), "frozen")
    trained = _matching(model, training.stage_at(step).stage.trainable, (), "stages.trainable")
    for parameter in model.parameters():
        if id(parameter) not in trained or id(parameter) in frozen:
            parameter.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PerennialError(
            f"no parameter is trained from step {step} on",
            evidence=f"training.frozen = {list(training.frozen)}",
            action="leave some parameters out of training.frozen",
        )
    for module in frozen_normalizations(model):
        keep_statistics(module)


def frozen_normalizations(model: nn.Module) -> list[_BatchNorm]:
    """Return the batch normalisations of frozen parts: none of their parameters is trained.

    One without parameters (`affine=False`) belongs to the smallest module around it that has some.
    """
    found = []
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            names = name.split(".") if name else []
            around = (".".join(names[:depth]) for depth in range(len(names), -1, -1))
            parts = (list(model.get_submodule(each).parameters()) for each in around)
            part = next(filter(None, parts), [])
            if part and not any(each.requires_grad for each in part):
                found.append(module)
    return found


def keep_statistics(module: nn.Module) -> None:
    """Keep a batch normalisation in evaluation mode, whatever mode the model has."""
    # `model.train()` calls this method of every module, so switching the mode once would not last.
    kind = type(module)

    def train(self: nn.Module, mode: bool = True) -> nn.Module:
        return kind.train(self, False)

    module.__class__ = type(kind.__name__, (kind,), {"train": train})
    module.eval()


def rate_factors(
    model: nn.Module,
    rates: Mapping[str, float],
    layer_decay: float,
    names: Collection[str] = (),
    blocks: Sequence[nn.Module] = (),
) -> dict[int, float]:
    """Return the factor of the learning rate by the parameter's `id`, for those that have one.

    `names` is as for `split_by_decay`. Parameters that the model registered before the first
    block are below all blocks, others are above them.

    Raises:
        PerennialError: a pattern matches no parameter.
    """
    factors: dict[int, float] = {}
    for pattern, factor in rates.items():
        factors |= dict.fromkeys(_matching(model, [pattern], names, "optimizer.rates"), factor)
    if layer_decay == 1.0 or not blocks:
        return factors
    level = {id(each): n for n, block in enumerate(blocks, 1) for each in block.parameters()}
    top, is_above = len(blocks) + 1, False
    for parameter in model.parameters():
        is_above = is_above or id(parameter) in level
        depth = top - level.get(id(parameter), top if is_above else 0)
        factors[id(parameter)] = factors.get(id(parameter), 1.0) * layer_decay**depth
    return factors


def _matching(
    model: nn.Module, patterns: Sequence[str], names: Collection[str], option: str
) -> set[int]:
    if not patterns:
        return set()
    weights = named_weights(model)
    names = names or weights.keys()
    found: set[int] = set()
    for pattern in patterns:
        matched = {id(value) for name, value in weights.items() if fnmatchcase(name, pattern)}
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PerennialError(
                f"training.{option}: {pattern!r} matches no parameter",
                evidence=f"some names are: {', '.join(list(names)[:8])}",
                action="correct the pattern (`*` stands for any text), or remove it",
            )
        found |= matched
    return found


def as_real(numbers: Tensor) -> Tensor:
    """Return a view of complex numbers as real and imaginary parts; real numbers as they are."""
    return torch.view_as_real(numbers) if numbers.is_complex() else numbers
