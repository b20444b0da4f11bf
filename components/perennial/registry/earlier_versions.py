"""Earlier versions: resolve `[training.distillation]` and `[model.ensemble]` once per run.

The registered versions that they name are pinned by digest, as initial weights are.
"""

import logging

from perennial.clients.object_store import open_store
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import Champions, InitialModel, Teachers
from perennial.contracts.snapshot import Snapshot
from perennial.contracts.version_decisions import is_rolled_back
from perennial.engine.config.distillation import Distillation
from perennial.engine.task import load_task_type
from perennial.engine.teachers import KINDS
from perennial.registry.initial import pin_version, with_rule

logger = logging.getLogger(__name__)


def resolve_teachers(
    model: ModelSection, distillation: Distillation | None, environment: Environment
) -> Teachers | None:
    """Return the versions to learn from, pinned by digest; None without distillation.

    While a model has no champion, its own champion is left out: the first training has none.

    Raises:
        DamagedModelError: a version's files are not what they were.
        PerennialError: there is no such version, or it cannot be used.
    """
    if distillation is None:
        return None
    # Here, because MLflow takes seconds to import.
    from perennial.registry.champion_records import CHAMPION  # noqa: PLC0415
    from perennial.registry.model_registry import open_registry  # noqa: PLC0415

    registry, store = open_registry(environment), open_store(environment.store_uri)
    members: list[InitialModel] = []
    for asked in distillation.teachers:
        name, _, wanted = asked.partition("@")
        name = name or model.name
        if wanted == CHAMPION:
            version = registry.version_by_alias(name, CHAMPION)
        else:
            version = next((v for v in registry.versions(name) if v.version == wanted), None)
        if version is None and (name, wanted) == (model.name, CHAMPION):
            logger.info("training.distillation: there is no champion yet, so labels alone teach")
            continue
        if version is None:
            known = ", ".join(each.version for each in registry.versions(name)) or "none"
            raise PerennialError(
                f"training.distillation.teachers: there is no {name}@{wanted}",
                evidence=f"versions of {name}: {known}",
                action="name a registered version; `perennial models` lists them",
            )
        action = f"name another version than {asked} in training.distillation.teachers"
        pinned = pin_version(registry, version, store, source="version", action=action)
        if pinned.origin in [each.origin for each in members]:
            logger.info("teacher=%s is named twice and counts once", asked)
            continue
        logger.info("teacher=%s", pinned.origin.describe())
        members.append(pinned)
    return Teachers(asked=distillation.teachers, members=tuple(members))


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
        if not all(each.splits_as(own) for each in pinned.origin.seen):
            left_out.append(f"version {number} was trained under another split rule")
            continue
        logger.info("member=%s", pinned.origin.describe())
        members.append(pinned)
    return Champions(members=tuple(members), left_out=tuple(left_out))
