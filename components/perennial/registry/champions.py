"""Champions: resolve `[model.ensemble]` once per run, and pin the last champions."""

import logging

from perennial.clients.object_store import open_store
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import Champions, InitialModel
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.version_decisions import is_rolled_back
from perennial.engine.task import load_task_type
from perennial.engine.teachers import KINDS
from perennial.registry.initial import pin_version, with_rule

logger = logging.getLogger(__name__)


def resolve_champions(
    model: ModelSection, snapshot: Snapshot, environment: Environment
) -> Champions | None:
    """Return the last champions, pinned by digest; None without `[model.ensemble]`.

    Left out are versions that a person rolled back, and those trained under another split rule,
    for which validation rows may be training rows.

    Raises:
        DamagedModelError: a version's files are not what they were.
        PerennialError: the task is of a kind without predictions to average.
    """
    if model.ensemble is None:
        return None
    kind = getattr(load_task_type(model.task), "kind", None)
    if kind is not None and kind not in KINDS:
        raise PerennialError(
            f"model.ensemble is not for {model.task}, whose kind is {kind}",
            evidence=f"it is for {', '.join(KINDS)}",
            action="remove [model.ensemble]",
        )
    # Here, because MLflow takes seconds to import.
    from perennial.registry.model_registry import open_registry  # noqa: PLC0415

    registry, store = open_registry(environment), open_store(environment.store_uri)
    records = registry.champion_records(model.name)
    records.champion()  # refused where the records contradict each other
    own = with_rule((), snapshot)[0]
    members: list[InitialModel] = []
    left_out: list[str] = []
    for number in records.promoted_versions():
        version = records.versions[number]
        if len(members) == model.ensemble.champions:
            break
        if is_rolled_back(version.tags):
            left_out.append(f"version {number} was rolled back")
            continue
        action = "remove [model.ensemble], for one training"
        pinned = pin_version(registry, version, store, source="champion", action=action)
        if any(each.split_rule != own.split_rule for each in pinned.origin.seen):
            left_out.append(f"version {number} was trained under another split rule")
            continue
        logger.info("member=%s", pinned.origin.describe())
        members.append(pinned)
    return Champions(members=tuple(members), left_out=tuple(left_out))
