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
from components.engine.evaluation.resampling import blocks_of
from components.engine.evaluation.scoring import score_split, scoring_device
from components.engine.export import load_model
from components.evaluate_model.champion import Champion, read_champion
from components.evaluate_model.comparison import Contender, columns_to_keep, finite_contender
from components.evaluate_model.config import EvaluateModelConfig
from components.evaluate_model.performance import performance_by_block
from components.evaluate_model.report import write_report
from components.evaluate_model.verdict import reach_verdict


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
    data = dataset.snapshot.data
    keep = columns_to_keep(dataset.snapshot, section.gate.slices)
    task, model = load_model(Path(challenger), scoring_device())
    contender = finite_contender(task, score_split(task, model, dataset, Split.TEST, keep=keep))
    champion = _champion(environment, section.model.name, dataset, contender, keep)
    blocks = blocks_of(contender.scored.rows, data)
    validated = score_split(task, model, dataset, Split.VALIDATION, keep=keep)
    decided = reach_verdict(
        section.gate,
        contender,
        champion,
        blocks,
        weights_sha256=Challenger.read(Path(challenger)).weights_sha256,
        baselines=SkeletonReport.read(Path(skeleton)).baselines,
        performance=performance_by_block((validated, contender.scored), data),
    )
    decided.write(Path(verdict))
    write_report(
        Path(report),
        verdict=decided,
        gate=section.gate,
        task=task,
        scored=contender.scored,
        unit=blocks.unit,
    )
    values = _record(environment, section.model.name, decided)
    parameters: dict[str, str | bool] = {"promote": decided.promote}
    return StepResult(parameters=parameters, metrics=values, summary=decided.summary)


def _champion(
    environment: Environment,
    name: str,
    dataset: Dataset,
    challenger: Contender,
    keep: tuple[str, ...],
) -> Champion:
    registry = open_registry(environment)
    version = registry.version_by_alias(name, CHAMPION)
    if version is None:
        return Champion()
    with TemporaryDirectory() as scratch:
        folder = registry.download(version, Path(scratch))
        return read_champion(folder, version.version, dataset, challenger, keep)


def _record(environment: Environment, name: str, verdict: Verdict) -> dict[str, float]:
    """The scalars of the verdict, also put on the tracking run, which ends here when rejected."""
    values = {"promote": float(verdict.promote)}
    for comparison in verdict.comparisons:
        values[f"test/{comparison.metric}"] = comparison.challenger
        if comparison.improvement is not None:
            values[f"test/{comparison.metric}_improvement"] = comparison.improvement.estimate
    tracking = open_tracking(environment, name)
    tracking.log_metrics(values)
    tracking.set_tags({"perennial.verdict": verdict.summary})
    if not verdict.promote:
        tracking.finish()
    return values
