"""Runs a pipeline step: logs it, records it, and reuses its result when the run is continued."""

import errno
import hashlib
import inspect
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import ParamSpec

from pydantic import Field, FiniteFloat, JsonValue, ValidationError

from perennial.clients.object_store import copy_tree, sha256_of_file
from perennial.clients.outages import waiting_out_outages
from perennial.contracts.artifact import flush_tree, own_document, write_atomically
from perennial.contracts.environment import (
    NO_RUN,
    POD_NAME,
    Environment,
    attempt_number,
    load_secrets,
)
from perennial.contracts.errors import PerennialError
from perennial.contracts.section import Section, canonical_json, cut_sections, digest_of
from perennial.contracts.user_code import (
    LogFormatter,
    RunStopped,
    explain,
    format_traceback,
    no_silent_exit,
    user_code,
)
from perennial.steps.code_state import refuse_edited_code
from perennial.steps.journal import Journal
from perennial.steps.lease import follow_lease
from perennial.steps.parameters import resolve
from perennial.steps.stored_steps import SHOWN, StoredRun, StoredStep, is_final

P = ParamSpec("P")
RESULT_FILE = "result.json"
REPORT_NAME = "report"
# What people read and `perennial check` looks up; without a result, the step runs again.
KEPT_OF_FAILURES = (REPORT_NAME, "validation", "perennial_suite")


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
    the same run, with the same inputs, code, store and MLflow, is not run again: its outputs are
    copied. On a cluster, a retry of a step that ended with an error for people ends with it at
    once.

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
            with waiting_out_outages(), _printed_once():
                attempt = _Attempt(
                    name, {key: str(value) for key, value in values.items()}, outputs, reads
                )
                finished = attempt.finished()
                if finished is not None:
                    return finished
                attempt.refuse_repetition()
                with attempt.recorded(), no_silent_exit(), user_code(f"the step {name}"):
                    refuse_edited_code()
                    for key, value in kwargs.items():
                        kwargs[key] = _read_input(key, str(value), reads)
                    result = work(*args, **kwargs)
                    refuse_edited_code()  # it may have been edited before the step imported it
                    attempt.keep(result)
            return result

        return run

    return decorate


def _read_input(
    name: str, value: str, reads: type[Section] | None, *, with_layout: bool = True
) -> str:
    """Return a parameter's text; of the contract, the sections that the step reads."""
    text = resolve(value)
    if name != "contract" or reads is None:
        return text
    return cut_sections(text, reads, with_layout=with_layout)


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
        self.outputs = {key: Path(values[key]) for key in outputs}
        self.journal = Journal(environment.run_folder)
        self.key, self.folder, self.stored = name, None, None
        # Champions, snapshots and stored states are read there.
        self._places: list[JsonValue] = [environment.store_uri, environment.tracking_uri]
        self._code_digest, self._reads = environment.code_digest, reads
        self._inputs = {key: value for key, value in values.items() if key not in self.outputs}
        if environment.run_folder is not None:
            self.key = f"{name}-{self._inputs_digest()[:12]}"
            self.folder = environment.run_folder / "steps" / self.key
        elif environment.run_id != NO_RUN:
            self.stored = StoredRun(environment.store_uri, environment.run_id)
        self._record = StoredStep(
            step=name, status="running", began=time.time(), pod=os.environ.get(POD_NAME, "")
        )

    def _inputs_digest(self) -> str:
        inputs: dict[str, JsonValue] = {
            key: _content_digest(_identity(key, value, self._reads))
            for key, value in self._inputs.items()
        }
        parts: list[JsonValue] = [self.name, self._code_digest, *self._places, inputs]
        return digest_of(parts)

    def refuse_repetition(self) -> None:
        """End a retry that can only repeat the error of the attempt before.

        A person's "retry" in the dashboard begins at the first attempt, and tries again.

        Raises:
            PerennialError: the stored error, on equal inputs and code.
        """
        if self.stored is None or attempt_number() == 0:
            return
        before = self.stored.step(self.name)
        if before is not None and before.inputs and before.inputs == self._inputs_digest():
            error = before.error
            error.add_note("  not tried again: an earlier attempt on the same inputs ended so")
            raise error

    def finished(self) -> StepResult | None:
        """Return the result of an earlier execution in this run, with its outputs put in place.

        None without one, or where somebody deleted or damaged a part of it: the step runs again.
        """
        if self.folder is None or not (self.folder / RESULT_FILE).exists():
            return None
        missing = [key for key in self.outputs if not (self.folder / key).exists()]
        try:
            result = StepResult.from_json((self.folder / RESULT_FILE).read_bytes())
        except ValueError:
            missing.append(RESULT_FILE)
        if missing:
            logging.getLogger(__name__).warning(
                "step=%s runs again: %s in %s is gone or damaged",
                self.name,
                missing[0],
                self.folder,
            )
            (self.folder / RESULT_FILE).unlink()  # until all outputs are there again
            return None
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
        if self.stored is not None:
            descriptor, log = tempfile.mkstemp(suffix=".log")
            os.close(descriptor)
        try:
            with self._recording(log):
                yield
        finally:
            if self.stored is not None:
                self.stored.write_log(self.name, Path(log))
                Path(log).unlink()

    @contextmanager
    def _recording(self, log: str) -> Iterator[None]:
        self.journal.append("step_started", step=self.name, key=self.key, log=log)
        with _logging_to(log):
            if self.stored is not None:
                self.stored.write(self._record)
            try:
                yield
            except RunStopped:
                self.journal.append("step_stopped", step=self.name, key=self.key)
                raise
            except BaseException as error:
                # SystemExit and KeyboardInterrupt too: the record would stay `running`.
                self._clean_up_after(error)
                if self.folder is not None:  # on a cluster the error itself is printed, once
                    logging.getLogger(__name__).exception("step=%s failed", self.name)
                elif log:
                    with Path(log).open("a") as file:
                        file.write(f"{_readable(error)}\n")
                self.journal.append(
                    "step_failed",
                    step=self.name,
                    key=self.key,
                    log=log,
                    error=_readable(error),
                    traceback=format_traceback(error),
                )
                self._store_failure(error)
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
                # Without it the step runs again; its log and report are still read.
                (folder / RESULT_FILE).unlink(missing_ok=True)

    def _store_failure(self, error: BaseException) -> None:
        """Store the error and the report of a failed step; add the report's address to the error.

        Kubeflow drops both.
        """
        if self.stored is None:
            return
        inputs = self._inputs_digest() if is_final(error) else ""
        record = self._record.failed_with(error, time.time(), inputs)
        page = self.stored.write(record, self._page())
        if page:
            error.add_note(f"  report:   {page}")

    def _page(self) -> bytes | None:
        report = self.outputs.get(REPORT_NAME)
        return report.read_bytes() if report is not None and report.exists() else None

    def keep(self, result: StepResult) -> None:
        """Store outputs, then the result as the commit marker, then record the end."""
        if "metrics" in self.outputs:
            write_atomically(self.outputs["metrics"], canonical_json(dict(result.metrics)).encode())
        # An output that is missing would fail in a later step, far from its cause.
        for path in self.outputs.values():
            if not path.exists():
                raise RuntimeError(f"step {self.name} ended without writing {path.name}")
        if self.folder is not None:
            for key, path in self.outputs.items():
                copy_tree(path, self.folder / key)
            flush_tree(self.folder)
            write_atomically(self.folder / RESULT_FILE, result.to_json().encode())
        if self.stored is not None:
            logging.getLogger(__name__).info("step=%s finished: %s", self.name, result.summary)
            ended = {
                "status": "finished",
                "ended": time.time(),
                "summary": result.summary,
                "results": {
                    name: own_document(path, name)
                    for name, path in self.outputs.items()
                    if name in SHOWN
                },
            }
            self.stored.write(self._record.model_copy(update=ended), self._page())
        metrics: dict[str, JsonValue] = dict(result.metrics)
        self.journal.append(
            "step_finished", step=self.name, key=self.key, summary=result.summary, metrics=metrics
        )


