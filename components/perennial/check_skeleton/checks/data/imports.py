"""Check that importing the task's module does not change global state."""

import json
import subprocess
import sys
from functools import cache
from pathlib import Path

from perennial.check_skeleton.registry import Judge, check
from perennial.check_skeleton.subject import Subject
from perennial.contracts.skeleton import CheckResult

TIMEOUT_SECONDS = 120.0
MARK = "perennial-import:"
# Runs in a fresh interpreter. Imports the libraries first, so that only changes by the task's own
# module are observed.
PROBE = """
import importlib, importlib.util, json, os, random, sys
import numpy, torch
import torch.utils.data

def seen():
    kind, keys, *rest = numpy.random.get_state(legacy=True)
    return {
        "random's generator": hash(random.getstate()),
        "numpy's global generator": hash((keys.tobytes(), *rest)),
        "torch's global generator": hash(torch.get_rng_state().numpy().tobytes()),
        "torch's default type": str(torch.get_default_dtype()),
        "torch's default device": str(torch.get_default_device()),
        "torch's number of threads": torch.get_num_threads(),
        "torch's deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "torch's gradient mode": torch.is_grad_enabled(),
        "torch's matmul precision": torch.get_float32_matmul_precision(),
        "cudnn's settings": [
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.backends.cudnn.enabled,
        ],
    }

def load(name, file):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not (name + ".").startswith(error.name + "."):
            raise
        spec = importlib.util.spec_from_file_location(name, file)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)

name, file = sys.argv[1:3]
known, before = set(sys.modules), seen()
load(name, file)
after = seen()
# Libraries may draw while they are imported. Once they are there, only the modules beside the
# task are imported again.
beside = os.path.dirname(os.path.abspath(file)) + os.sep
for each in set(sys.modules) - known:
    where = getattr(sys.modules[each], "__file__", None) or ""
    if os.path.abspath(where).startswith(beside):
        del sys.modules[each]
# Not a seed that a task would choose: its own, set again, would change nothing.
random.seed(739391), numpy.random.seed(739391), torch.manual_seed(739391)
drawn = seen()
load(name, file)
again = seen()
changed = [
    key for key in before
    if (again[key] != drawn[key] if "generator" in key else after[key] != before[key])
]
print("\\n" + sys.argv[3] + json.dumps(changed), flush=True)
"""


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
    file = file_of(name)
    if not file:
        return judge.skipped(f"the module {name} has no file to import")
    changed = _changed_by_import(name, file, tuple(sys.path))
    if isinstance(changed, str):
        return judge.skipped(f"{name} cannot be imported alone: {changed}")
    if changed:
        return judge.warned(
            f"importing {name} changes {', '.join(changed)}",
            hint="draw numbers, seed and set defaults inside the task's methods; the engine seeds "
            "each process and [training] sets precision and determinism",
            changed=list(changed),
        )
    return judge.passed(f"importing {name} changes nothing global")


def file_of(name: str) -> str:
    """Return the file of an imported module; empty if it has none that can run alone."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    return file if file and name != "__main__" and Path(file).is_file() else ""


@cache
def _changed_by_import(name: str, file: str, path: tuple[str, ...]) -> tuple[str, ...] | str:
    """Return what an import changes, or why that is unknown; one interpreter per module."""
    # The probe itself must not shadow a module of the user's.
    code = f"import sys; sys.path[:] = {list(path)!r}\n{PROBE}"
    command = [sys.executable, "-c", code, name, file, MARK]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return f"timed out after {TIMEOUT_SECONDS:g} s"
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(MARK):
            return tuple(json.loads(line.removeprefix(MARK)))
    last = done.stderr.strip().splitlines()[-1:] or [f"exit status {done.returncode}"]
    return last[0]
