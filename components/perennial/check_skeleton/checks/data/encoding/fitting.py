"""Check fitting, and the task in a fresh process: state that is complete, no side effects."""

import json
import math
import os
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import polars as pl
import polars.selectors as cs
from pydantic import JsonValue

from perennial.check_skeleton.checks.data.signals import spread_rows
from perennial.check_skeleton.models import build_noisy_model, evaluated, run_model
from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject, are_equal, find_differences, once, seeded
from perennial.check_skeleton.trials.replay import (
    ANSWER,
    NOT_FRESH,
    PROBE,
    REQUEST,
    ROWS,
    TASK,
    Answer,
)
from perennial.check_skeleton.trials.supervisor import make_environment
from perennial.contracts.section import canonical_json
from perennial.contracts.skeleton import CheckResult
from perennial.steps.processes import run_module, running_processes

State = dict[str, JsonValue]
TIMEOUT_SECONDS = 120.0
# Sums of float32 in another order.
ROUNDING = 1e-6
REPLAY = "perennial.check_skeleton.trials.replay"

TABLES = (
    ".parquet",
    ".csv",
    ".tsv",
    ".feather",
    ".arrow",
    ".ipc",
    ".npy",
    ".npz",
    ".pkl",
    ".pickle",
    ".jsonl",
    ".ndjson",
    ".h5",
    ".hdf5",
    ".pt",
)


@check(
    "statistics_scope",
    expects="the same state from the same rows, a different state from different rows",
    source="guides: statistics computed on train and validation are a silent failure; "
    "facts/data §4: refit and compare",
    needs_losses=False,
)
def check_statistics_scope(subject: Subject, judge: Judge) -> CheckResult:
    """Check that `fit` learns from its argument alone."""
    train = subject.train_rows
    first, again = _fit(subject, train), _fit(subject, train)
    if not _are_same(first, again):
        return judge.failed(
            "fitting the same rows twice gives different states",
            hint="fit must be deterministic: sort sets and groups, seed random numbers",
        )
    if kept := sorted(subject.task.kept_files.intersection(first)):
        first = {name: value for name, value in first.items() if name not in kept}
    if not first:
        files = f" and keeps {', '.join(kept)}" if kept else ""
        return judge.passed(f"the task fits nothing{files}")
    others, follows, leaves = _make_variants(subject), list[str](), list[Mapping[str, JsonValue]]()
    for name, rows in others.items():
        try:
            state = _fit(subject, rows)
            leaves.append(_list_leaves(state))
            learned = {name: value for name, value in state.items() if name not in kept}
            is_same = _are_same(learned, first)
        except Exception:  # `fit` rejects the rows, which shows that it read them, or returns NaN
            is_same = False
        follows += [] if is_same else [name]
    if not follows:
        return judge.failed(
            f"the state is the same for train, {', '.join(others)}",
            hint="fit ignores its argument: it reads the data elsewhere, validation and test "
            "included. Constants belong in the code, not in the state",
        )
    if fixed := [
        path
        for path, value in _list_leaves(first).items()
        if isinstance(value, float) and not value.is_integer()
        if leaves and all(other.get(path) == value for other in leaves)
    ]:
        return judge.warned(
            f"{len(fixed)} fitted numbers do not depend on the rows: {', '.join(fixed[:6])}",
            hint="are they computed from all data, validation and test included? Constants belong "
            "in the code, not in the state",
        )
    return judge.passed(f"the state changes with its rows: {', '.join(follows)}")


