"""Runs a pipeline step: logs it, records it, and reuses its result when the run is continued."""

import hashlib
import inspect
import logging
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from pydantic import Field, FiniteFloat, JsonValue, ValidationError

from perennial.clients.object_store import copy_tree, open_store, sha256_of_file
from perennial.clients.outages import single_attempts, waiting_out_outages
from perennial.contracts.artifact import write_atomically
from perennial.contracts.environment import NO_RUN, Environment, load_secrets
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, canonical_json, cut_sections
from perennial.contracts.user_code import (
    LogFormatter,
    RunStopped,
    explain,
    format_traceback,
    no_silent_exit,
    user_code,
)
from perennial.steps.journal import Journal
from perennial.steps.lease import follow_lease
from perennial.steps.parameters import resolve

P = ParamSpec("P")
RESULT_FILE = "result.json"
REPORT_NAME = "report"
# What people read and `perennial check` looks up; without a result, the step runs again.
KEPT_OF_FAILURES = (REPORT_NAME, "validation")


class StepResult(Section):
    """Result of a step for KFP: output parameters and the scalars shown in the dashboard."""

    parameters: dict[str, bool] = Field(default_factory=dict)
    metrics: dict[str, FiniteFloat] = Field(default_factory=dict)
    summary: str = ""
    """One line for the console and the run report."""


def pipeline_step(
    name: str, *, outputs: Sequence[str], reads: type[Section] | None = None
) -> Callable[[Callable[P, StepResult]], Callable[P, StepResult]]:
    """Make a function a pipeline step.

    The function takes keyword arguments only, all strings: the contract, paths of input artifacts
    and, named in `outputs`, paths to write. Long texts come by their address. An output called
    `metrics` is written from the result's metrics. In a local run, a step that finished before in
    the same run, with the same inputs and code, is not run again: its outputs are copied.

    Args:
        name: The step's name, as in the dashboard.
        outputs: Which parameters are paths to write.
        reads: Its fields are the contract's sections that the step depends on. `contract` is cut
            to them, so that a change of any other section leaves the step's result valid. None
            passes the contract uncut.
    """

    def decorate(work: Callable[P, StepResult]) -> Callable[P, StepResult]:
        @wraps(work)
        def run(*args: P.args, **kwargs: P.kwargs) -> StepResult:
            follow_lease()
            load_secrets()
            values = inspect.signature(work).bind(*args, **kwargs).arguments
            with waiting_out_outages():
                attempt = _Attempt(
                    name, {key: str(value) for key, value in values.items()}, outputs, reads
                )
                finished = attempt.finished()
                if finished is not None:
                    return finished
                with attempt.recorded(), no_silent_exit(), user_code(f"the step {name}"):
                    for key, value in kwargs.items():
                        kwargs[key] = _read_input(key, str(value), reads)
                    result = work(*args, **kwargs)
                    attempt.keep(result)
            return result

        return run

    return decorate


def _read_input(name: str, value: str, reads: type[Section] | None) -> str:
    """Return a parameter's text; of the contract, the sections that the step reads."""
    text = resolve(value)
    return cut_sections(text, reads) if name == "contract" and reads is not None else text


