"""Find parameters without a gradient that the model may leave unused by design."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from perennial.check_skeleton.models import FunctionWatch, evaluated, measure_changes, watch_modules
from perennial.check_skeleton.subject import Subject, seeded
from perennial.engine.parallelism.parallelize import find_leaves
from perennial.engine.task import Batch, Task, inputs_of

PROBED_ROWS = 16
MOST = 64  # more silent parameters than this are never harmless
STEP = 0.1
# Rounding moves a loss by about 1e-7 of itself.
MOVED = 1e-5
DRAWS = (
    "rand",
    "normal",
    "bernoulli",
    "multinomial",
    "poisson",
    "uniform",
    "exponential",
    "dropout",
)


@dataclass(frozen=True)
class Silence:
    """Parameters without a gradient, by the reason for it."""

    harmful: tuple[str, ...] = ()  # detached, dead, forgotten or discarded
    # In the first or last of equal blocks, where their result is not used.
    idle: tuple[str, ...] = ()
    # Without effect on any loss, because they shift all scores equally.
    cancelled: tuple[str, ...] = ()


def explain_silence(subject: Subject, model: nn.Module, totals: Mapping[str, float]) -> Silence:
    """Separate harmless parameters without a gradient from the others.

    The model has made some updates, and is left in evaluation mode; `totals` are the sums of the
    absolute gradients of each trainable parameter.
    """
    silent = [name for name, size in totals.items() if size == 0.0]
    if not silent or len(silent) > MOST:
        return Silence(harmful=tuple(silent))
    reasons = dict.fromkeys(silent, "harmful")
    evaluated(model)
    batch = subject.balanced(PROBED_ROWS)
    reached = {id(leaf) for leaf in find_leaves(_compute_losses(subject.task, model, batch).sum())}
    for name in silent:
        is_reached = id(model.get_parameter(name)) in reached
        twins = [] if is_reached else _find_twins(name, totals)
        if not (is_reached or twins):
            continue
        is_called, moves_output, moves_loss = _measure_effect(subject.task, model, batch, name)
        if moves_loss:
            continue  # cut off by detach, or by a step that has no gradient
        module = name.rpartition(".")[0]
        neighbours = (size for each, size in totals.items() if each.rpartition(".")[0] == module)
        if is_reached and moves_output and any(neighbours):
            reasons[name] = "cancelled"
        # Some layers use the weights of others themselves, and never call them.
        elif twins and (is_called or not _run_and_watch(subject.task, model, batch, twins[0])[1]):
            reasons[name] = "idle"
    names = {
        reason: tuple(n for n in silent if reasons[n] == reason) for reason in reasons.values()
    }
    return Silence(**names)


def find_drawn_at_random(subject: Subject, names: Sequence[str]) -> list[str]:
    """Return the weights of torch's own layers that depend on the seed.

    Weights of custom modules may be random by design, such as frequencies of random features.
    """
    first = subject.build_model()
    with seeded(subject.seed + 1):
        second = subject.task.build_model()
    return [
        name
        for name in names
        if first.get_parameter(name).ndim > 1
        and type(first.get_submodule(name.rpartition(".")[0])).__module__.startswith("torch.nn")
        and not torch.equal(first.get_parameter(name), second.get_parameter(name))
    ]


@torch.no_grad()
def _measure_effect(
    task: Task, model: nn.Module, batch: Batch, name: str
) -> tuple[bool, bool, bool]:
    """Change a parameter: whether its module is called, and its output and any loss change."""
    parameter = model.get_parameter(name)
    kept = parameter.clone()
    losses, outputs = _run_and_watch(task, model, batch, name)
    parameter.add_(STEP * (1 + kept.abs()))
    after, moved = _run_and_watch(task, model, batch, name)
    parameter.copy_(kept)
    return bool(outputs), any(map(_are_different, outputs, moved)), _are_different(losses, after)


def _run_and_watch(
    task: Task, model: nn.Module, batch: Batch, name: str
) -> tuple[Tensor, list[Tensor]]:
    """Return the losses, and the outputs of a parameter's module; without gradients."""
    found: list[Tensor] = []
    own = model.get_submodule(name.rpartition(".")[0])

    def keep(_: str, module: nn.Module, given: object, output: object) -> None:
        if module is own:
            found.extend(_list_tensors(output))

    with watch_modules(model, keep), torch.no_grad():
        return _compute_losses(task, model, batch), found


def _compute_losses(task: Task, model: nn.Module, batch: Batch) -> Tensor:
    """Return the losses that training minimises, shape [B]."""
    losses = task.training_losses(model(**inputs_of(batch)), batch)
    auxiliary = task.auxiliary_losses(model)
    return losses if auxiliary is None else losses + auxiliary


def _list_tensors(output: object) -> Iterator[Tensor]:
    if isinstance(output, Tensor):
        yield output.detach().clone()
    elif isinstance(output, list | tuple):
        for each in output:
            yield from _list_tensors(each)


def _are_different(before: Tensor, after: Tensor) -> bool:
    is_one_form = before.shape == after.shape
    return not is_one_form or not bool((measure_changes(before, after) <= MOVED).all())


def _find_twins(name: str, totals: Mapping[str, float]) -> list[str]:
    """Return the same parameter of all other blocks, if they learn and its own block does too.

    Only for the first and the last block: an unused result in the middle is a mistake.
    """
    parts = name.split(".")
    for place, part in enumerate(parts):
        if place and part.isdigit():
            row = {
                int(other[place]): ".".join(other)
                for other in (each.split(".") for each in totals)
                if len(other) == len(parts)
                and other[place].isdigit()
                and other[:place] + other[place + 1 :] == parts[:place] + parts[place + 1 :]
            }
            index = int(part)
            twins = [each for number, each in row.items() if number != index]
            learns = all(totals[each] > 0.0 for each in twins)
            is_end = index in (min(row), max(row))
            if twins and learns and is_end and _is_block_learning(parts, place, totals):
                return twins
    return []


def _is_block_learning(parts: list[str], place: int, totals: Mapping[str, float]) -> bool:
    """Whether something else of a block learns; its layers may lie in several lists."""
    lists: dict[str, dict[int, float]] = {}
    for each, size in totals.items():
        other = each.split(".")
        is_parallel = other[: place - 1] == parts[: place - 1] and len(other) > place
        if is_parallel and other[place].isdigit():
            sizes = lists.setdefault(other[place - 1], {})
            sizes[int(other[place])] = sizes.get(int(other[place]), 0.0) + size
    own = lists[parts[place - 1]]
    return any(
        sizes[int(parts[place])] > 0.0 for sizes in lists.values() if sizes.keys() == own.keys()
    )


def find_copies_of_embeddings(
    model: nn.Module, named: Mapping[str, nn.Parameter]
) -> list[tuple[str, Tensor]]:
    """Return parameters that equal an embedding bit by bit: their name, the embedding."""
    embeddings = {
        id(each.weight): each.weight
        for each in model.modules()
        if isinstance(each, nn.Embedding) and float(each.weight.detach().std()) > 0
    }
    return [
        (name, embedding)
        for embedding in embeddings.values()
        for name, each in named.items()
        if each.data_ptr() != embedding.data_ptr() and torch.equal(each, embedding)
    ]


class Drawing(FunctionWatch):
    """Records whether random numbers are drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.has_drawn = False

    @override
    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: object
    ) -> None:
        name = getattr(func, "__name__", "").lstrip("_")
        # Dropout in evaluation mode is called, and draws nothing.
        self.has_drawn |= name.startswith(DRAWS) and not (
            "dropout" in name and given.get("training", True) is False
        )
