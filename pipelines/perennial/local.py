"""Local driver: executes a run's compiled pipeline through `kfp.local`, one process per step.

Started by the supervisor as `python -m perennial.local RUN_FOLDER`.
"""

import logging
import shutil
import sys
import warnings
from pathlib import Path

from kfp import components, local

from perennial.contracts.errors import PerennialError
from perennial.runs import RunRecord, step_records
from perennial.steps.journal import Journal
from perennial.steps.lease import follow_lease


def main(folder: Path) -> int:
    """Execute the run; 0 when the pipeline succeeded."""
    follow_lease()
    run = RunRecord.read(folder)
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


def record_silent_ends(folder: Path, code: int) -> int:
    """Record as failed each step whose process ended without a result; returns the exit code.

    A process that is killed, or ends itself with `_exit(0)`, writes nothing.
    """
    for step in step_records(folder):
        if step.status == "running":
            code = 1
            Journal(folder).append(
                "step_failed", step=step.step, key=step.key, log=step.log, traceback="",
                error=f"the process of {step.step} ended before it wrote its result: it was "
                "killed (often because memory ran out), or code of the task ended it",
            )  # fmt: skip
    return code


def refuse_rewritten_text(path: str) -> None:
    """KFP's subprocess runner replaces `python3` in every path by the interpreter's own path.

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
