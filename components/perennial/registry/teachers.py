"""Teachers: resolve `[training.distillation]` once per run, and pin the registered versions."""

import logging

from perennial.clients.object_store import open_store
from perennial.contracts.data import ModelSection
from perennial.contracts.environment import Environment
from perennial.contracts.errors import PerennialError
from perennial.contracts.initial_model import InitialModel, Teachers
from perennial.engine.config.distillation import Distillation
from perennial.registry.initial import pin_version

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