@check(
    "state_round_trip",
    expects="a new task with the loaded state encodes, predicts and builds like the fitted one",
    source="the served model is restored by load_state alone; training-serving skew",
    needs_losses=False,
)
def check_state_round_trip(subject: Subject, judge: Judge) -> CheckResult:
    """Check that the saved state is all that a served model needs."""
    try:
        stored = json.loads(canonical_json(subject.task.state()))
    except (TypeError, ValueError) as error:
        return judge.failed(
            f"state() is not valid JSON: {error}",
            hint="return plain numbers, text, lists and dicts",
        )
    restored = subject.make_task()
    restored.load_state(stored)
    rows = subject.validation_rows.head(64)
    expected, batch = subject.task.encode(rows), restored.encode(rows)
    different = [n for n in expected if n not in batch or not are_equal(expected[n], batch[n])]
    different += [] if restored.kind == subject.task.kind else ["kind"]
    if canonical_json(restored.state()) != canonical_json(stored):
        different.append("state()")
    if different:
        return judge.failed(
            f"after load_state these differ: {', '.join(different)}",
            hint="keep everything that fit learned in `fitted`, or return it by state() and "
            "restore it in load_state(). JSON objects come back sorted by key, so keep an order in "
            "a list",
        )
    model = evaluated(subject.build_model())
    twin = replace(subject, task=restored, train_rows=rows, validation_rows=rows)
    served = evaluated(twin.build_model())
    served.load_state_dict(model.state_dict())
    outputs = (
        subject.task.predict(run_model(model, batch)),
        restored.predict(run_model(served, batch)),
    )
    if not are_equal(*outputs):
        return judge.failed(
            "predictions differ after load_state, with equal weights",
            hint="predict or build_model uses something that is not in the state",
        )
    # Zeros of a fresh model hide what comes before them.
    model = build_noisy_model(subject)
    with seeded(subject.seed + 1):
        other = evaluated(subject.task.build_model())
    other.load_state_dict(model.state_dict())
    if not are_equal(run_model(model, batch), run_model(other, batch)):
        return judge.failed(
            "equal weights give other outputs where build_model runs under another seed",
            hint="the model draws numbers that its state_dict lacks: they are neither trained nor "
            "saved. Write nn.Parameter, register_buffer, nn.ModuleList or nn.ParameterList",
        )
    return judge.passed(f"restored from {len(canonical_json(subject.task.state()))} bytes of JSON")


def _make_variants(subject: Subject) -> dict[str, pl.DataFrame]:
    """Return samples of which the statistics must differ: other rows, labels or values."""
    train, label = subject.train_rows, pl.col(subject.task.columns.label)
    # Every eighth row of the most frequent label, or of the upper half, is kept, so that all
    # classes remain but their shares move.
    is_number = train.schema[subject.task.columns.label].is_numeric()
    common = label > label.median() if is_number else pl.lit(value=False)
    is_flat = not train.schema[subject.task.columns.label].is_nested()
    if subject.task.kind != "regression" and is_flat:
        common = label == train[subject.task.columns.label].mode().first()
    thinned = train.filter(~common | (pl.int_range(pl.len()) % 8 == 0))
    features = cs.by_name(list(subject.task.columns.features))
    # Integers stay integers: a fit may count or index by them.
    moved = train.with_columns(
        (features & cs.float()) * 2 + 1,
        # Hashes may be larger than any Int64.
        (features & cs.integer()).cast(pl.Int64, strict=False) * 2 + 1,
    )
    return {
        "half of train": train.sample(fraction=0.5, seed=subject.seed),
        "train and validation": pl.concat([train, subject.validation_rows]),
        "train with fewer common labels": thinned,
        "train with moved numbers": moved,
        # Counts of classes and vocabularies are the same for any larger part.
        "one row of train": train.head(1),
    }


def _fit(subject: Subject, rows: pl.DataFrame) -> State:
    task = subject.make_task()
    task.fit(rows.lazy())
    return task.state()


def _are_same(first: Mapping[str, JsonValue], again: Mapping[str, JsonValue]) -> bool:
    """Whether two states are equal up to rounding: threads add up in any order."""
    one, other = _list_leaves(dict(first)), _list_leaves(dict(again))
    return one.keys() == other.keys() and all(
        math.isclose(value, found, rel_tol=ROUNDING, abs_tol=ROUNDING**2)
        if isinstance(value, float) and isinstance(found, float)
        else value == found
        for value, found in ((one[name], other[name]) for name in one)
    )


def _list_leaves(value: JsonValue, path: str = "") -> Mapping[str, JsonValue]:
    if isinstance(value, dict):
        items = [(f"{path}.{key}" if path else key, child) for key, child in value.items()]
    elif isinstance(value, list | tuple):
        items = [(f"{path}[{index}]", child) for index, child in enumerate(value)]
    else:
        return {path: value}
    return {leaf: found for key, child in items for leaf, found in _list_leaves(child, key).items()}


@check(
    "import_side_effects",
    expects="generators and torch's defaults unchanged by the import, in a fresh process",
    source="guides: seeds belong to the training; the effect of an import depends on the order "
    "of imports",
    needs_losses=False,
    severity="warn",
)
def check_import_side_effects(subject: Subject, judge: Judge) -> CheckResult:
    """Check that importing the task does not read or set anything global."""
    name, answer = type(subject.task).__module__, _replay_task(subject)
    if answer.changed is None:
        return judge.skipped(f"{name} cannot be imported alone: {answer.problem}")
    if changed := answer.changed:
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


