"""Parameters: their names without wrappers, and which have weight decay."""

from collections.abc import Collection, Sequence
from fnmatch import fnmatchcase

from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from perennial.contracts.errors import PerennialError


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
    exempt = _matching(model, no_decay, names) | {
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


def _matching(model: nn.Module, patterns: Sequence[str], names: Collection[str]) -> set[int]:
    if not patterns:
        return set()
    weights = named_weights(model)
    names = names or weights.keys()
    found: set[int] = set()
    for pattern in patterns:
        matched = {id(value) for name, value in weights.items() if fnmatchcase(name, pattern)}
        if not any(fnmatchcase(name, pattern) for name in names):
            raise PerennialError(
                f"training.optimizer.no_decay: {pattern!r} matches no parameter",
                evidence=f"some names are: {', '.join(list(names)[:8])}",
                action="correct the pattern (`*` stands for any text), or remove it",
            )
        found |= matched
    return found