class _Attempt:
    """One execution of a step in a run."""

    def __init__(
        self,
        name: str,
        values: dict[str, str],
        outputs: Sequence[str],
        reads: type[Section] | None,
    ) -> None:
        environment = Environment.read()
        self.name = name
        self.store_uri = environment.store_uri
        self.run_id = environment.run_id
        self.outputs = {key: Path(values[key]) for key in outputs}
        self.journal = Journal(environment.run_folder)
        self.key, self.folder = name, None
        if environment.run_folder is not None:
            inputs = {
                key: _content_digest(_identity(key, value, reads))
                for key, value in values.items()
                if key not in self.outputs
            }
            identity = canonical_json([name, environment.code_digest, dict(sorted(inputs.items()))])
            self.key = f"{name}-{hashlib.sha256(identity.encode()).hexdigest()[:12]}"
            self.folder = environment.run_folder / "steps" / self.key

    def finished(self) -> StepResult | None:
        """The result of an earlier execution in this run, with its outputs put in place."""
        if self.folder is None or not (self.folder / RESULT_FILE).exists():
            return None
        result = StepResult.from_json((self.folder / RESULT_FILE).read_bytes())
        for key, path in self.outputs.items():
            copy_tree(self.folder / key, path)
        self.journal.append("step_reused", step=self.name, key=self.key, summary=result.summary)
        return result

    @contextmanager
    def recorded(self) -> Iterator[None]:
        """Log to the step's file; journal start, end or failure."""
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
        log = str(self.folder / "log.txt") if self.folder else ""
        self.journal.append("step_started", step=self.name, key=self.key, log=log)
        with _logging_to(log):
            try:
                yield
            except RunStopped:
                self.journal.append("step_stopped", step=self.name, key=self.key)
                raise
            except BaseException as error:
                self._clean_up_after(error)
                logging.getLogger(__name__).exception("step=%s failed", self.name)
                self.journal.append(
                    "step_failed",
                    step=self.name,
                    key=self.key,
                    log=log,
                    error=_readable(error),
                    traceback=format_traceback(error),
                )
                self._publish_report(error)
                raise

    def _clean_up_after(self, error: BaseException) -> None:
        """Keep what people need most, and drop results that the error outdated."""
        if self.folder is None:
            return
        for name in KEPT_OF_FAILURES:
            output = self.outputs.get(name)
            if output is not None and output.exists():
                copy_tree(output, self.folder / name)
        for step in getattr(error, "stale_steps", ()):
            for folder in self.folder.parent.glob(f"{step}-*"):
                shutil.rmtree(folder)

    def _publish_report(self, error: BaseException) -> None:
        """Store a failed step's report, which KFP drops; add its address to the error."""
        report = self.outputs.get(REPORT_NAME)
        is_kept = self.folder is not None or self.run_id == NO_RUN
        if is_kept or report is None or not report.exists():
            return
        key = f"reports/{self.run_id}/{self.name}.html"
        try:
            with single_attempts():
                open_store(self.store_uri).write(key, report.read_bytes())
        except Exception:
            logging.getLogger(__name__).warning("report=%s could not be stored", key, exc_info=True)
            return
        error.add_note(f"  report:   {self.store_uri.rstrip('/')}/{key}")

    def keep(self, result: StepResult) -> None:
        """Store outputs, then the result as the commit marker, then record the end."""
        if "metrics" in self.outputs:
            write_atomically(self.outputs["metrics"], canonical_json(dict(result.metrics)).encode())
        for path in self.outputs.values():
            if not path.exists():
                raise RuntimeError(f"step {self.name} ended without writing {path.name}")
        if self.folder is not None:
            for key, path in self.outputs.items():
                copy_tree(path, self.folder / key)
            write_atomically(self.folder / RESULT_FILE, result.to_json().encode())
        metrics: dict[str, JsonValue] = dict(result.metrics)
        self.journal.append(
            "step_finished", step=self.name, key=self.key, summary=result.summary, metrics=metrics
        )


def _identity(name: str, value: str, reads: type[Section] | None) -> str:
    try:
        return _read_input(name, value, reads)
    except PerennialError:  # reading it once more fails the step, which is recorded
        return value


def _content_digest(value: str) -> str:
    """Digest of an input: of the bytes under a path, else of the text itself."""
    path = Path(value)
    try:
        if not path.is_absolute() or not path.exists():
            return hashlib.sha256(value.encode()).hexdigest()
    except OSError:  # a JSON text is not a valid file name
        return hashlib.sha256(value.encode()).hexdigest()
    if path.is_file():
        return sha256_of_file(path)
    digest = hashlib.sha256()
    for file in sorted(path.rglob("*")):
        if file.is_file():
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
            digest.update(bytes.fromhex(sha256_of_file(file)))
    return digest.hexdigest()


@contextmanager
def _logging_to(path: str) -> Iterator[None]:
    handlers: list[logging.Handler] = [logging.StreamHandler()]
    if path:
        handlers.append(logging.FileHandler(path))
    root = logging.getLogger()
    previous_level = root.level
    for handler in handlers:
        handler.setFormatter(LogFormatter("%(asctime)s %(levelname)s %(name)s %(message)s"))
        root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield
    finally:
        root.setLevel(previous_level)
        for handler in handlers:
            root.removeHandler(handler)
            handler.close()


def _readable(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        return f"a value does not fit {error.title}: {error}"
    return explain(error)
