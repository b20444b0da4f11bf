"""Old names: modules that were `components.…` before they were `perennial.…` can still be imported.

A user's own package `components` wins, module by module.
"""

import importlib
import importlib.util
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

from typing_extensions import override

OLD, NEW = "components", "perennial"
# What users imported from; nothing is added here.
_MODULES = ("contracts", "engine", "reports", "tasks")
_TASKS = (
    "image_classification:ImageClassification",
    "image_text:ImageTextContrastive",
    "language_modeling:CausalLanguageModel",
    "tabular:TabularClassification",
    "tabular:TabularRegression",
    "transformers_models:TransformersCausalLM",
)
logger = logging.getLogger(__name__)


def current_task(path: str) -> str:
    """Return the current import path of a reference task; any other path as it is."""
    return f"{NEW}.tasks.{task}" if (task := path.removeprefix(f"{OLD}.tasks.")) in _TASKS else path


def find_old_names() -> None:
    """Let the import system find old names from now on, in this process."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Answers `components.engine.task` with the module `perennial.engine.task` itself."""

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top, _, rest = fullname.partition(".")
        if top != OLD or (rest and rest.partition(".")[0] not in _MODULES):
            return None
        # Below a module of ours, the path would be searched and find a second copy of the next.
        parent = sys.modules.get(fullname.rpartition(".")[0])
        is_below_ours = parent is not None and parent.__name__.startswith(f"{NEW}.")
        if not is_below_ours and PathFinder.find_spec(fullname, path) is not None:
            return None
        if rest and importlib.util.find_spec(f"{NEW}.{rest}") is None:
            return None
        return ModuleSpec(fullname, self, is_package=not rest)

    @override
    def exec_module(self, module: ModuleType) -> None:
        _, _, rest = module.__name__.partition(".")
        if not rest:
            return  # a package without content, below which the others are found
        current = f"{NEW}.{rest}"
        logger.warning("%s is now %s: change the import", module.__name__, current)
        # The same module under both names: a class must not exist twice.
        sys.modules[module.__name__] = importlib.import_module(current)
