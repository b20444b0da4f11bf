"""Find buffers of the user's own modules that no pass reads."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from perennial.check_skeleton.models import watch_modules
from perennial.check_skeleton.subject import Subject
from perennial.engine.sources import is_installed
from perennial.engine.task import inputs_of

PROBED_ROWS = 8


class _Buffers(dict[str, Tensor | None]):
    """A module's buffers; notes which are read as its attributes, whatever is done with them."""

    def __init__(self, buffers: Mapping[str, Tensor | None]) -> None:
        super().__init__(buffers)
        self.seen = set[str]()

    @override
    def __getitem__(self, name: str) -> Tensor | None:
        self.seen.add(name)
        return super().__getitem__(name)

    @override
    def items(self) -> Any:
        self.seen.update(self)  # through named_buffers
        return super().items()


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
    own = dict[str, _Buffers]()
    for name, module in model.named_modules():
        if _is_own(module) and (buffers := vars(module)["_buffers"]):
            own[name] = vars(module)["_buffers"] = _Buffers(buffers)
    if not own:
        return []

    def note(name: str, module: nn.Module, given: object, output: object) -> None:
        called.add(name)

    try:
        for is_training in (True, False):
            model.train(is_training)
            with torch.no_grad(), watch_modules(model, note):
                output = model(**inputs_of(batch))
                task.training_losses(output, batch)
                task.auxiliary_losses(model)
                task.losses(output, batch)
                task.predict(output)
    except Exception:  # other checks report what raises on rows of the data
        return []
    return [
        f"{name}.{key}" if name else key
        for name, buffers in own.items()
        if name in called
        for key, buffer in dict.items(buffers)
        if buffer is not None and key not in buffers.seen
    ]
