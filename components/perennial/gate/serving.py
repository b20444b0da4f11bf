"""Serving: test the exported artifact in a clean process, and measure its speed and size.

The artifact is called as its users will call it: through MLflow's `python_function` flavour, with
the code that it contains, in a process that has neither the contract's folder nor this one. The
champion is timed in a process of its own, since it contains the code of its own registration.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Timer

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import binom

from perennial.clients.object_store import copy_tree
from perennial.clients.pyfunc_flavor import PROGRAM
from perennial.contracts.data import Split
from perennial.contracts.gate import Serving
from perennial.contracts.training import Challenger
from perennial.data.dataset import Dataset
from perennial.engine.export import WEIGHTS_FILE
from perennial.engine.task import Task

INPUT_ROWS = 64
# Other batch sizes sum in another order; float32 then differs by a few units in the last place.
ABSOLUTE, RELATIVE = 1e-5, 1e-4
WARM_UPS, REPEATS = 3, 20
TURNS = 60  # against a rival: the bound of a median then lies five ranks from it
SECONDS = 600
CONFIDENCE = 0.95
LAST_LINES = 3
MARK = "served by perennial: "


def serve_in_clean_process(
    artifact: Path,
    task: Task,
    dataset: Dataset,
    predictions: NDArray[np.float64],
    rival: Path | None = None,
) -> Serving:
    """Load an exported model in a new process and predict the first test rows there.

    Args:
        artifact: A `Challenger` folder.
        task: The challenger's task, which states how many rows must stay together.
        dataset: Holds the test rows.
        predictions: The evaluation's predictions of them, in the same order.
        rival: The champion's folder, if it is to be timed too.
    """
    size, model_size = _size(artifact), model_megabytes(artifact)
    together = task.scored_together
    rows = next(dataset.batches(Split.TEST, max(INPUT_ROWS // together, 1) * together))
    try:
        with _served(artifact, rows, together) as model:
            turns = timed([model], REPEATS)
            if rival is not None:
                turns = _against(model, rival, rows, together) or turns
            found, seconds = model.predictions, model.loading_seconds
    except _NotServedError as error:
        return Serving(megabytes=size, model_megabytes=model_size, failure=str(error))
    return Serving(
        megabytes=size,
        model_megabytes=model_size,
        rows=len(found),
        milliseconds=1e3 * float(np.median(turns[0])),
        loading_seconds=seconds,
        failure=_difference(found, predictions[: len(found)].reshape(len(found), -1)),
        champion_milliseconds=1e3 * float(np.median(turns[1])) if len(turns) > 1 else None,
        times_as_fast=lower_bound(turns[1] / turns[0]) if len(turns) > 1 else None,
    )


def model_megabytes(artifact: Path) -> float:
    """Return the size of weights and preprocessing, without code and records, in MB."""
    files = (artifact / Challenger.file_name, artifact / WEIGHTS_FILE)
    return sum(file.stat().st_size for file in files) / 1e6


def lower_bound(ratios: NDArray[np.float64]) -> float:
    """Return the median's lower 95% bound for any distribution, since times have long tails.

    An order statistic, by the sign test (Conover, Practical Nonparametric Statistics, 1999,
    section 3.2).
    """
    rank = int(binom.ppf(1.0 - CONFIDENCE, len(ratios), 0.5))
    return float(np.sort(ratios)[max(rank - 1, 0)])


@dataclass(frozen=True)
class _Served:
    """A model loaded in a process of its own."""

    process: "subprocess.Popen[str]"
    errors: Path
    predictions: NDArray[np.float64]
    loading_seconds: float

    def seconds(self) -> float:
        """Return the seconds of one prediction of as few rows as the task allows."""
        assert self.process.stdin is not None
        try:
            self.process.stdin.write("\n")
            self.process.stdin.flush()
        except BrokenPipeError as error:
            raise _NotServedError(_why(self.process, self.errors)) from error
        return float(_line(self.process, self.errors))


class _NotServedError(Exception):
    """Why a model does not answer."""


def timed(models: list[_Served], repeats: int) -> list[NDArray[np.float64]]:
    """Return the seconds of each model's predictions, taken in alternating order."""
    seconds = np.empty((len(models), WARM_UPS + repeats))
    order = list(range(len(models)))
    for turn in range(WARM_UPS + repeats):
        for number in order if turn % 2 else order[::-1]:
            seconds[number, turn] = models[number].seconds()
    return list(seconds[:, WARM_UPS:])


def _against(
    model: _Served, rival: Path, rows: pl.DataFrame, together: int
) -> list[NDArray[np.float64]]:
    """Return both models' seconds; empty if the rival cannot serve and so cannot be beaten."""
    try:
        with _served(rival, rows, together) as champion:
            return timed([model, champion], TURNS)
    except _NotServedError as error:
        if model.process.poll() is not None:
            raise _NotServedError(_why(model.process, model.errors)) from error
        return []


@contextmanager
def _served(artifact: Path, rows: pl.DataFrame, together: int) -> Iterator[_Served]:
    with TemporaryDirectory() as scratch:
        folder = Path(scratch)
        model, table, answer = folder / "model", folder / "rows.parquet", folder / "answer.npz"
        errors = folder / "errors.txt"
        copy_tree(artifact, model)
        rows.write_parquet(table)
        # -I: no PYTHONPATH, no working folder; only installed packages are importable.
        command = [sys.executable, "-I", str(PROGRAM), str(model), str(table), str(together)]
        with errors.open("w") as log:
            process = subprocess.Popen(
                [*command, str(answer), MARK],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        watchdog = Timer(SECONDS, process.kill)
        watchdog.start()
        try:
            _line(process, errors)
            with np.load(answer) as found:
                predictions, seconds = found["predictions"], float(found["seconds"])
            yield _Served(process, errors, predictions, seconds)
        finally:
            watchdog.cancel()
            process.kill()
            process.communicate()


def _line(process: "subprocess.Popen[str]", errors: Path) -> str:
    """Return the next line of our protocol, without its mark."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(MARK):
            return line.removeprefix(MARK).strip()
    raise _NotServedError(_why(process, errors))


def _why(process: "subprocess.Popen[str]", errors: Path) -> str:
    code = process.wait()
    text = errors.read_text(errors="replace")
    last = [line.strip() for line in text.splitlines() if line.strip()][-LAST_LINES:]
    if code == -signal.SIGKILL:
        reason = f"it was killed: it timed out after {SECONDS} s, or memory ran out"
        return " / ".join((reason, *last))
    if code == 0:
        return " / ".join(("the model's code ended the process before it answered", *last))
    return " / ".join(last) or f"the process ended with exit code {code}"


def _difference(found: NDArray[np.float64], expected: NDArray[np.float64]) -> str:
    if found.shape != expected.shape:
        return f"its predictions have shape {found.shape}, the evaluation's {expected.shape}"
    if not np.allclose(found, expected, rtol=RELATIVE, atol=ABSOLUTE):
        worst = float(np.abs(found - expected).max())
        return f"its predictions differ from the evaluation's by up to {worst:.2g}"
    return ""


def _size(artifact: Path) -> float:
    return sum(file.stat().st_size for file in artifact.rglob("*") if file.is_file()) / 1e6
