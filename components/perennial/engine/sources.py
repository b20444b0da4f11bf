"""Sources: which files and which packages does a module need, wherever it runs?"""

import ast
import importlib.metadata
import importlib.util
import sys
import sysconfig
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from perennial.contracts.old_names import OLD

OWN = __name__.partition(".")[0]
WHOLE = {"mlflow-skinny": "mlflow", "mlflow-tracing": "mlflow"}
"""Part of a package → the package. MLflow's parts have its version; what serves needs all of it."""
_TASKS = f"{OWN}/tasks/"


@dataclass(frozen=True)
class Sources:
    """Everything that a set of modules imports, at any depth.

    Attributes:
        files: Path below a folder of the import path → the source file. Of Perennial's own modules
            and of those that belong to no installed package, such as a task beside its contract.
        distributions: Installed package → version, of everything else.
    """

    files: Mapping[str, Path]
    distributions: Mapping[str, str]


def sources_of(modules: Iterable[str]) -> Sources:
    """Return the imports of modules, read from their sources: only parent packages are imported.

    An import that cannot be resolved here is optional, or would have failed already. What is asked
    for by `importlib.import_module("name")` counts if it was asked for: call this after the model
    has predicted.
    """
    files: dict[str, Path] = {}
    distributions: dict[str, str] = {}
    waiting, seen, settled = list(modules), set[str](), set[str]()
    while waiting:
        name = waiting.pop()
        top = name.partition(".")[0]
        if name in seen or top in settled or top in sys.stdlib_module_names:
            continue
        seen.add(name)
        file = _source_of(name)
        if file is None:
            continue
        if top != OWN and is_installed(file):
            found = _versions(top, file)
            distributions |= found
            if len(found) == 1 and not _is_shared(top):
                settled.add(top)
        elif file.suffix == ".py":
            is_package = file.name == "__init__.py"
            files[name.replace(".", "/") + ("/__init__.py" if is_package else ".py")] = file
            waiting += _imports(file, name if is_package else name.rpartition(".")[0])
            waiting += [name.rpartition(".")[0]] if "." in name else []
    return Sources(dict(sorted(files.items())), dict(sorted(distributions.items())))


def sources_below(folder: Path, module: str) -> list[Path]:
    """Return the sources in a folder that a module is made of and imports, at any depth.

    They are only read: nothing is imported. What Python cannot read is imported no further.
    """
    waiting, seen, found = [module], set[str](), list[Path]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        waiting += [name.rpartition(".")[0]] if "." in name else []
        place = folder.joinpath(*name.split("."))
        is_package = (place / "__init__.py").is_file()
        file = place / "__init__.py" if is_package else place.with_name(f"{place.name}.py")
        if not name or not file.is_file():
            continue
        found.append(file)
        with suppress(SyntaxError, ValueError, ImportError):  # the step that imports it reports it
            waiting += _imports(file, name if is_package else name.rpartition(".")[0])
    return sorted(found)


def changed_sources(carried: Path, task: str) -> list[str]:
    """Return the task's files and their imports that a version carries with other content.

    Args:
        carried: The version's folder of code; a file that it lacks has not changed.
        task: As `module:Class`; of a module that is gone, its own file counts as changed.
    """
    module = task.partition(":")[0]
    files = sources_of([module]).files
    own = f"{module.replace('.', '/')}.py"
    if not files and (carried / own).is_file():
        return [own]
    return [
        name
        for name, file in files.items()
        if (name.startswith(_TASKS) or not name.startswith(f"{OWN}/"))
        and (kept := _carried(carried, name)).is_file()
        and kept.read_bytes() != file.read_bytes()
    ]


def _carried(folder: Path, name: str) -> Path:
    """Return a carried file, by its old name where it was carried under that."""
    found = folder / name
    return found if found.is_file() else folder / name.replace(f"{OWN}/", f"{OLD}/", 1)


def _source_of(name: str) -> Path | None:
    try:
        found = importlib.util.find_spec(name)
    except (ImportError, ValueError):  # a parent is not a package, or is gone
        return None
    if found is None or found.origin in (None, "built-in", "frozen"):
        return None
    return Path(str(found.origin))


def _imports(file: Path, package: str) -> Iterator[str]:
    for asked in _import_nodes(file.read_bytes()):
        if isinstance(asked, ast.Import):
            yield from (alias.name for alias in asked.names)
        elif isinstance(asked, ast.ImportFrom):
            module = asked.module or ""
            if asked.level:
                module = importlib.util.resolve_name("." * asked.level + module, package)
            yield module
            yield from (f"{module}.{alias.name}" for alias in asked.names)
        elif asked in sys.modules:
            yield asked


# By content, so that an edited file counts at once. Parsing was nine tenths of the time that a
# version's list takes (0.17 s of CPU time for 39 files).
@lru_cache(maxsize=4096)
def _import_nodes(source: bytes) -> tuple[ast.Import | ast.ImportFrom | str, ...]:
    """Return the imports of a source; a name is one that `import_module` is called with."""
    found: list[ast.Import | ast.ImportFrom | str] = []
    for node in _without_type_checking(ast.parse(source)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.append(node)
        elif isinstance(node, ast.Call) and _last_name(node.func) == "import_module":
            found += [str(arg.value) for arg in node.args[:1] if isinstance(arg, ast.Constant)]
    return tuple(found)


def _without_type_checking(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield every node but those under `if TYPE_CHECKING`, which are never run."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            waiting += node.orelse
        else:
            waiting += ast.iter_child_nodes(node)


def _last_name(node: ast.expr) -> str:
    """Return the `c` of `a.b.c`; nothing of any other expression."""
    return getattr(node, "attr", "") or getattr(node, "id", "")


def is_installed(file: Path) -> bool:
    """Whether a file is of an installed package, not of the user's own code."""
    places = {Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib")}
    return any(file.is_relative_to(place) for place in places) or any(
        part in ("site-packages", "dist-packages") for part in file.parts
    )


def _versions(top: str, file: Path) -> dict[str, str]:
    """Return the package that a module is of: the one of its name, or that has its file."""
    try:
        found = [importlib.metadata.distribution(top)]
    except importlib.metadata.PackageNotFoundError:
        # As for `PIL`, which is of pillow, and for names that several packages share.
        named = importlib.metadata.packages_distributions().get(top, [])
        every = [importlib.metadata.distribution(name) for name in sorted(set(named))]
        found = [each for each in every if len(every) == 1 or file.as_posix() in _files(each)]
    # What follows a plus names a build, such as `cpu`, that package indexes do not list.
    return {
        WHOLE.get(name := each.metadata["Name"], name): each.version.partition("+")[0]
        for each in found
    }


def _is_shared(top: str) -> bool:
    """Whether several packages put modules below this name."""
    found = importlib.util.find_spec(top)
    return found is None or found.origin is None


def _files(distribution: importlib.metadata.Distribution) -> set[str]:
    place = Path(str(distribution.locate_file(""))).as_posix()
    return {f"{place}/{part}" for part in distribution.files or ()}
