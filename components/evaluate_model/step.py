"""The step `evaluate_model`: scores challenger and champion on the test rows and decides."""

from pathlib import Path
from tempfile import TemporaryDirectory

from components.clients.dataset import Dataset
from components.clients.environment import Environment
from components.clients.model_registry import CHAMPION, open_registry
from components.clients.steps import StepResult, pipeline_step
from components.clients.tracking import open_tracking
from components.contracts.data import Split
from components.contracts.gate import Verdict
from components.contracts.skeleton import SkeletonReport
from components.contracts.snapshot import Snapshot
from components.contracts.training import Challenger
from components.engine.evaluation.resampling import block_columns
from components.engine.evaluation.scoring import score_split, scoring_device
from components.engine.export import load_model
from components.evaluate_model.champion import Champion, read_champion
from components.evaluate_model.comparison import Contender, columns_to_keep, finite_contender
from components.evaluate_model.config import EvaluateModelConfig
from components.evaluate_model.performance import performance_by_block
from components.evaluate_model.report import write_report
from components.evaluate_model.serving import serve_in_clean_process
from components.evaluate_model.verdict import judged_rows, reach_verdict, scalars_of


@pipeline_step("evaluate_model", outputs=("verdict", "report", "metrics"))
def evaluate_model_step(
    *,
    config: str,
    snapshot: str,
    challenger: str,
    skeleton: str,
    verdict: str,
    report: str,
    metrics: str,
) -> StepResult:
    """Compare the challenger with the champion on rows that neither was trained on."""
    section = EvaluateModelConfig.from_json(config)
    environment = Environment.read()
    dataset = Dataset(Snapshot.read(Path(snapshot)))
    keep = columns_to_keep(dataset.snapshot, section.gate)
    task, model = load_model(Path(challenger), scoring_device())
    contender = finite_contender(task, score_split(task, model, dataset, Split.TEST, keep=keep))
    test = judged_rows(dataset, contender, section.gate)
    data = dataset.snapshot.data
    validated = score_split(task, model, dataset, Split.VALIDATION, keep=block_columns(data))
    with TemporaryDirectory() as scratch:
        champion = _champion(environment, section.model.name, dataset, contender, Path(scratch))
        decided = reach_verdict(
            section.gate,
            contender,
            champion,
            test,
            weights_sha256=Challenger.read(Path(challenger)).weights_sha256,
            baselines=SkeletonReport.read(Path(skeleton)).baselines,
            performance=performance_by_block((validated, contender.scored), data),
            serving=serve_in_clean_process(
                Path(challenger),
                task,
                dataset,
                contender.scored.predictions,
                rival=champion.folder if section.gate.times_champion else None,
            ),
        )
    decided.write(Path(verdict))
    unit, page = test.blocks.unit, Path(report)
    write_report(page, verdict=decided, gate=section.gate, task=task, unit=unit)
    values = _record(environment, section.model.name, decided)
    parameters: dict[str, str | bool] = {"promote": decided.promote}
    return StepResult(parameters=parameters, metrics=values, summary=decided.summary)


def _champion(
    environment: Environment, name: str, dataset: Dataset, challenger: Contender, scratch: Path
) -> Champion:
    registry = open_registry(environment)
    version = registry.version_by_alias(name, CHAMPION)
    if version is None:
        return Champion()
    folder = registry.download(version, scratch)
    return read_champion(folder, version.version, dataset, challenger)


def _record(environment: Environment, name: str, verdict: Verdict) -> dict[str, float]:
    """The scalars of the verdict, also put on the tracking run, which ends here when rejected."""
    values = scalars_of(verdict)
    tracking = open_tracking(environment, name)
    tracking.log_metrics(values)
    tracking.set_tags({"perennial.verdict": verdict.summary})
    if not verdict.promote:
        tracking.finish()
    return values
