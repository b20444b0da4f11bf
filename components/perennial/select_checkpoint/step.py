"""The step `select_checkpoint`: score every kept checkpoint and export the chosen one."""

from pathlib import Path

from perennial.clients.tracking import open_tracking
from perennial.contracts.artifact import hand_on
from perennial.contracts.environment import Environment
from perennial.contracts.training import Challenger
from perennial.select_checkpoint.candidates import select_challenger
from perennial.select_checkpoint.config import SelectCheckpointConfig
from perennial.steps.decorator import StepResult, pipeline_step
from perennial.training_jobs.scoring_jobs import open_shards


@pipeline_step(
    "select_checkpoint",
    reads=SelectCheckpointConfig,
    outputs=("challenger", "selection", "report"),
)
def select_checkpoint_step(
    *, contract: str, snapshot: str, training: str, challenger: str, selection: str, report: str
) -> StepResult:
    """Score the kept checkpoints on all validation rows and export the best."""
    section, environment = SelectCheckpointConfig.from_json(contract), Environment.read()
    result = select_challenger(
        section.selection,
        Path(snapshot),
        Path(training),
        Path(challenger),
        page=Path(report),
        ensemble=section.model.ensemble,
        shards=open_shards(section.scoring, section.resources, section.model, environment),
    )
    chosen = Challenger.read(Path(challenger))
    hand_on(Path(selection), chosen, Path(training), Path(snapshot))
    open_tracking(environment, section.model.name).log_metrics(result.metrics)
    return result
