"""Planning: what determines a study's trials, from the contract, the task and the snapshot."""

from collections.abc import Mapping

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.contracts.snapshot import Snapshot
from perennial.engine.evaluation.resampling import direction_of
from perennial.engine.task import check_options, load_task, load_task_type
from perennial.studies.config import StudySection
from perennial.studies.records import StudyPlan
from perennial.studies.sampling import require_sampler
from perennial.studies.space import option_value, read_with
from perennial.training_jobs.config import TrainModelConfig

COUNTED_RESOURCES = ("num_processes", "threads_per_process")
"""Options under `resources` that all trials of a study share, wherever they run."""


class StudyConfig(TrainModelConfig):
    """The sections of a contract that determine a study's trials."""

    study: StudySection | None = None


def trial_document(settings: TrainModelConfig, study: StudySection) -> dict[str, JsonValue]:
    """Return the contract that trials vary: with the fixed values, and their number of steps."""
    plain = TrainModelConfig.model_validate(
        {name: getattr(settings, name) for name in TrainModelConfig.model_fields}
    )
    found = read_with(TrainModelConfig, plain.model_dump(mode="json"), study.fixed_values)
    return found.model_dump(mode="json")


def baseline_of(
    document: Mapping[str, JsonValue], study: StudySection, task_options: Mapping[str, JsonValue]
) -> dict[str, JsonValue]:
    """Return option → value of the contract, of what varies and of what it is tied to.

    `task_options` has the defaults of the task's options, which a contract may leave out.
    """
    tied = [each.same_as for each in study.dimensions.values() if each.same_as is not None]
    found: dict[str, JsonValue] = {}
    for option in (*study.dimensions, *tied):
        is_known, value = option_value(document, option)
        if not is_known and option.startswith("model.options."):
            is_known, value = option_value({"model": {"options": dict(task_options)}}, option)
        if is_known:
            found[option] = value
    return found


def draft_plan(settings: TrainModelConfig, study: StudySection) -> StudyPlan:
    """Return a study's plan without its data, code and metric; imports the task.

    Raises:
        pydantic.ValidationError: the contract refuses the study's fixed values.
        PerennialError: a sampler's package is not installed, or the task refuses its options.
    """
    if study.proposed_by == "katib":
        _require_self_contained(settings)
    require_sampler(study.sampler, *([study.exploit.sampler] if study.exploit else []))
    document = trial_document(settings, study)
    options = check_options(load_task_type(settings.model.task), settings.model.options)
    return StudyPlan(
        model=settings.model.name,
        study=study,
        contract=document,
        baseline=baseline_of(document, study, options.model_dump(mode="json")),
        metric=study.metric,
        direction="minimize",
        snapshot="",
        code="",
    )


def _require_self_contained(settings: TrainModelConfig) -> None:
    """Refuse what is pinned before a study, for trials that Katib starts.

    Raises:
        PerennialError: the contract names initial weights or teachers.
    """
    if settings.model.initial.source != "scratch":
        raise PerennialError(
            "trials that Katib proposes start from random weights, but the contract names others",
            evidence=f'model.initial.source = "{settings.model.initial.source}"',
            action="remove study.proposed_by: Perennial's own trials start from these weights",
        )
    if settings.training.distillation is not None:
        raise PerennialError(
            "trials that Katib proposes have no teachers, but the contract names some",
            evidence="training.distillation.teachers = "
            f"{list(settings.training.distillation.teachers)}",
            action="remove study.proposed_by: Perennial's own trials learn from them",
        )


def plan_study(
    settings: StudyConfig,
    snapshot: Snapshot,
    code: str,
    initial: InitialModel | None,
    teachers: Teachers | None,
) -> StudyPlan:
    """Return the plan of the contract's study on a snapshot; imports PyTorch.

    `code` is the digest of the task's code, `initial` the weights that trials start with (None for
    random ones), `teachers` the versions that they learn from. A study that continues after its
    champion was replaced is another study.

    Raises:
        PerennialError: the contract has no study, or the task lacks the metric.
    """
    study = settings.study
    if study is None:
        raise PerennialError(
            "the contract has no [study]",
            action="write one, or name a file that has it: perennial study run CONTRACT --study F",
        )
    draft = draft_plan(settings, study)
    task = load_task(settings.model.task, settings.model.options, snapshot.task_columns)
    metric = study.metric or settings.training.metric or next(iter(task.metrics), "loss")
    counted = settings.resources.model_dump(mode="json", include=set(COUNTED_RESOURCES))
    return draft.model_copy(
        update={
            "contract": {**draft.contract, "resources": counted},
            "metric": metric,
            "direction": direction_of(task, metric, "study.metric"),
            "snapshot": snapshot.digest(),
            "code": code,
            "initial": initial.identity() if initial is not None else {},
            "teachers": teachers.identity() if teachers is not None else {},
        }
    )
