"""Check the task in a fresh interpreter: imports change nothing, encoding stays the same."""

import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import polars as pl

from perennial.check_skeleton.checks.data.encoding import find_differences, spread_rows
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject
from perennial.check_skeleton.trials.replay import (
    ANSWER,
    REQUEST,
    ROWS,
    TASK,
    Answer,
)
from perennial.check_skeleton.trials.supervisor import make_environment
from perennial.contracts.skeleton import CheckResult

TIMEOUT_SECONDS = 120.0
REPLAY = "perennial.check_skeleton.trials.replay"

TABLES = (
    ".parquet", ".csv", ".tsv", ".feather", ".arrow", ".ipc", ".npy", ".npz", ".pkl", ".pickle",
    ".jsonl", ".ndjson", ".h5", ".hdf5", ".pt",
)  # fmt: skip


@check(
    "import_side_effects",
    expects="generators and torch's defaults unchanged by the import, in a fresh interpreter",
    source="guides: seeds belong to the training; the effect of an import depends on the order "
    "of imports",
    needs_losses=False,
    severity="warn",
)
def check_import_side_effects(subject: Subject, judge: Judge) -> CheckResult:
    """Check that importing the task does not read or set anything global."""
    name = type(subject.task).__module__
    file = find_file(name)
    if not file:
        return judge.skipped(f"the module {name} has no file to import")
    answer = _import_module(name, file, tuple(sys.path))
    if answer.problem:
        return judge.skipped(f"{name} cannot be imported alone: {answer.problem}")
    changed = answer.changed
    if changed:
        return judge.warned(
            f"importing {name} changes {', '.join(changed)}",
            hint="draw numbers, seed and set defaults inside the task's methods; the engine seeds "
            "each process and [training] sets precision and determinism",
            changed=changed,
        )
    return judge.passed(f"importing {name} changes nothing global")


def find_file(name: str) -> str:
    """Return the file of an imported module; empty if it has none that can run alone."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return file if file and name != "__main__" and Path(file).is_file() else ""


@cache
def _import_module(name: str, file: str, path: tuple[str, ...]) -> Answer:
    """Import a module in a fresh interpreter; once for each module and path of imports."""
    with tempfile.TemporaryDirectory(prefix="perennial-import-") as folder:
        return _run_replay(Path(folder), name, file, {})


@check(
    "fresh_encoding",
    expects=(
        "from the saved state alone, in a fresh interpreter with another hash seed, the "
        "same tensors: together, reversed, one by one and 400 days later; no data file read"
    ),
    source="the model is served and retrained in other processes, on other days: a different "
    "encoding there is training-serving skew",
    needs_losses=False,
)
def check_fresh_encoding(subject: Subject, judge: Judge) -> CheckResult:
    """Check that inputs do not depend on the process, the day or the order of the rows."""
    rows = spread_rows(subject.train_rows)
    answer = _replay_encoding(subject, rows)
    if answer.problem or not answer.batches:
        return judge.unmeasured(f"the task cannot be run in a fresh interpreter: {answer.problem}")
    expected = subject.task.encode(rows)
    again = answer.batches["again"]
    if changed := find_differences(expected, again):
        return judge.failed(
            f"a fresh interpreter encodes different {', '.join(changed)}",
            hint="the same row gets different inputs in every process: look for hash() of text, "
            "which has another seed in each, for the order of a set, for what "
            f"{_name_memory(answer) or 'a cache or a counter'} remembers, and for what state() "
            "leaves "
            "out",
        )
    for way in ("in reverse order", "one by one"):
        batch = answer.batches[way]
        whole = {name: each[: len(batch[name])] for name, each in again.items()}
        if changed := find_differences(whole, batch):
            return judge.failed(
                f"encoding rows {way} gives different {', '.join(changed)}",
                hint="inputs depend on what was encoded before"
                + (f": {_name_memory(answer)} remembers it" if answer.remembers else "")
                + "; learn it in fit(train) and keep it in state()",
            )
    later = answer.batches["400 days later"]
    if changed := find_differences(again, later):
        return judge.failed(
            f"encoding rows 400 days later gives different {', '.join(changed)}",
            hint="encode reads the clock: a row's age depends on when it is encoded, so training "
            "and serving differ. Count from a date in the row, or from a fixed date",
        )
    return _judge_files(judge, subject, answer)


def _judge_files(judge: Judge, subject: Subject, answer: Answer) -> CheckResult:
    uri = subject.data.uri if subject.data else "://"
    folder = None if "://" in uri else Path(uri).resolve()
    tables = [each for each in answer.files if each.split("*")[0].endswith(TABLES) or "*" in each]
    if folder and (own := [each for each in answer.files if _is_in(each, folder)]):
        return judge.failed(
            f"encode or fit reads the data set itself: {', '.join(own[:4])}",
            hint="validation and test rows are in those files, and the files do not exist where "
            "the model is served: fit and encode may use only the rows that they are given",
        )
    if tables:
        return judge.warned(
            f"encode or fit reads {', '.join(tables[:4])}",
            hint="does the file exist, unchanged, when the model is served or trained again? Does "
            "it contain validation or test rows? Keep what is needed of it in state()",
        )
    return judge.passed(
        "same tensors in a fresh interpreter, reversed, one by one and 400 days later"
    )


def _is_in(file: str, folder: Path) -> bool:
    name = file.removeprefix("file://")
    is_data = name.endswith(".parquet") or "*" in name or Path(name) == folder
    return is_data and folder in (Path(name).resolve(), *Path(name).resolve().parents)


def _name_memory(answer: Answer) -> str:
    return ", ".join(answer.remembers[:3])


def _replay_encoding(subject: Subject, rows: pl.DataFrame) -> Answer:
    name = type(subject.task).__module__
    if not (file := find_file(name)):
        return Answer(problem=f"the module {name} has no file to import")
    try:
        task = pickle.dumps((subject.make_task, subject.task.state()))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        return Answer(problem=f"the task cannot be created in another process: {error}")
    other = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    with tempfile.TemporaryDirectory(prefix="perennial-replay-") as temporary:
        folder = Path(temporary)
        (folder / TASK).write_bytes(task)
        rows.write_ipc(folder / ROWS)
        return _run_replay(folder, name, file, {"PYTHONHASHSEED": other})


def _run_replay(folder: Path, name: str, file: str, variables: Mapping[str, str]) -> Answer:
    """Process the folder's files in a fresh interpreter."""
    (folder / REQUEST).write_bytes(pickle.dumps((name, file)))
    try:
        done = subprocess.run(
            [sys.executable, "-m", REPLAY, str(folder)], capture_output=True, text=True,
            env={**make_environment(), **variables}, timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return Answer(problem=f"timed out after {TIMEOUT_SECONDS:g} s")
    if not (folder / ANSWER).exists():
        last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
        return Answer(problem=last[0])
    # Written by this process's own child, which ran the same user code.
    return Answer(**pickle.loads((folder / ANSWER).read_bytes()))
