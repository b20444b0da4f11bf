"""Replay: import a task in a fresh process, encode rows in several ways, record what changes.

    python -m perennial.check_skeleton.trials.replay FOLDER

The process has another hash seed than the one that asks, and has not imported the task's module. It
first sees what that import changes; then, with a clock that can be moved, it records the files that
the task reads. A fork of the fork server qualifies, unless the server imported the module already
or shares the hash seed.
"""

import datetime
import importlib
import importlib.util
import os
import pickle
import random
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from types import ModuleType

import numpy as np
import polars as pl
import torch
from pydantic import JsonValue

from perennial.check_skeleton.subject import generator_states
from perennial.engine.task import Batch, Task

REQUEST, TASK, ROWS, ANSWER = "request.pickle", "task.pickle", "rows.arrow", "answer.pickle"
PROBE = "perennial"  # its hash tells whether two processes have the same hash seed
NOT_FRESH = 3  # exit code of a process that does not qualify
ALONE = 8
LATER = datetime.timedelta(days=400)
READERS = (
    "read_parquet",
    "scan_parquet",
    "read_csv",
    "scan_csv",
    "read_ipc",
    "scan_ipc",
    "read_json",
    "read_ndjson",
    "scan_ndjson",
)
KEPT = (dict, list, set, int, float, str, bytes)
LONGEST = 10_000


@dataclass
class Answer:
    """The result of a replay."""

    batches: dict[str, Batch] = field(default_factory=dict)  # batch by way of encoding
    files: tuple[str, ...] = ()  # files opened while the task was loaded, encoded and fitted
    # Global settings and generators that the import of the module changed.
    changed: list[str] | None = None  # none where the import failed
    remembers: tuple[str, ...] = ()  # names in the task and its module that encoding changed
    problem: str = ""  # why there is no result


AHEAD = [datetime.timedelta()]
"""Offset that is added to the current time in `datetime` and `time`."""


class _OfReal(type):
    """Metaclass of a substitute class: instances of the real class count as its instances."""

    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, cls.__bases__[0])


def _make_movable(real: type, *names: str) -> type:
    """Return a subclass of a date class whose current time is moved."""

    def now(name: str) -> Callable[..., object]:
        return lambda cls, *args, **kwargs: getattr(real, name)(*args, **kwargs) + AHEAD[0]

    return _OfReal(real.__name__, (real,), {name: classmethod(now(name)) for name in names})


def _install_clock(module: ModuleType) -> None:
    """Install a movable clock in a module and the modules of its folder."""
    seconds = time.time
    date = _make_movable(datetime.date, "today")
    moment = _make_movable(datetime.datetime, "now", "today", "utcnow")
    dates, clock = ModuleType("datetime"), ModuleType("time")
    vars(dates).update({**vars(datetime), "date": date, "datetime": moment})

    def now() -> float:
        return seconds() + AHEAD[0].total_seconds()

    vars(clock).update({**vars(time), "time": now})
    for_real: list[tuple[object, object]] = [
        (datetime.date, date),
        (datetime.datetime, moment),
        (datetime, dates),
        (time, clock),
        (time.time, now),
    ]
    folder = Path(module.__file__ or "").parent
    # An import such as `from datetime import datetime` has copied the class into its module.
    for each in list(sys.modules.values()):
        if each is module or Path(getattr(each, "__file__", None) or "/").parent == folder:
            for name, value in list(vars(each).items()):
                if mine := [mine for real, mine in for_real if value is real]:
                    setattr(each, name, mine[0])


def main() -> int:
    """Process the files in the folder on the command line; return the exit code."""
    folder, answer = Path(sys.argv[1]), Answer()
    opened: list[str] = []
    # Written by the parent process, for this one alone.
    name, file, working_folder, parents_hash = pickle.loads((folder / REQUEST).read_bytes())
    if name in sys.modules or hash(PROBE) == parents_hash:
        return NOT_FRESH
    try:
        os.chdir(working_folder)
        answer.changed = _find_changes_by_import(name, file)
        if (folder / TASK).exists():
            rows = pl.read_ipc(folder / ROWS)
            _watch_files(opened)
            _install_clock(_load(name, file))
            make_task, state = pickle.loads((folder / TASK).read_bytes())
            opened.clear()
            _replay(make_task, state, rows, answer)
    except Exception as error:  # user code may raise anything
        answer.problem = f"{type(error).__name__}: {error}"
    answer.files = tuple(dict.fromkeys(opened))
    (folder / ANSWER).write_bytes(pickle.dumps(vars(answer)))  # of a class of `__main__` here
    return 0


