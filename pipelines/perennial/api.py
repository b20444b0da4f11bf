"""Perennial in Python: `from perennial.api import Task, load, run, sanity`.

Each name is imported when it is first used: a served task that asks for `Task` needs no Kubeflow.
`perennial` itself is a namespace package over two source roots and cannot hold names; with a file
`__init__.py` in one of them, the check of import directions would see only that half.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from perennial.contracts.errors import PerennialError
    from perennial.engine.metrics.catalogue import directions_of
    from perennial.engine.task import LABEL, WEIGHT, Batch, Task
    from perennial.first_steps.import_rows import import_rows
    from perennial.notebook import Project, RunResult, SanityResult, load, run, sanity

__all__ = [
    "LABEL",
    "WEIGHT",
    "Batch",
    "PerennialError",
    "Project",
    "RunResult",
    "SanityResult",
    "Task",
    "directions_of",
    "import_rows",
    "load",
    "run",
    "sanity",
]
_TASK = ("LABEL", "WEIGHT", "Batch", "Task")
_MODULES = dict.fromkeys(__all__, "perennial.notebook") | dict.fromkeys(
    _TASK, "perennial.engine.task"
) | {
    "PerennialError": "perennial.contracts.errors",
    "directions_of": "perennial.engine.metrics.catalogue",
    "import_rows": "perennial.first_steps.import_rows",
}  # fmt: skip


def __getattr__(name: str) -> object:
    """Import a name on its first use."""
    if name not in _MODULES:
        raise AttributeError(f"perennial.api has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    """Return the names for completion."""
    return __all__
