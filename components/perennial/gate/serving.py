"""Serving: test the exported artifact in a clean process, and measure its speed and size.

The artifact is called as its users will call it: through MLflow's `python_function` flavour, with
the code that it contains, in a process that has neither the contract's folder nor this one. The
champion is timed in a process of its own, since it contains the code of its own registration.
"""

import atexit
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import binom

from perennial.clients.object_store import copy_tree
from perennial.clients.pyfunc_flavor import PROGRAM
from perennial.contracts.data import Split
from perennial.contracts.gate import Serving
from perennial.contracts.training import Challenger
from perennial.contracts.user_code import shorten_trace
from perennial.data.dataset import Dataset
from perennial.engine.evaluation.resampling import Floats
from perennial.engine.export import load_model, weight_files
from perennial.engine.initial_weights import fetch_weights
from perennial.engine.serving.pyfunc import answer, predict_rows
from perennial.engine.serving.servable import input_columns
from perennial.engine.task import Task

logger = logging.getLogger(__name__)
INPUT_ROWS = 64
# Other batch sizes sum in another order; float32 then differs by a few units in the last place.
ABSOLUTE, RELATIVE = 1e-5, 1e-4
WARM_UPS, REPEATS = 3, 20
TURNS = 60  # against a rival: the bound of a median then lies five ranks from it
# Two processes of one model differ in speed by up to a tenth, as long as they live.
PAIRS = 3
SECONDS = 600
CONFIDENCE = 0.95
LAST_LINES = 3
MARK = "served by perennial: "


