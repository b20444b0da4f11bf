"""Find buffers of the user's own modules that no pass reads."""

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from perennial.check_skeleton.models import FunctionWatch, watch_modules
from perennial.check_skeleton.subject import Subject
from perennial.engine.sources import is_installed
from perennial.engine.task import inputs_of

PROBED_ROWS = 8


class _Reads(FunctionWatch):
    """Notes every tensor that is an argument of anything."""

    def __init__(self) -> None:
        super().__init__()
        self.seen = set[int]()

    @override
    def note(
        self, func: Callable[..., Any], args: tuple[Any, ...], given: dict[str, Any], result: object
    ) -> None:
        self.seen.update(id(each) for each in _list_tensors([*args, *given.values()]))


def _list_tensors(values: object) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, list | tuple):
        for each in values:
            yield from _list_tensors(each)


def _is_own(module: nn.Module) -> bool:
    """Whether a module's class is of the user's own code; libraries keep buffers for others."""
    try:
        return not is_installed(Path(inspect.getfile(type(module))))
    except (TypeError, OSError):  # made in a notebook, or by a parametrization
        return True


def find_unread_buffers(subject: Subject) -> list[str]:
    """Return the names of buffers that neither training, evaluation nor predictions read.

    Only of modules that are called: others may be read as copies, as the members of an ensemble.
    """
    task, model, called = subject.task, subject.build_model(), set[str]()
    batch = subject.balanced(PROBED_ROWS * task.scored_together)
    own = {
        f"{name}.{key}" if name else key: (name, buffer)
        for name, module in model.named_modules()
        if _is_own(module)
        for key, buffer in module.named_buffers(recurse=False)
    }
    if not own:
        return []

    def note(name: str, module: nn.Module, given: object, output: object) -> None:
        called.add(name)

    reads = _Reads()
    try:
        for is_training in (True, False):
            model.train(is_training)
            with torch.no_grad(), watch_modules(model, note), reads:
                output = model(**inputs_of(batch))
                task.training_losses(output, batch)
                task.auxiliary_losses(model)
                task.losses(output, batch)
                task.predict(output)
    except Exception:  # other checks report what raises on rows of the data
        return []
    return [
        name
        for name, (module, buffer) in own.items()
        if module in called and id(buffer) not in reads.seen
    ]