@check(
    "fresh_encoding",
    expects="from the saved state alone, in a fresh process with another hash seed, the "
    "same tensors: together, reversed, one by one and 400 days later; no data file read",
    source="the model is served and retrained in other processes, on other days: a different "
    "encoding there is training-serving skew",
    needs_losses=False,
)
def check_fresh_encoding(subject: Subject, judge: Judge) -> CheckResult:
    """Check that inputs do not depend on the process, the day or the order of the rows."""
    rows, answer = spread_rows(subject.train_rows), _replay_task(subject)
    if answer.problem or not answer.batches:
        return judge.unmeasured(f"the task cannot be run in a fresh process: {answer.problem}")
    expected = subject.task.encode(rows)
    again = answer.batches["again"]
    memory = ", ".join(answer.remembers[:3])
    if changed := find_differences(expected, again):
        return judge.failed(
            f"a fresh process encodes different {', '.join(changed)}",
            hint="the same row gets different inputs in every process: look for hash() of text, "
            "which has another seed in each, for the order of a set, for what "
            f"{memory or 'a cache or a counter'} remembers, and for what state() leaves out",
        )
    for way in ("in reverse order", "one by one"):
        batch = answer.batches[way]
        whole = {name: each[: len(batch[name])] for name, each in again.items()}
        if changed := find_differences(whole, batch):
            return judge.failed(
                f"encoding rows {way} gives different {', '.join(changed)}",
                hint="inputs depend on what was encoded before"
                + (f": {memory} remembers it" if memory else "")
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
    own = []
    for each in answer.files if folder else ():
        path = Path(each.removeprefix("file://"))
        is_data = path.suffix == ".parquet" or "*" in each or path == folder
        if is_data and folder in (path.resolve(), *path.resolve().parents):
            own.append(each)
    if own:
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
    return judge.passed("same tensors in a fresh process, reversed, one by one and 400 days later")


@once
def _replay_task(subject: Subject) -> Answer:
    """Import the task's module and encode rows in one fresh process, with another hash seed."""
    name = type(subject.task).__module__
    if not (file := find_file(name)):
        return Answer(problem=f"the module {name} has no file to import")
    with tempfile.TemporaryDirectory(prefix="perennial-replay-") as temporary:
        folder, problem = Path(temporary), ""
        (folder / REQUEST).write_bytes(pickle.dumps((name, file, Path.cwd(), hash(PROBE))))
        try:
            task = pickle.dumps((subject.make_task, subject.task.state()))
            (folder / TASK).write_bytes(task)
            spread_rows(subject.train_rows).write_ipc(folder / ROWS)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            problem = f"the task cannot be created in another process: {error}"
        answer = _run_replay(folder)
    return replace(answer, problem=answer.problem or problem)


def _run_replay(folder: Path) -> Answer:
    """Process the folder's files in a fork of the fork server, or in a new interpreter."""
    environment, log = make_environment(), folder / "output.txt"
    with running_processes(run_module, [(REPLAY, [str(folder)], environment, log)]) as (forked,):
        forked.join(TIMEOUT_SECONDS)
        code = forked.exitcode
    if code == NOT_FRESH:  # a new interpreter imports PyTorch again: 3 s of CPU
        code = _run_interpreter(folder, environment, log)
    if code is None:
        return Answer(problem=f"timed out after {TIMEOUT_SECONDS:g} s")
    if not (folder / ANSWER).exists():
        lines = log.read_text(errors="replace").strip().splitlines() if log.exists() else []
        return Answer(problem=lines[-1] if lines else f"exit status {code}")
    # Written by this process's own child, which ran the same user code.
    return Answer(**pickle.loads((folder / ANSWER).read_bytes()))


def _run_interpreter(folder: Path, environment: Mapping[str, str], log: Path) -> int | None:
    """Return the exit code of a replay in an interpreter of its own; None if it timed out."""
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    with log.open("wb") as output, suppress(subprocess.TimeoutExpired):
        return subprocess.run(
            [sys.executable, "-m", REPLAY, str(folder)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**environment, "PYTHONHASHSEED": seed},
            timeout=TIMEOUT_SECONDS,
            check=False,
        ).returncode
    return None
