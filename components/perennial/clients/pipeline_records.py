"""Records of a Kubeflow Pipelines server: versions, schedules, runs."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import kfp_server_api

EPOCH = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True)
class PipelineVersion:
    """One immutable compiled pipeline on the server."""

    pipeline_id: str
    version_id: str
    name: str


@dataclass(frozen=True)
class Schedule:
    """A recurring run."""

    schedule_id: str
    name: str
    description: str
    enabled: bool
    cron: str
    created_at: datetime
    version: PipelineVersion
    parameters: Mapping[str, str] = field(default_factory=dict)
    experiment_id: str = ""

    @property
    def age(self) -> tuple[datetime, str]:
        """Orders schedules by their creation, equal for every reader."""
        return self.created_at, self.schedule_id


@dataclass(frozen=True)
class PipelineTask:
    """One task of a run, as the dashboard shows it."""

    name: str
    state: str
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(frozen=True)
class PipelineRun:
    """One run on the server."""

    run_id: str
    name: str
    state: str
    history: tuple[str, ...]
    created_at: datetime
    finished_at: datetime | None
    schedule_id: str
    version_id: str
    parameters: Mapping[str, str] = field(default_factory=dict)
    tasks: tuple[PipelineTask, ...] = ()
    pipeline_id: str = ""

    @property
    def is_over(self) -> bool:
        """Whether nothing of it will happen any more."""
        return self.state in ("SUCCEEDED", "FAILED", "SKIPPED", "CANCELED", "ERROR")

    @property
    def was_canceled(self) -> bool:
        """Whether somebody terminated it.

        A terminated run ends in state FAILED on current servers (measured on 2.16.1); only its
        history tells it from one that failed by itself.
        """
        return self.state in ("CANCELING", "CANCELED") or "CANCELING" in self.history

    @property
    def outcome(self) -> str:
        """Its state in a word that people use."""
        if self.was_canceled:
            return "cancelled" if self.is_over else "being cancelled"
        return self.state.lower()


@dataclass(frozen=True)
class NewRun:
    """Request to start a run."""

    name: str
    version: PipelineVersion
    parameters: Mapping[str, str]
    service_account: str = ""
    pipeline_root: str = ""
    description: str = ""


@dataclass(frozen=True)
class NewSchedule(NewRun):
    """Request to create a recurring run."""

    cron: str = ""
    """Six fields: seconds, minutes, hours, day of the month, month, day of the week; UTC."""
    max_concurrency: int = 1
    enabled: bool = True
    starts_at: datetime | None = None
    """No run begins before."""


def version_reference(version: PipelineVersion) -> kfp_server_api.V2beta1PipelineVersionReference:
    """Return the reference to a version in a request."""
    # Both are needed, against the description of the API.
    return kfp_server_api.V2beta1PipelineVersionReference(
        pipeline_id=version.pipeline_id, pipeline_version_id=version.version_id
    )


def runtime_config(parameters: Mapping[str, str], root: str) -> kfp_server_api.V2beta1RuntimeConfig:
    """Return the runtime configuration of a run: parameters and pipeline root."""
    return kfp_server_api.V2beta1RuntimeConfig(
        parameters=dict(parameters), pipeline_root=root or None
    )


def read_documents(version: kfp_server_api.V2beta1PipelineVersion) -> list[dict[str, Any]]:
    """A version's pipeline and platform specification, as far as the server's answer has them."""
    spec = version.pipeline_spec or {}
    if "pipeline_spec" not in spec:
        return [spec]
    return [spec["pipeline_spec"], spec.get("platform_spec") or {}]


def read_schedule(item: kfp_server_api.V2beta1RecurringRun) -> Schedule:
    """A recurring run as the server describes it."""
    reference, trigger = item.pipeline_version_reference, item.trigger
    cron = trigger.cron_schedule.cron if trigger and trigger.cron_schedule else ""
    return Schedule(
        schedule_id=item.recurring_run_id,
        name=item.display_name or "",
        description=item.description or "",
        enabled=item.status == "ENABLED" or item.mode == "ENABLE",
        cron=cron,
        created_at=item.created_at or EPOCH,
        version=PipelineVersion(
            reference.pipeline_id if reference else "",
            (reference.pipeline_version_id if reference else "") or "",
            "",
        ),
        parameters=_parameters(item),
        experiment_id=item.experiment_id or "",
    )


def read_run(item: kfp_server_api.V2beta1Run) -> PipelineRun:
    """A run as the server describes it; its tasks only where it was asked for alone."""
    reference, details = item.pipeline_version_reference, item.run_details
    tasks = (details.task_details if details else None) or ()
    return PipelineRun(
        run_id=item.run_id,
        name=item.display_name or "",
        state=item.state or "PENDING",
        history=tuple(entry.state for entry in item.state_history or () if entry.state),
        created_at=item.created_at or EPOCH,
        # An unfinished run's end comes as the epoch.
        finished_at=_moment(item.finished_at),
        schedule_id=item.recurring_run_id or "",
        version_id=(reference.pipeline_version_id if reference else "") or "",
        parameters=_parameters(item),
        tasks=tuple(
            PipelineTask(
                task.display_name or "", task.state or "",
                _moment(task.start_time), _moment(task.end_time),
            )
            for task in tasks
        ),
        pipeline_id=(reference.pipeline_id if reference else "") or "",
    )  # fmt: skip


def _moment(value: datetime | None) -> datetime | None:
    return value if value is not None and value > EPOCH else None


def _parameters(
    item: kfp_server_api.V2beta1Run | kfp_server_api.V2beta1RecurringRun,
) -> dict[str, str]:
    values = item.runtime_config.parameters if item.runtime_config else None
    return {key: str(value) for key, value in (values or {}).items()}