def _identity(name: str, value: str, reads: type[Section] | None) -> str:
    try:
        return _read_input(name, value, reads, with_layout=False)
    except PerennialError:  # reading it once more fails the step, which is recorded
        return value


def _content_digest(value: str) -> str:
    """Return the digest of an input: of the bytes under a path, else of the text itself."""
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
            # The zero byte ends the name, which holds none: no two folders give the same bytes.
            digest.update(file.relative_to(path).as_posix().encode() + b"\0")
            digest.update(bytes.fromhex(sha256_of_file(file)))
    return digest.hexdigest()


@contextmanager
def _printed_once() -> Iterator[None]:
    """In a pod of Kubeflow, end with an error for people as text, without Kubeflow's traceback."""
    try:
        yield
    except PerennialError as error:
        if not os.environ.get(POD_NAME):
            raise
        text = "\n".join([_readable(error), *getattr(error, "__notes__", ())])
        raise SystemExit(text) from None  # printed by Python, with exit code 1


# What they log at INFO, such as each read of a credential, is of no use to a reader.
CHATTY = ("boto3", "botocore", "s3transfer", "urllib3")


@contextmanager
def _logging_to(path: str) -> Iterator[None]:
    root = logging.getLogger()
    # KFP's executor has a handler of its own. Not isinstance: a FileHandler, which shows nothing,
    # is a StreamHandler too.
    is_shown = any(type(each) is logging.StreamHandler for each in root.handlers)
    handlers: list[logging.Handler] = [] if is_shown else [logging.StreamHandler()]
    if path:
        handlers.append(logging.FileHandler(path))
    for name in CHATTY:
        logging.getLogger(name).setLevel(logging.WARNING)
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


# As the operating system and SQLite report it, whatever exception a library makes of that.
FULL = (
    *(os.strerror(number) for number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    "database or disk is full",
)


def _readable(error: BaseException) -> str:
    if isinstance(error, ValidationError):
        return f"a value does not fit {error.title}: {error}"
    text = explain(error)
    if isinstance(error, PermissionError) and error.filename:
        path = Path(os.fsdecode(error.filename))
        owner = next(each for each in (path, *path.parents) if os.access(each, os.F_OK))
        return (
            f"{text}\n"
            f"  evidence: {owner} belongs to user {owner.stat().st_uid}, this is {os.geteuid()}\n"
            "  to do:    change its rights, or choose another folder; run again to continue"
        )
    if isinstance(error, PerennialError) or not any(sign in str(error) for sign in FULL):
        return text
    folder = Environment.read().run_folder or Path(tempfile.gettempdir())
    free = shutil.disk_usage(folder).free
    return (
        f"{text}\n"
        f"  evidence: {free / 1e6:,.0f} MB are free in {folder}\n"
        "  to do:    free space there, or raise the limit (`ulimit -f`, the quota); run again to "
        "continue"
    )