def serve_in_clean_process(
    artifact: Path, task: Task, dataset: Dataset, predictions: Floats, rival: Path | None = None
) -> Serving:
    """Load an exported model in a new process and predict the first test rows there.

    `artifact` and `rival`, the champion if it is to be timed too, are folders of a `Challenger`;
    `predictions` are the evaluation's, in the same order.
    """
    sizes = measure_size(artifact)
    together = task.scored_together
    rows = next(dataset.batches(Split.TEST, max(INPUT_ROWS // together, 1) * together))
    expected: NDArray[Any] = predictions
    asked = rows.select(input_columns(task))
    first = predictions[: rows.height].reshape(rows.height, -1)
    # What is served then are not the evaluation's statistics, or not its numbers.
    if task.serves_predictions or task.answer_texts(first, asked):
        own, model = load_model(artifact)
        expected = answer(own, predict_rows(own, model, asked), asked).to_numpy()
    try:
        found, seconds, turns = _measure(artifact, rows, together, rival)
        bounds = [lower_bound(turns[1] / turns[0])] if len(turns) > 1 else []
        # The smallest bound counts: a single lucky pair of processes must not decide.
        while bounds and len(bounds) < PAIRS:
            *_, again = _measure(artifact, rows, together, rival)
            bounds.append(lower_bound(again[1] / again[0]) if len(again) > 1 else 0.0)
    except _NotServedError as error:
        return sizes.model_copy(update={"failure": str(error)})
    return Serving(
        megabytes=sizes.megabytes,
        model_megabytes=sizes.model_megabytes,
        rows=len(found),
        milliseconds=1e3 * float(np.median(turns[0])),
        loading_seconds=seconds,
        failure=difference(found, expected),
        champion_milliseconds=1e3 * float(np.median(turns[1])) if len(turns) > 1 else None,
        times_as_fast=min(bounds, default=None),
    )


def start_clean_interpreter() -> None:
    """Start the interpreter in whose forks models are served; its imports take seconds."""
    _CleanInterpreter.get()


def measure_size(artifact: Path) -> Serving:
    """Return the sizes of an exported model that is not served here."""
    files = [file for file in artifact.rglob("*") if file.is_file()]
    return Serving(megabytes=_megabytes(files), model_megabytes=model_megabytes(artifact))


def model_megabytes(artifact: Path) -> float:
    """Return the size of weights and preprocessing, without code and records, in MB."""
    base = Challenger.read(artifact).base
    digests = base.origin.files.values() if base else ()
    # An adapter is served with its base.
    based_on = [fetch_weights(base.store_uri, each) for each in digests] if base else []
    return _megabytes((artifact / Challenger.file_name, *weight_files(artifact), *based_on))


def lower_bound(ratios: Floats) -> float:
    """Return the median's lower 95% bound for any distribution, since times have long tails.

    An order statistic, by the sign test (Conover, Practical Nonparametric Statistics, 1999,
    section 3.2).
    """
    rank = int(binom.ppf(1.0 - CONFIDENCE, len(ratios), 0.5))
    return float(np.sort(ratios)[max(rank - 1, 0)])


class _NotServedError(Exception):
    """Why a model does not answer."""


class _KilledError(_NotServedError):
    """The model's process was killed, and not because it timed out."""


def _measure(
    artifact: Path, rows: pl.DataFrame, together: int, rival: Path | None
) -> tuple[Floats, float, list[Floats]]:
    """Return the predictions, the seconds of loading, and each model's seconds of a prediction.

    A process that was killed is started a second time: that proves nothing about the model, unless
    memory is too small, which recurs.
    """
    try:
        return _measure_once(artifact, rows, together, rival)
    except _KilledError as error:
        logger.warning("the model is served again: %s", error)
        return _measure_once(artifact, rows, together, rival)


def _measure_once(
    artifact: Path, rows: pl.DataFrame, together: int, rival: Path | None
) -> tuple[Floats, float, list[Floats]]:
    with _served(artifact, rows, together) as model:
        raced = _against(model, rival, rows, together) if rival is not None else []
        turns = raced or timed([model], REPEATS)
        return model.predictions, model.loading_seconds, turns


def timed(models: list["_CleanProcess"], repeats: int) -> list[Floats]:
    """Return the seconds of each model's predictions, taken in alternating order."""
    seconds = np.empty((len(models), WARM_UPS + repeats))
    order = list(range(len(models)))
    for turn in range(WARM_UPS + repeats):
        # Both orders alternate: what a model leaves to the next one affects both equally.
        for number in order if turn % 2 else order[::-1]:
            seconds[number, turn] = models[number].seconds()
    return list(seconds[:, WARM_UPS:])


def _against(
    model: "_CleanProcess", rival: Path, rows: pl.DataFrame, together: int
) -> list[Floats]:
    """Return both models' seconds; empty if the rival cannot serve and so cannot be beaten."""
    try:
        with _served(rival, rows, together) as champion:
            return timed([model, champion], TURNS)
    except _NotServedError as error:
        if model.has_ended():
            raise model.failure() from error
        return []


@contextmanager
def _served(artifact: Path, rows: pl.DataFrame, together: int) -> Iterator["_CleanProcess"]:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        copy_tree(artifact, folder / "model")
        rows.write_parquet(folder / "rows.parquet")
        with _CleanProcess(folder, together) as process:
            process.load_answer(folder / "answer.npz")
            yield process


class _CleanInterpreter:
    """Process that has imported MLflow and PyTorch, and nothing of Perennial: forked per model."""

    _running: "_CleanInterpreter | None" = None

    def __init__(self) -> None:
        self.requests, theirs = socket.socketpair()
        # -I: no PYTHONPATH, no working folder; only installed packages are importable.
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-I", str(PROGRAM), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        self._owner = os.getpid()
        atexit.register(self._close)

    @classmethod
    def get(cls) -> "_CleanInterpreter":
        """Return that of this process, which lives as long as it does."""
        running = cls._running
        # A forked process inherits the socket, but its requests would mix with those of its parent.
        if running is None or running._owner != os.getpid() or running._process.poll() is not None:
            cls._running = running = cls()
        return running

    @classmethod
    def fork(cls, request: bytes, descriptors: list[int]) -> None:
        """Send the request for a model's process; to a new interpreter if this one was killed."""
        running = cls.get()
        try:
            socket.send_fds(running.requests, [request], descriptors)
        except (BrokenPipeError, ConnectionResetError):
            running._process.kill()  # its socket may be closed before its end is seen
            running._process.wait()
            socket.send_fds(cls.get().requests, [request], descriptors)

    def _close(self) -> None:
        if self._owner == os.getpid():
            self.requests.close()
            self._process.wait()


class _CleanProcess:
    """A model in a process forked from the clean interpreter; killed on leaving the block.

    Args:
        folder: Holds `model` and `rows.parquet`; its working folder.
        together: Rows to predict for each line of its input.
    """

    def __init__(self, folder: Path, together: int) -> None:
        request = {
            "folder": str(folder),
            "together": together,
            "mark": MARK,
            # The clean interpreter started earlier and has the variables of that moment.
            "environment": dict(os.environ),
        }
        self._errors = folder / "errors.txt"
        self._streams = ExitStack()
        with ExitStack() as theirs:
            pipes = [os.pipe() for _ in range(3)]
            (stdin, asking), (answers, stdout), (states, state) = pipes
            self._input = self._streams.enter_context(os.fdopen(asking, "w"))
            self._answers = self._streams.enter_context(os.fdopen(answers))
            self._states = self._streams.enter_context(os.fdopen(states))
            # Closed here, so that our ends of the pipes show when the process has ended.
            for descriptor in (stdin, stdout, state):
                theirs.callback(os.close, descriptor)
            log = theirs.enter_context(self._errors.open("w"))
            _CleanInterpreter.fork(
                json.dumps(request).encode() + b"\n", [stdin, stdout, log.fileno(), state]
            )
        # 0 if the interpreter was killed; `_kill` skips it: the number 0 means our own group.
        self._id = int(self._states.readline() or 0)
        self._exit_code: int | None = None
        self._has_timed_out = False
        self._watchdog = Timer(SECONDS, self._time_out)
        self._watchdog.start()

    def __enter__(self) -> "_CleanProcess":
        return self

    def __exit__(self, *_: object) -> None:
        self._watchdog.cancel()
        self._kill()
        self._wait()
        with suppress(BrokenPipeError):  # a line that it did not read
            self._streams.close()

    def load_answer(self, file: Path) -> None:
        """Wait until the model is loaded; read its predictions and how long loading took."""
        self._line()
        with np.load(file) as found:
            self.predictions, self.loading_seconds = found["predictions"], float(found["seconds"])

    def seconds(self) -> float:
        """Return the seconds of one prediction of as few rows as the task allows."""
        try:
            self._input.write("\n")
            self._input.flush()
        except BrokenPipeError as error:
            raise self.failure() from error
        return float(self._line())

    def _line(self) -> str:
        """Return the next line of our protocol, without its mark."""
        for line in self._answers:
            if line.startswith(MARK):
                return line.removeprefix(MARK).strip()
        raise self.failure()

    def has_ended(self) -> bool:
        """Return whether the process has ended, without waiting."""
        return bool(select.select([self._states], [], [], 0.0)[0])

    def failure(self) -> _NotServedError:
        """Wait for the process's end and return its cause."""
        self._wait()
        last = shorten_trace(self._errors.read_text(errors="replace"), LAST_LINES)
        if self._exit_code == -signal.SIGKILL and not self._has_timed_out:
            reason = "its process was killed, often because memory ran out"
            return _KilledError(" / ".join(filter(None, (reason, last))))
        reason = ""
        if self._exit_code == -signal.SIGKILL:
            reason = f"it timed out after {SECONDS} s"
        elif self._exit_code == 0:
            reason = "the model's code ended the process before it answered"
        elif not last:
            reason = f"the process ended with exit code {self._exit_code}"
        return _NotServedError(" / ".join(filter(None, (reason, last))))

    def _wait(self) -> None:
        if self._exit_code is None:
            # Without a line, the process that would have written it was killed as well.
            self._exit_code = int(self._states.readline() or -signal.SIGKILL)

    def _time_out(self) -> None:
        self._has_timed_out = True
        self._kill()

    def _kill(self) -> None:
        if self._id and not self.has_ended():
            with suppress(ProcessLookupError):
                os.kill(self._id, signal.SIGKILL)


def difference(found: NDArray[Any], expected: NDArray[Any]) -> str:
    """Return how served predictions differ from the evaluation's; empty if they do not.

    `expected` begins with the same rows, and may have more.
    """
    every, expected = expected, expected[: len(found)].reshape(len(found), -1)
    if found.shape != expected.shape:
        return f"its predictions have shape {found.shape}, the evaluation's {expected.shape}"
    if expected.dtype == object:
        differing = int((found != expected).any(axis=1).sum())
        return f"{differing} of {len(found)} answers differ from the evaluation's" * bool(differing)
    # Of all rows: in currents of microamperes, a difference of 1e-5 is larger than any prediction.
    size = min(1.0, max(float(every.max()), -float(every.min())))
    if not np.allclose(found, expected, rtol=RELATIVE, atol=ABSOLUTE * size):
        worst = float(np.abs(found - expected).max())
        return f"its predictions differ from the evaluation's by up to {worst:.2g}"
    return ""


def _megabytes(files: Sequence[Path]) -> float:
    return sum(file.stat().st_size for file in files) / 1e6
