"""Carried code: lets a version run the code that it carries, whatever the process has imported."""

import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType

from typing_extensions import override

from perennial.contracts.errors import join_names
from perennial.contracts.old_names import OLD
from perennial.contracts.user_code import OWN_NAME, forget_user_modules

logger = logging.getLogger(__name__)


def use_carried_code(folder: Path) -> None:
    """Import from a version's folder of code what an import of its modules would find elsewhere.

    MLflow puts the folder first on the import path, but Python takes a module that is imported
    already: that of another version in the same process, or one that was edited since. Modules of
    the task are imported again, from the folder. Perennial's stay, since two copies of them do not
    work together; those that only this version has are found, others that differ are logged.
    """
    if not folder.is_dir():
        return
    forget_user_modules(folder)
    changed = []
    for file in sorted((folder / OWN_NAME).rglob("*.py")):
        *packages, module_name = file.relative_to(folder).with_suffix("").parts
        is_package = module_name == "__init__"
        module = sys.modules.get(".".join(packages if is_package else [*packages, module_name]))
        if module is None:
            continue
        if is_package and str(file.parent) not in module.__path__:
            module.__path__.append(str(file.parent))
        imported = Path(module.__file__ or "")
        if imported.is_file() and imported.read_bytes() != file.read_bytes():
            changed.append(file.relative_to(folder).as_posix())
    if changed:
        logger.warning(
            "the version in %s carries other code than this process has imported (%s): its "
            "predictions may differ; load it first in a new process",
            folder.parent,
            join_names(changed),
        )


@contextmanager
def carried_modules(folder: Path) -> Iterator[None]:
    """Import the user's modules from a version's folder of code, until the end of the block.

    Perennial's own stay those of this process, which scores with them.
    """
    if not folder.is_dir():
        yield
        return
    before, finder = forget_user_modules(folder), _CarriedFinder(folder)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        forget_user_modules(folder)
        sys.modules.update(before)


class _CarriedFinder(MetaPathFinder):
    """Finds modules in a version's folder of code before any other place."""

    def __init__(self, folder: Path) -> None:
        self._folder = str(folder)
        # Versions from before the rename carry Perennial under its old name.
        is_old = (folder / OLD / "engine").is_dir()
        self._others = (OWN_NAME, OLD) if is_old else (OWN_NAME,)

    @override
    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or fullname in self._others:  # a package finds its own modules
            return None
        return PathFinder.find_spec(fullname, [self._folder], target)
