"""Plan: what a task declares about its model, so that processes can share more than its data."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal

from torch import nn

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.parallelism.config import Parallelism

TensorStyle = Literal[
    "columns", "rows", "vocabulary", "logits", "normalization", "split", "whole", "repeated"
]
"""How the processes of a tensor group share a module.

- `columns`: a linear layer; each process computes some of the output features.
- `rows`: the linear layer after it; each process has some of the input features.
- `vocabulary`: an embedding; each process has some of its rows.
- `logits`: the output layer; each process computes some of the features, which are then gathered.

The other four matter under `sequence_parallel` alone, where the stream between `rows` and `columns`
is divided along the sequence:

- `split`: a module that starts the stream; its output is divided.
- `normalization`: works on a part of the stream.
- `whole`: a module around `columns` and `rows`; its input is gathered first.
- `repeated`: a module that every process computes whole, such as experts and their router.
"""


@dataclass(frozen=True)
class ParallelPlan:
    """Where a model may be cut. Names are those of `named_modules`; `*` stands for one segment.

    Attributes:
        before: Modules ahead of the blocks, for pipelines.
        blocks: The `ModuleList` of blocks, called one after the other with one tensor.
        after: Modules behind the blocks.
        tensor: How a tensor group shares which modules.
        divisible: Sizes by the option's name, such as the number of heads, that must be divisible
            by `tensor · context`.
        attention: Modules called with queries, keys and values of shape [B, T, heads, features]
            alone, returning [B, T, heads, features]; they see whole sequences.
        sequence: Tensors of the batch with a dimension along the sequence, and which it is. The
            label must be among them.
        positions: The model's input that takes the positions of the tokens, [T].
        ignored_label: Positions with this label count nothing. The task's losses must be means
            over the others, and 0 where there are none.
        sequence_means: Modules whose output is a mean over the sequence.
        experts: Modules called with tokens [N, features] sorted by expert and the number of tokens
            of each; their parameters' first dimension is the expert, and they read them through
            `perennial.engine.parallelism.experts.own_experts`.
    """

    before: tuple[str, ...] = ()
    blocks: str = ""
    after: tuple[str, ...] = ()
    tensor: Mapping[str, TensorStyle] = field(default_factory=dict)
    divisible: Mapping[str, int] = field(default_factory=dict)
    attention: str = ""
    sequence: Mapping[str, int] = field(default_factory=dict)
    positions: str = ""
    ignored_label: int = -100
    sequence_means: str = ""
    experts: str = ""


def checked_plan(
    plan: ParallelPlan | None, owner: str, parallelism: Parallelism
) -> ParallelPlan | None:
    """The plan, if it covers every dimension that is used.

    Args:
        plan: The task's.
        owner: The task's name.
        parallelism: What the contract asks for.

    Raises:
        BadTaskError: a dimension is used that the plan does not cover.
        PerennialError: a size of the model does not fit the dimensions.
    """
    needs = {
        "tensor": "tensor", "context": "attention", "expert": "experts", "pipeline": "blocks",
    }  # fmt: skip
    for dimension, part in needs.items():
        degree = getattr(parallelism, dimension)
        if degree > 1 and not (plan and getattr(plan, part)):
            raise BadTaskError(
                f"training.parallelism.{dimension} = {degree}, but {owner} declares no plan for it",
                evidence=f"its parallel_plan() has no `{part}`",
                action=f"write {owner}.parallel_plan, see perennial.engine.parallelism.plan, "
                f"or set training.parallelism.{dimension} = 1",
            )
    divisor = parallelism.tensor * parallelism.context
    for name, size in plan.divisible.items() if plan else ():
        if size % divisor:
            raise PerennialError(
                f"model.options.{name} = {size} is not divisible by tensor · context = {divisor}",
                evidence=f"training.parallelism has tensor = {parallelism.tensor} and "
                f"context = {parallelism.context}",
                action=f"choose a multiple of {divisor}, or smaller dimensions",
            )
    return plan


def matching(model: nn.Module, pattern: str, owner: str) -> Iterator[tuple[str, nn.Module]]:
    """The modules that a name of a plan means.

    Args:
        model: Whole.
        pattern: A name in which `*` stands for one segment.
        owner: The task's name.

    Raises:
        BadTaskError: there is none.
    """
    segments = pattern.split(".")
    found = False
    for name, module in model.named_modules():
        parts = name.split(".")
        if name and len(parts) == len(segments) and all(map(fnmatchcase, parts, segments)):
            found = True
            yield name, module
    if not found:
        raise BadTaskError(
            f"{owner}.parallel_plan names {pattern!r}, which its model does not have",
            evidence=f"its parts are: {', '.join(name for name, _ in model.named_children())}",
            action="correct the name; `named_modules()` lists all of them",
        )