def _find_changes_by_import(name: str, file: str) -> list[str]:
    """Return the generators that a module draws from or seeds, and the defaults that it sets."""
    known, before = set(sys.modules), _read_defaults()
    _load(name, file)
    after = _read_defaults()
    # Libraries may draw while they are imported. Once they are there, only the modules beside the
    # task are imported again.
    beside = Path(file).resolve().parent
    for each in set(sys.modules) - known:
        where = getattr(sys.modules[each], "__file__", None)
        if where and beside in Path(where).resolve().parents:
            del sys.modules[each]
    # Not a seed that a task would choose: its own, set again, would change nothing.
    random.seed(739391)
    np.random.seed(739391)
    torch.manual_seed(739391)
    seeded = generator_states()
    _load(name, file)
    sources = ("torch's global generator", "random's generator", "numpy's global generator")
    pairs = zip(sources, seeded, generator_states(), strict=True)
    drawn = [source for source, one, other in pairs if one != other]
    return [*drawn, *(key for key in before if after[key] != before[key])]


def _read_defaults() -> dict[str, object]:
    backend = torch.backends.cudnn
    return {
        "torch's default type": torch.get_default_dtype(),
        "torch's default device": str(torch.get_default_device()),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's matmul precision": torch.get_float32_matmul_precision(),
        "cudnn's settings": (backend.benchmark, backend.deterministic, backend.enabled),
    }


def _replay(
    make_task: Callable[[], Task],
    state: Mapping[str, JsonValue],
    rows: pl.DataFrame,
    answer: Answer,
) -> None:
    task = make_task()
    task.load_state(state)
    before = read_memory(task)
    answer.batches["again"] = task.encode(rows)
    turned = task.encode(rows.reverse())
    answer.batches["in reverse order"] = {name: each.flip(0) for name, each in turned.items()}
    single = [task.encode(rows.slice(row, 1)) for row in range(min(ALONE, rows.height))]
    answer.batches["one by one"] = {
        name: torch.cat([each[name] for each in single]) for name in single[0]
    }
    AHEAD[0] = LATER
    answer.batches["400 days later"] = task.encode(rows)
    AHEAD[0] = datetime.timedelta()
    after = read_memory(task)
    answer.remembers = find_changes(before, after)
    other = make_task()
    other.fit(rows.lazy())


def read_memory(task: Task) -> dict[str, str]:
    """Return plain values that outlive a call, as text, by name."""
    kind = type(task)
    owners = {
        "self": vars(task),
        kind.__name__: vars(kind),
        kind.__module__: vars(sys.modules[kind.__module__]),
    }
    return {
        f"{owner}.{name}": repr(value)[:LONGEST]
        for owner, values in owners.items()
        for name, value in values.items()
        if isinstance(value, KEPT) and not isinstance(value, type) and not name.startswith("__")
    }


def find_changes(before: Mapping[str, str], after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names whose value is different or new."""
    return tuple(name for name in after if before.get(name) != after[name])


def _load(name: str, file: str) -> ModuleType:
    """Import a module by its name, or from its file where that fails."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        spec = importlib.util.spec_from_file_location(name, file)
        if spec is None or spec.loader is None:
            raise
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module


def _watch_files(opened: list[str]) -> None:
    """Record the files that Python opens, and those that polars reads, which Python cannot see."""

    def note(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and isinstance(args[0], str):
            opened.append(args[0])

    def noted(read: Callable[..., object]) -> Callable[..., object]:
        @wraps(read)
        def reading(source: object, *args: object, **kwargs: object) -> object:
            sources = source if isinstance(source, list | tuple) else [source]
            opened.extend(str(each) for each in sources if isinstance(each, str | Path))
            return read(source, *args, **kwargs)

        return reading

    sys.addaudithook(note)
    for name in READERS:
        setattr(pl, name, noted(getattr(pl, name)))


if __name__ == "__main__":
    sys.exit(main())
