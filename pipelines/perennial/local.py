"""Local driver: executes a run's compiled pipeline through `kfp.local`, one process per step.

Started by the supervisor as `python -m perennial.local RUN_FOLDER`.
"""

import atexit
import contextlib
import gc
import importlib
import logging
import multiprocessing
import os
import runpy
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from kfp import components, local
from kfp.local import subprocess_task_handler

from perennial.contracts.errors import PerennialError
from perennial.contracts.user_code import end_soon
from perennial.runs import RunRecord, step_records
from perennial.steps.journal import Journal
from perennial.steps.lease import follow_lease, join_lease
from perennial.steps.processes import name_process, share_fork_server, start_fork_server
from perennial.steps.stored_steps import FLOW

EXECUTOR = "kfp.dsl.executor_main"
LEAST_FREE = 10_000_000
"""Bytes of disk: with fewer, a process that ended without a result could not write one."""
DECISION, TRIALS = "decide_retraining", "check_skeleton"


def main(folder: Path) -> int:
    """Execute the run; 0 when the pipeline succeeded."""
    atexit.register(gc.freeze)  # see `cli.main`
    run = RunRecord.read(folder)
    with steps_forked_from_a_warm_process(FLOW[run.pipeline]):
        return _execute(run, folder)


def _execute(run: RunRecord, folder: Path) -> int:
    follow_lease()
    outputs = folder / "kfp"
    refuse_rewritten_text(str(outputs))
    shutil.rmtree(outputs, ignore_errors=True)
    # KFP warns when an image's name lacks the word "python"; it never looks at the image locally.
    warnings.filterwarnings("ignore", message=".*non-Python base image.*", category=RuntimeWarning)
    local.init(
        local.SubprocessRunner(use_venv=False), pipeline_root=str(outputs), raise_on_error=True
    )
    pipeline = components.load_component_from_file(str(folder / "pipeline.yaml"))
    try:
        pipeline(**run.parameters)
    except Exception:  # KFP raises many kinds; the steps themselves have journaled the real cause
        logging.getLogger(__name__).exception("run=%s failed", run.run_id)
        return record_silent_ends(folder, 1)
    finally:
        # Every step's outputs are kept under steps/; KFP's own copies would double the disk.
        shutil.rmtree(outputs, ignore_errors=True)
    return record_silent_ends(folder, 0)


@contextlib.contextmanager
def steps_forked_from_a_warm_process(flow: Sequence[str]) -> Iterator[None]:
    """Fork each step from one process that has imported what the step needs.

    Importing PyTorch, Great Expectations, MLflow and KFP takes 8 s of CPU; without this, each step
    pays its part of that again. On macOS, whose own frameworks do not survive a fork, it does.
    The modules of the next steps of the flow are imported while a step runs, on a core that it
    leaves idle.
    """
    if sys.platform != "linux":
        yield
        return
    # The process is forked before the driver has a thread, and ends when `requests` is closed.
    fork = multiprocessing.get_context("fork")
    requests, answers = fork.Pipe()
    warm = fork.Process(target=_fork_steps, args=(requests, answers, flow))
    warm.start()
    # The fork's end. Each side closes the other's, or a read never sees that the other has ended.
    answers.close()

    def run_step(full_command: list[str], env_vars: Mapping[str, str] | None = None) -> int:
        _, _, _, source, *arguments = full_command  # sh -ec SCRIPT SOURCE ARGUMENT...
        # Without a lock: locally KFP runs tasks in turn, and a study has one worker.
        requests.send((source, arguments, dict(env_vars or {})))
        return int(requests.recv())

    # KFP has no public way to give its runner another kind of process.
    subprocess_task_handler.run_local_subprocess = run_step
    try:
        yield
    finally:
        requests.close()
        warm.join()


def _fork_steps(requests: Connection, answers: Connection, flow: Sequence[str]) -> None:
    """Run steps as they are asked for; what one imported is there for the next."""
    requests.close()
    join_lease()
    # Python 3.12 warns of a fork beside any thread; Arrow's and Polars' own are idle and prepared.
    warnings.filterwarnings("ignore", message=".*multi-threaded.*", category=DeprecationWarning)
    with contextlib.suppress(EOFError, BrokenPipeError):  # the driver has ended
        while True:
            source, arguments, variables = answers.recv()
            name = arguments[arguments.index("--function_to_execute") + 1]
            if TRIALS in (name, *steps_after(name, flow)):
                start_fork_server()  # imports the engine for the trials and the training's ranks
            _import_step(name)
            # The step's collector would visit, and so copy, all pages that it shares with us.
            gc.freeze()
            step = multiprocessing.get_context("fork").Process(
                target=_run_step, args=(name, source, arguments, variables)
            )
            step.start()
            for following in steps_after(name, flow):
                if not step.is_alive():
                    break
                _import_step(following)
            step.join()
            answers.send(step.exitcode)


def steps_after(name: str, flow: Sequence[str]) -> Sequence[str]:
    """Return the steps that certainly follow a step: whether to retrain is not known before."""
    following = flow[flow.index(name) + 1 :] if name in flow else ()
    if name == DECISION:
        return ()
    return following[: following.index(DECISION) + 1] if DECISION in following else following


def _import_step(name: str) -> None:
    for module in (EXECUTOR, f"perennial.{name}.step"):
        # What cannot be imported here is named by the step itself.
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def _run_step(
    name: str, source: str, arguments: Sequence[str], variables: Mapping[str, str]
) -> None:
    """Do what the shell script of KFP's command does, without a new interpreter."""
    share_fork_server()
    name_process(name)
    os.environ.update({**variables, "_KFP_RUNTIME": "true"})
    path = Path(tempfile.mkdtemp()) / "ephemeral_component.py"
    path.write_text(source)
    sys.argv = [EXECUTOR, "--component_module_path", str(path), *arguments]
    sys.modules.pop(EXECUTOR, None)  # `runpy` warns of a module that is there already
    code = 1
    try:
        runpy.run_module(EXECUTOR, run_name="__main__", alter_sys=True)
        code = 0
    finally:
        end_soon(code)


def record_silent_ends(folder: Path, code: int) -> int:
    """Record as failed each step whose process ended without a result; returns the exit code.

    A process that is killed, or ends itself with `_exit(0)`, writes nothing.
    """
    for step in step_records(folder):
        if step.status == "running":
            code = 1
            Journal(folder).append(
                "step_failed",
                step=step.step,
                key=step.key,
                log=step.log,
                traceback="",
                error=silent_end(folder, step.step),
            )
    return code


def silent_end(folder: Path, step: str) -> str:
    """Return why a step of an ended driver has no result, as far as it is known."""
    free = shutil.disk_usage(folder).free
    cause = "was killed (often because memory ran out), or code of the task ended it"
    if free < LEAST_FREE:
        cause = f"had {free / 1e6:.1f} MB of disk left in {folder}; free space, and run it again"
    return f"the process of {step} ended before it wrote its result: it {cause}"


def refuse_rewritten_text(path: str) -> None:
    """Refuse a path with `python3` in it, which KFP's runner replaces by the interpreter's path.

    Raises:
        PerennialError: the path holds that text.
    """
    if "python3" in path:
        raise PerennialError(
            f'the folder {path} has "python3" in its path',
            evidence="KFP's local runner replaces that text in every value it passes on",
            action="choose another folder with --home",
        )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
