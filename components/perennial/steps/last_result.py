"""Last result: reused by the next run while all that it depends on is still the same."""

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import TypeVar

from pydantic import JsonValue

from perennial.clients.object_store import ObjectStore
from perennial.contracts.environment import Environment
from perennial.contracts.section import Section, digest_of

logger = logging.getLogger(__name__)


class LastResult(Section):
    """The newest result of a step for a model, under `monitoring/<model>/`."""

    schema_version: int = 1
    """Incremented when a field changes its meaning."""
    at: datetime
    """When it was made, UTC."""
    inputs: str
    """Digest of everything that it depends on."""


Result = TypeVar("Result", bound=LastResult)


def inputs_digest(inputs: Iterable[JsonValue], environment: Environment) -> str:
    """Return the digest of all that a result depends on: the inputs and the code."""
    parts = [*inputs, environment.code_digest, environment.image_digest]
    return digest_of(parts)


def find_last(store: ObjectStore, key: str, kind: type[Result], inputs: str) -> Result | None:
    """Return the stored result if its inputs are the same; else None, as for a damaged one."""
    content = store.read(key)
    try:
        last = kind.from_json(content) if content is not None else None
    except ValueError as error:
        logger.warning("%s/%s is not used: %s", store.uri, key, error)
        return None
    return last if last is not None and last.inputs == inputs else None
