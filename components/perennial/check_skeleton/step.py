"""Run the step `check_skeleton`: examine the task on samples of the snapshot, write the results."""

from itertools import count
from pathlib import Path

from pydantic import JsonValue

from perennial.check_skeleton.config import CheckSkeletonConfig
from perennial.check_skeleton.examination import examine
from perennial.check_skeleton.registry import check_names
from perennial.check_skeleton.verdict import make_error, summarise
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.skeleton import CheckResult
from perennial.contracts.snapshot import Snapshot
from perennial.data.dataset import Dataset
from perennial.engine.adapters import require_base
from perennial.engine.evaluation.baseline_rows import DOCUMENT
from perennial.registry.earlier_versions import resolve_champions, resolve_teachers
from perennial.registry.initial import resolve_initial
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.steps.journal import Journal


@pipeline_step("check_skeleton", reads=CheckSkeletonConfig, outputs=("skeleton", "report"))
def check_skeleton_step(*, contract: str, snapshot: str, skeleton: str, report: str) -> StepResult:
    """Examine the task; the report is written whatever the results are.

    Raises:
        PerennialError: initial weights, teachers or champions cannot be used.
        BadTaskError: a check failed and no waiver covers it.
    """
    journal, done = Journal.of_this_process(), count(1)

    def log_progress(result: CheckResult) -> None:
        journal.append(
            "progress",
            step="check_skeleton",
            done=next(done),
            total=len(check_names()),
            check=result.check,
        )

    config = CheckSkeletonConfig.from_json(contract)
    # Resolved here, once: all later steps read what is pinned.
    environment = Environment.read()
    initial = resolve_initial(config.model, environment)
    require_base(config.training.adapter, initial)
    teachers = resolve_teachers(config.model, config.training.distillation, environment)
    dataset = Dataset(Snapshot.read(Path(snapshot)))
    champions = resolve_champions(config.model, dataset.snapshot, environment)
    examination = examine(config, dataset, initial, teachers, show=log_progress)
    found = examination.report
    more: dict[str, JsonValue] = {DOCUMENT: examination.baseline_rows.document()}
    for pinned in (initial, teachers, champions):
        if pinned is not None:
            more[pinned.document_name()] = pinned.model_dump(mode="json")
    hand_on(Path(skeleton), found, Path(snapshot), more=more)
    examination.page.write(Path(report))
    if found.failures:
        raise make_error(found)
    outcomes = [result.outcome for result in found.results]
    counts = {
        name: float(outcomes.count(name)) for name in ("passed", "warned", "failed", "skipped")
    }
    return StepResult(metrics=counts, summary=summarise(found))
