"""The error about a training that ran out of memory and the runbook give one advice."""

from pathlib import Path

from perennial.clean_up.killed_steps import MORE_MEMORY as MORE_MEMORY_OF_A_STEP
from perennial.training_jobs.attempts import MORE_MEMORY, training_failed

RUNBOOK = Path(__file__).resolve().parents[3] / "k8s" / "runbook.md"


def test_the_runbook_gives_the_advice_of_the_errors():
    error = training_failed(None, "a process was killed before its first step", "job.log")
    assert MORE_MEMORY in error.action
    page = " ".join(RUNBOOK.read_text().split()).lower()
    assert MORE_MEMORY.lower() in page
    assert MORE_MEMORY_OF_A_STEP.format(step="STEP").lower() in page
