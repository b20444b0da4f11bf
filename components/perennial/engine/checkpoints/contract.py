"""Contract of a checkpoint: in which settings does it differ from the training that finds it?"""

from collections.abc import Iterator, Mapping

from pydantic import JsonValue

from perennial.contracts.errors import PerennialError
from perennial.engine.checkpoints.folder import CheckpointManifest

SHOWN = 12
ABSENT = "(absent)"


def require_same_training(
    where: str, manifest: CheckpointManifest, fingerprint: str, contract: Mapping[str, JsonValue]
) -> None:
    """Check that a checkpoint belongs to this training.

    Args:
        where: The checkpoint's address.
        manifest: Of the checkpoint.
        fingerprint: Of this training.
        contract: What that is the digest of.

    Raises:
        PerennialError: it belongs to another one; the settings that differ are named.
    """
    if manifest.fingerprint == fingerprint:
        return
    found = differences(manifest.contract, contract)
    lines = [f"{key}: {then} in the checkpoint, {now} now" for key, then, now in found[:SHOWN]]
    if len(found) > SHOWN:
        lines.append(f"and {len(found) - SHOWN} more")
    prints = f"its fingerprint is {manifest.fingerprint[:16]}, not {fingerprint[:16]}"
    raise PerennialError(
        f"the checkpoint {where} belongs to another training",
        evidence="\n".join([prints, *lines]),
        action="undo these changes to continue it, or remove its folder to start anew; never point "
        "two trainings at one folder",
    )


def differences(
    stored: Mapping[str, JsonValue], current: Mapping[str, JsonValue]
) -> list[tuple[str, str, str]]:
    """Dotted key, value stored and value now, for each setting that differs."""
    before, now = dict(_leaves(stored)), dict(_leaves(current))
    return [
        (key, before.get(key, ABSENT), now.get(key, ABSENT))
        for key in sorted(before.keys() | now.keys())
        if before.get(key, ABSENT) != now.get(key, ABSENT)
    ]


def _leaves(settings: Mapping[str, JsonValue], prefix: str = "") -> Iterator[tuple[str, str]]:
    for key, value in settings.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", repr(value)
