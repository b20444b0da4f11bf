"""Plan: what a task declares about its model, so that processes can share more than its data."""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from torch import Tensor, nn

from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.engine.config.parallelism import Parallelism
from perennial.engine.task import ParallelPlan, TensorStyle

# Tasks of users import the first two from here.
__all__ = ["ParallelPlan", "TensorStyle", "checked_plan", "matching"]


class Passthrough(nn.Module):
    """Placeholder for a part of another stage: returns its input."""

    def forward(self, activation: Tensor, *_: object, **__: object) -> Tensor:
        """Return the first argument; what else the part is given does not matter."""
        return activation


def checked_plan(
    plan: ParallelPlan | None, owner: str, parallelism: Parallelism
) -> ParallelPlan | None:
    """Return the plan, if it covers every dimension that is used.

    Raises:
        BadTaskError: a dimension is used that the plan does not cover.
        PerennialError: a size of the model does not fit the dimensions.
    """
    needs = {
        "tensor": "tensor",
        "context": "attention",
        "expert": "experts",
        "pipeline": "blocks",
    }
    for dimension, part in needs.items():
        degree = getattr(parallelism, dimension)
        if degree > 1 and not (plan and getattr(plan, part)):
            raise BadTaskError(
                f"training.parallelism.{dimension} = {degree}, but {owner} declares no plan for it",
                evidence=f"its parallel_plan() has no `{part}`",
                action=f"write {owner}.parallel_plan, see ParallelPlan in perennial.engine.task, "
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
    """Yield the modules that a name of a plan means; in a stage of a pipeline, those that it has.

    In a `pattern`, `*` stands for one segment of a name.

    Raises:
        BadTaskError: there is none.
    """
    segments = pattern.split(".")
    found = False
    for name, module in model.named_modules():
        if isinstance(module, Passthrough):
            found = True  # what is missing may be in another stage
            continue
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
